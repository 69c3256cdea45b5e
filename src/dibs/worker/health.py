"""`GET /healthz` for whatever watches a worker: 200 while it can do its work, 503 with the reason when not;
and `GET /metrics` where somebody has them.

Answered on the worker's own event loop on purpose: a loop that a handler blocks can't answer, and that is
the truth. Clients may be slow, silent or hostile; each gets a few seconds and a few kilobytes.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from socket import socket
from typing import Any, Literal

import msgspec

from dibs.clock import monotonic
from dibs.errors import BadRequest, DibsError

PATH = "/healthz"
METRICS_PATH = "/metrics"
LONGEST_REQUEST = 8_192  # bytes
PATIENCE = 3.0  # seconds for a client, from its first byte to its last
MOST_CLIENTS = 50


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is answered: healthy means without a reason not to be."""

    reason: str | None = None
    about: dict[str, Any] = {}

    @property
    def body(self) -> bytes:
        said: dict[str, Any] = {"status": "ok" if self.reason is None else "unhealthy"}
        if self.reason is not None:
            said["reason"] = self.reason
        return msgspec.json.encode({**said, **self.about})

    @property
    def status(self) -> HTTPStatus:
        return HTTPStatus.OK if self.reason is None else HTTPStatus.SERVICE_UNAVAILABLE


Report = Callable[[], Awaitable[Health]]


class Metrics(msgspec.Struct, frozen=True):
    """What to answer those who come for numbers."""

    sort: str  # as a Content-Type
    text: Callable[[], Awaitable[str]]


@asynccontextmanager
async def answering(
    report: Report, *, host: str, port: int, metrics: Metrics | None = None
) -> AsyncIterator[int]:
    """Answer on this address until the body ends; yields the port, which port 0 leaves to the system."""
    desk = Desk(report, metrics)
    try:
        server = await asyncio.start_server(desk.serve, host, port, limit=LONGEST_REQUEST)
    except (OSError, OverflowError) as error:
        raise cant_answer(host, port, error) from None
    async with _served(server, desk):
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def answering_on(
    report: Report, place: socket | Path, metrics: Metrics | None = None
) -> AsyncIterator[None]:
    """The same on a socket that listens already, or on a path of the file system."""
    desk = Desk(report, metrics)
    if isinstance(place, Path):
        server = await asyncio.start_unix_server(desk.serve, place, limit=LONGEST_REQUEST)
    else:
        server = await asyncio.start_server(desk.serve, sock=place, limit=LONGEST_REQUEST)
    async with _served(server, desk):
        yield


def cant_answer(host: str, port: int, error: Exception) -> BadRequest:
    return BadRequest(
        f"can't answer health checks on {host}:{port}: {error}; choose another --health-port or --health-host"
    )


@asynccontextmanager
async def _served(server: asyncio.Server, desk: "Desk") -> AsyncIterator[None]:
    try:
        yield
    finally:
        server.close()
        await desk.close()


class Desk:
    """Serves one client after the other, some of them at a time."""

    def __init__(self, report: Report, metrics: Metrics | None = None) -> None:
        self._report = report
        self._metrics = metrics
        self._clients: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._clients) >= MOST_CLIENTS:
            writer.transport.abort()
            return
        self._clients.add(task)
        try:
            with suppress(TimeoutError, OSError, EOFError):
                async with asyncio.timeout(PATIENCE):
                    writer.write(await self._answer_to(reader))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except asyncio.CancelledError:  # we are closing; asyncio would complain about a cancelled client
            pass
        finally:
            writer.transport.abort()
            self._clients.discard(task)

    async def close(self) -> None:
        for client in (clients := list(self._clients)):
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _answer_to(self, reader: StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, version = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        except (asyncio.LimitOverrunError, ValueError):
            return _response(HTTPStatus.BAD_REQUEST)
        if not version.startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        path = target.partition("?")[0]
        if path != PATH and (path != METRICS_PATH or self._metrics is None):
            return _response(HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, extra="Allow: GET, HEAD\r\n")
        if path == METRICS_PATH and self._metrics is not None:
            return await _counted(self._metrics, with_body=method == "GET")
        health = await self._report()
        return _response(health.status, health.body, with_body=method == "GET")


async def _counted(metrics: Metrics, *, with_body: bool) -> bytes:
    try:
        text = await metrics.text()
    except DibsError as error:
        said = msgspec.json.encode({"error": str(error)})
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, said, with_body=with_body)
    return _response(HTTPStatus.OK, text.encode(), with_body=with_body, sort=metrics.sort)


def _response(
    status: HTTPStatus,
    body: bytes = b"",
    *,
    with_body: bool = True,
    extra: str = "",
    sort: str = "application/json",
) -> bytes:
    body = body or msgspec.json.encode({"error": status.phrase})
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {sort}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n{extra}\r\n"
    )
    return head.encode() + (body if with_body else b"")


# -- several processes --------------------------------------------------------------------------


async def ask(place: Path, patience: float = PATIENCE / 2) -> Health:
    """The health of a process that answers on this path; one that does not answer has none."""
    try:
        answer = await _asked(place, PATH, patience)
        about: dict[str, Any] = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])
        about.pop("status", None)
        return Health(reason=about.pop("reason", None), about=about)
    except (OSError, TimeoutError, msgspec.DecodeError):
        return Health(reason="it does not answer: it is starting, or dead, or a handler blocks it")


async def ask_for_metrics(place: Path, patience: float = PATIENCE / 2) -> str | None:
    """The numbers of a process; None if it has none to give just now."""
    with suppress(OSError, TimeoutError, UnicodeDecodeError):
        head, _, body = (await _asked(place, METRICS_PATH, patience)).partition(b"\r\n\r\n")
        return body.decode() if head.startswith(b"HTTP/1.1 200 ") else None
    return None


async def _asked(place: Path, path: str, patience: float) -> bytes:
    async with asyncio.timeout(patience):
        reader, writer = await asyncio.open_unix_connection(place)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            return await reader.read()
        finally:
            writer.close()


async def ask_all(places: list[Path]) -> Health:
    """Healthy if all of them are."""
    answers = await asyncio.gather(*(ask(place) for place in places))
    bad = [
        f"process {number} of {len(places)}: {health.reason}"
        for number, health in enumerate(answers, 1)
        if health.reason is not None
    ]
    bodies = [msgspec.Raw(health.body) for health in answers]
    return Health(reason="; ".join(bad) or None, about={"processes": bodies})


SILENCE = 3  # polls without a word from the store, when there should be one in each
SLACK = 10.0  # seconds more than that

Phase = Literal["not started", "starting", "working", "stopping"]


class Pulse:
    """How a worker is doing. Noting something costs next to nothing: it is done at every turn."""

    def __init__(self) -> None:
        self._phase: Phase = "not started"
        self._beat_at = self._missed_at = monotonic()
        self._trouble: str | None = None
        self.has_beaten = False
        """Whether the store has ever answered."""

    def becomes(self, phase: Phase) -> None:
        self._phase = phase
        self._beat_at = monotonic()

    def beats(self) -> None:
        """The store answered."""
        self._beat_at, self._trouble, self.has_beaten = monotonic(), None, True

    def misses(self, error: Exception) -> None:
        """The store did not."""
        if self._trouble is None:
            self._missed_at = monotonic()
        self._trouble = str(error)

    def lost_for(self) -> float:
        """Seconds since the store last answered, while it does not."""
        return 0.0 if self._trouble is None else monotonic() - self._missed_at

    def health(self, poll: float, about: dict[str, Any], deafness: str | None = None) -> Health:
        """Being deaf is only worth a note: the poll finds everything, a little later."""
        notes = [] if deafness is None else [f"hears no wake-ups and looks every second instead: {deafness}"]
        return Health(
            reason=self._reason(monotonic(), poll), about={**about, **({"notes": notes} if notes else {})}
        )

    def _reason(self, now: float, poll: float) -> str | None:
        if self._phase != "working":
            return f"the worker is {self._phase}"
        if self._trouble is not None:
            return f"the store has been lost for {self.lost_for():.1f} s: {self._trouble}"
        if not self.has_beaten:
            return "the worker has yet to hear from its store"
        if now - self._beat_at > SILENCE * poll + SLACK:
            return f"nothing was heard from the store for {now - self._beat_at:.0f} s"
        return None
