"""Run one claimed job's handler, and turn whatever it does into an outcome."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dibs.app.claims import CancelAsked, Claim, ClaimState, StopAsked
from dibs.app.context import Context
from dibs.app.registry import Registry
from dibs.app.tasks import Task
from dibs.errors import BadRequest, LeaseLost, Refused
from dibs.events import log
from dibs.faces import Calls, ask, run, run_async
from dibs.jobs.job import Job
from dibs.jobs.states import CancelledBy, JobState, Outcome, Released, Succeeded
from dibs.operations.queries import get
from dibs.operations.settle import SettleRequest
from dibs.settings import Duration

if TYPE_CHECKING:
    from dibs.app.state import AppState, HandlerWrapper


@dataclass(frozen=True, slots=True)
class Snooze:
    """Returned by a handler: not now, again after this long; costs no attempt."""

    seconds: Duration


@dataclass(frozen=True, slots=True)
class Cancel:
    """Returned by a handler: this job should not be done after all."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Returned by a handler: this can't succeed, don't try again."""

    reason: str


SUCCEEDED = Succeeded(None)
NOT_COMMITTED = "the job was completed within a transaction that was not committed"
CANCELLED_WITHIN = "the handler was cancelled by something that it waited for"


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
            await run_async(_settle(held, outcome, context))
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
            run(_settle(held, outcome, context))
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
                    run(_settle(held, await _perform_kept(held, task, context), context))
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


def _settle(held: ClaimState, outcome: Outcome, context: Context) -> Calls[None]:
    """Settle by the outcome; what was completed within a transaction only if that was not committed."""
    if not held.settled:
        yield from held.send(settlement(held, outcome, context))
    elif still_ours((yield from ask(held.core.store, lambda _: get(held.job.id))), held):
        yield from held.settle(not_committed(held, outcome))


def settlement(held: ClaimState, outcome: Outcome, context: Context | None) -> SettleRequest:
    """Return the settlement; follow-up jobs that can't be stored make it a failed attempt."""
    held.check()
    children = () if context is None or not isinstance(outcome, Succeeded) else context.children
    try:
        return held.settled_by(outcome, children)
    except Exception as error:
        return held.settled_by(held.raised(error))


def not_committed(held: ClaimState, outcome: Outcome) -> Outcome:
    """Return the outcome of a job that was completed within a transaction that was rolled back.

    It can't be a success. What the handler raised or returned otherwise stands: it is why the transaction was
    rolled back.
    """
    return held.raised(NOT_COMMITTED) if isinstance(outcome, Succeeded) else outcome


def broken_off(held: ClaimState, error: Exception) -> SettleRequest:
    """Return a settlement as failed, if need be for good: the attempt must end although dibs itself broke."""
    log.error("job %s could not be settled as it should be: its attempt failed", held.job.id, exc_info=error)
    try:
        return held.settled_by(held.raised(error))
    except Exception:
        return held.settled_by(held.raised(error, retry=False))


def handler_for(registry: Registry, job: Job) -> "Task[..., Any]":
    task = registry.tasks.get(job.kind)
    if task is None:
        raise Refused(f"this process has no handler for jobs of kind {job.kind!r}; register it with @app.job")
    return task


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
        elif task.is_async and task.timeout is None:
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
        outcome = held.raised(error)
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
        outcome = outcome_of(held, task.function(**arguments_of(task, held.job, context)))
        if context._progress is not None:
            run(context._progress.finish())
        return outcome
    except CancelAsked:
        return CancelledBy(held.cancel_reason or None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        held.check()
        return held.raised(error)


async def _call_in_time(
    held: ClaimState, task: "Task[..., Any]", context: Context | None, threads: Executor | None
) -> Any:
    limit = asyncio.timeout(task.timeout)
    try:
        async with limit:
            return await _call(held, task, context, threads, limit)
    except TimeoutError as error:
        if limit.expired() and not error.args:  # what asyncio raises says nothing
            raise held.too_long().with_traceback(error.__traceback__) from None
        raise


async def _call(
    held: ClaimState,
    task: "Task[..., Any]",
    context: Context | None,
    threads: Executor | None,
    limit: asyncio.Timeout,
) -> Any:
    arguments = arguments_of(task, held.job, context)
    if task.is_async:
        return await task.function(**arguments)
    call = partial(contextvars.copy_context().run, _caught, task.function, arguments)
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


def _caught(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Call it, and return what it raises as a value: a future refuses StopIteration.

    A KeyboardInterrupt is no Ctrl-C either, which only the main thread receives, and would end the worker.
    """
    try:
        return function(**arguments), None
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


def outcome_of(held: ClaimState, value: Any) -> Outcome:
    match value:
        case None:
            return SUCCEEDED
        case Snooze(seconds):
            return held.snoozed(seconds)
        case Cancel(reason):
            return held.cancelled(reason)
        case Fail(reason):
            return held.raised(reason, retry=False)
        case _:
            return held.succeeded(value)


def arguments_of(task: "Task[..., Any]", job: Job, context: Context | None) -> dict[str, Any]:
    arguments = task.signature.read(msgspec.json.encode(job.args).decode())
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


def still_ours(job: Job | None, held: ClaimState) -> bool:
    return job is not None and (job.state, job.token) == (JobState.running, held.token)
