"""Who may read, who may change, and whose jobs: what the user of the router decides, as dependencies."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import Depends, HTTPException
from fastapi.params import Depends as Dependency

from dibs.errors import BadRequest
from dibs.jobs.job import NEW_JOB_COLUMNS, Job
from dibs.jobs.options import slot_name
from dibs.operations.enqueue import NewRow

Permission = Dependency | Callable[..., Any]

SCOPES = ("queue", "kind", "tags", "train", "slot", "pipeline_id")
PLACES = {"train": "train", "slot": "slot", "unique": "unique_key", "pipeline_id": "pipeline_id"}
"""What jobs meet in, whatever their tags and queues, and the columns that say so."""


@dataclass(frozen=True, slots=True)
class Guards:
    """The dependencies of the routes."""

    read: Dependency
    write: Dependency
    scope: Dependency


def guards(
    read: Permission | None,
    write: Permission | None,
    scope: Permission | None,
    shared: Collection[str],
    *,
    insecure: bool,
) -> Guards:
    """Nobody opens their jobs to everybody by forgetting something."""
    if (read is None or write is None) and not insecure:
        missing = " and ".join(name for name, given in (("read", read), ("write", write)) if given is None)
        raise BadRequest(
            f"router() was given no permission to {missing}: pass read=Depends(…) and write=Depends(…), "
            "which raise HTTPException(401 or 403) for those who may not; or say insecure=True to let "
            "everybody in who reaches the port"
        )
    if isinstance(shared, str) or not set(shared) <= set(PLACES):
        raise BadRequest(f"shared={shared!r} must be a list of some of {', '.join(PLACES)}")
    return Guards(_dependency(read), _dependency(write), _scope(scope, frozenset(shared)))


def _dependency(permission: Permission | None) -> Dependency:
    if permission is None:
        return _depends(_anybody)
    return permission if isinstance(permission, Dependency) else _depends(permission)


def _depends(function: Callable[..., Any]) -> Dependency:
    dependency: Dependency = Depends(function)
    return dependency


@dataclass(frozen=True, slots=True)
class Scope:
    """The jobs that a request may see and change; without filters, all."""

    filter: Mapping[str, Any]
    shared: frozenset[str] = frozenset()
    """Places that a request may name although jobs outside of its scope may be there."""

    def allows(self, job: Job) -> bool:
        return all(self._matches(job, name, wanted) for name, wanted in self.filter.items())

    @staticmethod
    def _matches(job: Job, name: str, wanted: Any) -> bool:
        if name == "tags":
            return set(wanted) <= set(job.tags)
        return _plain(name, getattr(job, name)) == _plain(name, wanted)

    def narrowed(self, **asked: Any) -> dict[str, Any]:
        """The filters that were asked for, within the scope; asking outside of it is refused."""
        given = {name: value for name, value in asked.items() if value not in (None, [])}
        for name, wanted in self.filter.items():
            if name == "tags":
                given["tags"] = [*given.get("tags", []), *wanted]
            elif _plain(name, given.setdefault(name, wanted)) != _plain(name, wanted):
                raise HTTPException(403, f"your scope is the {name} {wanted!r}")
        return given

    def may_enqueue(self, row: NewRow) -> None:
        """Refused where the job could meet jobs of others: supersede them, wait for them, hold them up.

        Whether there are any is not looked at: they may come later, and who asks would learn of them.
        """
        if not self.filter:
            return
        about = dict(zip(NEW_JOB_COLUMNS, row, strict=True))
        for name, column in PLACES.items():
            if about[column] is not None and not (name in self.filter or name in self.shared):
                raise HTTPException(
                    403,
                    f"jobs outside of your scope may have the same {name}, so it can't be "
                    f"{str(about[column])!r}: enqueue a job without {name}",
                )

    def only_all(self) -> None:
        """For what concerns the whole store."""
        if self.filter:
            raise HTTPException(403, "this is about the whole store, and your scope is a part of it")

    def only_queue(self, name: str) -> None:
        """For what concerns a whole queue."""
        if set(self.filter) - {"queue"} or self.filter.get("queue", name) != name:
            raise HTTPException(403, f"the queue {name!r} is outside of your scope")


def _plain(name: str, value: Any) -> str:
    """One text for all ways to write the same; a slot's is the one that the store has."""
    return slot_name(value) if name == "slot" and isinstance(value, tuple) else str(value)


# Not plain functions, which FastAPI would call in a thread.
async def _anybody() -> None: ...


async def _everything() -> Scope:
    return Scope({})


def _scope(scope: Permission | None, shared: frozenset[str]) -> Dependency:
    if scope is None:
        return _depends(_everything)

    given = _dependency(scope)

    async def scoped(filter: Any = given) -> Scope:
        if not isinstance(filter, Mapping) or not set(filter) <= set(SCOPES):
            raise TypeError(f"scope= must give a mapping of some of {', '.join(SCOPES)}, not {filter!r}")
        return Scope({name: _value(name, value) for name, value in filter.items()}, shared)

    return _depends(scoped)


def _value(name: str, value: Any) -> Any:
    """A scope that says nothing would be one without limits: it is refused."""
    if name == "tags":
        value = [value] if isinstance(value, str) else list(value or ())
    elif name == "slot" and isinstance(value, list):
        value = tuple(value)
    texts = value if name == "tags" else [value]
    allowed = {"slot": (str, tuple), "pipeline_id": (str, UUID)}.get(name, (str,))
    if not texts or not all(isinstance(text, allowed) and text for text in texts):
        raise TypeError(f"scope= gave {name}={value!r}, which names nothing: leave it out to allow all")
    return value
