"""Permissions of the routes: the caller of `router` passes them as dependencies: read, write, scope."""

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
SHARED_KEYS = {"train": "train", "slot": "slot", "unique": "unique_key", "pipeline_id": "pipeline_id"}
"""Options by which jobs affect each other across tags and queues, and their columns."""


@dataclass(frozen=True, slots=True)
class RoutePermissions:
    """The dependencies of the routes."""

    read: Dependency
    write: Dependency
    scope: Dependency


def check_permissions(
    read: Permission | None,
    write: Permission | None,
    scope: Permission | None,
    shared: Collection[str],
    *,
    insecure: bool,
) -> RoutePermissions:
    """Refuse missing permissions, unless `insecure` is set: jobs must not become public by accident."""
    if (read is None or write is None) and not insecure:
        missing = " and ".join(name for name, given in (("read", read), ("write", write)) if given is None)
        raise BadRequest(
            f"router() was given no permission to {missing}: pass read=Depends(…) and write=Depends(…), "
            "which raise HTTPException(401 or 403); or say insecure=True to serve every client that reaches "
            "the port"
        )
    if isinstance(shared, str) or not set(shared) <= set(SHARED_KEYS):
        raise BadRequest(f"shared={shared!r} must be a list of some of {', '.join(SHARED_KEYS)}")
    return RoutePermissions(_dependency(read), _dependency(write), _scope(scope, frozenset(shared)))


def _dependency(permission: Permission | None) -> Dependency:
    if permission is None:
        return _depends(_allow)
    return permission if isinstance(permission, Dependency) else _depends(permission)


def _depends(function: Callable[..., Any]) -> Dependency:
    dependency: Dependency = Depends(function)
    return dependency


@dataclass(frozen=True, slots=True)
class Scope:
    """The jobs that a request may see and change; without filters, all."""

    filter: Mapping[str, Any]
    shared: frozenset[str] = frozenset()
    """Keys that a request may name although jobs outside of its scope may have the same."""

    def allows(self, job: Job) -> bool:
        return all(self._matches(job, name, wanted) for name, wanted in self.filter.items())

    @staticmethod
    def _matches(job: Job, name: str, wanted: Any) -> bool:
        if name == "tags":
            return set(wanted) <= set(job.tags)
        return _plain(name, getattr(job, name)) == _plain(name, wanted)

    def narrowed(self, **asked: Any) -> dict[str, Any]:
        """Return the requested filters within the scope; refuse filters outside of it."""
        given = {name: value for name, value in asked.items() if value not in (None, [])}
        for name, wanted in self.filter.items():
            if name == "tags":
                given["tags"] = [*given.get("tags", []), *wanted]
            elif _plain(name, given.setdefault(name, wanted)) != _plain(name, wanted):
                raise HTTPException(403, f"your scope is the {name} {wanted!r}")
        return given

    def may_enqueue(self, row: NewRow) -> None:
        """Refuse a job that could affect jobs outside of the scope: supersede them or make them wait.

        Refused without a check whether there are any: one may come later, and the response would reveal it.
        """
        if not self.filter:
            return
        about = dict(zip(NEW_JOB_COLUMNS, row, strict=True))
        for name, column in SHARED_KEYS.items():
            if about[column] is not None and not (name in self.filter or name in self.shared):
                raise HTTPException(
                    403,
                    f"jobs outside of your scope may have the same {name}, so it can't be "
                    f"{str(about[column])!r}: enqueue a job without {name}",
                )

    def only_all(self) -> None:
        """Refuse unless the scope is the whole store."""
        if self.filter:
            raise HTTPException(403, "this is about the whole store, and your scope is a part of it")

    def only_queue(self, name: str) -> None:
        """Refuse unless the scope has the whole queue."""
        if set(self.filter) - {"queue"} or self.filter.get("queue", name) != name:
            raise HTTPException(403, f"the queue {name!r} is outside of your scope")


def _plain(name: str, value: Any) -> str:
    """Return the same text for equal values; for a slot the store's name of it."""
    return slot_name(value) if name == "slot" and isinstance(value, tuple) else str(value)


# Coroutines, since FastAPI would call plain functions in a thread.
async def _allow() -> None: ...


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
    """Return the value of a filter; refuse an empty one, which would allow everything."""
    if name == "tags":
        value = [value] if isinstance(value, str) else list(value or ())
    elif name == "slot" and isinstance(value, list):
        value = tuple(value)
    texts = value if name == "tags" else [value]
    allowed = {"slot": (str, tuple), "pipeline_id": (str, UUID)}.get(name, (str,))
    if not texts or not all(isinstance(text, allowed) and text for text in texts):
        raise TypeError(f"scope= gave {name}={value!r}, which names nothing: leave it out to allow all")
    return value
