"""Permissions of the routes: the caller of `router` passes them as dependencies: read, write, scope."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from fastapi import Depends
from fastapi.params import Depends as Dependency

from dibs.app.scopes import Scope, check_fields, check_shared
from dibs.errors import BadRequest

Permission = Dependency | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class RoutePermissions:
    """The dependencies of the routes."""

    read: Dependency
    write: Dependency
    scope: Dependency
    fields: Dependency
    """Names of the parts of a job that an answer has."""


def check_permissions(
    read: Permission | None,
    write: Permission | None,
    scope: Permission | None,
    shared: Collection[str],
    fields: Permission | Collection[str],
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
    scoped = _scope(scope, check_shared(shared))
    return RoutePermissions(_dependency(read), _dependency(write), scoped, _fields(fields))


def _dependency(permission: Permission | None) -> Dependency:
    if permission is None:
        return _depends(_allow)
    return permission if isinstance(permission, Dependency) else _depends(permission)


def _depends(function: Callable[..., Any]) -> Dependency:
    dependency: Dependency = Depends(function)
    return dependency


# Coroutines, since FastAPI would call plain functions in a thread.
async def _allow() -> None: ...


async def _everything() -> Scope:
    return Scope({})


def _scope(scope: Permission | None, shared: frozenset[str]) -> Dependency:
    if scope is None:
        return _depends(_everything)

    given = _dependency(scope)

    async def scoped(filter: Any = given) -> Scope:
        return Scope.of(filter, shared)

    return _depends(scoped)


def _fields(fields: Permission | Collection[str]) -> Dependency:
    if isinstance(fields, Dependency) or callable(fields):
        given = _dependency(fields)

        async def asked(names: Any = given) -> frozenset[str]:
            return check_fields(names)

        return _depends(asked)
    named = check_fields(fields)

    async def always() -> frozenset[str]:
        return named

    return _depends(always)
