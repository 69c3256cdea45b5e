"""Live pages: one look per page and process, however many browsers show it, and a stream of its changes.

A look reads what its page shows, again and again while a browser follows it. Browsers get no data this way,
only that there is something new; they load the page again, from what the look has read.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

from dibs.app.guards import file_limit, most_connections
from dibs.app.watching import wake
from dibs.clock import monotonic
from dibs.dashboard.pages import View
from dibs.dashboard.rendering import render, time_tag
from dibs.errors import DibsError, StoreUnavailable

SHORTEST, LONGEST = 1.0, 150.0  # seconds between two reads of one look
QUESTIONS_PER_SECOND = 3.0  # of all looks of a process
SHARE = 20  # reading may take one part in so many of the time
STREAM_LASTS = 25.0  # seconds; the browser then connects again, and proves again that it may
MOST_STREAMS = 1000


class TooManyStreams(StoreUnavailable):
    """This process follows no more pages."""


class PageLook:
    """What one page shows, as it was read last, and the browsers that follow it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.data: dict[str, Any] | None = None
        self.read_at = 0.0
        self.version = ""
        self.away = False
        self.followers: set[asyncio.Event] = set()
        self.task: asyncio.Task[None] | None = None
        self._reading: asyncio.Lock = asyncio.Lock()

    async def read(self, younger_than: float) -> dict[str, Any]:
        """Return data of at most this age; of several callers at once one reads."""
        asked = monotonic()
        async with self._reading:
            if self.data is None or self.read_at < asked - younger_than:
                at = monotonic()
                self.data = await self.view.load()
                self.read_at = at
            return self.data

    def notify(self) -> None:
        for news in self.followers:
            news.set()


class Looks:
    """The looks of one process, by page, search and scope."""

    def __init__(self) -> None:
        self._looks: dict[str, PageLook] = {}
        self._streams = 0

    async def read(self, view: View, *, fresh: bool) -> dict[str, Any]:
        """Return the data of a page: what its look has read last, unless it must be fresh."""
        look = self._looks.get(view.key)
        if look is None:
            return await view.load()
        return await look.read(0.0 if fresh else LONGEST)

    def stream(self, view: View, seen: str | None) -> StreamingResponse:
        """Return the stream that says so whenever the page is another than the version that was seen."""
        if self._streams >= (most := min(MOST_STREAMS, most_connections(file_limit()) // 4)):
            raise TooManyStreams(f"{most} browsers follow pages of this process already")
        headers = {"x-accel-buffering": "no", "cache-control": "no-store"}
        return StreamingResponse(self._events(view, seen), media_type="text/event-stream", headers=headers)

    async def _events(self, view: View, seen: str | None) -> AsyncIterator[bytes]:
        look = self._looks.setdefault(view.key, PageLook(view))
        news, ended, was_away = asyncio.Event(), asyncio.Event(), False
        loop, at_end = asyncio.get_running_loop(), view.app._core.watching.at_end

        def end() -> None:
            ended.set()
            wake(loop, news)

        look.followers.add(news)
        at_end.add(end)
        self._streams += 1
        if look.task is None or look.task.done():
            look.task = asyncio.create_task(self._follow(look), name="dibs-page")
        try:
            yield b"retry: 500\n\n"
            async with asyncio.timeout(STREAM_LASTS):
                while not ended.is_set():
                    if look.away != was_away:
                        was_away = look.away
                        yield b"event: away\ndata: %d\n\n" % was_away
                    if look.version and look.version != seen:
                        seen = look.version
                        yield b"id: %s\nevent: changed\ndata: 1\n\n" % seen.encode()
                    await news.wait()
                    news.clear()
        except TimeoutError:
            pass
        finally:
            self._streams -= 1
            look.followers.discard(news)
            at_end.discard(end)

    async def _follow(self, look: PageLook) -> None:
        try:
            while look.followers:
                began = monotonic()
                await self._look_once(look)
                await asyncio.sleep(self._pause(look, monotonic() - began))
        finally:
            self._looks.pop(look.view.key, None)

    async def _look_once(self, look: PageLook) -> None:
        try:
            data = await look.read(0.0)
            version, away = digest_of(look.view, data), False
        except StoreUnavailable:
            version, away = look.version, True
        except DibsError as error:  # the job is gone, say
            version, away = f"{type(error).__name__}", False
        if (version, away) != (look.version, look.away):
            look.version, look.away = version, away
            look.notify()

    def _pause(self, look: PageLook, took: float) -> float:
        questions: int = (look.data or {}).get("questions", look.view.page.questions)
        fair = questions * len(self._looks) / QUESTIONS_PER_SECOND
        return min(max(SHORTEST, fair, took * SHARE), LONGEST)


def digest_of(view: View, data: dict[str, Any]) -> str:
    """Return a digest of what the page shows, without what passes by itself: relative times."""
    context = {**view.context(data), "now": None, "said": None, "form_token": "", "here": "", "q": ""}
    context |= {
        "root": "",
        "page": view.page.template,
        "title": "",
        "visitor": view.visitor,
        "time_tag": time_tag,
    }
    return hashlib.blake2b(render(f"{view.page.template}.html", context).encode(), digest_size=8).hexdigest()
