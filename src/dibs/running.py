"""Run one claimed job's handler, and turn whatever it does into an outcome."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from dibs.claims import CancelAsked, Claim, Holding, SyncClaim
from dibs.clock import SECOND
from dibs.context import Context
from dibs.errors import BadRequest, LeaseLost, Refused
from dibs.jobs import Job
from dibs.operations import Settled
from dibs.settings import Duration, micros
from dibs.states import CancelledBy, JobState, Outcome, Released, Succeeded
from dibs.tasks import Registry, Task


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


NOT_COMMITTED = "the job was completed within a transaction that was not committed"


async def run_claimed(claim: Claim, task: "Task[..., Any]") -> None:
    """Handler, heartbeat, settle. A lost lease is raised, and nothing is recorded."""
    held, context = claim._held, Context(claim)
    try:
        outcome = await _perform_kept(held, task, context)
    except asyncio.CancelledError:
        if not held.settled:
            await asyncio.shield(claim._settle(Released()))
        raise
    if not held.settled:
        await claim._send(settlement(held, outcome, context))
    elif still_ours(await held.core.store.run_async(held.core.get(held.job.id)), held):
        await claim._settle(held.raised(NOT_COMMITTED))


def run_claimed_sync(claim: SyncClaim, task: "Task[..., Any]") -> None:
    """The same, blocking: a plain handler runs in this thread, an async one in a loop of its own."""
    held, context = claim._held, Context(Claim(claim._held))
    try:
        outcome = _perform_sync(held, task, context)
    except KeyboardInterrupt:
        claim._settle(Released())
        raise
    if not held.settled:
        claim._send(settlement(held, outcome, context))
    elif still_ours(held.core.store.run(held.core.get(held.job.id)), held):
        claim._settle(held.raised(NOT_COMMITTED))


def settlement(held: Holding, outcome: Outcome, context: Context) -> Settled:
    """What the store is told; children that can't be stored make it a failed attempt."""
    held.check()
    children = context.children if isinstance(outcome, Succeeded) else []
    try:
        return held.settled_by(outcome, children)
    except Exception as error:
        return held.settled_by(held.raised(error))


def handler_for(registry: Registry, job: Job) -> "Task[..., Any]":
    task = registry.tasks.get(job.kind)
    if task is None:
        raise Refused(f"this process has no handler for jobs of kind {job.kind!r}; register it with @app.job")
    return task


async def perform(
    held: Holding, task: "Task[..., Any]", context: Context, threads: Executor | None = None
) -> Outcome:
    """Call the handler; a cancellation that nobody asked the job for is passed on."""
    try:
        limit = _seconds(task.options.timeout)
        if limit is None:
            value = await _call(held, task, context, threads)
        else:
            async with asyncio.timeout(limit):
                value = await _call(held, task, context, threads)
        return _outcome(held, value)
    except asyncio.CancelledError:
        if held.lost or held.cancel_reason is not None:
            _uncancel()
            held.check()
            return CancelledBy(held.cancel_reason or None)
        if _is_cancelled():
            raise
        return held.raised("the handler was cancelled by something that it waited for")
    except CancelAsked:
        return CancelledBy(held.cancel_reason or None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        held.check()
        return held.raised(error)


async def _perform_kept(held: Holding, task: "Task[..., Any]", context: Context) -> Outcome:
    held.core.keeper.keep(held, held.core.lease_of(held.job), canceller())
    try:
        return await perform(held, task, context)
    finally:
        held.core.keeper.drop(held)


def _perform_sync(held: Holding, task: "Task[..., Any]", context: Context) -> Outcome:
    if task.is_async:
        return _value(asyncio.run(_perform_apart(held, task, context)))
    held.core.keeper.keep(held, held.core.lease_of(held.job), lambda: None)
    try:
        return _outcome(held, task.function(**_arguments(task, held.job, context)))
    except CancelAsked:
        return CancelledBy(held.cancel_reason or None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        held.check()
        return held.raised(error)
    finally:
        held.core.keeper.drop(held)


async def _perform_apart(held: Holding, task: "Task[..., Any]", context: Context) -> Outcome | LeaseLost:
    """In a loop of its own. Nothing is raised out of it: asyncio would keep, and print, the exception."""
    try:
        return await _perform_kept(held, task, context)
    except LeaseLost as lost:
        return lost
    finally:
        await held.core.store.leave_loop()


def _value(outcome: Outcome | LeaseLost) -> Outcome:
    if isinstance(outcome, LeaseLost):
        raise outcome
    return outcome


async def _call(held: Holding, task: "Task[..., Any]", context: Context, threads: Executor | None) -> Any:
    arguments = _arguments(task, held.job, context)
    if task.is_async:
        return await task.function(**arguments)
    call = partial(contextvars.copy_context().run, _caught, task.function, arguments)
    thread = asyncio.get_running_loop().run_in_executor(threads, call)
    try:
        return _returned(await asyncio.shield(thread))
    except asyncio.CancelledError:
        # A thread can't be stopped, only asked; its job must not be given away while it still runs.
        held.timed_out = not held.lost and held.cancel_reason is None
        await _end_of(thread)
        held.check()
        if held.cancel_reason is None:
            raise
        _uncancel()
        return _returned(thread.result())  # it may have finished before it noticed: that success wins


def _caught(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Call it, and carry what it raises as a value: a future refuses StopIteration."""
    try:
        return function(**arguments), None
    except BaseException as error:
        return None, error


def _returned(caught: tuple[Any, BaseException | None]) -> Any:
    value, error = caught
    if error is None:
        return value
    if isinstance(error, StopIteration):
        raise RuntimeError("the handler raised StopIteration") from error
    raise error


async def _end_of(thread: "asyncio.Future[Any]") -> None:
    """However often we are cancelled while we wait."""
    while not thread.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([thread])


def _outcome(held: Holding, value: Any) -> Outcome:
    match value:
        case Snooze(seconds):
            return held.snoozed(seconds)
        case Cancel(reason):
            return held.cancelled(reason)
        case Fail(reason):
            return held.raised(reason, retry=False)
        case _:
            return held.succeeded(value)


def _arguments(task: "Task[..., Any]", job: Job, context: Context) -> dict[str, Any]:
    arguments = task.signature.read(msgspec.json.encode(job.args).decode())
    if task.signature.context is not None:
        arguments[task.signature.context] = context
    return arguments


def canceller() -> Callable[[], None]:
    """A way for other threads to cancel the task that this is called in."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def tell() -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    return tell


def _is_cancelled() -> bool:
    """Somebody asked this very task to end; otherwise the cancellation came from within the handler."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def still_ours(job: Job | None, held: Holding) -> bool:
    return job is not None and (job.state, job.token) == (JobState.running, held.token)


def _seconds(timeout: Duration | None) -> float | None:
    if timeout is None:
        return None
    span = micros(timeout, what="timeout")
    if span <= 0:
        raise BadRequest(f"timeout={timeout!r} must be more than 0")
    return span / SECOND
