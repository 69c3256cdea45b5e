"""Run one claimed job's handler here, and turn whatever it does into an outcome."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from dibs.claims import Claim, SyncClaim
from dibs.clock import SECOND
from dibs.context import Context
from dibs.errors import BadRequest, LeaseLost, Refused
from dibs.jobs import Job, NewJob
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
    held = claim._held
    context = Context(claim)
    held.core.keeper.keep(held, held.core.lease_of(held.job), _canceller(claim))
    try:
        outcome = await _perform(claim, task, context)
    except asyncio.CancelledError:
        if not held.settled:
            await asyncio.shield(claim._settle(Released()))
        raise
    finally:
        held.core.keeper.drop(held)
    if held.settled:
        await _settle_uncommitted(claim)
        return
    held.check()
    await claim._settle(outcome, _children(outcome, context))


def run_claimed_sync(claim: SyncClaim, task: "Task[..., Any]") -> None:
    """The same, blocking: a plain handler runs in this thread, an async one in a loop of its own."""
    held = claim._held
    twin = Claim(held)
    context = Context(twin)
    held.core.keeper.keep(held, held.core.lease_of(held.job), lambda: None)
    try:
        outcome = _perform_sync(twin, task, context)
    finally:
        held.core.keeper.drop(held)
    if held.settled:
        if _still_ours(held.core.store.run(held.core.get(held.job.id)), twin):
            claim._settle(held.raised(NOT_COMMITTED))
        return
    held.check()
    claim._settle(outcome, _children(outcome, context))


def handler_for(registry: Registry, job: Job) -> "Task[..., Any]":
    task = registry.tasks.get(job.kind)
    if task is None:
        raise Refused(f"this process has no handler for jobs of kind {job.kind!r}; register it with @app.job")
    return task


async def _perform(claim: Claim, task: "Task[..., Any]", context: Context) -> Outcome:
    held = claim._held
    try:
        async with asyncio.timeout(_seconds(task.options.timeout)):
            value = await _call(task, _arguments(task, held.job, context))
        return _outcome(claim, value)
    except asyncio.CancelledError:
        if held.lost or held.cancel_reason is not None:
            _uncancel()
            held.check()
            return CancelledBy(held.cancel_reason or None)
        raise
    except LeaseLost:
        raise
    except (Exception, SystemExit) as error:
        return held.raised(error)


def _perform_sync(claim: Claim, task: "Task[..., Any]", context: Context) -> Outcome:
    held = claim._held
    try:
        value = task.function(**_arguments(task, held.job, context))
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
        return _outcome(claim, value)
    except LeaseLost:
        raise
    except (Exception, SystemExit) as error:
        return held.raised(error)


async def _call(task: "Task[..., Any]", arguments: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(task.function):
        return await task.function(**arguments)
    thread = asyncio.ensure_future(asyncio.to_thread(task.function, **arguments))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        # A thread can't be stopped; its job must not be given away while it still runs.
        await asyncio.wait([thread])
        raise


async def _await(value: Any) -> Any:
    return await value


def _outcome(claim: Claim, value: Any) -> Outcome:
    held = claim._held
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


def _children(outcome: Outcome, context: Context) -> list[NewJob]:
    return context.children if isinstance(outcome, Succeeded) else []


def _canceller(claim: Claim) -> Callable[[], None]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def tell() -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    return tell


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


async def _settle_uncommitted(claim: Claim) -> None:
    """`complete(within=…)` and then no commit: the attempt failed, and says why."""
    held = claim._held
    if _still_ours(await held.core.store.run_async(held.core.get(held.job.id)), claim):
        await claim._settle(held.raised(NOT_COMMITTED))


def _still_ours(job: Job | None, claim: Claim) -> bool:
    return job is not None and (job.state, job.token) == (JobState.running, claim.token)


def _seconds(timeout: Duration | None) -> float | None:
    if timeout is None:
        return None
    span = micros(timeout, what="timeout")
    if span <= 0:
        raise BadRequest(f"timeout={timeout!r} must be more than 0")
    return span / SECOND
