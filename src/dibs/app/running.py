"""Run one claimed job's handler, and turn whatever it does into an outcome."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from dibs.app.claims import CancelAsked, Claim, Holding, StopAsked, SyncClaim
from dibs.app.context import Context
from dibs.app.registry import Registry
from dibs.app.tasks import Task
from dibs.app.verbs import Around, Core
from dibs.engines.store import Operation
from dibs.errors import BadRequest, DibsError, LeaseLost, Refused
from dibs.events import log
from dibs.jobs.job import Job
from dibs.jobs.states import CancelledBy, JobState, Outcome, Released, Succeeded
from dibs.operations.settle import SettleRequest
from dibs.settings import Duration


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
PATIENCE = 2.0  # seconds that a cancelled caller waits until its claim is given back
CANCELLED_WITHIN = "the handler was cancelled by something that it waited for"


_returning: set["asyncio.Future[None]"] = set()  # asyncio itself would forget a task that is under way


async def claim_or_give_back(core: Core, operation: Operation[list[Holding]]) -> list[Holding]:
    """What was claimed. Whoever is cancelled meanwhile gets nothing, and what still comes is given back.

    The store may have claimed already when the cancellation comes; nobody would know until the lease ends.
    """
    claiming = asyncio.ensure_future(core.store.run_async(operation))
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        if not claiming.cancelled():
            returning = asyncio.ensure_future(_give_back(claiming))
            _returning.add(returning)
            returning.add_done_callback(_returning.discard)
            await asyncio.wait([returning], timeout=PATIENCE)  # a store that hangs must not keep the caller
        raise


async def _give_back(claiming: "asyncio.Future[list[Holding]]") -> None:
    with suppress(DibsError):  # it was not claimed after all, or can't be reached: its lease ends by itself
        claims = [Claim(held) for held in await claiming]
        await asyncio.gather(*(claim.release() for claim in claims))


async def run_claimed(claim: Claim, task: "Task[..., Any]", state: Any) -> None:
    """Handler, heartbeat, settle. A lost lease is raised, and nothing is recorded."""
    held, context = claim._held, Context(claim, state)
    try:
        outcome = await _perform_kept(held, task, context)
    except asyncio.CancelledError:
        if not held.settled:
            await asyncio.shield(claim._settle(Released()))
        raise
    if not held.settled:
        await claim._send(settlement(held, outcome, context))
    elif still_ours(await held.core.store.run_async(held.core.get(held.job.id)), held):
        await claim._settle(not_committed(held, outcome))


def run_job_sync(core: Core, task: "Task[..., Any]", claim_it: Callable[[], SyncClaim | None]) -> bool:
    """The same, blocking: a plain handler runs in this thread, an async one in a loop of its own."""
    if task.is_async:
        _refuse_inside_loop(task)
        return _value(asyncio.run(_run_apart(core, task, claim_it)))
    with core.lifespan.entered_sync() as state:
        claim = claim_it()
        if claim is not None:
            context = Context(Claim(claim._held), state)
            try:
                outcome = _perform_sync(claim._held, task, context)
            except KeyboardInterrupt:
                claim._settle(Released())
                raise
            _settle_sync(claim, outcome, context)
        return claim is not None


def _refuse_inside_loop(task: "Task[..., Any]") -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise BadRequest(
            f"{task.kind!r} is async, and an event loop runs in this thread: await app.run_job(…) here"
        )


async def _run_apart(
    core: Core, task: "Task[..., Any]", claim_it: Callable[[], SyncClaim | None]
) -> bool | LeaseLost:
    """In a loop of its own, which nobody minds being blocked.

    A lost lease is answered, not raised: asyncio would keep, and print, the exception.
    """
    try:
        async with core.lifespan.entered() as state:
            claim = claim_it()
            if claim is None:
                return False
            context = Context(Claim(claim._held), state)
            try:
                _settle_sync(claim, await _perform_kept(claim._held, task, context), context)
            except asyncio.CancelledError:
                if not claim._held.settled:
                    claim._settle(Released())
                raise
            except LeaseLost as lost:
                return lost
            return True
    finally:
        await core.store.leave_loop()


def _value(ran: bool | LeaseLost) -> bool:
    if isinstance(ran, LeaseLost):
        raise ran
    return ran


def _settle_sync(claim: SyncClaim, outcome: Outcome, context: Context) -> None:
    held = claim._held
    if not held.settled:
        claim._send(settlement(held, outcome, context))
    elif still_ours(held.core.store.run(held.core.get(held.job.id)), held):
        claim._settle(not_committed(held, outcome))


def settlement(held: Holding, outcome: Outcome, context: Context | None) -> SettleRequest:
    """What the store is told; children that can't be stored make it a failed attempt."""
    held.check()
    children = () if context is None or not isinstance(outcome, Succeeded) else context.children
    try:
        return held.settled_by(outcome, children)
    except Exception as error:
        return held.settled_by(held.raised(error))


def not_committed(held: Holding, outcome: Outcome) -> Outcome:
    """Of a job that was completed within a transaction that came to nothing: a success it can't be.

    What the handler raised or answered otherwise stands: that is why the transaction was rolled back.
    """
    return held.raised(NOT_COMMITTED) if isinstance(outcome, Succeeded) else outcome


def broken_off(held: Holding, error: Exception) -> SettleRequest:
    """What broke was not the handler, and yet the attempt must end: it has failed, if need be for good."""
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
    held: Holding,
    task: "Task[..., Any]",
    context: Context | None,
    threads: Executor | None = None,
    elsewhere: Callable[[], Awaitable[Outcome]] | None = None,
) -> Outcome:
    """Call the handler, or wait for one that runs `elsewhere` and minds its timeout there.

    A cancellation that nobody asked the job for is passed on. `context` may be left out for a handler that
    does not ask for it.
    """
    try:
        held.check_stop()  # it may have waited for its turn
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
        await context._progress.finish()
    return outcome


async def _perform_kept(held: Holding, task: "Task[..., Any]", context: Context) -> Outcome:
    held.core.keeper.keep(held, held.core.lease_of(held.job), canceller())
    try:
        return await surrounded(held, perform(held, task, context))
    finally:
        held.core.keeper.drop(held)


def surrounded(held: Holding, performing: Coroutine[Any, Any, Outcome]) -> Coroutine[Any, Any, Outcome]:
    """The same, inside whatever was put around the handlers of this app; nearly always nothing is."""
    return performing if held.core.around is None else _surrounded(held.core.around, held, performing)


async def _surrounded(around: Around, held: Holding, performing: Coroutine[Any, Any, Outcome]) -> Outcome:
    try:
        with around(held.job) as told:
            return told(await performing)
    finally:
        performing.close()  # it may never have begun


def _perform_sync(held: Holding, task: "Task[..., Any]", context: Context) -> Outcome:
    held.core.keeper.keep(held, held.core.lease_of(held.job), lambda _: None)
    try:
        around = held.core.around
        if around is None:
            return _call_sync(held, task, context)
        with around(held.job) as told:
            return told(_call_sync(held, task, context))
    finally:
        held.core.keeper.drop(held)


def _call_sync(held: Holding, task: "Task[..., Any]", context: Context) -> Outcome:
    try:
        outcome = outcome_of(held, task.function(**arguments_of(task, held.job, context)))
        if context._progress is not None:
            context._progress.finish_sync()
        return outcome
    except CancelAsked:
        return CancelledBy(held.cancel_reason or None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        held.check()
        return held.raised(error)


async def _call_in_time(
    held: Holding, task: "Task[..., Any]", context: Context | None, threads: Executor | None
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
    held: Holding,
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
    """Call it, and carry what it raises as a value: a future refuses StopIteration.

    A KeyboardInterrupt is no Ctrl-C either, which only the main thread hears, and would end the worker.
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
    """However often we are cancelled while we wait."""
    while not thread.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([thread])


def outcome_of(held: Holding, value: Any) -> Outcome:
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


def canceller() -> Callable[[Holding], None]:
    """A way for other threads to cancel the task that this is called in."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def tell(_: Holding) -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    return tell


def _is_cancelled() -> bool:
    """Somebody asked this very task to end; otherwise the cancellation came from within the handler."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def uncancel() -> None:
    """The cancellation that this task caught ends here."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def still_ours(job: Job | None, held: Holding) -> bool:
    return job is not None and (job.state, job.token) == (JobState.running, held.token)
