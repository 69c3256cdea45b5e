"""A claim: the only way to a job's work, and the only way to settle it.

`ClaimState` is what this process knows of a claim; `Claim` and `SyncClaim` are its two faces.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dibs.app.callbacks import PendingEvent
from dibs.app.outcomes import outcome_of_block
from dibs.clock import monotonic
from dibs.errors import BadRequest, LeaseLost, StoreUnavailable
from dibs.faces import AsyncFace, Call, Calls, SyncFace, ask, make, run, run_async, verb
from dibs.jobs import payload
from dibs.jobs.ids import may_have_steps
from dibs.jobs.job import Job, NewJob
from dibs.jobs.outcomes import describe, error_entry, errors_text
from dibs.jobs.states import CancelledBy, Outcome, Raised, Released, Snoozed, Succeeded, settle
from dibs.operations.enqueue import NewRow
from dibs.operations.settle import (
    Renewal,
    SettleRequest,
    given_up,
    lease_lost,
    progress,
    renew_one,
    settle_if_held,
    settle_one,
)
from dibs.settings import Duration, lease_micros, span

if TYPE_CHECKING:
    from dibs.app.state import AppState
    from dibs.engines.store import Operation, Store

Waiting = list[tuple[SettleRequest, "asyncio.Future[None]"]]


class CancelAsked(Exception):
    """Raised in a handler's thread by `ctx.check()` when the job was asked to stop."""


class StopAsked(Exception):
    """Raised in a handler's thread by `ctx.check()` when its worker ends: the job is given back."""


class ClaimState:
    """What this process knows of a claim it made: the job, the token, how the lease stands."""

    __slots__ = (
        *("asked_at", "cancel_reason", "core", "good_until", "is_kept", "is_settling", "job", "key"),
        *("lease_until", "lost", "_committed", "settled", "stopping", "timed_out", "token"),
    )

    def __init__(self, core: "AppState", job: Job, asked_at: float) -> None:
        assert job.token is not None
        assert job.lease_until is not None
        assert job.claimed_at is not None
        self.core = core
        self.job = job
        self.token = job.token
        self.lease_until = job.lease_until
        self.asked_at = asked_at
        self.good_until = float("inf")  # by `monotonic()`: when the keeper gives it up
        self.cancel_reason: str | None = None
        self.lost = False
        self.timed_out = False
        self.stopping = False  # its handler is to stop, for no timeout: lost, cancelled, or its worker ends
        self.settled = False
        self.is_kept = False  # its lease is, or was, renewed by the keeper
        self.is_settling = False  # its settlement is on the way: to find it gone is no loss
        self._committed: SettleRequest | None = None  # the settlement that can't be undone any more
        self.key: tuple[UUID, int] = job.id, job.token  # tells it from every other, also of this job

    def check(self) -> None:
        if self.lost:
            raise given_up(self.job.id, self.token)

    def check_stop(self) -> None:
        """Raise if the handler should stop or not begin.

        Look at the clock, too: a process that was frozen may come here before its keeper gave the claim up.
        """
        if monotonic() >= self.good_until:
            self.give_up()
        self.check()
        if self.cancel_reason is not None:
            raise CancelAsked(self.cancel_reason)
        if self.timed_out:
            raise self.too_long()
        if self.stopping:
            raise StopAsked("the worker that runs this job ends")

    def too_long(self, and_then: str = "") -> TimeoutError:
        timeout = self.core.registry.tasks[self.job.kind].timeout
        return TimeoutError(f"it took longer than its timeout of {timeout:g} s{and_then}")

    def give_up(self) -> None:
        """Give up this claim: the store refused it, or no renewal got through in time."""
        if not self.lost:
            self.lost = True
            self.core.events.lost(self.job)

    def renewed(self, renewal: Renewal) -> None:
        """Note what the store said of this claim: until when it holds, and whether it is to stop."""
        self.lease_until = renewal.lease_until
        self.cancel_reason = renewal.cancel_reason

    def keep(self, tell: Callable[["ClaimState"], object]) -> None:
        """Have the lease renewed from now on; `tell` is called from a thread when the claim changes."""
        self.core.keeper.keep(self, self.core.lease_of(self.job), tell)

    def settled_by(self, outcome: Outcome, then: Sequence[NewJob] = ()) -> SettleRequest:
        """Return the settlement that this outcome leads to, with the follow-up jobs."""
        job = self.job
        children = self._children(then) if then else ()
        retry = self.core.registry.options(job.kind).retry
        to = settle(job.attempts, job.max_attempts, outcome, retry, random.random())  # noqa: S311
        request = SettleRequest(
            id=job.id,
            token=self.token,
            state=to.state,
            settled_as=to.settled_as,
            delay=to.delay,
            refund=to.refund,
            result=to.result,
            errors=errors_text(job.errors, to.error) if job.errors or to.error else "[]",
            message=to.message,
            pipeline_id=job.id if children and job.pipeline_id is None else None,
            train=job.train,
            slot=job.slot,
            children=children,
            # Chained jobs, with a pipeline in which no job waits for another, don't pay for pipelines.
            steps_of=job.pipeline_id if job.pipeline_id and may_have_steps(job.pipeline_id) else None,
            unique=job.unique,
            worker=job.worker,
        )
        # The same settlement again is a success; follow-up jobs that it did not have before would get lost.
        if self._committed is not None and not set(request.child_ids) <= set(self._committed.child_ids):
            raise LeaseLost(
                f"job {job.id} was already settled by this claim, without these follow-up jobs: nothing was "
                "changed; enqueue them on their own"
            )
        return request

    def _children(self, then: Sequence[NewJob]) -> list[NewRow]:
        children = [self.core.registry.prepare(new, parent=self.job) for new in then]
        for new in then:
            new.take_fresh()
        return children

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Ignore a heartbeat that finds the job gone, until it is known what the settlement came to."""
        self.is_settling, is_open = True, False
        try:
            yield
        except StoreUnavailable:
            is_open = True
            raise
        finally:
            self.is_settling = is_open

    def settle(self, outcome: Outcome) -> Calls[None]:
        yield from self.send(self.settled_by(outcome))

    def send(self, one: SettleRequest, within: Any = None) -> Calls[None]:
        """Settle, in the caller's transaction if one is given, and report it; `LeaseLost` if not held."""
        core = self.core
        with self.settling():
            if within is None:
                yield Call(core.settler.settle, core.settler.settle_async, (one,))
            else:
                yield from ask(core.store, lambda _: settle_one(one), within)
            if self.is_kept:
                core.keeper.drop(self)
        self.note_settled(one, committed=within is None)
        if within is None and core.callbacks.are_there:
            yield from core.callbacks.call(core.store, [self.event(one)])

    def note_settled(self, one: SettleRequest, *, committed: bool = True) -> None:
        if committed:  # else the caller may roll it back, and settle otherwise
            self._committed = one
        self.note_outcome(one.settled_as, delay=one.delay, errors=one.errors)

    def note_outcome(self, settled_as: str, *, delay: int | None = None, errors: str | None = None) -> None:
        self.settled = True
        self.core.events.settled(self.job, settled_as, since=self.asked_at, delay=delay, errors=errors)

    def event(self, one: SettleRequest) -> PendingEvent:
        return PendingEvent(one.settled_as, self.job.id, self.token, self.job)

    def fence(self, connection: Any, table: str, **rows: Any) -> Calls[None]:
        """Write this claim's token into rows of the caller's table; `LeaseLost` if a later one is there."""
        from dibs.engines.sql.fence import Fence  # it needs all of SQL

        self.check()
        fence = Fence(self.job.id, self.token, table, **rows)
        yield from make(Call(fence.put_up_sync, fence.put_up, (connection,)))

    def check_progress(self, fraction: float, message: str | None) -> str | None:
        """Return the checked message; `BadRequest` says what can't be recorded."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise BadRequest(f"progress={fraction!r} must be a number from 0 to 1")
        return self.core.checked_text(message, "message")

    def progress(self, fraction: float, message: str | None) -> "Operation[Renewal]":
        """Return the operation that records how far the work got, once this was checked."""
        return lambda _: progress(self.job.id, self.token, float(fraction), message, self.job.worker)

    def succeeded(self, result: Any) -> Succeeded:
        if result is None:
            return Succeeded(None)
        return Succeeded(payload.encode(result, "result", self.core.settings.max_payload))

    def raised(self, error: BaseException | str, *, retry: bool = True, trace: str | None = None) -> Raised:
        kind, message, trace = describe(error) if isinstance(error, BaseException) else ("Fail", error, trace)
        if not isinstance(message, str):
            raise BadRequest(f"a reason must be a string or an exception, not {message!r}")
        message = str.__str__(message)
        entry = error_entry(self.job, self._store_time(), type=kind, message=message, traceback=trace)
        return Raised(entry, retry=retry)

    def snoozed(self, delay: Duration) -> Snoozed:
        return Snoozed(span(delay, what="snooze"))

    def cancelled(self, reason: str | None) -> CancelledBy:
        return CancelledBy(self.core.checked_text(reason, "reason"))

    def _store_time(self) -> datetime:
        """Return the store's time as far as we know it: when it leased us the job, plus what passed."""
        assert self.job.claimed_at is not None
        return self.job.claimed_at + timedelta(seconds=monotonic() - self.asked_at)


def hold(core: "AppState", jobs: Sequence[Job], asked_at: float) -> list[ClaimState]:
    """Report jobs as claimed, and return the state of each claim."""
    core.events.claimed(jobs)
    return [ClaimState(core, job, asked_at) for job in jobs]


class ClaimVerbs:
    """What both faces of a claim have: its facts, and its verbs, declared once."""

    def __init__(self, held: ClaimState) -> None:
        self._held = held

    def __repr__(self) -> str:
        job = self._held.job
        return f"<{type(self).__name__} of job {job.id} {job.kind!r}, token {self._held.token}>"

    @property
    def job(self) -> Job:
        """The job as it was when it was claimed."""
        return self._held.job

    @property
    def token(self) -> int:
        """Greater than that of every earlier claim: pass it to whatever must refuse a stale writer."""
        return self._held.token

    @property
    def lease_until(self) -> datetime:
        """Until when the store keeps the job for this claim, by the store's clock."""
        return self._held.lease_until

    @property
    def cancel_reason(self) -> str | None:
        """Set once the job was asked to stop, as of the last renew or progress."""
        return self._held.cancel_reason

    @property
    def lost(self) -> bool:
        """True once this claim can't be relied on; a settlement that you send by hand is still tried."""
        return self._held.lost

    def check(self) -> None:
        """Raise `LeaseLost` once this claim can't be relied on any more."""
        self._held.check()

    @verb
    def succeed(self, result: Any = None, *, then: Sequence[NewJob] = (), within: Any = None) -> Calls[None]:
        """End the job as succeeded; `then` are enqueued in the same commit, in your transaction if given."""
        held = self._held
        yield from held.send(held.settled_by(held.succeeded(result), _follow_ups(then)), within)

    @verb
    def fail(self, reason: str | BaseException, *, retry: bool = True) -> Calls[None]:
        """Record a failed attempt; the job is retried after a back-off while it has attempts left."""
        yield from self._held.settle(self._held.raised(reason, retry=retry))

    @verb
    def snooze(self, delay: Duration) -> Calls[None]:
        """Give the job back, and the attempt, to be claimed again after `delay`."""
        yield from self._held.settle(self._held.snoozed(delay))

    @verb
    def release(self) -> Calls[None]:
        """Give the job back as if it had never been claimed."""
        yield from self._held.settle(Released())

    @verb
    def cancel(self, reason: str | None = None) -> Calls[None]:
        """End the job as cancelled."""
        yield from self._held.settle(self._held.cancelled(reason))

    @verb
    def renew(self, lease: Duration | None = None) -> Calls[datetime]:
        """Extend the lease, in a `with` block until its next heartbeat; return until when it now holds."""
        held = self._held
        length = held.core.lease_of(held.job) if lease is None else lease_micros(lease)
        job = held.job
        renewal = yield from ask(held.core.store, lambda _: renew_one(job.id, held.token, length, job.worker))
        held.renewed(renewal)
        return renewal.lease_until

    @verb
    def progress(self, fraction: float, message: str | None = None) -> Calls[None]:
        """Record how far the work got; only the holder can."""
        held = self._held
        checked = held.check_progress(fraction, message)
        held.renewed((yield from ask(held.core.store, held.progress(fraction, checked))))

    @verb
    def fence(
        self, connection: Any, table: str, *, key: Any, column: str = "token", insert: bool = False
    ) -> Calls[None]:
        """Keep stale holders from writing to these rows, from now to the end of your transaction.

        The rows get this claim's token; `LeaseLost` if they have a later claim's already.
        """
        yield from self._held.fence(connection, table, key=key, column=column, insert=insert)


class Claim(ClaimVerbs, AsyncFace):
    """A job that is yours until `lease_until`: settle it, renew it, or lose it.

    `async with claim as job:` renews by itself; leaving the block is success, an exception is a
    failed attempt, a cancellation gives the job back.
    Example: `async with await app.claim_job(job.id) as job: print(job.args)`"""

    async def __aenter__(self) -> Job:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def tell(_: ClaimState) -> None:
            if self._held.lost and task is not None:
                loop.call_soon_threadsafe(task.cancel)

        self._held.keep(tell)
        return self._held.job

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        held = self._held
        held.core.keeper.drop(held)
        stopped = held.lost and isinstance(error, asyncio.CancelledError)
        if stopped and (task := asyncio.current_task()) is not None:
            task.uncancel()
        if held.lost and (stopped or not held.settled):
            raise given_up(held.job.id, held.token) from error
        if not held.settled:
            # Shielded: the cancellation that ends the block must not also abort giving the job back.
            await asyncio.shield(run_async(held.settle(outcome_of_block(held, error))))


class SyncClaim(ClaimVerbs, SyncFace):
    """The sync face of a claim: `with claim as job:`. Example: `app.sync.claim_job(job.id).release()`"""

    def __enter__(self) -> Job:
        self._held.keep(lambda _: None)
        return self._held.job

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        held = self._held
        held.core.keeper.drop(held)
        if held.lost and not held.settled:
            raise given_up(held.job.id, held.token) from error
        if not held.settled:
            run(held.settle(outcome_of_block(held, error)))


def _follow_ups(then: object) -> Sequence[NewJob]:
    """Return what `then=` names as a list; a single job is a list of one."""
    if isinstance(then, NewJob):
        return [then]
    if not isinstance(then, Iterable) or isinstance(then, str | bytes | Mapping):
        raise BadRequest(f"then={then!r} must be a list of NewJob(…) or task.new(…)")
    return list(then)


class SettlementBatcher:
    """The settlements that are asked for in one turn of an event loop, sent as one operation.

    `await asyncio.gather(*(claim.succeed() for claim in claims))` is one statement and one commit.
    """

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._waiting: dict[asyncio.AbstractEventLoop, Waiting] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def settle(self, one: SettleRequest) -> None:
        """Settle if the claim still holds its job, else `LeaseLost`; by itself, on the sync face."""
        self._store.run(lambda _: settle_one(one))

    async def settle_async(self, one: SettleRequest) -> None:
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[None] = loop.create_future()
        if loop not in self._waiting:
            self._waiting[loop] = []
            loop.call_soon(self._send, loop)
        self._waiting[loop].append((one, settled))
        await settled

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        task = loop.create_task(self._settle_together(self._waiting.pop(loop)))
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()  # the callers have it already; asyncio need not print it, too

    async def _settle_together(self, waiting: Waiting) -> None:
        settlements = [one for one, _ in waiting]
        try:
            lost, _ = await self._store.run_async(lambda _: settle_if_held(settlements))
        except BaseException as error:
            for _, settled in waiting:
                if not settled.done():
                    settled.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for one, settled in waiting:
            if not settled.done() and any(one is other for other in lost):
                settled.set_exception(lease_lost(one.id, one.token))
            elif not settled.done():
                settled.set_result(None)
