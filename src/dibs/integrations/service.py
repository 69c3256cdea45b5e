"""The web app of `dibs serve`: the routes of `dibs.integrations.fastapi` behind tokens, safe on a network."""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dibs.app.dibs import Dibs
from dibs.clock import monotonic
from dibs.integrations.fastapi import lifespan, router
from dibs.integrations.fastapi.requests import problem

__all__ = ["Credentials", "make_service"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")

CHALLENGE = {"www-authenticate": 'Bearer realm="dibs", Basic realm="dibs"'}
READER = "a reader"
MOST_WRONG = 20  # secrets from one address within the window
WINDOW = 60.0  # seconds
MOST_ADDRESSES = 10_000  # remembered at a time: an attacker must not fill the memory

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OWN_SITES = ("same-origin", "none")  # what browsers send for our own pages, and for a typed address

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def make_service(app: Dibs, credentials: "Credentials", hosts: Collection[str] = LOOPBACK) -> FastAPI:
    """Return the routes of `app` for requests with credentials, under these host names (`*` for any)."""
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

    return service


# -- credentials --------------------------------------------------------------------------------


class Throttle:
    """Counts of recent wrong secrets, by the address they came from."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()  # since when, how many

    def wait(self, address: str | None) -> int:
        """Return for how many seconds requests from this address are refused."""
        with self._lock:
            since, number = self._of(_network(address))
        return math.ceil(since + WINDOW - self._clock()) if number >= MOST_WRONG else 0

    def note(self, address: str | None) -> None:
        """Count a wrong secret."""
        network = _network(address)
        with self._lock:
            since, number = self._of(network)
            self._wrong[network] = since, number + 1
            if len(self._wrong) > MOST_ADDRESSES:
                self._wrong.popitem(last=False)

    def _of(self, network: str) -> tuple[float, int]:
        now = self._clock()
        since, number = self._wrong.get(network, (now, 0))
        if now - since >= WINDOW:
            del self._wrong[network]
            return now, 0
        return since, number


def _network(address: str | None) -> str:
    """Return the address; of IPv6 its /64 network, since one client has billions of addresses."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or "unknown"
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The secrets that open the service."""

    token: str | None = None
    """Allows everything."""
    read_token: str | None = None
    """Allows only reading."""
    basic: str | None = None
    """`user:password`, allows everything."""
    throttle: Throttle = field(default_factory=Throttle, compare=False, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether there is no secret at all."""
        return self.token is None and self.read_token is None and self.basic is None

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
            case "bearer" if _same(secret, self.token):
                return "the holder of the token"
            case "bearer" if _same(secret, self.read_token):
                return READER
            case "basic" if _same(text := _decoded(secret), self.basic):
                return text.partition(":")[0]
            case _:
                if authorization:
                    self.throttle.note(address)
                raise HTTPException(401, "give a bearer token, or a user and a password", CHALLENGE)


def _same(given: str, wanted: str | None) -> bool:
    """Compare in a time that reveals nothing of the secret."""
    if wanted is None:
        return False
    return hmac.compare_digest(_digest(given), _digest(wanted))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


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
        if not self._is_listed(host) and scope["path"] != "/healthz":
            return 400, f"this service is not known as {host!r}; start it with --allow-host to change that"
        if scope["method"] not in SAFE_METHODS and not _is_own_site(headers, host):
            return 403, "a page of another site may not change anything here"
        return None

    def _is_listed(self, host: str) -> bool:
        return "*" in self._hosts or (_name(host) or "").lower() in self._hosts


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_own_site(headers: Headers, host: str) -> bool:
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "none") not in OWN_SITES:
        return False
    return origin is None or urlsplit(origin).netloc == host
