"""What the routes share: parameters, reading a request with a limit, errors as HTTP responses, the audit."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import HTTPException, Path, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Message, Receive

from dibs.app.dibs import Dibs
from dibs.app.guards import REFUSAL, is_cross_site
from dibs.app.scopes import OutOfScope
from dibs.errors import (
    BadRequest,
    DibsError,
    NotFound,
    NotPermitted,
    Refused,
    SchemaOutdated,
    StoreUnavailable,
    UnknownEngine,
    UnsafeStore,
)
from dibs.integrations.fastapi import models
from dibs.jobs.states import JobState
from dibs.log_format import safe

MOST_PER_PAGE = 200

Id = Annotated[UUID, Path(description="The job's id.")]
QueueName = Annotated[str, Path(min_length=1, max_length=200)]
Named = Annotated[str | None, Query(min_length=1, max_length=200)]
Limit = Annotated[
    int, Query(ge=1, description=f"How many per page, at most {MOST_PER_PAGE}; more is cut to that.")
]
Slot = Annotated[
    str | None, Query(min_length=1, max_length=700, description="A name, or its parts as a JSON array.")
]
Since = Annotated[str | None, Query(max_length=20, description="Enqueued in `30s`, `10m`, `2h` or `7d`.")]
Search = Annotated[
    str | None,
    Query(max_length=2000, description="Like `state:failed args.order_id:42 error:Timeout words`."),
]
Tags = Annotated[list[str], Query(max_length=20, description="Only jobs with all of these tags.")]
States = Annotated[list[JobState], Query(max_length=20)]

REFUSED: dict[int | str, dict[str, Any]] = {
    409: {"model": models.Problem, "description": "Refused; the detail has the reason"}
}
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": models.Problem, "description": "Not found"}}

BODY_LIMIT = 30.0  # seconds for all of a body

STATUS: dict[type[DibsError], int] = {
    BadRequest: 400,
    OutOfScope: 403,
    NotFound: 404,
    Refused: 409,
    StoreUnavailable: 503,
    SchemaOutdated: 503,
    NotPermitted: 503,
    UnsafeStore: 503,
    UnknownEngine: 503,
}


def json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = value if isinstance(value, bytes) else msgspec.json.encode(value)
    no_store = {"cache-control": "no-store", **(headers or {})}
    return Response(content, status, no_store, media_type="application/json")


def problem(status: int, detail: str) -> Response:
    return json({"detail": safe(detail)}, status, {"retry-after": "2"} if status == 503 else None)


class BoundedRoute(APIRoute):
    """A route that reads at most `most` bytes of a body, and turns errors of dibs into responses.

    Unless `cross_site` is set, it lets no page of another site change something.
    """

    most = 1024 * 1024
    cross_site = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def respond(request: Request) -> Response:
            if not self.cross_site and is_cross_site(request.method, request.headers):
                return problem(403, REFUSAL)
            try:
                return await handle(Request(request.scope, _bounded(request, self.most), request._send))
            except DibsError as error:
                status = next((STATUS[each] for each in type(error).__mro__ if each in STATUS), None)
                if status is None:
                    raise
                return problem(status, str(error))
            except RequestValidationError as error:
                return json({"detail": [_invalid(each) for each in error.errors()]}, 422)

        return respond


def refuse_unknown_filters(request: Request) -> None:
    """Refuse query parameters that neither the route nor a permission has: a filter misspelt finds all."""
    known = set(_query_names(request.scope["route"].dependant))
    if unknown := [name for name in request.query_params if name not in known]:
        msg = f"there is no such filter; there are {', '.join(sorted(known))}"
        raise RequestValidationError([{"loc": ("query", unknown[0]), "msg": msg, "type": "extra_forbidden"}])


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _query_names(each)


def _bounded(request: Request, most: int) -> Receive:
    """Return a `receive` that counts the bytes, whatever length the client announced, and the seconds."""
    received, ends_at, whole = 0, asyncio.get_running_loop().time() + BODY_LIMIT, False

    async def receive() -> Message:
        nonlocal received, whole
        try:
            async with asyncio.timeout_at(None if whole else ends_at):
                message = await request.receive()
        except TimeoutError:
            raise HTTPException(408, f"the body took longer than {BODY_LIMIT:.0f} s") from None
        whole = not message.get("more_body", False)
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"the body is longer than {most:,} bytes")
        return message

    return receive


def _invalid(error: Any) -> dict[str, Any]:
    """Return a validation error without the input: it may be secret, and need not fit into JSON."""
    where = [part if isinstance(part, int) else safe(str(part)) for part in error["loc"]]
    return {"loc": where, "msg": safe(str(error["msg"])), "type": error["type"]}


def audit(app: Dibs, verb: str, about: UUID | str, by: Any) -> None:
    """Log a change as an event, with the user's name if the permission returned one."""
    app._core.events.acted(verb, str(about), by if isinstance(by, str) else None)
