"""What stands before every route: is this meant for us, does it come from our own pages, and what browsers
are told about the answer."""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dibs.integrations.fastapi.requests import problem

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OURS = ("same-origin", "none")  # what a browser says of a request from our own pages, or typed by its user

SECURITY = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Gate:
    """A page elsewhere must reach us neither under a name of its own nor with its visitor's password."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        answer = self._app if refusal is None else problem(*refusal)
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        # Whoever checks our health calls us by an address that nobody could have listed.
        if not self._is_listed(host) and scope["path"] != "/healthz":
            return 400, f"this service is not known as {host!r}; start it with --allow-host to change that"
        if scope["method"] not in SAFE_METHODS and not _is_our_own(headers, host):
            return 403, "a page from elsewhere may not change anything here"
        return None

    def _is_listed(self, host: str) -> bool:
        return "*" in self._hosts or (_name(host) or "").lower() in self._hosts


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_our_own(headers: Headers, host: str) -> bool:
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "none") not in OURS:
        return False
    return origin is None or urlsplit(origin).netloc == host
