"""Convoys: jobs of one train that take next to no time, run under the lease of the first of them (ADR 19).

A train of such jobs would cost a round trip for each. So a worker that has met a few of them in a row looks
ahead: when the head has succeeded it runs those behind it, and all are settled with the head. The store knows
of a follower when those before it are settled; until then only the head's lease protects it. That is why a
convoy is short: nobody starts later than `SLICE` after the look ahead, or after one that was not quick, and
one that runs for longer than the slice gets a lease of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile

from msgspec import structs

from dibs import operations
from dibs.claims import Holding, Start
from dibs.clock import SECOND, monotonic
from dibs.core import Core
from dibs.errors import StoreUnavailable
from dibs.jobs import Job
from dibs.leases import Kept, Tell
from dibs.operations import Settled
from dibs.scripts import Script
from dibs.states import JobState
from dibs.worker.lanes import Lanes
from dibs.worker.processes import is_isolated

QUICK = 0.001  # seconds: what takes longer gains nothing by a convoy, and would be done again after a crash
ENOUGH = 3  # quick jobs of a train in a row before a worker looks ahead: shorter trains pay for nothing
SLICE = 0.05  # seconds
LONGEST = 100  # jobs

Done = tuple[Holding, Settled]


@dataclass(slots=True)
class Ride:
    """A job of a convoy on its way to the store; `ended` is None while it runs."""

    held: Holding
    head: Holding
    lease: int
    began: float
    ended: float | None = None
    is_started: bool = False  # the store says that it runs

    def values(self, now: float) -> operations.Ride:
        """In the order of `contract.CONVOY_COLUMNS`."""
        ended = None if self.ended is None else round((now - self.ended) * SECOND)
        return *self.held.key, *self.head.key, self.lease, round((now - self.began) * SECOND), ended


@dataclass(slots=True)
class Convoy:
    """A head that has succeeded and is not settled yet, and those that ran after it."""

    head: Holding
    fresh: Context
    until: float  # nobody starts later
    done: list[Done] = field(default_factory=list)
    rides: list[Ride] = field(default_factory=list)
    current: Ride | None = None
    is_over: bool = False

    def add(self, ride: Ride, one: Settled) -> bool:
        """It has ended; whether another one may follow."""
        ride.ended = monotonic()
        ride.held.was_quick = ride.ended - ride.began < QUICK
        self.rides.append(ride)
        self.done.append((ride.held, one))
        return ride.held.was_quick and one.settled_as == "succeeded"


def started(rides: Sequence[Ride]) -> Script[None]:
    """Ask who of those that run on is known to the store."""
    going = [ride for ride in rides if ride.ended is None]
    running = yield from operations.running_among([ride.held.key for ride in going])
    for ride in going:
        ride.is_started = ride.held.job.id in running


class Convoys:
    """Those of one worker. `attempt` runs a claimed job and answers what is to be settled, if anything."""

    def __init__(
        self,
        core: Core,
        worker: str,
        queues: Sequence[str] | None,
        lanes: Lanes,
        *,
        attempt: Callable[[Holding], Awaitable[Settled | None]],
        hand_over: Callable[[list[Done], list[Ride]], None],
        tell: Tell,
        are_on: bool,
    ) -> None:
        self._core = core
        self._worker = worker
        self._queues = queues
        self._lanes = lanes
        self._attempt = attempt
        self._hand_over = hand_over
        self._tell = tell
        self._are_on = are_on
        self._by_head: dict[Holding, Convoy] = {}
        self._stopped = False

    def open(self) -> None:
        self._stopped = False

    def stop(self) -> None:
        """Nobody starts any more."""
        self._stopped = True

    # -- which trains are worth it --------------------------------------------------------------

    def note(self, done: Sequence[Done], taken: Sequence[Holding]) -> None:
        """After a turn: how many quick jobs in a row this worker has had on the trains of what it took."""
        if not self._are_on:
            return
        moved: dict[str, list[Holding]] = {}
        for held, one in done:
            if held.job.train is not None and one.settled_as == "succeeded":
                moved.setdefault(held.job.train, []).append(held)
        if moved:
            for held in taken:
                before = moved.get(held.job.train or "", [])
                if before and all(other.was_quick for other in before):
                    held.in_a_row = max(len(before), min(before[0].in_a_row + 1, ENOUGH))

    def _may_lead(self, held: Holding) -> bool:
        """A head that was retried runs alone: what killed its worker may have been one behind it."""
        return held.in_a_row >= ENOUGH and held.job.attempts == 1 < held.job.max_attempts

    # -- one convoy, in the lane of its head ----------------------------------------------------

    async def run(self, head: Holding) -> None:
        """Run it, and if that was quick and went well those behind it; all of them are to be settled then."""
        fresh, began = copy_context(), monotonic()
        one = await self._attempt(head)
        if one is None:
            return
        ride = Ride(head, head, self._core.lease_of(head.job), began)
        convoy = Convoy(head, fresh, until=monotonic() + SLICE)
        if convoy.add(ride, one) and self._may_lead(head):
            await self._lead(convoy)
        self._hand_over_done(convoy)

    async def _lead(self, convoy: Convoy) -> None:
        self._by_head[convoy.head] = convoy
        watch = asyncio.get_running_loop().call_later(SLICE, self._end_slice, convoy)
        try:
            await self._follow(convoy)
        except asyncio.CancelledError:
            pass  # the lane sees it, too; whoever was running was never started for the store
        finally:
            watch.cancel()
            self._by_head.pop(convoy.head, None)
            self._hand_over_done(convoy)

    async def _follow(self, convoy: Convoy) -> None:
        if self._is_over(convoy):
            return
        for job in takewhile(self._knows, await self._look_ahead(convoy.head)):
            if self._is_over(convoy) or not await self._run_follower(convoy, job):
                return
            await asyncio.sleep(0)  # a handler that never waits must not keep the loop for itself

    async def _look_ahead(self, head: Holding) -> list[Job]:
        limit = min(2 * max(head.in_a_row, ENOUGH), LONGEST)
        try:
            return await self._core.store.run_async(
                lambda _: operations.followers(head.job.id, head.token, limit)
            )
        except StoreUnavailable:
            return []

    def _knows(self, job: Job) -> bool:
        task = self._core.registry.tasks.get(job.kind)
        here = self._queues is None or job.queue in self._queues
        return here and task is not None and not is_isolated(task)

    def _is_over(self, convoy: Convoy) -> bool:
        """What one job left in its context variables must not reach the next: as in lanes."""
        late = convoy.is_over or monotonic() >= convoy.until
        return late or self._stopped or convoy.head.lost or copy_context() != convoy.fresh

    async def _run_follower(self, convoy: Convoy, job: Job) -> bool:
        """Whether the next one may follow."""
        ride = convoy.current = self._begin(convoy.head, job)
        if convoy.head.lost:  # said before or after `current` was set: one of the two sees it
            return False
        ride.held.start = Start(lambda: self._promote(convoy))
        self._core.events.claimed([ride.held.job])
        one = await self._attempt(ride.held)
        convoy.current = None
        if ride.held.start.asked:
            try:
                await ride.held.start.answered()  # a settlement must not arrive before the start
            finally:
                self._hand_over([] if one is None else [(ride.held, one)], [])
            return False
        if one is None or one.settled_as == "released":
            return False
        return convoy.add(ride, one)

    def _begin(self, head: Holding, job: Job) -> Ride:
        now, lease = monotonic(), self._core.lease_of(job)
        assert head.job.claimed_at is not None
        claimed_at = head.job.claimed_at + timedelta(seconds=now - head.asked_at)
        running = structs.replace(
            job,
            state=JobState.running,
            attempts=job.attempts + 1,
            worker=self._worker,
            claimed_at=claimed_at,
            lease_until=claimed_at + timedelta(microseconds=lease),
        )
        return Ride(Holding(self._core, running, now), head, lease, now)

    # -- a follower that takes its time ---------------------------------------------------------

    def _end_slice(self, convoy: Convoy) -> None:
        convoy.is_over = True
        self._promote(convoy)
        self._hand_over_done(convoy)

    def _promote(self, convoy: Convoy) -> None:
        """Settle those before the one that runs; with that it gets a lease of its own."""
        ride = convoy.current
        if ride is not None and ride.held.start is not None and not ride.held.start.asked:
            ride.held.start.asked = True
            convoy.head.is_settling = True
            convoy.rides.append(ride)
            self._hand_over_done(convoy)

    def _hand_over_done(self, convoy: Convoy) -> None:
        done, convoy.done = convoy.done, []
        rides, convoy.rides = convoy.rides, []
        if done:
            self._hand_over(done, rides if len(rides) > 1 else [])

    def settled(self, rides: Sequence[Ride], sent_at: float) -> None:
        """The store has answered: who runs on is a claim like any other now, or lost."""
        for ride in rides:
            if ride.ended is None:
                self._by_head.pop(ride.head, None)
                self._keep(ride, sent_at)
            ride.held.answer_start()

    def _keep(self, ride: Ride, sent_at: float) -> None:
        """It may have been cancelled before the store knew that it ran, or its head was lost."""
        if ride.held.lost or not ride.is_started:
            ride.held.is_lost()
            self._lanes.cancel(ride.head)
            return
        kept = Kept(ride.held, ride.lease, self._tell)
        kept.beaten(sent_at)
        self._lanes.becomes(ride.head, ride.held)
        self._core.keeper.keep_all([kept])
        self._core.keeper.look([ride.held])  # who asked it to stop before we knew was not heard

    # -- how the head stands --------------------------------------------------------------------

    def running(self, held: Holding) -> Holding | None:
        """Whose handler runs in the lane of this claim; None between two of a convoy."""
        convoy = self._by_head.get(held)
        if convoy is None:
            return held
        return None if convoy.current is None else convoy.current.held

    def head_is_told(self, held: Holding) -> bool:
        """In any thread: whether this claim leads a convoy. Who runs under a lost one is lost with it."""
        convoy = self._by_head.get(held)
        if convoy is not None and held.lost and (ride := convoy.current) is not None:
            ride.held.is_lost()
        return convoy is not None
