"""The turns of a worker: claim → run → settle.

A turn is one round trip: it settles the attempts that ended since the last one and claims as many jobs as
there is room for, in one transaction. Meanwhile handlers go on, and what they end is settled by the next
turn; so a busy worker batches by itself, and an idle one never waits for a batch to fill. A worker with much
room has two turns under way, so that its handlers run while the store is at work.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from dibs.engines.hints import Hint
from dibs.engines.store import Store
from dibs.errors import StoreUnavailable
from dibs.events import log
from dibs.worker.exchange import Exchange, Exchanged
from dibs.worker.health import LONGEST_BACK_OFF
from dibs.worker.listening import HintListener
from dibs.worker.runner import Runner
from dibs.worker.settlements import Settlements
from dibs.worker.state import TakenHints, WorkerState

MOST_TURNS = 2  # under way at a time
WORTH_A_SECOND = 50  # jobs: with fewer, a second turn would only split what one can settle and claim


@dataclass(slots=True, eq=False)
class Turns:
    """The turns that are under way, and when the next one is due."""

    _store: Store
    _concurrency: int
    _state: WorkerState
    _exchange: Exchange
    _runner: Runner
    _settlements: Settlements
    _listener: HintListener
    under_way: "set[asyncio.Task[None]]" = field(default_factory=set)
    _asked: int = 0  # jobs that these may claim

    async def _turn(self, room: int) -> None:
        """Settle what has ended and claim up to `room` jobs, in one round trip; run what was claimed."""
        ended = self._settlements.take()
        limit = 0 if self._state.is_stopping else room  # since this turn was begun it may have been stopped
        hints = self._state.work.take_hints() if limit else TakenHints()
        try:
            result = await self._exchange.settle_and_claim([one for _, one in ended], limit, hints)
        except BaseException as error:
            self._settlements.put_back(ended)
            self._state.work.expect()
            if not isinstance(error, StoreUnavailable):
                raise  # and the worker ends by it
            self._listener.store_lost()
            await self._state.wait_for_store(error)
            return
        finally:
            self._asked -= room  # not when the task ends: what was claimed counts from now on
        self._state.health.store_answered()
        has_children = self._settlements.sent(ended, result)
        if limit:
            may_be_more = result.may_be_more or has_children
            self._state.work.claimed(result.jobs, hints, may_be_more=may_be_more)
        self._runner.start(result.claimed)
        if limit:
            await self._prepare_next(result, hints)

    async def _prepare_next(self, result: Exchanged, hints: TakenHints) -> None:
        """Poll soon where there was work, or where a hint announced a job that is not ready yet."""
        if result.jobs and not self._state.work.is_likely:
            self._state.upkeep.within(self._listener.poll_after_work())
        if result.all_in is not None and hints.is_anywhere:
            self._state.work.claim_again_within(result.all_in)
        if hints.are_new and not result.jobs:  # the job is scheduled: upkeep finds out for when
            self._state.upkeep.soon()
        if self._state.work.connections.is_stale_after(result.jobs):
            log.debug("jobs are ready and this worker claims none: it opens new connections")
            await self._store.leave_loop()
            self._state.work.expect()

    # -- when -----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more jobs this worker could run."""
        return self._concurrency - len(self._runner) - self._asked

    @property
    def is_due(self) -> bool:
        load = max(self._settlements.unsent, self.room if self._state.work.is_likely else 0)
        if not self.under_way:
            return load > 0
        return len(self.under_way) < MOST_TURNS and load >= WORTH_A_SECOND

    def begin(self) -> None:
        room = self.room
        if self._concurrency >= MOST_TURNS * WORTH_A_SECOND:
            room = min(room, -(-self._concurrency // MOST_TURNS))
        turn = asyncio.get_running_loop().create_task(self._turn(room), name="dibs-turn")
        self._asked += room
        self.under_way.add(turn)
        turn.add_done_callback(self._end)

    def _end(self, turn: "asyncio.Task[None]") -> None:
        self.under_way.discard(turn)
        self._state.task_ended(turn)

    def hint(self, hint: Hint) -> None:
        """Note that a job was enqueued; while the worker rests, claim it at once: to wake it takes longer."""
        self._state.work.hint(hint)
        if self._state.is_resting and self.is_due:
            self.begin()

    def look_anew(self) -> bool:
        """Claim from the first job on, if the last claim did not; return whether that is left to do."""
        if self._exchange.cursor.drop():
            self._state.work.expect()
            return True
        return False

    # -- the end --------------------------------------------------------------------------------

    async def settle_rest(self) -> None:
        """Settle what has ended, without a claim; try once."""
        if self._settlements.unsent:
            with suppress(StoreUnavailable):
                await self._turn(0)

    async def wait(self) -> None:
        """Give the turns under way a little time to end."""
        if self.under_way:
            await asyncio.wait(self.under_way, timeout=LONGEST_BACK_OFF)

    def reset(self) -> None:
        self._asked = 0
