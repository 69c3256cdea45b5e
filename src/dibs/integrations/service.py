"""The web app of `dibs serve`: the routes of `dibs.integrations.fastapi` behind tokens, safe on a network."""

import asyncio
import base64
import binascii
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import h11
from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dibs.app.dibs import Dibs
from dibs.app.guards import REFUSAL, Throttle, is_cross_site, is_same
from dibs.dashboard import Dashboard, TokenLogin
from dibs.integrations.fastapi import lifespan, router
from dibs.integrations.fastapi.requests import problem

__all__ = ["Credentials", "make_service"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")

CHALLENGE = {"www-authenticate": 'Bearer realm="dibs", Basic realm="dibs"'}
READER = "a reader"

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def make_service(
    app: Dibs, credentials: "Credentials", hosts: Collection[str] = LOOPBACK, page: Dashboard | None = None
) -> FastAPI:
    """Return the routes of `app` for requests with credentials, under these host names (`*` for any).

    The page is at `/ui/`.
    """
    read, write = Depends(credentials.may_read), Depends(credentials.may_write)
    service = FastAPI(
        title="dibs",
        version=version("dibs"),
        lifespan=lifespan(app, worker=False),
        middleware=[Middleware(SecurityMiddleware, hosts=hosts)],
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    service.include_router(router(app, read=read, write=write))

    @service.get("/openapi.json", dependencies=[read], include_in_schema=False)
    async def document() -> dict[str, Any]:
        return service.openapi()

    if page is not None:
        _add_page(service, page)
    return service


def _add_page(service: FastAPI, page: Dashboard) -> None:
    @service.get("/", include_in_schema=False)
    @service.get("/ui", include_in_schema=False)
    async def to_the_page() -> RedirectResponse:
        return RedirectResponse("ui/", 303)

    service.mount("/ui", page)


# -- credentials --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The secrets that open the service."""

    token: str | None = field(default=None, repr=False)
    """Allows everything."""
    read_token: str | None = field(default=None, repr=False)
    """Allows only reading."""
    basic: str | None = field(default=None, repr=False)
    """`user:password`, allows everything."""
    throttle: Throttle = field(default_factory=Throttle, compare=False, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether there is no secret at all."""
        return self.token is None and self.read_token is None and self.basic is None

    def login(self) -> TokenLogin:
        """Return the login of the page, by the same secrets and with the same limit on wrong ones."""
        return TokenLogin(
            token=self.token, read_token=self.read_token, basic=self.basic, throttle=self.throttle
        )

    async def may_read(self, request: Request) -> str:
        return self._user(request)

    async def may_write(self, request: Request) -> str:
        if (user := self._user(request)) == READER:
            raise HTTPException(403, "this token allows only reading")
        return user

    def _user(self, request: Request) -> str:
        authorization = request.headers.get("authorization", "")
        address = None if request.client is None else request.client.host
        if authorization and (seconds := self.throttle.wait(address)):
            raise HTTPException(
                429, f"too many wrong secrets; try again in {seconds} s", {"retry-after": str(seconds)}
            )
        sort, _, secret = authorization.partition(" ")
        match sort.lower():
            case "bearer" if is_same(secret, self.token):
                return "the holder of the token"
            case "bearer" if is_same(secret, self.read_token):
                return READER
            case "basic" if is_same(text := _decoded(secret), self.basic):
                return text.partition(":")[0]
            case _:
                if authorization:
                    self.throttle.note(address)
                raise HTTPException(401, "give a bearer token, or a user and a password", CHALLENGE)


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


# -- middleware ---------------------------------------------------------------------------------


class SecurityMiddleware:
    """Checks of host and origin: other sites reach the service neither by their name nor by a visitor."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        respond = self._app if refusal is None else problem(*refusal)
        await respond(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        # Health checks use an address that could not be listed before.
        is_listed = "*" in self._hosts or (_name(host) or "").lower() in self._hosts
        if not is_listed and scope["path"] != "/healthz":
            return 400, f"this service is not known as {host!r}; start it with --allow-host to change that"
        if is_cross_site(scope["method"], headers):
            return 403, REFUSAL
        return None


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


# -- connections: requests have to arrive in time, and there is always one for the operator -------

HEAD_LIMIT = 10.0  # seconds
BODY_LIMIT = 30.0


def limited_to(most: int) -> type[H11Protocol]:
    """Return a class of connections; of more than these, the one that waited longest for a request ends."""
    waiting: OrderedDict[H11Protocol, None] = OrderedDict()

    class LimitedConnection(H11Protocol):
        """A connection with a deadline for each head and each body."""

        _phase: Any = None
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._note_phase()
            if len(self.connections) > most:
                next(iter(waiting), self).transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._enter(None)
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            self._note_phase()

        def _note_phase(self) -> None:
            if self.transport.is_closing():
                self._enter(None)
            elif self.conn.their_state is not self._phase:
                self._enter(self.conn.their_state)

        def _enter(self, phase: Any) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._phase, self._deadline = phase, None
            waiting.pop(self, None)
            if phase in (h11.IDLE, h11.SEND_BODY):
                waiting[self] = None
                seconds = HEAD_LIMIT if phase is h11.IDLE else BODY_LIMIT
                self._deadline = self.loop.call_later(seconds, self.transport.abort)

    return LimitedConnection
