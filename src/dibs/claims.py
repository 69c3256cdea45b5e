"""A claim: the only way to a job's work, and the only one who can finish it.

`Holding` is the claim itself, without a colour; `Claim` and `SyncClaim` are its two faces.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dibs.callbacks import Fate
from dibs.clock import monotonic
from dibs.engines.fences import Fence
from dibs.errors import BadRequest, LeaseLost, StoreUnavailable
from dibs.failures import describe, error_entry
from dibs.jobs import Job, NewJob
from dibs.operations import Settled, Standing, lease_lost
from dibs.settings import Duration, span
from dibs.states import CancelledBy, Outcome, Raised, Released, Snoozed, Succeeded

if TYPE_CHECKING:
    from dibs.core import Core


class CancelAsked(Exception):
    """Raised in a handler's thread by `ctx.check()` when somebody asked for the job to be cancelled."""


class StopAsked(Exception):
    """Raised in a handler's thread by `ctx.check()` when its worker ends: the job is given back."""


class Holding:
    """What this process knows of a claim it made: the job, the token, how the lease stands."""

    __slots__ = (
        *("asked_at", "cancel_reason", "core", "is_settling", "job", "key", "lease_until"),
        *("lost", "_stands", "settled", "stopping", "timed_out", "token"),
    )

    def __init__(self, core: "Core", job: Job, asked_at: float) -> None:
        assert job.token is not None
        assert job.lease_until is not None
        assert job.claimed_at is not None
        self.core = core
        self.job = job
        self.token = job.token
        self.lease_until = job.lease_until
        self.asked_at = asked_at
        self.cancel_reason: str | None = None
        self.lost = False
        self.timed_out = False
        self.stopping = False  # whoever runs it ends, and can't wait any longer
        self.settled = False
        self.is_settling = False  # its settlement is on the way: to find it gone is no loss
        self._stands: Settled | None = None  # the settlement that can't be undone any more
        self.key: tuple[UUID, int] = job.id, job.token  # tells it from every other, also of this job

    def check(self) -> None:
        if self.lost:
            raise lease_lost(self.job.id, self.token)

    def check_stop(self) -> None:
        """For handlers in threads, which can't be interrupted: raise if they should stop."""
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

    def is_lost(self) -> None:
        """The store no longer has the job as ours; told once, whoever hears it first."""
        if not self.lost:
            self.lost = True
            self.core.events.lost(self.job)

    def stands(self, standing: Standing) -> None:
        self.lease_until = standing.lease_until
        self.cancel_reason = standing.cancel_reason

    def settled_by(self, outcome: Outcome, then: Sequence[NewJob] = ()) -> Settled:
        one = self.core.settlement(self, outcome, then)
        if self._stands is not None:
            self._refuse_late_children(one, self._stands)
        return one

    def _refuse_late_children(self, one: Settled, stands: Settled) -> None:
        """The same settlement again is a success; follow-up jobs that it had not would get lost by it."""
        if not set(one.child_ids) <= set(stands.child_ids):
            raise LeaseLost(
                f"job {self.job.id} was already settled by this claim, without these follow-up jobs: nothing "
                "was changed; enqueue them on their own"
            )

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Until it is known what came of it, and dropped: a beat that finds it gone takes nothing from us."""
        self.is_settling, is_open = True, False
        try:
            yield
        except StoreUnavailable:
            is_open = True
            raise
        finally:
            self.is_settling = is_open

    def is_settled(self, one: Settled, *, committed: bool = True) -> None:
        if committed:  # else the caller may roll it back, and settle otherwise
            self._stands = one
        self.is_settled_as(one.settled_as, delay=one.delay, errors=one.errors)

    def is_settled_as(self, settled_as: str, *, delay: int | None = None, errors: str | None = None) -> None:
        self.settled = True
        self.core.events.settled(self.job, settled_as, since=self.asked_at, delay=delay, errors=errors)

    def fate(self, one: Settled) -> Fate:
        return Fate(one.settled_as, self.job.id, self.token, self.job)

    def fence(self, table: str, **rows: Any) -> Fence:
        self.check()
        return Fence(self.job.id, self.token, table, **rows)

    def succeeded(self, result: Any) -> Succeeded:
        return Succeeded(self.core.encode_result(result))

    def raised(self, error: BaseException | str, *, retry: bool = True) -> Raised:
        kind, message, trace = describe(error) if isinstance(error, BaseException) else ("Fail", error, None)
        if not isinstance(message, str):
            raise BadRequest(f"a reason must be a string or an exception, not {message!r}")
        entry = error_entry(
            attempt=self.job.attempts,
            token=self.token,
            at=self._store_time(),
            worker=self.job.worker,
            type=kind,
            message=str.__str__(message),
            traceback=trace,
        )
        return Raised(entry, retry=retry)

    def snoozed(self, delay: Duration) -> Snoozed:
        return Snoozed(span(delay, what="snooze"))

    def cancelled(self, reason: str | None) -> CancelledBy:
        return CancelledBy(self.core.check_reason(reason))

    def ended_by(self, error: BaseException | None) -> Outcome:
        """What leaving a `with` block makes of the attempt."""
        match error:
            case None:
                return self.succeeded(None)
            case asyncio.CancelledError() | KeyboardInterrupt() | GeneratorExit():
                return Released()
            case _:
                return self.raised(error)

    def _store_time(self) -> datetime:
        """The store's clock, as far as we know it: when it leased us the job, plus what passed."""
        assert self.job.claimed_at is not None
        return self.job.claimed_at + timedelta(seconds=monotonic() - self.asked_at)


class _Facts:
    """What both faces let one read of a claim."""

    _held: Holding

    @property
    def job(self) -> Job:
        """The job as it was when it was claimed."""
        return self._held.job

    @property
    def token(self) -> int:
        """Greater than that of every earlier claim: hand it to whatever must refuse a stale writer."""
        return self._held.token

    @property
    def lease_until(self) -> datetime:
        """Until when the store keeps the job for us, by the store's clock."""
        return self._held.lease_until

    @property
    def cancel_reason(self) -> str | None:
        """Set once somebody asked for the job to be cancelled, as of the last renew or progress."""
        return self._held.cancel_reason

    @property
    def lost(self) -> bool:
        """True once the keeping of this claim has failed."""
        return self._held.lost

    def check(self) -> None:
        """Raise `LeaseLost` when the keeping of this claim has failed."""
        self._held.check()


class Claim(_Facts):
    """A job that is yours until `lease_until`: settle it, renew it, or lose it.

    `async with claim as job:` renews by itself; leaving the block is success, an exception is a
    failed attempt, a cancellation gives the job back.
    """

    def __init__(self, held: Holding) -> None:
        self._held = held

    async def succeed(self, result: Any = None, *, then: Sequence[NewJob] = (), within: Any = None) -> None:
        """Finish the job; `then` appear in the same commit, in your transaction if you give one."""
        await self._settle(self._held.succeeded(result), _follow_ups(then), within)

    async def fail(self, reason: str | BaseException, *, retry: bool = True) -> None:
        """Record a failed attempt; the job is retried after a back-off while it has attempts left."""
        await self._settle(self._held.raised(reason, retry=retry))

    async def snooze(self, delay: Duration) -> None:
        """Give the job back, and the attempt, to be claimed again after `delay`."""
        await self._settle(self._held.snoozed(delay))

    async def release(self) -> None:
        """Give the job back as if it had never been claimed."""
        await self._settle(Released())

    async def cancel(self, reason: str | None = None) -> None:
        """End the job as cancelled."""
        await self._settle(self._held.cancelled(reason))

    async def renew(self, lease: Duration | None = None) -> datetime:
        """Push the lease back; answers until when it now holds."""
        standing = await self._held.core.store.run_async(self._held.core.renew(self._held, lease))
        self._held.stands(standing)
        return standing.lease_until

    async def progress(self, fraction: float, message: str | None = None) -> None:
        """Note how far the work got; only the holder can."""
        operation = self._held.core.progress(self._held, fraction, message)
        self._held.stands(await self._held.core.store.run_async(operation))

    async def fence(
        self, connection: Any, table: str, *, key: Any, column: str = "token", insert: bool = False
    ) -> None:
        """Keep stale holders from writing to these rows, from now to the end of your transaction.

        The rows get this claim's token; `LeaseLost` if they have a later claim's already.
        """
        await self._held.fence(table, key=key, column=column, insert=insert).put_up(connection)

    async def _settle(self, outcome: Outcome, then: Sequence[NewJob] = (), within: Any = None) -> None:
        await self._send(self._held.settled_by(outcome, then), within)

    async def _send(self, one: Settled, within: Any = None) -> None:
        core = self._held.core
        with self._held.settling():
            if within is None:
                await core.settler.settle(one)
            else:
                await core.store.run_async(core.settle(one), within)
            core.keeper.drop(self._held)
        self._held.is_settled(one, committed=within is None)
        if within is None and core.callbacks.are_there:
            await core.callbacks.tell_now(core.store, [self._held.fate(one)])

    def _blocking(self) -> "SyncClaim":
        return SyncClaim(self._held)

    async def __aenter__(self) -> Job:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def tell(_: Holding) -> None:
            if self._held.lost and task is not None:
                loop.call_soon_threadsafe(task.cancel)

        core = self._held.core
        core.keeper.keep(self._held, core.lease_of(self._held.job), tell)
        return self._held.job

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.core.keeper.drop(self._held)
        if self._held.lost:
            task = asyncio.current_task()
            if task is not None and isinstance(error, asyncio.CancelledError):
                task.uncancel()
            raise lease_lost(self._held.job.id, self._held.token) from error
        if not self._held.settled:
            # Shielded: the cancellation that ends the block must not also abort giving the job back.
            await asyncio.shield(self._settle(self._held.ended_by(error)))


class SyncClaim(_Facts):
    """The blocking face of a claim; `with claim as job:` renews by itself."""

    def __init__(self, held: Holding) -> None:
        self._held = held

    def succeed(self, result: Any = None, *, then: Sequence[NewJob] = (), within: Any = None) -> None:
        self._settle(self._held.succeeded(result), _follow_ups(then), within)

    def fail(self, reason: str | BaseException, *, retry: bool = True) -> None:
        self._settle(self._held.raised(reason, retry=retry))

    def snooze(self, delay: Duration) -> None:
        self._settle(self._held.snoozed(delay))

    def release(self) -> None:
        self._settle(Released())

    def cancel(self, reason: str | None = None) -> None:
        self._settle(self._held.cancelled(reason))

    def renew(self, lease: Duration | None = None) -> datetime:
        standing = self._held.core.store.run(self._held.core.renew(self._held, lease))
        self._held.stands(standing)
        return standing.lease_until

    def progress(self, fraction: float, message: str | None = None) -> None:
        operation = self._held.core.progress(self._held, fraction, message)
        self._held.stands(self._held.core.store.run(operation))

    def fence(
        self, connection: Any, table: str, *, key: Any, column: str = "token", insert: bool = False
    ) -> None:
        self._held.fence(table, key=key, column=column, insert=insert).put_up_sync(connection)

    def _settle(self, outcome: Outcome, then: Sequence[NewJob] = (), within: Any = None) -> None:
        self._send(self._held.settled_by(outcome, then), within)

    def _send(self, one: Settled, within: Any = None) -> None:
        core = self._held.core
        with self._held.settling():
            core.store.run(core.settle(one), within)
            core.keeper.drop(self._held)
        self._held.is_settled(one, committed=within is None)
        if within is None and core.callbacks.are_there:
            core.callbacks.tell_now_sync(core.store, [self._held.fate(one)])

    def __enter__(self) -> Job:
        core = self._held.core
        core.keeper.keep(self._held, core.lease_of(self._held.job), lambda _: None)
        return self._held.job

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.core.keeper.drop(self._held)
        if self._held.lost:
            raise lease_lost(self._held.job.id, self._held.token) from error
        if not self._held.settled:
            self._settle(self._held.ended_by(error))


def _follow_ups(then: object) -> Sequence[NewJob]:
    """What `then=` names; a single job may stand for a list of one."""
    if isinstance(then, NewJob):
        return [then]
    if not isinstance(then, Iterable) or isinstance(then, str | bytes | Mapping):
        raise BadRequest(f"then={then!r} must be a list of NewJob(…) or task.new(…)")
    return list(then)


def with_docs(face: type, other: type) -> None:
    """Give the blocking face the docstrings of the awaited one; their signatures are equal."""
    for name, method in vars(other).items():
        twin = vars(face).get(name)
        if callable(method) and callable(twin) and not twin.__doc__:
            twin.__doc__ = method.__doc__


with_docs(SyncClaim, Claim)
