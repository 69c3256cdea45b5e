"""What handlers need and share (pools, clients): made ready before the first claim, put away at the end.

`Dibs(lifespan=…)` takes a function that is called with the app and answers a context manager, awaited or
plain. What it yields is `ctx.state`.
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
    """Entered once per worker run, or around one `run_job`; each time anew."""

    def __init__(self, make: Callable[[Any], Resources] | None, app: Any) -> None:
        if make is not None and not callable(make):
            raise BadRequest(f"lifespan={make!r}: pass a function that answers a context manager")
        self._make = make
        self._app = app

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[Any]:
        """Entered and left by the same task, as task groups and timeouts want it."""
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
        """The same for a plain handler in this thread; what must be awaited lives on a loop beside it."""
        match self._made():
            case None:
                yield None
            case AbstractAsyncContextManager() as resources:
                with _on_a_loop_beside(resources) as state:
                    yield state
            case resources:
                with resources as state:
                    yield state

    def _made(self) -> Resources | None:
        if self._make is None:
            return None
        resources: Any = self._make(self._app)
        if not isinstance(resources, AbstractAsyncContextManager | AbstractContextManager):
            raise BadRequest(
                f"lifespan answered {type(resources).__name__}, not a context manager: "
                "decorate it with contextlib.asynccontextmanager"
            )
        return resources


class LifespanEntry:
    """One worker's way in and out: nothing is running there, so a stop may break it off."""

    def __init__(self) -> None:
        self._passing: asyncio.Task[Any] | None = None
        self._inside = False
        self._broken_off = False

    @asynccontextmanager
    async def through(self, lifespan: Lifespan) -> AsyncIterator[Any]:
        """Entered until the body ends; the body is never broken off from here."""
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
        """Not entered yet: nothing was claimed, turn back. Already leaving: only when told to hurry."""
        if self._passing is not None and (hurried or not self._inside):
            self._broken_off = True
            self._passing.cancel()

    def turned_back(self) -> bool:
        """Whether the cancellation that came out of `through` was our own; it is then taken back."""
        if not self._broken_off:
            return False
        self._broken_off = False
        task = asyncio.current_task()
        return task is not None and task.uncancel() == 0


@contextmanager
def _on_a_loop_beside(resources: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
    """Entered and left on a loop that runs in a thread of its own for as long as the body does."""
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
        except BaseException as error:  # carried to whoever waits: entering or leaving failed
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
