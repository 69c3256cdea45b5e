"""How a request is read, with a limit, and how errors of dibs become HTTP responses."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Message, Receive

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
from dibs.log_format import safe

STATUS: dict[type[DibsError], int] = {
    BadRequest: 400,
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
    """A route that reads at most `most` bytes of a body, and turns errors of dibs into responses."""

    most = 1024 * 1024

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def respond(request: Request) -> Response:
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


def _bounded(request: Request, most: int) -> Receive:
    """Return a `receive` that counts the bytes, whatever length the client announced."""
    received = 0

    async def receive() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"the body is longer than {most:,} bytes")
        return message

    return receive


def _invalid(error: Any) -> dict[str, Any]:
    """Return a validation error without the input: it may be secret, and need not fit into JSON."""
    where = [part if isinstance(part, int) else safe(str(part)) for part in error["loc"]]
    return {"loc": where, "msg": safe(str(error["msg"])), "type": error["type"]}
