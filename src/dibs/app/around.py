"""`@app.around`: context managers that are entered around every handler, the first registered outermost."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
)
from typing import Any, TypeVar

from dibs.app.lifespan import Resources, checked_resources
from dibs.errors import BadRequest
from dibs.jobs.job import Job

Around = Callable[[Job], Resources]
A = TypeVar("A", bound=Around)


def check_around(function: A) -> A:
    if not callable(function):
        raise BadRequest(f"@app.around goes on a function that takes a job, not on {function!r}")
    return function


async def call_inside(arounds: Sequence[Around], job: Job, function: Any, arguments: dict[str, Any]) -> Any:
    """Await an async handler inside of them."""
    async with AsyncExitStack() as stack:
        for around in arounds:
            await _enter(stack, around, job)
        return await function(**arguments)


def call_inside_sync(arounds: Sequence[Around], job: Job, function: Any, arguments: dict[str, Any]) -> Any:
    """Call a plain handler inside of them, in this thread; an async one has a loop in a thread of its own."""
    if not arounds:
        return function(**arguments)
    with ExitStack() as stack:
        for around in arounds:
            made = _made(around, job)
            stack.enter_context(made if isinstance(made, AbstractContextManager) else _on_own_loop(made))
        return function(**arguments)


async def enter_through_last_async(
    stack: AsyncExitStack, arounds: Sequence[Around], job: Job
) -> Sequence[Around]:
    """Enter what belongs on the event loop; return the rest, plain ones for the handler's own thread."""
    last = max((number for number, one in enumerate(arounds, 1) if _is_async(one)), default=0)
    for around in arounds[:last]:
        await _enter(stack, around, job)
    return arounds[last:]


def _is_async(around: Around) -> bool:
    return inspect.isasyncgenfunction(inspect.unwrap(around))


async def _enter(stack: AsyncExitStack, around: Around, job: Job) -> None:
    made = _made(around, job)
    if isinstance(made, AbstractAsyncContextManager):
        await stack.enter_async_context(made)
    else:
        stack.enter_context(made)


def _made(around: Around, job: Job) -> Resources:
    return checked_resources(around(job), f"@app.around {getattr(around, '__name__', around)}")


@contextmanager
def _on_own_loop(made: AbstractAsyncContextManager[Any]) -> Iterator[None]:
    """Enter and leave it on a loop in a thread; it sees what the body raises, and may suppress it."""
    entered: Future[Callable[[BaseException | None], object]] = Future()
    left: Future[None] = Future()

    async def live() -> None:
        loop, body = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def end(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(body.set_result, error)

        async with made:
            entered.set_result(end)
            if (error := await body) is not None:
                raise error

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            (left if entered.done() else entered).set_exception(error)
        else:
            left.set_result(None)

    threading.Thread(target=run, name="dibs-around", daemon=True).start()
    end = entered.result()
    try:
        yield
    except BaseException as error:
        end(error)
    else:
        end(None)
    left.result()
