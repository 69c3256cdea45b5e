"""Server-sent events over `watch`: snapshot, changes, end.

| event      | data                                                                                |
|------------|-------------------------------------------------------------------------------------|
| `snapshot` | the job; of a pipeline or the store, `{"jobs": […]}`, be it none                    |
| `change`   | a job that is no longer as it was told                                              |
| `gone`     | the id of a job that was deleted                                                    |
| `end`      | everything has finished: close, nothing more will come                              |
| `resync`   | this reader was too slow, or listened for very long: come back for a new snapshot   |

A client that waits costs two tasks and what the server needs for its connection: no thread, no query, no
connection to the store.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dibs.app.watching import Subscription, Watching, wake
from dibs.errors import DibsError, NotFound
from dibs.jobs.job import Job
from dibs.operations.watch import Change, WatchTarget, fingerprint, version

KEEP_ALIVE = 15.0  # seconds without a word
SEND_PATIENCE = 30.0  # seconds for a client to take what it is sent
LONGEST = 3600.0  # seconds, after which a client has to show again who it is
RETRY = b"retry: 2000\n\n"  # milliseconds until a browser comes back

Encode = Callable[[Job], bytes]
FirstSight = Callable[[], Awaitable[list[Job]]]


class EventStream(Response):
    """What one client hears of one topic, until it has ended or the client has left."""

    media_type = "text/event-stream"

    def __init__(
        self,
        watching: Watching,
        topic: WatchTarget,
        *,
        encode: Encode,
        allows: Callable[[Job], bool],
        last_event_id: str | None = None,
        first_sight: FirstSight | None = None,
    ) -> None:
        """`first_sight` finds what this client sees of a topic of which it sees only a part."""
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._watching = watching
        self._first_sight = first_sight
        self._teller = Teller(topic, encode, allows, last_event_id, partial=first_sight is not None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        leaving = asyncio.create_task(_left(receive))
        leaving.add_done_callback(lambda _: news.set())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            topic, whole = self._teller.topic, self._first_sight is None
            with self._watching.watched(topic, lambda: wake(loop, news), whole=whole) as subscription:
                await self._tell(subscription, news, leaving, send)
        except (OSError, TimeoutError):
            pass  # the client is gone, or takes nothing
        finally:
            leaving.cancel()

    async def _tell(
        self, subscription: Subscription, news: asyncio.Event, leaving: "asyncio.Task[None]", send: Send
    ) -> None:
        await _send(send, RETRY)
        ends_at = asyncio.get_running_loop().time() + LONGEST
        while not leaving.done():
            words, over = await self._next_words(subscription)
            if asyncio.get_running_loop().time() > ends_at and not over:
                words, over = [*words, RESYNC], True
            if words or over:
                await _send(send, b"".join(words), more=not over)
            if over:
                return
            if not await _within(KEEP_ALIVE, news):
                await _send(send, b": keep-alive\n\n")

    async def _next_words(self, subscription: Subscription) -> tuple[list[bytes], bool]:
        words, over = self._teller.next_words(subscription)
        if over or self._first_sight is None or not self._teller.has_to_look(subscription):
            return words, over
        try:
            return self._teller.begin(await self._first_sight()), False
        except DibsError:
            return [RESYNC], True


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(SEND_PATIENCE):
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _within(seconds: float, news: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return False
    news.clear()
    return True


class Teller:
    """Turns the changes of a topic into events; knows what its client has heard."""

    def __init__(
        self,
        topic: WatchTarget,
        encode: Encode,
        allows: Callable[[Job], bool],
        last_event_id: str | None,
        *,
        partial: bool = False,
    ) -> None:
        self.topic = topic
        self._encode = encode
        self._allows = allows
        self._last_event_id = last_event_id
        self._partial = partial
        self._live: set[UUID] = set()  # that a client who sees a part of a queue was told
        self._versions: dict[UUID, int] = {}
        self._begun = False

    def next_words(self, subscription: Subscription) -> tuple[list[bytes], bool]:
        """What to say now, and whether that was the last of it."""
        if subscription.fell_behind:
            return [RESYNC], True
        begun = subscription.begun  # before anything is taken: what stands is put before this is set
        try:
            changes, over = subscription.take()
        except NotFound:
            return [event("end", b"{}")], True
        except DibsError:
            return [RESYNC], True
        words = self._words(changes, begun or bool(changes))
        if over:
            words.append(RESYNC if subscription.interrupted else event("end", b"{}"))
        return words, over

    def has_to_look(self, subscription: Subscription) -> bool:
        """From now on all that changes is told, so what is found now is a beginning."""
        return self._partial and not self._begun and subscription.begun

    def begin(self, jobs: list[Job]) -> list[bytes]:
        self._begun = True
        for job in jobs:
            self._note(job)
        is_gone = self.topic.sort == "job" and not jobs  # before it was told at all: the end follows
        return [] if is_gone or self._heard_before() else [event("snapshot", self._whole(jobs), self._id())]

    def _words(self, changes: list[Change], begun: bool) -> list[bytes]:
        if self._begun:
            return [self._change(change) for change in changes if self._is_told(change)]
        if self._partial or not begun:
            return []
        jobs = [change.job for change in changes if change.job is not None]
        return self.begin([job for job in jobs if self._allows(job)])

    def _is_told(self, change: Change) -> bool:
        """Who never heard of a job need not hear that it is gone, and may be one who must not."""
        if change.job is not None:
            return self._allows(change.job)
        if self.topic.sort == "queue":
            return not self._partial or change.id in self._live
        return change.id in self._versions

    def _heard_before(self) -> bool:
        return self._id() is not None and self._id() == self._last_event_id

    def _change(self, change: Change) -> bytes:
        if change.job is None:
            self._versions.pop(change.id, None)
            self._live.discard(change.id)
            return event("gone", msgspec.json.encode({"id": change.id}), self._id())
        self._note(change.job)
        return event("change", self._encode(change.job), self._id())

    def _whole(self, jobs: list[Job]) -> bytes:
        if self.topic.sort == "job":
            return self._encode(jobs[0])
        return b'{"jobs":[' + b",".join(map(self._encode, jobs)) + b"]}"

    def _note(self, job: Job) -> None:
        if self.topic.sort != "queue":
            self._versions[job.id] = version(job.id, fingerprint(job))
        elif self._partial:
            (self._live.discard if job.is_finished else self._live.add)(job.id)

    def _id(self) -> str | None:
        """All that the client knows in one number, whichever process told it. A queue has no whole."""
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
    """JSON text has no line ends of its own, so one `data:` line always holds it."""
    number = b"" if id is None else b"id: %s\n" % id.encode()
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), number, data)


RESYNC = event("resync", b"{}")


def summary(job: Job) -> dict[str, Any]:
    """A job without what may be large: arguments, result, errors."""
    return {name: getattr(job, name) for name in SUMMARY}


LARGE = ("args", "result", "errors", "meta", "is_new")
SUMMARY = tuple(name for name in Job.__struct_fields__ if name not in LARGE)


def encode_summary(job: Job) -> bytes:
    return msgspec.json.encode(summary(job))


def encode_job(job: Job) -> bytes:
    return msgspec.json.encode(job)
