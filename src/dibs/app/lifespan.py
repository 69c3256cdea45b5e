"""What handlers need: the lifespan of an app, and what is entered around each; signals that end a process.

`Dibs(lifespan=…)` takes a function that is called with the app and returns a context manager, async or plain.
It is set up before the first claim and torn down at the end; what it yields is `ctx.state`.
"""

import asyncio
import inspect
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import Context, copy_context
from typing import Any, TypeVar

from dibs.errors import BadRequest
from dibs.jobs.job import Job

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
                failed: BaseException | None = None
                with _on_own_loop(resources, "dibs-lifespan") as state:
                    try:
                        yield state
                    except BaseException as error:  # the handler's own: no lifespan gets to see it
                        failed = error
                if failed is not None:
                    raise failed
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


# -- `@app.around`: entered around every handler, the first registered outermost -----------------

Around = Callable[[Job], Resources]
A = TypeVar("A", bound=Around)
_UNSET = object()


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
            stack.enter_context(made if isinstance(made, AbstractContextManager) else _in_this_context(made))
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


# -- in a thread --------------------------------------------------------------------------------


@contextmanager
def _in_this_context(made: AbstractAsyncContextManager[Any]) -> Iterator[None]:
    """Enter it on a loop in a thread; the body sees the context variables that it sets."""
    context = copy_context()
    with _on_own_loop(made, "dibs-around", context):
        here = copy_context()
        changed = [
            (one, one.set(value)) for one, value in context.items() if here.get(one, _UNSET) is not value
        ]
        try:
            yield
        finally:
            for one, before in changed:
                one.reset(before)


@contextmanager
def _on_own_loop(
    made: AbstractAsyncContextManager[Any], name: str, context: Context | None = None
) -> Iterator[Any]:
    """Enter and leave it on a loop in a thread; it sees what the body raises, and may suppress it."""
    entered: Future[tuple[Any, Callable[[BaseException | None], object]]] = Future()
    left: Future[None] = Future()

    async def live() -> None:
        loop, body = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def end(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(body.set_result, error)

        async with made as state:
            entered.set_result((state, end))
            if (error := await body) is not None:
                raise error

    def run() -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(live(), context=context)
        except BaseException as error:  # raised in the waiting thread
            (left if entered.done() else entered).set_exception(error)
        else:
            left.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    state, end = entered.result()
    try:
        yield state
    except BaseException as error:
        end(error)
    else:
        end(None)
    left.result()


def handle_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], object]) -> list[signal.Signals]:
    handled = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop)
            handled.append(number)
        except (ValueError, RuntimeError, NotImplementedError):  # not in the main thread, or Windows
            pass
    return handled


def unhandle_signals(loop: asyncio.AbstractEventLoop, handled: Sequence[signal.Signals]) -> None:
    for number in handled:
        loop.remove_signal_handler(number)


def may_raise_interrupt() -> bool:
    """Return whether a Ctrl-C raises `KeyboardInterrupt` in this thread, as it does unless it is handled."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
