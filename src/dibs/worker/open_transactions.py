"""What waits for a caller's open transaction: settlements at a locked gate, completions not committed yet.

Both are tried again until the transaction has ended: often at first, later once a second.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

from dibs.app.claims import ClaimState
from dibs.app.leases import KeptClaim
from dibs.app.outcomes import still_ours
from dibs.app.state import AppState
from dibs.clock import monotonic
from dibs.errors import DibsError, StoreUnavailable
from dibs.events import log
from dibs.jobs.states import JobState
from dibs.operations.queries import get
from dibs.operations.settle import Patience, Renewal, SettleRequest, renew
from dibs.worker.exchange import EndedAttempt

LEAST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between two tries
LONG = 5.0  # seconds after which it is logged


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Something that waits for an open transaction, and whether that was logged."""

    since: float = field(default_factory=monotonic)
    is_logged: bool = False

    @property
    def age(self) -> float:
        return monotonic() - self.since

    def should_log(self) -> bool:
        """Return whether it has waited for long; true once."""
        if self.is_logged or self.age <= LONG:
            return False
        self.is_logged = True
        return True


Key = TypeVar("Key")
W = TypeVar("W", bound=Waiting)


class RetriedWaits(ABC, Generic[Key, W]):
    """What waits, and the one asyncio task that tries it again until nothing waits any more."""

    task_name: str

    def __init__(self, task_ended: Callable[["asyncio.Task[None]"], None]) -> None:
        self._task_ended = task_ended
        self._waiting: dict[Key, W] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_open = True

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def open(self) -> None:
        self._is_open = True

    async def _stop(self) -> None:
        self._is_open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin(self) -> None:
        if self._task is None and self._is_open and self._waiting:
            self._task = asyncio.get_running_loop().create_task(self._retry(), name=self.task_name)
            self._task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        self._task_ended(task)
        if not task.cancelled() and task.exception() is None:
            self._begin()  # something may have been added since the last try

    async def _retry(self) -> None:
        while self._waiting:
            with suppress(StoreUnavailable):  # the turns log it
                await self._try_all()
            if self._waiting:
                youngest = min(one.age for one in self._waiting.values())
                await asyncio.sleep(min(max(youngest / 10, LEAST_PAUSE), LONGEST_PAUSE))

    @abstractmethod
    async def _try_all(self) -> None: ...


# -- settlements at a locked gate ---------------------------------------------------------------


@dataclass(slots=True)
class GateBatch(Waiting):
    """All settlements that wait at one gate, in order."""

    gate: str
    ended: list[EndedAttempt] = field(default_factory=list)

    def without(self, settled: Collection[UUID]) -> "GateBatch":
        """Return what is left, with what was added since these settlements were sent."""
        return replace(self, ended=[(held, one) for held, one in self.ended if one.id not in settled])

    def log_if_long(self) -> None:
        if self.should_log():
            held, _ = self.ended[0]
            log.warning(
                "job %s has run and can't be settled: for %.0f s an open transaction has locked %s "
                "(or its row, or what a follow-up job needs); its lease is kept, and other jobs go on",
                held.job.id,
                self.age,
                self.gate,
            )


# Sends these settlements, waiting so long for locked gates; returns the ones that are still locked out.
SendSettlements = Callable[[list[EndedAttempt], Patience], Awaitable[Collection[SettleRequest]]]


class LockedSettlements(RetriedWaits[str, GateBatch]):
    """Settlements that a turn could not make, as an open transaction has their gate locked."""

    task_name = "dibs-locked-settlements"

    def __init__(self, send: SendSettlements, task_ended: Callable[["asyncio.Task[None]"], None]) -> None:
        super().__init__(task_ended)
        self._send = send

    def add(self, ended: Sequence[EndedAttempt], locked: Collection[SettleRequest]) -> list[EndedAttempt]:
        """Keep the attempts with locked settlements; return the others."""
        if not locked:
            return list(ended)
        locked_ids = {one.id for one in locked}
        for held, one in ended:
            if one.id in locked_ids:
                gate = _gate_of(held)
                self._waiting.setdefault(gate, GateBatch(gate)).ended.append((held, one))
        self._begin()
        return [(held, one) for held, one in ended if one.id not in locked_ids]

    async def close(self) -> list[EndedAttempt]:
        """Try no more; return what is left."""
        await self._stop()
        return self.take()

    def take(self) -> list[EndedAttempt]:
        batches, self._waiting = self._waiting.values(), {}
        return [one for batch in batches for one in batch.ended]

    async def _try_all(self) -> None:
        """Try all gates without a wait, and one of them, each in its turn, with a short wait.

        A gate that many transactions lock one after another is never free without a wait; and one that is
        locked for long must not delay the others.
        """
        if len(self._waiting) > 1:
            await self._try(list(self._waiting.values()), "none")
        if self._waiting:
            await self._try([next(iter(self._waiting.values()))], "short")

    async def _try(self, batches: Sequence[GateBatch], wait: Patience) -> None:
        ended = [one for batch in batches for one in batch.ended]
        locked = await self._send(ended, wait)
        settled = {one.id for _, one in ended} - {one.id for one in locked}
        for batch in batches:
            del self._waiting[batch.gate]
            if (rest := batch.without(settled)).ended:
                self._waiting[batch.gate] = rest  # behind the batches that were not tried
                rest.log_if_long()


def _gate_of(held: ClaimState) -> str:
    job = held.job
    if job.train is not None:
        return f"the train {job.train!r}"
    if job.slot is not None:
        return f"the slot {job.slot!r}"
    return f"the row of job {job.id}" if job.unique is None else f"the unique key {job.unique!r}"


# -- completions that are not committed ---------------------------------------------------------


@dataclass(slots=True)
class Completion(Waiting):
    """A job completed within a transaction, and its settlement should that be rolled back."""

    held: ClaimState
    settlement: SettleRequest
    lease: int
    until: datetime | None = None
    """The end of the lease at the last try; the claim itself may not know of its last heartbeat."""

    def is_rolled_back(self, renewal: Renewal) -> bool:
        """Return whether the lease could be renewed: no transaction has the row locked any more."""
        before, self.until = self.until, renewal.lease_until
        return before is not None and before < renewal.lease_until

    def log_if_long(self) -> None:
        if self.should_log():
            log.warning(
                "job %s has run and was completed within a transaction that has not ended for %.0f s; until "
                "then its lease can't be kept, and other jobs go on",
                self.held.job.id,
                self.age,
            )

    def give_up(self) -> None:
        log.warning(
            "job %s was completed within a transaction that is not committed, and its worker ends: should it "
            "be rolled back, the job's lease runs out, as if its worker had died",
            self.held.job.id,
        )


class OpenCompletions(RetriedWaits[ClaimState, Completion]):
    """Jobs completed within transactions of their handlers that may be open.

    A rollback is passed to `rolled_back`, with the lease renewed again; a commit to `committed`.
    """

    task_name = "dibs-open-completions"

    def __init__(
        self,
        core: AppState,
        *,
        rolled_back: Callable[[ClaimState, SettleRequest], None],
        committed: Callable[[ClaimState, SettleRequest], None],
        task_ended: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        super().__init__(task_ended)
        self._core = core
        self._rolled_back = rolled_back
        self._committed = committed

    async def add(self, held: ClaimState, settlement: SettleRequest) -> None:
        """Settle the job so, unless its transaction is committed; return before that is known."""
        completion = Completion(held, settlement, self._core.lease_of(held.job))
        with suppress(StoreUnavailable, asyncio.CancelledError):  # then it is not known, and tried again
            if await self._is_over(completion):
                return
        if self._is_open:
            self._waiting[held] = completion
            self._begin()
        else:
            completion.give_up()

    async def close(self) -> None:
        """Try once more, and give up what is still open."""
        await self._stop()
        with suppress(DibsError):
            await self._try_all()
        given_up, self._waiting = self._waiting, {}
        for completion in given_up.values():
            completion.give_up()

    async def _try_all(self) -> None:
        by_lease: defaultdict[int, list[Completion]] = defaultdict(list)
        for completion in self._waiting.values():
            by_lease[completion.lease].append(completion)
        for lease, group in by_lease.items():
            await self._try(group, lease)

    async def _try(self, group: list[Completion], lease: int) -> None:
        claims, sent_at = [completion.held.key for completion in group], monotonic()
        renewals = await self._core.store.run_async(lambda _: renew(claims, lease))
        for completion in group:
            await self._note(completion, renewals.get(completion.held.key), sent_at)

    async def _note(self, completion: Completion, renewal: Renewal | None, sent_at: float) -> None:
        if renewal is not None and not completion.is_rolled_back(renewal):
            completion.log_if_long()
        elif renewal is not None or await self._is_over(completion):
            is_ours = self._waiting.pop(completion.held, None) is not None
            if is_ours and renewal is not None:
                self._hand_over(completion, renewal, sent_at)

    def _hand_over(self, completion: Completion, renewal: Renewal, sent_at: float) -> None:
        """Keep the lease again, as another transaction may have the gate locked, and have the job settled."""
        held = completion.held
        held.renewed(renewal)
        kept = KeptClaim(held, completion.lease, _ignore)
        kept.beaten(sent_at)
        self._core.keeper.keep_all([kept])
        self._rolled_back(held, completion.settlement)

    async def _is_over(self, completion: Completion) -> bool:
        """Return whether the claim no longer holds the job, by its own success or because it was lost."""
        held = completion.held
        job = await self._core.store.run_async(lambda _: get(held.job.id))
        if job is None:  # deleted, as a success may be at once: it can't be known any more
            return True
        if still_ours(job, held):
            completion.until = job.lease_until
            return False
        if (job.state, job.token) == (JobState.succeeded, held.token):
            self._committed(held, completion.settlement)
        else:
            held.give_up()
        return True


def _ignore(_: ClaimState) -> None:
    """Do nothing about a lost claim: its handler has ended."""
