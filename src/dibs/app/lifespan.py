"""What handlers need and share (pools, clients): set up before the first claim, torn down at the end.

`Dibs(lifespan=…)` takes a function that is called with the app and returns a context manager, async or plain.
What it yields is `ctx.state`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

from dibs.errors import BadRequest

Resources = AbstractAsyncContextManager[Any] | AbstractContextManager[Any]


class Lifespan:
    """The lifespan of an app, entered once per worker run, or around one `run_job`; each time anew."""

    def __init__(self, make: Callable[[Any], Resources] | None, app: Any) -> None:
        if make is not None and not callable(make):
            raise BadRequest(f"lifespan={make!r}: pass a function that returns a context manager")
        self._make = make
        self._app = app

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[Any]:
        """Enter and leave it in the same asyncio task, as task groups and timeouts want it."""
        match self._made():
            case None:
                yield None
            case AbstractAsyncContextManager() as resources:
                async with resources as state:
                    yield state
            case resources:
                with resources as state:
                    yield state

    @contextmanager
    def entered_sync(self) -> Iterator[Any]:
        """Enter and leave it in this thread; an async one lives on a loop in a thread of its own."""
        match self._made():
            case None:
                yield None
            case AbstractAsyncContextManager() as resources:
                with _on_own_loop(resources) as state:
                    yield state
            case resources:
                with resources as state:
                    yield state

    def _made(self) -> Resources | None:
        if self._make is None:
            return None
        return checked_resources(self._make(self._app), "lifespan")


def checked_resources(made: Any, what: str) -> Resources:
    """Return what a function made, if it is a context manager."""
    if not isinstance(made, AbstractAsyncContextManager | AbstractContextManager):
        raise BadRequest(
            f"{what} returned {type(made).__name__}, not a context manager: decorate it with "
            "contextlib.contextmanager or asynccontextmanager"
        )
    return made


class LifespanEntry:
    """The entering and leaving of one worker's lifespan: no job runs then, so a stop may cancel it."""

    def __init__(self) -> None:
        self._passing: asyncio.Task[Any] | None = None
        self._inside = False
        self._broken_off = False

    @asynccontextmanager
    async def through(self, lifespan: Lifespan) -> AsyncIterator[Any]:
        """Enter the lifespan until the body ends; the body itself is never cancelled from here."""
        self._passing, self._inside, self._broken_off = asyncio.current_task(), False, False
        try:
            async with lifespan.entered() as state:
                self._inside, passing, self._passing = True, self._passing, None
                try:
                    yield state
                finally:
                    self._passing = passing
        finally:
            self._passing = None

    def stop(self, *, hurried: bool) -> None:
        """Cancel the entering, as nothing was claimed yet; cancel the leaving only if `hurried`."""
        if self._passing is not None and (hurried or not self._inside):
            self._broken_off = True
            self._passing.cancel()

    def turned_back(self) -> bool:
        """Return whether the cancellation that came out of `through` was our own, and end it then."""
        if not self._broken_off:
            return False
        self._broken_off = False
        task = asyncio.current_task()
        return task is not None and task.uncancel() == 0


@contextmanager
def _on_own_loop(resources: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
    """Enter and leave it on a loop that runs in a thread of its own for as long as the body does."""
    entered: Future[tuple[Any, Callable[[], object]]] = Future()
    left: Future[None] = Future()

    async def live() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        async with resources as state:
            entered.set_result((state, lambda: loop.call_soon_threadsafe(over.set)))
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:  # raised in the waiting thread: entering or leaving failed
            (left if entered.done() else entered).set_exception(error)
        else:
            left.set_result(None)

    threading.Thread(target=run, name="dibs-lifespan", daemon=True).start()
    state, leave = entered.result()
    try:
        yield state
    finally:
        leave()
        left.result()
