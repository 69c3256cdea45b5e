"""Run one claimed job's handler, and turn whatever it does into an outcome."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from dibs.app.claims import CancelAsked, Claim, ClaimState, StopAsked
from dibs.app.context import Context
from dibs.app.lifespan import call_inside, call_inside_sync, enter_through_last_async
from dibs.app.outcomes import CANCELLED_WITHIN, outcome_of, outcome_of_error, settle_attempt
from dibs.app.registry import Registry
from dibs.app.tasks import Task
from dibs.errors import BadRequest, LeaseLost, Refused, UnfitArguments
from dibs.faces import run, run_async
from dibs.jobs.job import Job
from dibs.jobs.payload import json_text
from dibs.jobs.states import CancelledBy, Outcome, Released

if TYPE_CHECKING:
    from dibs.app.state import AppState, HandlerWrapper


async def run_claimed_job(
    core: "AppState", task: "Task[..., Any]", claim: Callable[[], Awaitable[list[ClaimState]]]
) -> bool:
    """Claim, run the handler with a heartbeat, settle; return whether there was a claim.

    A lost lease is raised, and nothing is recorded.
    """
    async with core.lifespan.entered() as state:
        for held in await claim():
            context = Context(Claim(held), state)
            try:
                outcome = await _perform_kept(held, task, context)
            except asyncio.CancelledError:
                if not held.settled:
                    await asyncio.shield(run_async(held.settle(Released())))
                raise
            await run_async(settle_attempt(held, outcome, context))
            return True
    return False


def run_claimed_job_sync(
    core: "AppState", task: "Task[..., Any]", claim: Callable[[], list[ClaimState]]
) -> bool:
    """Do the same, blocking: a plain handler runs in this thread, an async one in a loop of its own."""
    if task.is_async:
        _refuse_inside_loop(task)
        return _value(asyncio.run(_run_in_own_loop(core, task, claim)))
    with core.lifespan.entered_sync() as state:
        for held in claim():
            context = Context(Claim(held), state)
            try:
                outcome = _perform_sync(held, task, context)
            except KeyboardInterrupt:
                run(held.settle(Released()))
                raise
            run(settle_attempt(held, outcome, context))
            return True
    return False


def _refuse_inside_loop(task: "Task[..., Any]") -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise BadRequest(
            f"{task.kind!r} is async, and an event loop runs in this thread: await app.run_job(…) here"
        )


async def _run_in_own_loop(
    core: "AppState", task: "Task[..., Any]", claim: Callable[[], list[ClaimState]]
) -> bool | LeaseLost:
    """Run the job in a loop of its own, which may be blocked.

    A lost lease is returned, not raised: asyncio would keep, and print, the exception.
    """
    try:
        async with core.lifespan.entered() as state:
            for held in claim():
                context = Context(Claim(held), state)
                try:
                    run(settle_attempt(held, await _perform_kept(held, task, context), context))
                except asyncio.CancelledError:
                    if not held.settled:
                        run(held.settle(Released()))
                    raise
                except LeaseLost as lost:
                    return lost
                return True
        return False
    finally:
        await core.store.leave_loop()


def _value(ran: bool | LeaseLost) -> bool:
    if isinstance(ran, LeaseLost):
        raise ran
    return ran


def handler_for(registry: Registry, job: Job) -> "Task[..., Any]":
    if not registry.knows(job.kind):
        raise Refused(f"this process has no handler for jobs of kind {job.kind!r}; register it with @app.job")
    return registry.tasks[job.kind]


async def perform(
    held: ClaimState,
    task: "Task[..., Any]",
    context: Context | None,
    threads: Executor | None = None,
    elsewhere: Callable[[], Awaitable[Outcome]] | None = None,
) -> Outcome:
    """Call the handler, or wait for one that runs `elsewhere`, with its timeout there.

    A cancellation of the asyncio task that is no cancel of the job is passed on. `context` may be left out
    for a handler that does not ask for it.
    """
    try:
        held.check_stop()  # it may have waited to be run
        if elsewhere is not None:
            outcome = await elsewhere()
        elif task.is_async and task.timeout is None and not held.core.arounds:
            outcome = outcome_of(held, await task.function(**arguments_of(task, held.job, context)))
        else:
            outcome = outcome_of(held, await _call_in_time(held, task, context, threads))
    except asyncio.CancelledError:
        if held.lost or held.cancel_reason is not None:
            uncancel()
            held.check()
            outcome = CancelledBy(held.cancel_reason or None)
        elif _is_cancelled():
            raise
        else:
            outcome = held.raised(CANCELLED_WITHIN)
    except CancelAsked:
        outcome = CancelledBy(held.cancel_reason or None)
    except StopAsked:
        outcome = Released()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        held.check()
        outcome = outcome_of_error(held, error)
    if context is not None and context._progress is not None:
        await run_async(context._progress.finish())
    return outcome


async def _perform_kept(held: ClaimState, task: "Task[..., Any]", context: Context) -> Outcome:
    held.keep(canceller())
    try:
        return await surrounded(held, perform(held, task, context))
    finally:
        held.core.keeper.drop(held)


def surrounded(held: ClaimState, performing: Coroutine[Any, Any, Outcome]) -> Coroutine[Any, Any, Outcome]:
    """Run it inside what was put around the handlers of this app; nearly always that is nothing."""
    return performing if held.core.around is None else _surrounded(held.core.around, held, performing)


async def _surrounded(
    around: "HandlerWrapper", held: ClaimState, performing: Coroutine[Any, Any, Outcome]
) -> Outcome:
    try:
        with around(held.job) as pass_on:
            return pass_on(await performing)
    finally:
        performing.close()  # it may never have begun


def _perform_sync(held: ClaimState, task: "Task[..., Any]", context: Context) -> Outcome:
    held.keep(lambda _: None)
    try:
        around = held.core.around
        if around is None:
            return _call_sync(held, task, context)
        with around(held.job) as pass_on:
            return pass_on(_call_sync(held, task, context))
    finally:
        held.core.keeper.drop(held)


def _call_sync(held: ClaimState, task: "Task[..., Any]", context: Context) -> Outcome:
    try:
        arguments, arounds = arguments_of(task, held.job, context), held.core.arounds
        outcome = outcome_of(held, call_inside_sync(arounds, held.job, task.function, arguments))
        if context._progress is not None:
            run(context._progress.finish())
        return outcome
    except CancelAsked:
        return CancelledBy(held.cancel_reason or None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        held.check()
        return outcome_of_error(held, error)


async def _call_in_time(
    held: ClaimState, task: "Task[..., Any]", context: Context | None, threads: Executor | None
) -> Any:
    limit = asyncio.timeout(task.timeout)
    try:
        async with limit:
            return await _call(held, task, context, threads, limit)
    except TimeoutError as error:
        if limit.expired() and not error.args:  # what asyncio raises says nothing
            waited = error.__cause__ or error  # the cancellation that ended it: it knows where
            raise held.too_long().with_traceback(waited.__traceback__) from None
        raise


async def _call(
    held: ClaimState,
    task: "Task[..., Any]",
    context: Context | None,
    threads: Executor | None,
    limit: asyncio.Timeout,
) -> Any:
    arguments, arounds = arguments_of(task, held.job, context), held.core.arounds
    if task.is_async:
        return await call_inside(arounds, held.job, task.function, arguments)
    if not arounds:
        return await _call_in_thread(held, partial(task.function, **arguments), threads, limit)
    async with AsyncExitStack() as stack:
        rest = await enter_through_last_async(stack, arounds, held.job)
        call = partial(call_inside_sync, rest, held.job, task.function, arguments)
        return await _call_in_thread(held, call, threads, limit)


async def _call_in_thread(
    held: ClaimState, function: Callable[[], Any], threads: Executor | None, limit: asyncio.Timeout
) -> Any:
    call = partial(contextvars.copy_context().run, _caught, function)
    thread = asyncio.get_running_loop().run_in_executor(threads, call)
    try:
        return _returned(await asyncio.shield(thread))
    except asyncio.CancelledError:
        # A thread can't be stopped, only asked; its job must not be given away while it still runs.
        held.timed_out, held.stopping = limit.expired(), not limit.expired()
        await _end_of(thread)
        held.check()
        if held.cancel_reason is None:
            raise
        uncancel()
        return _returned(thread.result())  # it may have finished before it noticed: that success wins


def _caught(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call it, and return what it raises as a value: a future refuses StopIteration.

    A KeyboardInterrupt is no Ctrl-C either, which only the main thread receives, and would end the worker.
    """
    try:
        return function(), None
    except BaseException as error:
        return None, error


def _returned(caught: tuple[Any, BaseException | None]) -> Any:
    value, error = caught
    if error is None:
        return value
    if isinstance(error, StopIteration | KeyboardInterrupt):
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error
    raise error


async def _end_of(thread: "asyncio.Future[Any]") -> None:
    """Wait for the thread, however often we are cancelled meanwhile."""
    while not thread.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([thread])


def arguments_of(task: "Task[..., Any]", job: Job, context: Context | None) -> dict[str, Any]:
    try:
        arguments = task.signature.read(json_text(job.args))
    except BadRequest as error:
        raise UnfitArguments(str(error)) from None
    if task.signature.context is not None:
        arguments[task.signature.context] = context
    return arguments


def canceller() -> Callable[[ClaimState], None]:
    """Return a function by which other threads cancel the asyncio task that calls this."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def tell(_: ClaimState) -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    return tell


def _is_cancelled() -> bool:
    """Return whether this very task was cancelled; else the cancellation came from within the handler."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def uncancel() -> None:
    """End the cancellation that this task caught here."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
