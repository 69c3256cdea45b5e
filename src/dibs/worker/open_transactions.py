"""What waits for somebody's open transaction, and the task that looks at it until it waits no more.

How long that takes is up to a stranger: the longer it does, the more seldom is a look.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from dibs.app.callbacks import PendingEvent
from dibs.app.claims import ClaimState
from dibs.app.leases import KeptClaim, Tell
from dibs.app.running import still_ours
from dibs.app.state import AppState
from dibs.clock import monotonic
from dibs.errors import DibsError, StoreUnavailable
from dibs.events import log
from dibs.jobs.states import JobState
from dibs.operations.queries import get
from dibs.operations.settle import Patience, Renewal, SettleRequest, renew
from dibs.worker.exchange import Done

LEAST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between two looks
LONG = 5.0  # seconds after which somebody should hear of it


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Since when it waits, and whether somebody has heard of that."""

    since: float = field(default_factory=monotonic)
    is_told: bool = False

    @property
    def age(self) -> float:
        return monotonic() - self.since

    def is_to_be_told(self) -> bool:
        """Whether it waits for long; true once."""
        if self.is_told or self.age <= LONG:
            return False
        self.is_told = True
        return True


class Vigil:
    """One task at most: it begins with the first that waits, and ends with the last."""

    def __init__(
        self,
        name: str,
        waiting: Callable[[], Collection[Waiting]],
        look: Callable[[], Awaitable[None]],
        ended: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        self._name = name
        self._waiting = waiting
        self._look = look
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self.is_open = True

    def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def begin(self) -> None:
        """Look from now on, unless somebody does or nothing waits."""
        if self._task is None and self.is_open and self._waiting():
            self._task = asyncio.get_running_loop().create_task(self._keep(), name=self._name)
            self._task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        self._ended(task)
        if not task.cancelled() and task.exception() is None:
            self.begin()  # somebody may have come since the last look

    async def _keep(self) -> None:
        while self._waiting():
            with suppress(StoreUnavailable):  # the turns say so
                await self._look()
            if waiting := self._waiting():
                youngest = min(one.age for one in waiting)
                await asyncio.sleep(min(max(youngest / 10, LEAST_PAUSE), LONGEST_PAUSE))


@dataclass(slots=True)
class Parcel(Waiting):
    """All that waits at one gate, in order."""

    gate: str
    done: list[Done] = field(default_factory=list)

    def without(self, sent: Collection[UUID]) -> "Parcel":
        """The same without these settlements, if more has come since they were sent."""
        return replace(self, done=[(held, one) for held, one in self.done if one.id not in sent])


# Sends these settlements: in all "none" of them is waited for, or a "short" time. Answers what is left.
Settle = Callable[[list[Done], Patience], Awaitable[Collection[SettleRequest]]]


class Aside:
    """What one worker has put aside."""

    def __init__(self, settle: Settle, ended: Callable[["asyncio.Task[None]"], None]) -> None:
        self._settle = settle
        self._parcels: dict[str, Parcel] = {}
        self._vigil = Vigil("dibs-aside", self._waiting, self._ask, ended)

    def __bool__(self) -> bool:
        return bool(self._parcels)

    def _waiting(self) -> Collection[Parcel]:
        return self._parcels.values()

    def open(self) -> None:
        self._vigil.open()

    def put(self, done: Sequence[Done], left: Collection[SettleRequest]) -> list[Done]:
        """Keep what is left of a turn; answer the rest of it."""
        if not left:
            return list(done)
        late = {one.id for one in left}
        for held, one in done:
            if one.id in late:
                self._parcel(held).done.append((held, one))
        self._vigil.begin()
        return [(held, one) for held, one in done if one.id not in late]

    def _parcel(self, held: ClaimState) -> Parcel:
        gate = _gate(held)
        return self._parcels.setdefault(gate, Parcel(gate))

    async def close(self) -> list[Done]:
        """Ask no more; what is left is the caller's."""
        await self._vigil.close()
        return self.take()

    def take(self) -> list[Done]:
        parcels, self._parcels = self._parcels.values(), {}
        return [one for parcel in parcels for one in parcel.done]

    # -- asking again ---------------------------------------------------------------------------

    async def _ask(self) -> None:
        """All of them without waiting, and the first with a little patience: each is that in turn.

        For a gate where many come and go is never free to who does not wait for it; and one that is locked
        for long must not keep us from the others.
        """
        if len(self._parcels) > 1:
            await self._try(list(self._parcels.values()), "none")
        if self._parcels:
            await self._try([next(iter(self._parcels.values()))], "short")

    async def _try(self, parcels: Sequence[Parcel], patience: Patience) -> None:
        done = [one for parcel in parcels for one in parcel.done]
        left = await self._settle(done, patience)
        settled = {one.id for _, one in done} - {one.id for one in left}
        for parcel in parcels:
            del self._parcels[parcel.gate]
            if (rest := parcel.without(settled)).done:
                self._parcels[parcel.gate] = rest  # behind those that were not tried
                _mention(rest)


def _mention(parcel: Parcel) -> None:
    if parcel.is_to_be_told():
        held, _ = parcel.done[0]
        log.warning(
            "job %s has run and can't be settled: for %.0f s somebody's open transaction has locked %s "
            "(or that of a follow-up job); its lease is kept, and other jobs go on",
            held.job.id,
            parcel.age,
            parcel.gate,
        )


def _gate(held: ClaimState) -> str:
    job = held.job
    if job.train is not None:
        return f"the train {job.train!r}"
    if job.slot is not None:
        return f"the slot {job.slot!r}"
    return f"the gate of job {job.id}" if job.unique is None else f"the unique key {job.unique!r}"


@dataclass(slots=True)
class Completion(Waiting):
    """What is to be settled if its transaction comes to nothing."""

    held: ClaimState
    one: SettleRequest
    lease: int
    until: datetime | None = None
    """When its lease ended at the last look; the holder may not have heard of its last beat."""

    def is_free(self, standing: Renewal) -> bool:
        """Its lease could be pushed: nobody has its row locked any more."""
        before, self.until = self.until, standing.lease_until
        return before is not None and before < standing.lease_until


class Commits:
    """Those of one worker. What has come to nothing is handed over, what was committed is told."""

    def __init__(
        self,
        core: AppState,
        *,
        hand_over: Callable[[Done], None],
        committed: Callable[[PendingEvent], None],
        tell: Tell,
        ended: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        self._core = core
        self._hand_over = hand_over
        self._committed = committed
        self._tell = tell
        self._open: dict[ClaimState, Completion] = {}
        self._vigil = Vigil("dibs-commits", self._waiting, self._look, ended)

    def __bool__(self) -> bool:
        return bool(self._open)

    def _waiting(self) -> Collection[Completion]:
        return self._open.values()

    def open(self) -> None:
        self._vigil.open()

    async def mind(self, held: ClaimState, one: SettleRequest) -> None:
        """See that this is settled, unless the job has succeeded; who calls need not wait for it."""
        completion = Completion(held, one, self._core.lease_of(held.job))
        with suppress(StoreUnavailable, asyncio.CancelledError):  # then it is not known, and looked at again
            if await self._is_over(completion):
                return
        if self._vigil.is_open:
            self._open[held] = completion
            self._vigil.begin()
        else:
            _give_up(completion)

    async def close(self) -> None:
        """Look once more, and give up what is still open."""
        await self._vigil.close()
        with suppress(DibsError):
            await self._look()
        given_up, self._open = self._open, {}
        for completion in given_up.values():
            _give_up(completion)

    # -- looking --------------------------------------------------------------------------------

    async def _look(self) -> None:
        by_lease: defaultdict[int, list[Completion]] = defaultdict(list)
        for completion in self._open.values():
            by_lease[completion.lease].append(completion)
        for lease, group in by_lease.items():
            await self._look_at(group, lease)

    async def _look_at(self, group: list[Completion], lease: int) -> None:
        claims, sent_at = [completion.held.key for completion in group], monotonic()
        standing = await self._core.store.run_async(lambda _: renew(claims, lease))
        for completion in group:
            await self._note(completion, standing.get(completion.held.key), sent_at)

    async def _note(self, completion: Completion, standing: Renewal | None, sent_at: float) -> None:
        if standing is not None and not completion.is_free(standing):
            _mention_open(completion)
        elif standing is not None or await self._is_over(completion):
            is_ours = self._open.pop(completion.held, None) is not None
            if is_ours and standing is not None:
                self._settle(completion, standing, sent_at)

    def _settle(self, completion: Completion, standing: Renewal, sent_at: float) -> None:
        """As every other from now on; somebody may have its gate locked, so its lease is kept again."""
        held = completion.held
        held.renewed(standing)
        kept = KeptClaim(held, completion.lease, self._tell)
        kept.beaten(sent_at)
        self._core.keeper.keep_all([kept])
        self._hand_over((held, completion.one))

    async def _is_over(self, completion: Completion) -> bool:
        """Whether the job is ours no longer, by our own success or because it was lost."""
        held = completion.held
        job = await self._core.store.run_async(lambda _: get(held.job.id))
        if job is None:  # deleted, as a success may be at once: nobody knows
            return True
        if still_ours(job, held):
            completion.until = job.lease_until
            return False
        if (job.state, job.token) == (JobState.succeeded, held.token):
            self._committed(PendingEvent("succeeded", job.id, held.token))
        else:
            held.is_lost()
        return True


def _mention_open(completion: Completion) -> None:
    if completion.is_to_be_told():
        log.warning(
            "job %s has run and was completed within a transaction that has not ended for %.0f s; until then "
            "its lease can't be kept, and other jobs go on",
            completion.held.job.id,
            completion.age,
        )


def _give_up(completion: Completion) -> None:
    log.warning(
        "job %s was completed within a transaction that is not committed, and its worker ends: should it be "
        "rolled back, the job's lease runs out, as if its worker had died",
        completion.held.job.id,
    )
