"""What the parts of a worker share: should it stop, has something changed, may jobs be ready?"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from dibs.clock import monotonic
from dibs.engines.hints import Hint
from dibs.errors import StoreUnavailable
from dibs.events import log
from dibs.jobs.job import Job
from dibs.worker.health import WorkerHealth

MOST_HEARD = 100  # hints between two turns, from which on jobs are expected anywhere
SECOND_CLAIM = 0.03  # seconds after a hint: jobs enqueued right behind the announced one were not announced
SOON = 0.2  # seconds between two upkeep rounds at the least

QueueKind = tuple[str, str]


class WorkerState:
    """The state of one run of a worker, and the event that ends its rest."""

    def __init__(self, poll: float) -> None:
        self.health = WorkerHealth()
        self.work = ExpectedWork(poll)
        self.upkeep = UpkeepTimer()
        self.is_resting = False
        self._reset(until_idle=False)

    def _reset(self, *, until_idle: bool) -> None:
        self.until_idle = until_idle
        self.is_stopping = self.is_hurried = False
        self.error: BaseException | None = None
        self._changed = asyncio.Event()
        self._run: asyncio.Task[None] | None = None

    def begin(self, *, until_idle: bool) -> None:
        self._reset(until_idle=until_idle)
        self._run = asyncio.current_task()
        self.work.begin()
        self.upkeep.next_at = 0.0
        self.health.becomes("starting")

    def stop(self) -> None:
        self.is_hurried = self.is_stopping
        self.is_stopping = True
        self.health.becomes("stopping")
        self._changed.set()

    @property
    def is_ending(self) -> bool:
        """Whether the worker was stopped or cancelled."""
        return self.is_stopping or (self._run is not None and self._run.cancelling() > 0)

    def changed(self) -> None:
        """End the worker's rest."""
        self._changed.set()

    def task_ended(self, task: "asyncio.Task[None]") -> None:
        """Note the end of one of the worker's asyncio tasks; an exception of it ends the worker."""
        if not task.cancelled():
            self.error = task.exception() or self.error
        self._changed.set()

    async def rest(self) -> None:
        """Wait for a change, the next upkeep round, or the second claim after a hint."""
        self._changed.clear()
        wake_at = min(self.upkeep.next_at, self.work.claim_again_at)
        self.is_resting = True
        try:
            await self.change_within(max(wake_at - monotonic(), 0.001))
        finally:
            self.is_resting = False
        self.work.claim_again_if_due()

    def clear_changes(self) -> None:
        self._changed.clear()

    async def change_within(self, seconds: float) -> None:
        # Not wait_for(): on 3.11 it swallows a cancellation that comes together with the change.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def wait_for_store(self, error: StoreUnavailable) -> None:
        """Wait until it is worth another try to reach the store; upkeep comes first then."""
        self.upkeep.within(0)
        await self.health.wait_for_store(error, until_idle=self.until_idle)


class UpkeepTimer:
    """The time of the next upkeep round, by `monotonic()`."""

    def __init__(self) -> None:
        self.next_at = self.began_at = 0.0

    @property
    def is_due(self) -> bool:
        return monotonic() >= self.next_at

    def begin(self) -> None:
        self.began_at, self.next_at = monotonic(), float("inf")

    def within(self, seconds: float) -> None:
        """Begin the next round in this many seconds at the latest."""
        self.next_at = min(self.next_at, monotonic() + seconds)

    def soon(self) -> None:
        """Begin the next round as soon as the shortest pause after the last one allows."""
        self.next_at = min(self.next_at, self.began_at + SOON)


class TakenHints(NamedTuple):
    """The hints that a turn has taken into account."""

    total: int = 0  # since the worker was made
    are_new: bool = False  # since the turn before
    is_anywhere: bool = False  # jobs may be ready that they were not about
    named: Sequence[Hint] = ()  # with the id of a job
    pair: QueueKind | None = None  # the only one where a job is expected, if there is just one


class ExpectedWork:
    """Whether jobs may be ready for this worker, as far as hints, claims and upkeep tell."""

    def __init__(self, poll: float) -> None:
        self.connections = StaleConnectionCheck(poll)
        self._heard: list[Hint] = []
        self._total = 0
        self._has_claimed = False
        self.begin()

    def begin(self) -> None:
        self.expect()
        self.claim_again_at = float("inf")

    def expect(self) -> None:
        """Note that jobs may be ready anywhere."""
        self.is_likely = self._is_anywhere = True

    def hint(self, hint: Hint) -> None:
        """Note the hint that a job was enqueued; while nothing else is expected, only this is claimed."""
        self._heard.append(hint)
        self._total += 1
        self._is_anywhere = self._is_anywhere or hint.kind is None or len(self._heard) > MOST_HEARD
        self.is_likely = True
        self.claim_again_at = monotonic() + SECOND_CLAIM

    def claim_again_within(self, seconds: float) -> None:
        """Claim from anywhere in this many seconds at the latest."""
        self.claim_again_at = min(self.claim_again_at, monotonic() + seconds)

    def claim_again_if_due(self) -> None:
        if monotonic() >= self.claim_again_at:
            self.begin()

    def take_hints(self) -> TakenHints:
        """Return the hints that the turn which begins now takes into account."""
        heard, self._heard = self._heard, []
        is_anywhere, self._is_anywhere = self._is_anywhere, False
        pairs = {(hint.queue, hint.kind) for hint in heard if hint.kind is not None}
        pair = pairs.pop() if len(pairs) == 1 and not is_anywhere else None
        named = [hint for hint in heard if hint.id is not None]
        is_anywhere = is_anywhere or len(named) < len(heard) or not heard
        return TakenHints(self._total, bool(heard), is_anywhere, named, pair)

    def claimed(self, jobs: Sequence[Job], since: TakenHints, *, may_be_more: bool) -> None:
        """Note what a turn that had room has claimed."""
        self._has_claimed = self._has_claimed or bool(jobs)
        if may_be_more:
            self.expect()
        elif since.total == self._total and not self._is_anywhere:
            self.is_likely = False

    def upkeep_found(self, ready_at: datetime | None, *, more: bool) -> None:
        """Note what upkeep found: ready jobs at this time of the store, or `more` by its own work."""
        if more or ready_at is not None:
            self.expect()
        self.connections.ready(ready_at)

    def has_claimed_since_upkeep(self) -> bool:
        """Return whether a job was claimed since this was last asked."""
        claimed, self._has_claimed = self._has_claimed, False
        return claimed


class StaleConnectionCheck:
    """The check for connections that no longer show what is in the store.

    Jobs may be ready, round after round, and this worker claims none. Mostly that is right: they are of other
    kinds, or in queues that are paused, limited or not the worker's. But if the connections are at fault,
    nothing else reports it. So the worker replaces them, ever more rarely as long as that does not help, and
    logs it only when it did.
    """

    EMPTY_TURNS = 3
    LONGEST = 600.0  # seconds from one replacement to the next

    def __init__(self, poll: float) -> None:
        self._first = self._wait = poll
        self._empty = 0
        self._since = 0.0
        self._ready_at: datetime | None = None
        self._missed_at: datetime | None = None  # when jobs were last reported ready before a replacement

    def ready(self, at: datetime | None) -> None:
        """Note that jobs are ready at this time of the store, or that none are."""
        self._ready_at = at
        if at is None:
            self._empty = 0

    def is_stale_after(self, jobs: Sequence[Job]) -> bool:
        """Return whether the connections should be replaced, now that a turn with room claimed these jobs."""
        if jobs:
            self._clear(jobs)
            return False
        self._missed_at = None
        self._since = monotonic() if self._empty == 0 else self._since
        self._empty += self._ready_at is not None
        if self._empty < self.EMPTY_TURNS or monotonic() - self._since <= self._wait:
            return False
        self._empty, self._wait, self._missed_at = 0, min(self._wait * 2, self.LONGEST), self._ready_at
        return True

    def _clear(self, jobs: Sequence[Job]) -> None:
        if self._missed_at is not None and any(job.run_at <= self._missed_at for job in jobs):
            log.warning("jobs were ready and this worker claimed none of them; with new connections it does")
        self._empty, self._wait, self._missed_at = 0, self._first, None
