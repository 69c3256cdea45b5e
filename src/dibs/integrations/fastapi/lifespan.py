"""`lifespan(app)`: the app is open, and its worker works, for as long as the web app lives."""

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

RUN_WORKER = "RUN_WORKER"  # set to false where only requests are to be answered, as in tests

_SWITCH = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


@dataclass(slots=True)
class Living:
    """What lives beside the requests; as `web.state.dibs`, for health checks."""

    worker: Worker | None = None
    task: "asyncio.Task[None] | None" = None

    @property
    def is_well(self) -> bool:
        return (
            self.worker is None
            or self.task is None
            or (not self.task.done() and self.worker.health().reason is None)
        )


def lifespan(
    app: Dibs,
    *,
    worker: bool = True,
    queues: Sequence[str] | None = None,
    concurrency: int = 10,
    grace: Duration = 10,
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """For `FastAPI(lifespan=lifespan(app))`: opens the app, and runs a worker unless `worker` is False.

    `$RUN_WORKER` set to `false` keeps the worker from being run, whatever the code says. In a lifespan of
    your own: `async with lifespan(app)(web): yield`.
    """

    @asynccontextmanager
    async def living(web: Any) -> AsyncIterator[None]:
        wanted = worker and _switched_on()
        async with app:
            life = Living(
                Worker(app, queues=queues, concurrency=concurrency, grace=grace) if wanted else None
            )
            web.state.dibs = life
            with _streams_end_first(app):
                async with _working(life):
                    yield

    return living


def _switched_on() -> bool:
    said = os.environ.get(RUN_WORKER, "").strip() or "true"
    if said.lower() not in _SWITCH:
        raise BadRequest(f"${RUN_WORKER}={said!r} is neither true nor false")
    return _SWITCH[said.lower()]


@asynccontextmanager
async def _working(life: Living) -> AsyncIterator[None]:
    if life.worker is None:
        yield
        return
    life.task = asyncio.create_task(life.worker.run(handle_signals=False), name="dibs-worker")
    life.task.add_done_callback(_mention_failure)
    try:
        yield
    finally:
        life.worker.stop()
        await asyncio.wait([life.task])


def _mention_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the worker of this web app has ended, and no more jobs are run here", exc_info=error)


@contextmanager
def _streams_end_first(app: Dibs) -> Iterator[None]:
    """A server that is told to end waits for its clients, and streams of events don't end by themselves.

    So the signal that the server waits for ends them, too, and is then passed on.
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
        except ValueError:  # not in the main thread: whoever runs us there ends us some other way
            break
    try:
        yield
    finally:
        for caught, handler in before.items():
            if signal.getsignal(caught) is end:
                signal.signal(caught, handler)
