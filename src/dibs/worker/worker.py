"""Claim → run → settle, in turns.

A *turn* is one round trip: it sends what was finished since the last one and takes as many jobs as there
are free places, in one commit. While it is under way handlers go on, and what they finish travels with the
next turn; so a busy worker batches by itself and an idle one never waits for a batch to fill. A worker with
many places has two turns under way, so that its handlers run while the store is at work.

Between turns the worker rests until a handler ends, a hint arrives, or upkeep is due. Hints may be lost:
the tick, at least every `poll` seconds, is the promise.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

from dibs.app import signals
from dibs.app.callbacks import Fate, Teller
from dibs.app.claims import Holding
from dibs.app.dibs import Dibs
from dibs.app.leases import Kept
from dibs.app.lifespan import Doorway
from dibs.clock import SECOND, monotonic
from dibs.errors import BadRequest, DibsError, StoreBusy, StoreRefused, StoreUnavailable
from dibs.events import log
from dibs.jobs.ids import worker_name
from dibs.jobs.job import Job
from dibs.jobs.payload import check_names, check_whole
from dibs.jobs.states import Released
from dibs.operations import upkeep
from dibs.operations.questions import STOP_HINT, split_hint
from dibs.operations.settle import Patience, SettleRequest
from dibs.settings import Duration, span
from dibs.worker.exchange import USUAL_LEASE, Done, Line, Marks, Trips
from dibs.worker.health import Health, Pulse
from dibs.worker.isolation.importing import refuse_while_loading
from dibs.worker.isolation.pool import is_isolated
from dibs.worker.listening import Hearing, Suspicion
from dibs.worker.open_transactions import Aside, Commits
from dibs.worker.runner import Attempts, Lanes
from dibs.worker.upkeep import SOON, Ticks

SECOND_LOOK = 0.03  # after a hint: jobs enqueued right behind the announced one were not announced
LONGEST_BACK_OFF = 2.0  # seconds between two tries to reach a lost store
LONGEST_ABSENCE = 60.0  # seconds that a worker whose end somebody waits for tries it
GRACE = 10.0
MOST_PLACES = 100_000
LAST_CHANCE = 5.0  # seconds for handlers that were cancelled
LAST_CHECK = 2.0  # seconds for those in threads that may ask whether they should end
MOST_TURNS = 2  # under way at a time
WORTH_A_SECOND = 50  # jobs: with fewer, a second turn would only split what one can carry


class Worker:
    """Runs the jobs of the kinds registered on `app`, `concurrency` at a time."""

    def __init__(
        self,
        app: Dibs,
        queues: Sequence[str] | None = None,
        concurrency: int = 10,
        *,
        grace: Duration = GRACE,
    ) -> None:
        if not isinstance(app, Dibs):
            raise BadRequest(f"Worker({app!r}): give the app, a Dibs, whose jobs it is to run")
        if not app._core.registry.tasks:
            raise BadRequest("no jobs are registered on this app: there is nothing this worker could run")
        self.name = _own_name()
        self._core = app._core
        self._queues = check_names(queues, "queue")
        if self._queues == []:
            raise BadRequest("queues=[] names no queue: leave it out to work on all")
        self._concurrency = check_whole(concurrency, "concurrency", 1, MOST_PLACES)
        self._commits = Commits(
            self._core,
            hand_over=self._hand_over,
            committed=self._hear_commit,
            tell=self._tell,
            ended=self._mind_end,
        )
        self._attempts = Attempts(app, self._concurrency, self._commits.mind)
        self._grace = span(grace, what="grace") / 1_000_000
        self._lanes = Lanes(self._run_one, self._has_changed)
        self._turns: set[asyncio.Task[None]] = set()
        self._asked = 0
        self._ticking: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None
        self._heard, self._hinted = 0, False
        self._line: Line | None = None
        self._trips = Trips(self._core, self.name, self._queues)
        self._done: list[Done] = []
        self._aside = Aside(self._settle_aside, self._mind_end)
        self._changed = asyncio.Event()
        self._stopping = self._hurried = False
        self._door = Doorway()
        self._hungry, self._resting = True, False
        self._look_at: float | None = None
        self._failures = 0
        self._pulse = Pulse()
        self._hearing = Hearing(self._core.store, self.name)
        self._suspicion = Suspicion(self._core.settings.poll)
        self._ticks = Ticks(self._core, self.name, self._queues, self._hearing)
        self._took = False
        self.settled = 0
        """How many attempts this worker has ended so far, whatever came of them."""
        self._marks = Marks(pay=self._core.store.traits.goes_on)

    async def run(self, *, until_idle: bool = False, handle_signals: bool = True) -> None:
        """Work until SIGTERM, SIGINT or `stop()`; with `until_idle`, until nothing is left to claim.

        A store that goes away is waited for; with `until_idle` for a minute, then it is `StoreUnavailable`.
        One that does not let us in from the start, for a wrong password, say, is `StoreRefused` at once.

        Beside a server that has plans of its own for signals, leave them to it: `handle_signals=False`.
        """
        refuse_while_loading()
        self._pulse.becomes("starting")
        self._changed = asyncio.Event()
        self._stopping, self._hurried, self._hungry, self._look_at = False, False, True, None
        self._broken, self._asked, self._until_idle = None, 0, until_idle
        self._aside.open()
        self._commits.open()
        self._loop = loop = asyncio.get_running_loop()
        handled = signals.handle_signals(loop, self.stop) if handle_signals else []
        self._teller = Teller(self._core.callbacks, self._core.store)
        self._ticks.open(self._teller.tell)
        deaf = self._hear_losses()
        listening = asyncio.create_task(self._hearing.listen(self._hear), name="dibs-listening")
        try:
            await self._attempts.open()
            async with self._door.through(self._core.lifespan) as self._attempts.state:
                self._pulse.becomes("working")
                await self._work_until_done()
        except asyncio.CancelledError:
            if not self._door.turned_back():
                raise
        finally:
            deaf()
            await self._commits.close()
            left = await self._aside.close()
            await _cancelled(listening, *self._turns, *([self._ticking] if self._ticking else []))
            unsettled = (held for held, _ in (*self._done, *left))
            self._core.keeper.drop(*unsettled, *self._lanes.held())  # swept when their leases end
            signals.unhandle_signals(loop, handled)
            await self._attempts.close()
            with suppress(DibsError):
                await self._core.store.run_async(lambda _: upkeep.leave(self.name))

    def stop(self) -> None:
        """Claim nothing more; running handlers get `grace` seconds. Asked twice, they end at once."""
        self._hurried = self._stopping
        self._stopping = True
        self._pulse.becomes("stopping")
        self._changed.set()
        self._door.stop(hurried=self._hurried)

    def health(self) -> Health:
        """Whether this worker can do its work; if not, the reason."""
        about = {"worker": self.name, "running": len(self._lanes), "concurrency": self._concurrency}
        return self._pulse.health(self._core.settings.poll, about, self._hearing.deafness)

    # -- turns ----------------------------------------------------------------------------------

    async def _work_until_done(self) -> None:
        try:
            await self._work()
            await self._wind_down(self._grace)
        except BaseException:
            with suppress(DibsError):  # whatever ended us is the news
                await asyncio.shield(self._wind_down(0))
            raise
        finally:
            await self._teller.finish()

    async def _work(self) -> None:
        while not self._stopping:
            if self._broken is not None:
                raise self._broken
            if self._is_turn_due():
                self._begin_turn()
            elif self._ticking is None and monotonic() >= self._ticks.next_at:
                self._begin_tick()
            elif self._until_idle and self._is_idle():
                await self._ticks.chores.name_last_strangers()
                if self._is_idle():  # still: somebody may have enqueued meanwhile
                    return
            else:
                await self._rest()

    def _is_idle(self) -> bool:
        busy = self._is_at_work() or self._ticking or self._hungry or self._done
        return not busy

    def _is_turn_due(self) -> bool:
        load = max(len(self._done), self._free() if self._hungry else 0)
        return load > 0 if not self._turns else len(self._turns) < MOST_TURNS and load >= WORTH_A_SECOND

    def _begin_turn(self) -> None:
        places = self._free()
        if self._concurrency >= MOST_TURNS * WORTH_A_SECOND:
            places = min(places, -(-self._concurrency // MOST_TURNS))
        turn = self._loop.create_task(self._turn(places), name="dibs-turn")
        self._asked += places
        self._turns.add(turn)
        turn.add_done_callback(self._end_turn)

    def _end_turn(self, turn: "asyncio.Task[None]") -> None:
        self._turns.discard(turn)
        self._mind_end(turn)

    def _mind_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            self._broken = task.exception() or self._broken
        self._changed.set()

    async def _turn(self, places: int) -> None:
        """One round trip: settle what is done, take what fits."""
        done, self._done = self._done, []
        for held, _ in done:
            held.is_settling = True
        heard, hinted, self._hinted = self._heard, self._hinted, False
        line, self._line = self._line, None
        began, marks = monotonic(), self._marks.get() if done else []
        wanted = 0 if self._stopping else places  # it may have been told so since this turn was planned
        try:
            lost, taken, left = await self._trips.exchange(
                [one for _, one in done], wanted, line=line, marks=marks
            )
        except StoreUnavailable as error:
            self._done = done + self._done
            await self._back_off(error)
            return
        except BaseException:  # nothing that a store that is away would explain: this worker ends by it
            self._done = done + self._done
            raise
        finally:
            self._asked -= places  # not when the task ends: what was taken counts from now on
        self._failures = 0
        self._pulse.beats()
        if done:
            done = self._aside.put(done, left)
            self._told(done, lost)
        self._took = self._took or bool(taken)
        if wanted:
            jobs, full = [held.job for held in taken], len(taken) >= wanted
            self._marks.ended(jobs, full=full, told=marks, took=monotonic() - began)
            if full or heard == self._heard:
                self._hungry = full or bool(marks) or any(one.children for _, one in done)
        self._lanes.start(self._keep(taken))
        if wanted:
            await self._mind_catch(jobs, hinted)

    async def _mind_catch(self, jobs: Sequence[Job], hinted: bool) -> None:
        """Where there was work there is more; where it is said to be and we get none, start over."""
        if jobs and not self._hungry:
            self._ticks.within(self._hearing.look_after_work())
        if hinted and not jobs:  # then it was for later: we need to know when
            self._ticks.soon()
        if self._suspicion.took(jobs):
            log.debug("jobs are ready and this worker gets none: it starts over with new connections")
            await self._core.store.leave_loop()
            self._hungry = True

    async def _settle_aside(self, done: list[Done], patience: Patience) -> Sequence[SettleRequest]:
        """What a turn had to leave: settle it without one, or answer what is left again."""
        lost, _, left = await self._trips.settle([one for _, one in done], patience)
        late = {one.id for one in left}
        self._told([(held, one) for held, one in done if one.id not in late], lost)
        if len(left) < len(done):  # whom that let through nobody else may have heard of
            self._hungry = True
            self._changed.set()
        return left

    def _hear_commit(self, fate: Fate) -> None:
        """A handler's own transaction has ended its job; whom that let through nobody may have heard of."""
        self._teller.tell([fate])
        self._hungry = True
        self._changed.set()

    def _told(self, done: Sequence[Done], lost: Sequence[SettleRequest]) -> None:
        self._core.keeper.drop(*(held for held, _ in done))
        self.settled += len(done) - len(lost)
        for held, one in done:
            if lost and any(one is other for other in lost):
                held.is_lost()
            else:
                held.is_settled(one)
                if one.delay is not None:
                    self._ticks.within(one.delay / SECOND)  # it is due then, and nobody announces it
        if self._core.callbacks.are_there:
            self._teller.tell(held.fate(one) for held, one in done if one not in lost)

    def _hear_losses(self) -> Callable[[], None]:
        """Claims are lost in other threads; whoever wants to know is told from here."""
        if not self._core.callbacks.want("lost"):
            return lambda: None
        return self._core.events.subscribe(self._teller.listen_for(self.name), ["lost"])

    def _has_changed(self) -> None:
        self._changed.set()

    def _free(self) -> int:
        return self._concurrency - len(self._lanes) - self._asked

    # -- handlers -------------------------------------------------------------------------------

    def _keep(self, claims: Sequence[Holding]) -> Sequence[Holding]:
        """From the claim until it is settled: a neighbour that blocks the loop must not cost a lease.

        An answer that came after we were told to stop, or so late that its leases are as good as over, begins
        nothing: all are given back.
        """
        leases = self._core.registry.leases
        tell = self._tell  # bound once, not per job
        kept = [Kept(held, leases.get(held.job.kind, USUAL_LEASE), tell) for held in claims]
        if kept and (self._stopping or min(one.deadline for one in kept) <= monotonic()):
            self._done += [(held, held.settled_by(Released())) for held in claims]
            return ()
        self._core.keeper.keep_all(kept)
        return claims

    def _tell(self, held: Holding) -> None:
        """In the keeper's thread: how this claim stands has changed."""
        self._attempts.stop_if_lost(held)
        self._loop.call_soon_threadsafe(self._lanes.cancel, held)

    async def _run_one(self, held: Holding) -> None:
        if (one := await self._attempts.run(held)) is not None:
            self._done.append((held, one))

    def _hand_over(self, done: Done) -> None:
        self._done.append(done)
        self._changed.set()

    # -- rest, hints, upkeep --------------------------------------------------------------------

    async def _rest(self) -> None:
        self._changed.clear()
        now = monotonic()
        wake_at = self._ticks.next_at if self._look_at is None else min(self._ticks.next_at, self._look_at)
        self._resting = True
        try:
            await self._change_within(max(wake_at - now, 0.001))
        finally:
            self._resting = False
        if self._look_at is not None and monotonic() >= self._look_at:
            self._look_at, self._hungry = None, True

    async def _change_within(self, seconds: float) -> None:
        # Not wait_for(): on 3.11 it swallows a cancellation that comes together with the change.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _hear(self, hint: str) -> None:
        """Somebody enqueued something, somewhere, or wants one of our jobs to stop."""
        if self._hearing.is_echo(hint):
            return
        if hint.startswith(STOP_HINT):
            if hint in (STOP_HINT, STOP_HINT + self.name):
                self._core.keeper.look(self._lanes.held())
            return
        queue, kind = split_hint(hint)
        if self._queues is not None and queue and queue not in self._queues:
            return
        self._ticks.within(SOON)
        if kind is None or kind in self._core.registry.tasks:
            self._hear_of_work(queue, kind)
        self._changed.set()

    def _hear_of_work(self, queue: str, kind: str | None) -> None:
        self._heard += 1
        # Nothing else waited for us, so the one job that we hear of is all there is to look for.
        self._line = (queue, kind) if kind is not None and not self._hungry and not self._turns else None
        self._hungry = self._hinted = True
        self._look_at = monotonic() + SECOND_LOOK
        if self._resting and self._is_turn_due():
            self._begin_turn()  # at once: it is the longer way to wake who rests

    def _begin_tick(self) -> None:
        """Beside the turns: nobody's job waits for our upkeep."""
        self._ticks.begin()
        self._ticking = self._loop.create_task(self._tick(), name="dibs-tick")
        self._ticking.add_done_callback(self._end_tick)

    def _end_tick(self, tick: "asyncio.Task[None]") -> None:
        self._ticking = None
        self._mind_end(tick)

    async def _tick(self) -> None:
        try:
            upcoming = await self._ticks.look(concurrency=self._concurrency, running=len(self._lanes))
            found = await self._ticks.catch_up(upcoming)
        except StoreUnavailable as error:
            await self._back_off(error)
            return
        self._failures = 0
        self._pulse.beats()
        self._hungry = self._hungry or found
        self._suspicion.ready(upcoming.now if upcoming.ready else None)
        idle, self._took = not self._took and self._free() > 0, False
        await self._ticks.finish(upcoming, idle=idle)

    async def _back_off(self, error: StoreUnavailable) -> None:
        """The store is away: say so once, wait, try again.

        Only a worker that is to end gives up, and one that was never let in.
        """
        self._failures += 1
        if isinstance(error, StoreBusy) and not (self._until_idle and self._failures > 2):
            log.info("the worker keeps trying: %s", error)
            return  # the store is there: after a wait of 20 s the next turn need not wait any longer
        self._pulse.misses(error)
        self._hearing.lost_store()
        if self._until_idle and self._pulse.lost_for() > LONGEST_ABSENCE:
            raise error  # somebody waits for the end of it
        if isinstance(error, StoreRefused) and not self._pulse.has_beaten:
            raise error
        if self._failures == 1:
            what = "lost its store" if self._pulse.has_beaten else "does not reach its store yet"
            log.warning("the worker %s and keeps trying: %s", what, error)
        pause = min(0.1 * 2**self._failures, LONGEST_BACK_OFF)
        self._ticks.within(0)
        await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311

    # -- the end --------------------------------------------------------------------------------

    async def _wind_down(self, grace: float) -> None:
        """Let handlers finish, then cancel those that can be, and settle what there is to settle."""
        deadline = monotonic() + grace
        while self._is_at_work() and not self._hurried and (left := deadline - monotonic()) > 0:
            self._changed.clear()  # first: what ends while we settle must not be missed
            await self._settle_rest()
            await self._change_within(left)
        self._done += [(held, held.settled_by(Released())) for held in self._lanes.take_waiting()]
        await self._ask_to_stop()
        if self._turns:
            await asyncio.wait(self._turns, timeout=LONGEST_BACK_OFF)
        await self._commits.close()
        self._done = await self._aside.close() + self._done
        await self._settle_rest()
        self._core.keeper.drop(*(held for held, _ in self._aside.take()))  # swept when their leases end
        for held in self._lanes.held():
            self._core.keeper.drop(held)  # a thread that goes on keeps its job until its lease ends
            log.warning(
                "● %s %s did not end in time: it runs again when its lease is over",
                held.job.kind,
                held.job.id,
            )

    async def _ask_to_stop(self) -> None:
        """Those that can be are cancelled; a thread sees it when it asks, and only who can ask is awaited."""
        cancelled, asked = [], []
        for held, lane in self._lanes.running():
            held.stopping = True
            task = self._core.registry.tasks[held.job.kind]
            if task.is_async or is_isolated(task):
                lane.cancel()
                cancelled.append(lane)
            elif task.signature.context is not None:
                asked.append(lane)
        if cancelled or asked:
            await asyncio.wait([*cancelled, *asked], timeout=LAST_CHECK)
        if cancelled:
            await asyncio.wait(cancelled, timeout=LAST_CHANCE - LAST_CHECK)

    def _is_at_work(self) -> bool:
        return bool(self._lanes or self._turns or self._aside or self._commits)

    async def _settle_rest(self) -> None:
        if self._done:
            with suppress(StoreUnavailable):
                await self._turn(0)


_numbers = itertools.count(1)


def _own_name() -> str:
    """This process's identity; a second worker in it is told apart by a number."""
    number = next(_numbers)
    return worker_name() if number == 1 else f"{worker_name()}/{number}"


async def _cancelled(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
