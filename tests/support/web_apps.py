"""A web app with dibs in it, as tests use it: in this process, or on a port of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import msgspec
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi.testclient import TestClient
from starlette.applications import Starlette

from dibs import Dibs
from dibs.dashboard import Dashboard
from dibs.integrations.fastapi import router
from tests.support.django_project import set_up

READER, WRITER = {"authorization": "reader"}, {"authorization": "writer"}


async def may_read(authorization: str | None = Header(None)) -> str:
    return _known(authorization)


async def may_write(authorization: str | None = Header(None)) -> str:
    if _known(authorization) != "writer":
        raise HTTPException(403, "readers may not write")
    return "writer"


def _known(name: str | None) -> str:
    if name not in ("reader", "writer"):
        raise HTTPException(401, "who are you?")
    return name


def make_web(app: Dibs, **options: Any) -> FastAPI:
    web = FastAPI(lifespan=options.pop("lifespan", None))
    guarded = {"read": Depends(may_read), "write": Depends(may_write)}
    web.include_router(router(app, **{**guarded, **options}))
    return web


@contextmanager
def client_of(web: FastAPI, headers: dict[str, str] = WRITER) -> Iterator[TestClient]:
    with TestClient(web, headers=headers, raise_server_exceptions=True) as client:
        yield client


@contextmanager
def on_a_port(web: Any, **options: Any) -> Iterator[int]:
    """Serve it from a thread until the body ends."""
    server = uvicorn.Server(
        uvicorn.Config(web, host="127.0.0.1", port=0, log_level="warning", ws="none", **options)
    )
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, name="test-server")
    thread.start()
    try:
        _wait_for(lambda: server.started or not thread.is_alive())
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def _no_signals() -> Iterator[None]:
    yield


def _wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    ended = threading.Event()
    for _ in range(round(seconds / 0.01)):
        if condition():
            return
        ended.wait(0.01)
    raise TimeoutError


class EventReader:
    """One client of server-sent events, over a plain socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0

    @classmethod
    async def open(cls, port: int, path: str, **headers: str) -> EventReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = {
            "host": "127.0.0.1",
            "authorization": "reader",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        stream = cls(reader, writer)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        stream.status = int(answer.split()[1])
        return stream

    async def next(self) -> dict[str, Any]:
        """The next event, with its data read as JSON; comments and chunk sizes are passed over."""
        found: dict[str, Any] = {}
        while True:
            line = (await asyncio.wait_for(self._reader.readline(), 60)).decode()
            if not line:
                raise EOFError
            name, colon, value = line.strip().partition(": ")
            if not line.strip() and "event" in found:
                return found
            if colon and name in ("event", "id", "data"):
                found[name] = msgspec.json.decode(value) if name == "data" else value

    async def rest(self) -> list[dict[str, Any]]:
        """All events up to the one that says that there are no more."""
        events = [await self.next()]
        while events[-1]["event"] not in ("end", "resync"):
            events.append(await self.next())
        await self.close()
        return events

    async def close(self) -> None:
        self._writer.transport.abort()
        await asyncio.sleep(0)


# -- the page in other web apps ------------------------------------------------------------------


def in_fastapi(page: Dashboard) -> Any:
    web = FastAPI()
    web.mount("/jobs", page)
    return web


def in_starlette(page: Dashboard) -> Any:
    web = Starlette()
    web.mount("/jobs", page)
    return web


def in_django(page: Dashboard) -> Any:
    """As the guide says it."""
    set_up()
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.test import override_settings
    from django.urls import path

    urls = ModuleType("urls_of_the_page_test")
    urls.urlpatterns = [path("own/", lambda _: HttpResponse("django's own"))]  # type: ignore[attr-defined]
    sys.modules[urls.__name__] = urls
    override_settings(ROOT_URLCONF=urls.__name__, ALLOWED_HOSTS=["*"]).enable()
    django_app = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/jobs/"):
            await page({**scope, "root_path": scope.get("root_path", "") + "/jobs"}, receive, send)
        else:
            await django_app(scope, receive, send)

    return application


def behind_a_proxy(page: Dashboard) -> Any:
    """The proxy takes /a/b off, and the page never learns of it."""

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            assert scope["path"].startswith("/a/b/")
            scope = {**scope, "path": scope["path"].removeprefix("/a/b"), "raw_path": b""}
        await page(scope, receive, send)

    return proxy


def behind_a_proxy_that_the_framework_knows(page: Dashboard) -> Any:
    """The proxy takes /api off, and Starlette is told of it."""
    web = in_starlette(page)

    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        await web({**scope, "root_path": "/api"}, receive, send)

    return proxied


def alone(page: Dashboard) -> Any:
    return page


PLACES: dict[Callable[[Dashboard], Any], str] = {
    alone: "/",
    in_fastapi: "/jobs/",
    in_starlette: "/jobs/",
    in_django: "/jobs/",
    behind_a_proxy: "/a/b/",
    behind_a_proxy_that_the_framework_knows: "/jobs/",
}
"""Web apps with the page in them, and where it is in each."""
