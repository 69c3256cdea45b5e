"""A TCP proxy with faults on demand: cuts before or after the reply, refusals, silence, delay."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from tests.support.servers import HOST, free_port

CHUNK = 1 << 16
MEMORY = 1 << 10
QUIET_SECONDS = 0.05
READY_FOR_QUERY = b"Z\x00\x00\x00\x05"
TERMINATE = b"X\x00\x00\x00\x04"

Moment = Literal["before", "after"]


class FaultProxy:
    """Stands in front of `target` on 127.0.0.1; harmless until told otherwise.

    `ready` are the reply bytes that end a connection's startup (PostgreSQL's by default);
    with b"" a connection counts as established at once.
    """

    def __init__(self, target: int, *, ready: bytes = READY_FOR_QUERY) -> None:
        self.target = target
        self.port = free_port()
        self.fired = 0
        self.round_trips = 0  # of all connections: how often a client spoke after it had heard
        self._ready = ready
        self._links: set[_Link] = set()
        self._faults: list[_Fault] = []
        self._blackholed = False
        self._delay = 0.0
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._thread.start()
        self._ask(self._listen())

    def cut(self) -> None:
        """Close every current connection now."""
        self._ask(self._cut())

    def refuse(self) -> None:
        """Refuse new connections until healed; current ones live on."""
        self._ask(self._stop_listening())

    def blackhole(self) -> None:
        """Accept, and swallow everything in both directions, goodbyes too, until healed."""
        self._ask(self._swallow_all())

    def silence(self) -> None:
        """Swallow everything of the current connections, in both directions; new ones are carried."""
        self._ask(self._silence())

    def delay(self, seconds: float) -> None:
        """Hold back every piece of reply by this long; 0 ends it."""
        self._delay = seconds

    def heal(self) -> None:
        """Be harmless again: disarm all, and close the connections that lost bytes."""
        self._ask(self._heal())

    def cut_before(self, pattern: bytes, *, times: int = 1) -> None:
        """Close the connection whose client sends the pattern; the server never sees it."""
        self._faults.append(_Fault("before", pattern, times))

    def cut_after(self, pattern: bytes, *, times: int = 1) -> None:
        """Let the server answer what contains the pattern, then close; the client never hears."""
        self._faults.append(_Fault("after", pattern, times))

    def cut_after_next(self, *, times: int = 1) -> None:
        """The same for whatever an established connection sends next, except its goodbye."""
        self._faults.append(_Fault("after", None, times))

    def close(self) -> None:
        self._ask(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, deed: Coroutine[None, None, None]) -> None:
        """Have the proxy's own thread do it, and wait until it is done."""
        asyncio.run_coroutine_threadsafe(deed, self._loop).result()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, HOST, self.port)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _cut(self) -> None:
        for link in self._links:
            link.cut()

    async def _swallow_all(self) -> None:
        self._blackholed = True

    async def _silence(self) -> None:
        for link in self._links:
            link.lost = True

    async def _heal(self) -> None:
        self._blackholed, self._delay = False, 0.0
        self._faults.clear()
        for link in self._links:
            if link.lost:
                link.cut()
        await self._listen()

    async def _shut(self) -> None:
        await self._stop_listening()
        # Ended, not cancelled: in 3.11 a cancelled handler of start_server logs a false alarm.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await self._cut()
            await asyncio.wait(others, timeout=QUIET_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(_Side(reader, writer))
        self._links.add(link)
        try:
            if self._swallows(link):
                await link.gone.wait()
            else:
                await self._carry(link, await link.dial(self.target))
        except OSError:
            link.cut()
        finally:
            self._links.discard(link)
            link.close()

    async def _carry(self, link: _Link, server: _Side) -> None:
        ways = [asyncio.create_task(way(link, server)) for way in (self._requests, self._replies)]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self, link: _Link, server: _Side) -> None:
        while chunk := await link.client.read():
            if self._swallows(link) or link.answered:
                continue
            self.round_trips += link.heard
            link.heard = False
            match None if link.doomed else self._met(link):
                case "before":
                    self._fire(link)
                    return
                case "after":
                    link.doomed = True
            await server.write(chunk)
        if self._swallows(link) or link.doomed:
            await link.gone.wait()

    async def _replies(self, link: _Link, server: _Side) -> None:
        while chunk := await server.read():
            if self._swallows(link):
                continue
            if link.doomed:
                link.answered = True
                await server.quiet()
                break
            link.established |= server.just_said(self._ready)
            await asyncio.sleep(self._delay)
            link.heard = True
            await link.client.write(chunk)
        if link.doomed:
            self._fire(link)
        elif self._swallows(link):
            await link.gone.wait()

    def _swallows(self, link: _Link) -> bool:
        link.lost |= self._blackholed
        return link.lost

    def _met(self, link: _Link) -> Moment | None:
        """When to cut for what this client just said; uses up one of the fault's times."""
        for fault in self._faults:
            if fault.times > 0 and fault.meets(link):
                fault.times -= 1
                return fault.moment
        return None

    def _fire(self, link: _Link) -> None:
        # Counted first: whoever sees the connection end may look at the count at once.
        self.fired += 1
        link.cut()


class _Side:
    """One end of a link: what it says is read here, what it shall hear is written here."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._past, self.chunk = b"", b""

    async def read(self) -> bytes:
        chunk = await self._reader.read(CHUNK)
        self._past, self.chunk = (self._past + self.chunk)[-MEMORY:], chunk
        return chunk

    async def write(self, chunk: bytes) -> None:
        self._writer.write(chunk)
        await self._writer.drain()

    async def quiet(self) -> None:
        """Return once this side has said nothing for a while, or has gone."""
        with contextlib.suppress(TimeoutError):
            while await asyncio.wait_for(self.read(), QUIET_SECONDS):
                pass

    def just_said(self, pattern: bytes) -> bool:
        """Whether the last chunk holds the pattern, or the end of one that began before it."""
        overlap = self._past[max(0, len(self._past) - len(pattern) + 1) :]
        return pattern in overlap + self.chunk

    def close(self) -> None:
        self._writer.close()

    def cut(self) -> None:
        self._writer.transport.abort()


class _Link:
    """A client's connection and the one the proxy made for it."""

    def __init__(self, client: _Side) -> None:
        self.client = client
        self.server: _Side | None = None
        self.gone = asyncio.Event()
        self.established = self.doomed = self.answered = self.lost = False
        self.heard = True

    async def dial(self, port: int) -> _Side:
        self.server = _Side(*await asyncio.open_connection(HOST, port))
        return self.server

    def close(self) -> None:
        for side in self._sides():
            side.close()

    def cut(self) -> None:
        self.gone.set()
        for side in self._sides():
            side.cut()

    def _sides(self) -> list[_Side]:
        return [self.client, self.server] if self.server else [self.client]


@dataclass(slots=True)
class _Fault:
    """What is armed: when to cut, at which pattern (None: at anything), how often still."""

    moment: Moment
    pattern: bytes | None
    times: int

    def meets(self, link: _Link) -> bool:
        if self.pattern is not None:
            return link.client.just_said(self.pattern)
        return link.established and not link.client.chunk.startswith(TERMINATE)
