"""The round trip of a turn: settle the attempts that ended and claim new jobs, in one transaction."""

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple
from uuid import UUID

from dibs.app.claims import ClaimState, hold
from dibs.app.state import AppState
from dibs.clock import monotonic
from dibs.engines.hints import Hint
from dibs.engines.retries import Tries
from dibs.jobs.job import Job
from dibs.jobs.options import DEFAULT_LEASE
from dibs.operations.claim import ClaimRequest, take
from dibs.operations.questions import Cursor
from dibs.operations.scripts import Script
from dibs.operations.settle import NotSettled, Patience, SettleRequest, exchange, settle_if_held
from dibs.settings import lease_micros
from dibs.worker.state import TakenHints

USUAL_LEASE = lease_micros(DEFAULT_LEASE)

EndedAttempt = tuple[ClaimState, SettleRequest]


class Exchanged(NamedTuple):
    """The result of one round trip."""

    lost: Sequence[SettleRequest] = ()
    """Settlements that changed nothing: the claim no longer held its job."""
    claimed: Sequence[ClaimState] = ()
    jobs: Sequence[Job] = ()
    """The jobs of these claims."""
    locked: Sequence[SettleRequest] = ()
    """Settlements that can't be made yet: an open transaction has their gate locked."""
    may_be_more: bool = False
    """Whether more jobs may be ready: the claim was full, or did not begin at the first job."""
    all_in: float | None = None
    """Seconds until a claim may begin at the first job again, if this one could not."""


class Exchange:
    """The round trips of one worker."""

    def __init__(self, core: AppState, name: str, queues: list[str] | None) -> None:
        self._core = core
        self._name = name
        self._queues = queues
        self.cursor = ClaimCursor(pays=core.store.traits.goes_on)

    async def settle_and_claim(
        self, settlements: Sequence[SettleRequest], limit: int, hints: TakenHints
    ) -> Exchanged:
        """Settle, and claim up to `limit` jobs; only what the hints name if nothing is to be settled."""
        began, cursor = monotonic(), self.cursor
        marks = cursor.get(hints, is_settling=bool(settlements))
        request = self._request(limit, hints, marks, is_settling=bool(settlements))
        exchanged = await self._core.store.run_async(lambda tries: self._script(tries, settlements, request))
        if limit:
            seconds = monotonic() - began
            if any(job.id in request.named for job in exchanged.jobs):
                cursor.note(exchanged.jobs, seconds)
            else:
                is_full = len(exchanged.jobs) >= limit
                found = [job for job in exchanged.jobs if job.id not in request.ahead]
                cursor.advance(found, is_full=is_full, used=bool(marks), seconds=seconds)
        return exchanged

    async def settle(self, settlements: Sequence[SettleRequest], wait: Patience) -> Exchanged:
        """Settle without a claim, with this wait for locked gates."""

        def script(tries: Tries) -> Script[Exchanged]:
            if tries.number:  # the wait for a lock has ended the try before
                return Exchanged(locked=settlements)
            patience: Patience = "wary" if wait == "none" else wait
            lost, locked = yield from settle_if_held(settlements, patience=patience)
            return Exchanged(lost=lost, locked=locked)

        return await self._core.store.run_async(script)

    def _script(
        self, tries: Tries, settlements: Sequence[SettleRequest], request: ClaimRequest
    ) -> Script[Exchanged]:
        asked_at = monotonic()  # of this try: the lease can't have begun earlier
        not_settled, jobs = NotSettled(), list[Job]()
        patience: Patience | None = None
        if self._core.store.traits.locks_gates:
            patience = "wary" if tries.number else "none"  # the try before may have waited for a row
        if not request.limit:
            not_settled = yield from settle_if_held(settlements, patience=patience)
        elif not settlements:
            jobs = yield from take(request)
        else:
            not_settled, jobs = yield from exchange(settlements, request, patience=patience)
        may_be_more = len(jobs) >= request.limit or (bool(request.marks) and self.cursor.has_more)
        held = hold(self._core, jobs, asked_at)
        all_in = self.cursor.seconds_left() if request.marks else None
        return Exchanged(not_settled.lost, held, jobs, not_settled.locked, may_be_more, all_in)

    def _request(
        self, limit: int, hints: TakenHints, marks: Sequence[Cursor], *, is_settling: bool
    ) -> ClaimRequest:
        registry, pair = self._core.registry, None if is_settling else hints.pair
        ahead = [id for id in self.cursor.ahead(hints.named) if marks][:limit]
        named = [hint.id for hint in hints.named if hint.id and not (hints.is_anywhere or is_settling)]
        return ClaimRequest(
            worker=self._name,
            lease=USUAL_LEASE,
            leases=registry.leases,
            limit=limit,
            queues=self._queues if pair is None else [pair[0]],
            kinds=list(registry.tasks) if pair is None else [pair[1]],
            marks=marks,
            ahead=ahead,
            named=named if len(named) <= limit else (),
        )


SHARE = 10  # times as long as the claim that began at the first job took, cursors may be used
LONGEST, LONGEST_IF_DEAR = 1.0, 10.0  # seconds
DEAR, TIMES_DEAR = 0.03, 4  # seconds, and times as long as others, that such a claim takes to be made rarely
LATE, VERY_LATE = timedelta(seconds=0.25), timedelta(seconds=5)  # before a cursor, for commits and retries
MOST_GROUPS = 100
_NO_ID = UUID(int=0)  # before all others


class ClaimCursor:
    """The last jobs claimed from each queue-kind pair; a full claim is soon continued there.

    While an old snapshot is open, a claim that begins at the first job reads every row that left the queue
    since. With cursors, jobs that have come in front of them are not seen. So they are dropped after a short
    time, and when a claim finds less than it had room for; unless beginning anew is dear. Then claims begin
    shortly before the cursors, and a tenth of the time goes into those that begin at the first job.
    """

    def __init__(self, *, pays: bool) -> None:
        self._pays = pays
        self._last: dict[tuple[str, str, int], Cursor] = {}  # by queue, kind, priority
        self._costs: deque[float] = deque(maxlen=3)  # of claims that began at the first job
        self._others: deque[float] = deque(maxlen=9)
        self._until = 0.0
        self._was_used = False
        self._clock: datetime | None = None  # the store's, when a job was last claimed
        self.has_more = False
        """Whether the last claim was full."""

    @property
    def is_dear(self) -> bool:
        """Whether to begin at the first job costs much, and not because all is slow on a busy machine."""
        least = min(self._costs) if len(self._costs) == self._costs.maxlen else 0.0
        return least > DEAR and least > TIMES_DEAR * median(self._others or (0.0,))

    def get(self, hints: TakenHints, *, is_settling: bool) -> list[Cursor]:
        """Return where to continue; nothing when it is time to claim from the first job on."""
        if monotonic() >= self._until or not (self.is_dear or (self.has_more and is_settling)):
            return []
        if self.has_more:  # of each pair the cursor at the lowest priority, as all others are done
            in_order = sorted(self._last.values(), key=lambda one: -one.priority)
            return list({(one.queue, one.kind): one for one in in_order}.values())
        before = VERY_LATE if hints.is_anywhere else LATE
        return [one._replace(run_at=one.run_at - before, id=_NO_ID) for one in self._last.values()]

    def drop(self) -> bool:
        """Begin the next claim at the first job; return whether the last one did not."""
        self._until, was_used, self._was_used = 0.0, self._was_used, False
        return was_used

    def seconds_left(self) -> float:
        return max(self._until - monotonic(), 0.0)

    def ahead(self, hints: Sequence[Hint]) -> list[UUID]:
        """Return the jobs of these hints that come before all that is left: while little is left, all."""
        least = max((one.priority for one in self._last.values()), default=0) if self.has_more else None
        return [hint.id for hint in hints if hint.id and (least is None or hint.priority > least)]

    def note(self, jobs: Sequence[Job], seconds: float) -> None:
        """Note jobs that were claimed by their ids, wherever they stood."""
        self._others.append(seconds)
        self._clock = max((job.claimed_at for job in jobs if job.claimed_at), default=self._clock)
        for job in jobs if self._pays else ():
            self._last.setdefault(_group(job), Cursor(*_group(job), job.run_at - VERY_LATE, _NO_ID))

    def advance(self, jobs: Sequence[Job], *, is_full: bool, used: bool, seconds: float) -> None:
        """Continue behind these jobs, which a claim returned in this order after so many seconds."""
        if not self._pays:
            return
        (self._others if used else self._costs).append(seconds)
        if not used:
            longest = LONGEST_IF_DEAR if self.is_dear else LONGEST
            self._until = monotonic() + min(SHARE * seconds, longest)
        if (is_full and not used) or len(self._last) > MOST_GROUPS:
            self._last = {}
        for job in jobs:
            self._last[_group(job)] = Cursor(*_group(job), job.run_at, job.id)
        if not is_full:
            self._all_taken()
        self.has_more, self._was_used = is_full, used
        self._clock = max((job.claimed_at for job in jobs if job.claimed_at), default=self._clock)

    def _all_taken(self) -> None:
        """Move all cursors to the time until which nothing is left, or drop them if that saves nothing."""
        if not self.is_dear:
            self._until = 0.0
        for group, one in self._last.items():
            if self._clock is not None and one.run_at < self._clock:
                self._last[group] = one._replace(run_at=self._clock, id=_NO_ID)


def _group(job: Job) -> tuple[str, str, int]:
    return job.queue, job.kind, job.priority
