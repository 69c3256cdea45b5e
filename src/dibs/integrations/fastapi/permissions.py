"""Who may read, who may change, and whose jobs: what the user of the router decides, as dependencies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, HTTPException
from fastapi.params import Depends as Dependency

from dibs.errors import BadRequest
from dibs.jobs import Job

Permission = Dependency | Callable[..., Any]

SCOPES = ("queue", "kind", "tags", "train", "slot", "pipeline_id")


@dataclass(frozen=True, slots=True)
class Guards:
    """The dependencies of the routes."""

    read: Dependency
    write: Dependency
    scope: Dependency


def guards(
    read: Permission | None, write: Permission | None, scope: Permission | None, *, insecure: bool
) -> Guards:
    """Nobody opens their jobs to everybody by forgetting something."""
    if (read is None or write is None) and not insecure:
        missing = " and ".join(name for name, given in (("read", read), ("write", write)) if given is None)
        raise BadRequest(
            f"router() was given no permission to {missing}: pass read=Depends(…) and write=Depends(…), "
            "which raise HTTPException(401 or 403) for those who may not; or say insecure=True to let "
            "everybody in who reaches the port"
        )
    return Guards(_dependency(read), _dependency(write), _scope(scope))


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

    def allows(self, job: Job) -> bool:
        return all(self._matches(job, name, wanted) for name, wanted in self.filter.items())

    @staticmethod
    def _matches(job: Job, name: str, wanted: Any) -> bool:
        if name == "tags":
            return set(_listed(wanted)) <= set(job.tags)
        return str(getattr(job, name)) == str(wanted)

    def narrowed(self, **asked: Any) -> dict[str, Any]:
        """The filters that were asked for, within the scope; asking outside of it is refused."""
        given = {name: value for name, value in asked.items() if value not in (None, [])}
        for name, wanted in self.filter.items():
            if name == "tags":
                given["tags"] = [*given.get("tags", []), *_listed(wanted)]
            elif str(given.setdefault(name, wanted)) != str(wanted):
                raise HTTPException(403, f"your scope is the {name} {wanted!r}")
        return given

    def only_all(self) -> None:
        """For what concerns the whole store."""
        if self.filter:
            raise HTTPException(403, "this is about the whole store, and your scope is a part of it")

    def only_queue(self, name: str) -> None:
        """For what concerns a whole queue."""
        if set(self.filter) - {"queue"} or self.filter.get("queue", name) != name:
            raise HTTPException(403, f"the queue {name!r} is outside of your scope")


def _listed(tags: Any) -> list[str]:
    return [tags] if isinstance(tags, str) else list(tags)


# Not plain functions, which FastAPI would call in a thread.
async def _anybody() -> None: ...


async def _everything() -> Scope:
    return Scope({})


def _scope(scope: Permission | None) -> Dependency:
    if scope is None:
        return _depends(_everything)

    given = _dependency(scope)

    async def scoped(filter: Any = given) -> Scope:
        if not isinstance(filter, Mapping) or not set(filter) <= set(SCOPES):
            raise TypeError(f"scope= must give a mapping of some of {', '.join(SCOPES)}, not {filter!r}")
        return Scope(filter)

    return _depends(scoped)
