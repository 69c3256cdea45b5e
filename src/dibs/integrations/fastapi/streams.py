"""Server-sent events over `watch`: snapshot, changes, end.

| event      | data                                                                                |
|------------|-------------------------------------------------------------------------------------|
| `snapshot` | the job; of a pipeline or the store, `{"jobs": […]}`, which may be empty            |
| `change`   | a job that changed since it was last sent                                           |
| `gone`     | the id of a job that was deleted                                                    |
| `end`      | everything has finished: close, no event follows                                    |
| `resync`   | the client was too slow or connected for very long: reconnect for a new snapshot    |

A waiting client costs two asyncio tasks and its connection to the server: no thread, no query, no connection
to the store.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dibs.app.scopes import shown
from dibs.app.watching import Subscription, Watching, wake
from dibs.errors import DibsError, NotFound
from dibs.jobs.job import Job
from dibs.operations.watch import Change, WatchTarget, fingerprint, version

KEEP_ALIVE = 15.0  # seconds without an event
SEND_LIMIT = 30.0  # seconds for a client to receive what it is sent
LONGEST = 3600.0  # seconds, after which a client has to authenticate again
RETRY = b"retry: 2000\n\n"  # milliseconds until a browser reconnects

Encode = Callable[[Job], bytes]
FindFirst = Callable[[], Awaitable[list[Job]]]


class EventStream(Response):
    """The response with the events of one topic, until it has ended or the client has disconnected."""

    media_type = "text/event-stream"

    def __init__(
        self,
        watching: Watching,
        topic: WatchTarget,
        *,
        encode: Encode,
        allows: Callable[[Job], bool],
        last_event_id: str | None = None,
        find_first: FindFirst | None = None,
        counted: AbstractContextManager[None],
    ) -> None:
        """Stream a topic; `find_first` finds the jobs for a client that may see only a part of it.

        `counted` is entered while the stream is open.
        """
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._watching = watching
        self._find_first = find_first
        self._counted = counted
        self._encoder = EventEncoder(topic, encode, allows, last_event_id, partial=find_first is not None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        disconnect = asyncio.create_task(_disconnected(receive))
        disconnect.add_done_callback(lambda _: news.set())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            topic, whole = self._encoder.topic, self._find_first is None
            with (
                self._counted,
                self._watching.watched(topic, lambda: wake(loop, news), whole=whole) as subscription,
            ):
                await self._send_events(subscription, news, disconnect, send)
        except (OSError, TimeoutError):
            pass  # the client disconnected, or receives nothing
        finally:
            disconnect.cancel()

    async def _send_events(
        self, subscription: Subscription, news: asyncio.Event, disconnect: "asyncio.Task[None]", send: Send
    ) -> None:
        await _send(send, RETRY)
        ends_at = asyncio.get_running_loop().time() + LONGEST
        while not disconnect.done():
            events, over = await self._next_events(subscription)
            if asyncio.get_running_loop().time() > ends_at and not over:
                events, over = [*events, RESYNC], True
            if events or over:
                await _send(send, b"".join(events), more=not over)
            if over:
                return
            if not await _within(KEEP_ALIVE, news):
                await _send(send, b": keep-alive\n\n")

    async def _next_events(self, subscription: Subscription) -> tuple[list[bytes], bool]:
        events, over = self._encoder.next_events(subscription)
        if over or self._find_first is None or not self._encoder.has_to_find(subscription):
            return events, over
        try:
            return self._encoder.begin(await self._find_first()), False
        except DibsError:
            return [RESYNC], True


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(SEND_LIMIT):
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _within(seconds: float, news: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return False
    news.clear()
    return True


@dataclass(slots=True, eq=False)
class EventEncoder:
    """The state of one client: what it was sent, from which the next events are made."""

    topic: WatchTarget
    encode: Encode
    allows: Callable[[Job], bool]
    last_event_id: str | None
    partial: bool = False
    _live: set[UUID] = field(default_factory=set)  # sent to a client that sees a part of a queue
    _versions: dict[UUID, int] = field(default_factory=dict)
    _begun: bool = False

    def next_events(self, subscription: Subscription) -> tuple[list[bytes], bool]:
        """Return the events to send now, and whether these were the last."""
        if subscription.fell_behind:
            return [RESYNC], True
        begun = subscription.begun  # read before `take`: the first jobs are put before it is set
        try:
            changes, over = subscription.take()
        except NotFound:
            return [event("end", b"{}")], True
        except DibsError:
            return [RESYNC], True
        events = self._events(changes, begun or bool(changes))
        if over:
            events.append(RESYNC if subscription.interrupted else event("end", b"{}"))
        return events, over

    def has_to_find(self, subscription: Subscription) -> bool:
        """Return whether the first jobs have to be found now; all later changes are sent."""
        return self.partial and not self._begun and subscription.begun

    def begin(self, jobs: list[Job]) -> list[bytes]:
        self._begun = True
        for job in jobs:
            self._note(job)
        is_gone = self.topic.sort == "job" and not jobs  # deleted before it was ever sent: the end follows
        has_all = (id := self._id()) is not None and id == self.last_event_id
        return [] if is_gone or has_all else [event("snapshot", self._whole(jobs), id)]

    def _events(self, changes: list[Change], begun: bool) -> list[bytes]:
        if self._begun:
            return [self._change(change) for change in changes if self._is_visible(change)]
        if self.partial or not begun:
            return []
        jobs = [change.job for change in changes if change.job is not None]
        return self.begin([job for job in jobs if self.allows(job)])

    def _is_visible(self, change: Change) -> bool:
        """Return whether the client may see it; a deleted job only if the job was sent before."""
        if change.job is not None:
            return self.allows(change.job)
        if self.topic.sort == "queue":
            return not self.partial or change.id in self._live
        return change.id in self._versions

    def _change(self, change: Change) -> bytes:
        if change.job is None:
            self._versions.pop(change.id, None)
            self._live.discard(change.id)
            return event("gone", msgspec.json.encode({"id": change.id}), self._id())
        self._note(change.job)
        return event("change", self.encode(change.job), self._id())

    def _whole(self, jobs: list[Job]) -> bytes:
        if self.topic.sort == "job":
            return self.encode(jobs[0])
        return b'{"jobs":[' + b",".join(map(self.encode, jobs)) + b"]}"

    def _note(self, job: Job) -> None:
        if self.topic.sort != "queue":
            self._versions[job.id] = version(job.id, fingerprint(job))
        elif self.partial:
            (self._live.discard if job.is_finished else self._live.add)(job.id)

    def _id(self) -> str | None:
        """Return one id of all that the client was sent, equal in every process; None for a queue."""
        if self.topic.sort == "queue":
            return None
        return event_id(self._versions)


def event_id(versions: dict[UUID, int]) -> str:
    known = 0
    for number in versions.values():
        known ^= number
    return f"{known:016x}"


def event_id_of(job: Job) -> str:
    return event_id({job.id: version(job.id, fingerprint(job))})


def event(name: str, data: bytes, id: str | None = None) -> bytes:
    """Return the text of one event; JSON has no line ends of its own, so it fits into one `data:` line."""
    number = b"" if id is None else b"id: %s\n" % id.encode()
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), number, data)


RESYNC = event("resync", b"{}")


def summary(job: Job) -> dict[str, Any]:
    """Return a job without its large fields: arguments, result, errors."""
    return {name: getattr(job, name) for name in SUMMARY}


LARGE = ("args", "result", "errors", "meta", "is_new")
SUMMARY = tuple(name for name in Job.__struct_fields__ if name not in LARGE)


def encode_summary(job: Job) -> bytes:
    return msgspec.json.encode(summary(job))


def encode_shown(job: Job, fields: Collection[str]) -> bytes:
    return msgspec.json.encode(shown(job, fields))
