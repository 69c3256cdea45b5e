"""The health of a worker, and `GET /healthz` and `GET /metrics` for the tools that watch it.

`/healthz` has status 200 while the worker can do its work, 503 with the reason while it can't. The requests
are served on the worker's own event loop on purpose: a loop that a handler blocks can't respond, and that is
the truth. Clients may be slow, silent or hostile; each gets a few seconds and a few kilobytes. A thread
names the handler and the line that block it.
"""

import asyncio
import random
import sys
import sysconfig
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from socket import socket
from types import FrameType
from typing import Any, Literal

import msgspec

from dibs.app.claims import ClaimState
from dibs.clock import monotonic
from dibs.errors import BadRequest, DibsError, StoreBusy, StoreRefused, StoreUnavailable
from dibs.events import log

SILENCE = 3  # polls without a word from the store, when there should be one in each
SLACK = 10.0  # seconds more than that
LONGEST_BACK_OFF = 2.0  # seconds between two tries to reach a lost store
LONGEST_ABSENCE = 60.0  # seconds without a store after which a worker that runs until idle gives up

LONGEST_STEP = 1.0  # seconds
ASK_EVERY = 0.25
COMPLAIN_EVERY = 60.0  # seconds between two warnings about one kind

_OURS = str(Path(__file__).parents[1])
_LIBRARY = sysconfig.get_path("stdlib")

Phase = Literal["not started", "starting", "working", "stopping"]


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One report: healthy unless there is a reason not to be."""

    reason: str | None = None
    about: dict[str, Any] = {}

    @property
    def body(self) -> bytes:
        status = {"status": "ok"} if self.reason is None else {"status": "unhealthy", "reason": self.reason}
        return msgspec.json.encode({**status, **self.about})

    @property
    def status(self) -> HTTPStatus:
        return HTTPStatus.OK if self.reason is None else HTTPStatus.SERVICE_UNAVAILABLE


class WorkerHealth:
    """What a worker knows of its own health. Noting something costs next to nothing: every turn does it."""

    def __init__(self) -> None:
        self._phase: Phase = "not started"
        self._answered_at = self._lost_at = monotonic()
        self._error: str | None = None
        self._failures = 0
        self._was_reached = False

    def becomes(self, phase: Phase) -> None:
        self._phase = phase
        self._answered_at = monotonic()

    def store_answered(self) -> None:
        self._answered_at, self._error, self._failures, self._was_reached = monotonic(), None, 0, True

    async def wait_for_store(self, error: StoreUnavailable, *, until_idle: bool) -> None:
        """Note that the store is away, log it once, and sleep until it is worth another try.

        A lock that another transaction holds is not an absence.

        Raise the error if the store refused this worker from the start, or if a caller has waited for the
        end of the worker (`until_idle`) for a minute.
        """
        if isinstance(error, StoreBusy) and not (until_idle and self._failures >= 2):
            self._failures += 1
            log.info("the worker keeps trying: %s", error)
            return  # the store is there, and the call has waited long enough for the lock
        self._failures += 1
        if self._error is None:
            self._lost_at = monotonic()
        self._error = str(error)
        if until_idle and self._lost_for() > LONGEST_ABSENCE:
            raise error
        if isinstance(error, StoreRefused) and not self._was_reached:
            raise error
        if self._failures == 1:
            what = "lost its store" if self._was_reached else "does not reach its store yet"
            log.warning("the worker %s and keeps trying: %s", what, error)
        pause = min(0.1 * 2 ** min(self._failures, 10), LONGEST_BACK_OFF)
        await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311

    def _lost_for(self) -> float:
        return 0.0 if self._error is None else monotonic() - self._lost_at

    def report(self, poll: float, about: dict[str, Any], deafness: str | None = None) -> Health:
        """Return the health now; a worker that receives no hints is healthy, for its polls find every job."""
        notes = [] if deafness is None else [f"hears no wake-ups and looks every second instead: {deafness}"]
        return Health(reason=self._reason(poll), about={**about, **({"notes": notes} if notes else {})})

    def _reason(self, poll: float) -> str | None:
        silence = monotonic() - self._answered_at
        if self._phase != "working":
            return f"the worker is {self._phase}"
        if self._error is not None:
            return f"the store has been lost for {self._lost_for():.1f} s: {self._error}"
        if not self._was_reached:
            return "the worker has yet to hear from its store"
        if silence > SILENCE * poll + SLACK:
            return f"nothing was heard from the store for {silence:.0f} s"
        return None


# -- the server ---------------------------------------------------------------------------------

PATH = "/healthz"
METRICS_PATH = "/metrics"
LONGEST_REQUEST = 8_192  # bytes
CLIENT_TIMEOUT = 3.0  # seconds, from a client's first byte to its last
MOST_CLIENTS = 50

Report = Callable[[], Awaitable[Health]]


class MetricsPage(msgspec.Struct, frozen=True):
    """The body of `GET /metrics`, made anew for each request."""

    content_type: str
    text: Callable[[], Awaitable[str]]


@asynccontextmanager
async def answering(
    report: Report, *, host: str, port: int, metrics: MetricsPage | None = None
) -> AsyncIterator[int]:
    """Serve health checks on this address until the body ends; yield the port, chosen by the system for 0."""
    clients = HealthServer(report, metrics)
    try:
        server = await asyncio.start_server(clients.serve, host, port, limit=LONGEST_REQUEST)
    except (OSError, OverflowError) as error:
        raise cant_answer(host, port, error) from None
    async with _served(server, clients):
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def answering_on(
    report: Report, at: socket | Path, metrics: MetricsPage | None = None
) -> AsyncIterator[None]:
    """Serve health checks on a socket that listens already, or on a path of the file system."""
    clients = HealthServer(report, metrics)
    if isinstance(at, Path):
        server = await asyncio.start_unix_server(clients.serve, at, limit=LONGEST_REQUEST)
    else:
        server = await asyncio.start_server(clients.serve, sock=at, limit=LONGEST_REQUEST)
    async with _served(server, clients):
        yield


def cant_answer(host: str, port: int, error: Exception) -> BadRequest:
    return BadRequest(
        f"can't answer health checks on {host}:{port}: {error}; choose another --health-port or --health-host"
    )


@asynccontextmanager
async def _served(server: asyncio.Server, clients: "HealthServer") -> AsyncIterator[None]:
    try:
        yield
    finally:
        server.close()
        await clients.close()


class HealthServer:
    """The clients that are served now, and what they get."""

    def __init__(self, report: Report, metrics: MetricsPage | None = None) -> None:
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
                async with asyncio.timeout(CLIENT_TIMEOUT):
                    writer.write(await self._response_to(reader))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except asyncio.CancelledError:  # the server closes; asyncio would complain about a cancelled client
            pass
        finally:
            writer.transport.abort()
            self._clients.discard(task)

    async def close(self) -> None:
        for client in (clients := list(self._clients)):
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _response_to(self, reader: StreamReader) -> bytes:
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
            return await _metrics_response(self._metrics, with_body=method == "GET")
        health = await self._report()
        return _response(health.status, health.body, with_body=method == "GET")


async def _metrics_response(metrics: MetricsPage, *, with_body: bool) -> bytes:
    try:
        text = await metrics.text()
    except DibsError as error:
        body = msgspec.json.encode({"error": str(error)})
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, body, with_body=with_body)
    return _response(HTTPStatus.OK, text.encode(), with_body=with_body, content_type=metrics.content_type)


def _response(
    status: HTTPStatus,
    body: bytes = b"",
    *,
    with_body: bool = True,
    extra: str = "",
    content_type: str = "application/json",
) -> bytes:
    body = body or msgspec.json.encode({"error": status.phrase})
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n{extra}\r\n"
    )
    return head.encode() + (body if with_body else b"")


# -- several processes --------------------------------------------------------------------------

ASK_TIMEOUT = CLIENT_TIMEOUT / 2


async def ask_all(paths: list[Path]) -> Health:
    """Return the health of all processes that serve on these paths: good if each of them is healthy."""
    reports = await asyncio.gather(*map(ask, paths))
    reasons = [
        f"process {number} of {len(paths)}: {health.reason}"
        for number, health in enumerate(reports, 1)
        if health.reason is not None
    ]
    bodies = [msgspec.Raw(health.body) for health in reports]
    return Health(reason="; ".join(reasons) or None, about={"processes": bodies})


async def ask(path: Path) -> Health:
    """Return the health of the process that serves on this path; one that doesn't respond is unhealthy."""
    try:
        response = await _get(path, PATH)
        about: dict[str, Any] = msgspec.json.decode(response.partition(b"\r\n\r\n")[2])
        about.pop("status", None)
        return Health(reason=about.pop("reason", None), about=about)
    except (OSError, TimeoutError, msgspec.DecodeError):
        return Health(reason="it does not answer: it is starting, or dead, or a handler blocks it")


async def ask_for_metrics(path: Path) -> str | None:
    """Return the metrics of the process that serves on this path; None if it can't give them now."""
    with suppress(OSError, TimeoutError, UnicodeDecodeError):
        head, _, body = (await _get(path, METRICS_PATH)).partition(b"\r\n\r\n")
        return body.decode() if head.startswith(b"HTTP/1.1 200 ") else None
    return None


async def _get(path: Path, target: str) -> bytes:
    async with asyncio.timeout(ASK_TIMEOUT):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(f"GET {target} HTTP/1.1\r\n\r\n".encode())
            return await reader.read()
        finally:
            writer.close()


# -- a blocked event loop -------------------------------------------------------------------------


class LoopWatch:
    """The thread that asks the loop of a worker for a sign of life while handlers run.

    Without one for a second it looks where the loop is: in the step of a handler, at a line of its author.
    """

    def __init__(self, running: Mapping[ClaimState, "asyncio.Task[None]"]) -> None:
        self._running = running
        self._complained: dict[str, float] = {}

    def start(self) -> None:
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._over, self._answered = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dibs-loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._answered.set()  # this thread is the loop's: it will not answer any more
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(ASK_EVERY):
            if self._running and not self._is_alive():
                self._complain()

    def _is_alive(self) -> bool:
        """Return whether the loop answers within a second, or this whole process stood still meanwhile."""
        answered = self._answered = threading.Event()
        if self._over.is_set():
            return True
        asked_at = monotonic()
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(LONGEST_STEP) or monotonic() - asked_at > LONGEST_STEP + ASK_EVERY

    def _complain(self) -> None:
        step = asyncio.current_task(self._loop)
        held = next((held for held, task in list(self._running.items()) if task is step), None)
        if held is None or self._has_complained(held.job.kind):
            return
        log.warning(
            "%s %s keeps the event loop for more than %g s%s: no other handler of this worker goes on; make "
            "it a plain def, which runs in a thread, or await what it waits for",
            held.job.kind,
            held.job.id,
            LONGEST_STEP,
            self._line(),
            extra={"fields": {"event": "blocked", "job": str(held.job.id), "kind": held.job.kind}},
        )

    def _has_complained(self, kind: str) -> bool:
        now = monotonic()
        if now - self._complained.get(kind, float("-inf")) < COMPLAIN_EVERY:
            return True
        self._complained[kind] = now
        return False

    def _line(self) -> str:
        """Return the line at which the loop's thread is, in code that is neither ours nor Python's."""
        frame: FrameType | None = sys._current_frames().get(self._loop_thread)
        while frame is not None and frame.f_code.co_filename.startswith((_OURS, _LIBRARY, "<")):
            frame = frame.f_back
        return "" if frame is None else f", at line {frame.f_lineno} of {frame.f_code.co_filename}"
