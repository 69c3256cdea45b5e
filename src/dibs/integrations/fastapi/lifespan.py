"""`lifespan(app)`: open the app and run its worker for as long as the web app runs."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from dibs.app.dibs import Dibs
from dibs.errors import BadRequest
from dibs.events import log
from dibs.settings import Duration
from dibs.worker import Worker

RUN_WORKER = "RUN_WORKER"  # false where only requests are to be served, as in tests

_ON, _OFF = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(slots=True)
class LifespanState:
    """The worker beside the requests; as `web.state.dibs`, for health checks."""

    worker: Worker | None = None
    task: "asyncio.Task[None] | None" = None

    @property
    def is_healthy(self) -> bool:
        if self.worker is None or self.task is None:
            return True
        return not self.task.done() and self.worker.health().reason is None


def lifespan(
    app: Dibs,
    *,
    worker: bool = True,
    queues: Sequence[str] | None = None,
    concurrency: int = 10,
    grace: Duration = 10,
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan for `FastAPI(lifespan=…)`: open the app, and run a worker unless `worker` is False.

    With `$RUN_WORKER` set to `false` no worker runs, whatever the code says. In a lifespan of your own:
    `async with lifespan(app)(web): yield`.
    Example: `web = FastAPI(lifespan=lifespan(app))`"""

    @asynccontextmanager
    async def opened(web: Any) -> AsyncIterator[None]:
        wanted = worker and _switched_on()
        async with app:
            state = LifespanState(
                Worker(app, queues=queues, concurrency=concurrency, grace=grace) if wanted else None
            )
            web.state.dibs = state
            with _streams_end_first(app):
                async with _working(state):
                    yield

    return opened


def _switched_on() -> bool:
    said = os.environ.get(RUN_WORKER, "").strip() or "true"
    if said.lower() not in _ON + _OFF:
        raise BadRequest(f"${RUN_WORKER}={said!r} is neither true nor false")
    return said.lower() in _ON


@asynccontextmanager
async def _working(state: LifespanState) -> AsyncIterator[None]:
    if state.worker is None:
        yield
        return
    state.task = asyncio.create_task(state.worker.run(handle_signals=False), name="dibs-worker")
    state.task.add_done_callback(_log_failure)
    try:
        yield
    finally:
        state.worker.stop()
        await asyncio.wait([state.task])


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the worker of this web app has ended, and no more jobs are run here", exc_info=error)


@contextmanager
def _streams_end_first(app: Dibs) -> Iterator[None]:
    """End event streams on SIGTERM and SIGINT, then pass the signal on.

    A server that is stopped waits for its clients, and streams of events don't end by themselves.
    """
    before: dict[int, Any] = {}
    loop = asyncio.get_running_loop()

    def end(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(app._core.watching.end_all)
        handler = before[number]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            before[number] = signal.signal(number, end)
        except ValueError:  # not in the main thread, so signals arrive elsewhere
            break
    try:
        yield
    finally:
        for caught, handler in before.items():
            if signal.getsignal(caught) is end:
                signal.signal(caught, handler)
