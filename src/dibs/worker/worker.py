"""Claim → run → settle, in turns.

A *turn* is one round trip: it sends what was finished since the last one and takes as many jobs as there
are free places, in one commit. While it is under way handlers go on, and what they finish travels with the
next turn; so a busy worker batches by itself and an idle one never waits for a batch to fill.

Between turns the worker rests until a handler ends, a hint arrives, or upkeep is due. Hints may be lost:
the tick, at least every `poll` seconds, is the promise.
"""

import asyncio
import itertools
import random
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from dibs import operations, upkeep
from dibs.app import Dibs
from dibs.claims import Claim, Holding
from dibs.clock import monotonic
from dibs.context import Context
from dibs.engines.stores import Operation
from dibs.errors import BadRequest, DibsError, LeaseLost, StoreUnavailable
from dibs.events import log
from dibs.identity import worker_name
from dibs.jobs import Job
from dibs.operations import Settled, Wish
from dibs.running import NOT_COMMITTED, perform, settlement, still_ours
from dibs.scripts import Script
from dibs.settings import Duration, lease_micros, span
from dibs.states import Released
from dibs.tasks import DEFAULT_LEASE
from dibs.upkeep import Upcoming

SOON = 0.2  # seconds between two ticks at the least
SECOND_LOOK = 0.03  # after a hint: jobs enqueued right behind the announced one were not announced
LONGEST_BACK_OFF = 2.0  # seconds between two tries to reach a lost store
GRACE = 10.0
PRUNE_EVERY = 600.0  # seconds


class Worker:
    """Runs the jobs of the kinds registered on `app`, `concurrency` at a time."""

    def __init__(
        self,
        app: Dibs,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 10,
        grace: Duration = GRACE,
    ) -> None:
        if not app._core.registry.tasks:
            raise BadRequest("no jobs are registered on this app: there is nothing this worker could run")
        if concurrency < 1:
            raise BadRequest(f"concurrency={concurrency} must be at least 1")
        self.name = _own_name()
        self._core = app._core
        self._queues = None if queues is None else list(queues)
        self._concurrency = concurrency
        self._grace = span(grace, what="grace") / 1_000_000
        self._running: dict[asyncio.Task[None], Holding] = {}
        self._done: list[tuple[Holding, Settled]] = []
        self._changed = asyncio.Event()
        self._stopping = self._hurried = False
        self._hungry = True
        self._look_at: float | None = None
        self._last_tick = self._next_tick = 0.0
        self._said_at = float("-inf")
        self._next_prune = monotonic() + PRUNE_EVERY * random.random()  # noqa: S311
        self._failures = 0

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until SIGTERM, SIGINT or `stop()`; with `until_idle`, until nothing is left to claim."""
        self._changed = asyncio.Event()
        self._stopping, self._hurried, self._hungry, self._look_at = False, False, True, None
        self._next_tick, self._said_at = 0.0, float("-inf")
        loop = asyncio.get_running_loop()
        handled = _handle_signals(loop, self.stop)
        listening = asyncio.create_task(self._listening(), name="dibs-listening")
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="dibs-job")
        try:
            await self._work(until_idle)
            await self._wind_down(self._grace)
        except asyncio.CancelledError:
            await asyncio.shield(self._wind_down(0))
            raise
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
            _unhandle_signals(loop, handled)
            self._threads.shutdown(wait=False, cancel_futures=True)
            with suppress(DibsError):
                await self._core.store.run_async(lambda _: upkeep.leave(self.name))

    def stop(self) -> None:
        """Claim nothing more; running handlers get `grace` seconds. Asked twice, they end at once."""
        self._hurried = self._stopping
        self._stopping = True
        self._changed.set()

    # -- turns ----------------------------------------------------------------------------------

    async def _work(self, until_idle: bool) -> None:
        while not self._stopping:
            if monotonic() >= self._next_tick:
                await self._tick()
            if self._done or (self._hungry and self._free() > 0):
                await self._turn(self._free())
            elif until_idle and not self._running and not self._hungry:
                return
            else:
                await self._rest()

    async def _turn(self, places: int) -> None:
        """One round trip: settle what is done, take what fits."""
        done, self._done = self._done, []
        try:
            lost, taken = await self._exchange([one for _, one in done], places)
        except StoreUnavailable as error:
            self._done = done + self._done
            await self._back_off(error)
            return
        self._failures = 0
        self._told(done, lost)
        if places:
            self._hungry = len(taken) >= places or any(one.children for _, one in done)
        for held in taken:
            self._keep(held)
            self._start(held)

    async def _exchange(self, settled: list[Settled], places: int) -> tuple[list[Settled], list[Holding]]:
        return await self._core.store.run_async(lambda _: self._trip(settled, places))

    def _trip(self, settled: list[Settled], places: int) -> Script[tuple[list[Settled], list[Holding]]]:
        asked_at = monotonic()  # of this try: the lease can't have begun earlier
        lost: list[Settled] = []
        jobs: list[Job] = []
        if not places:
            lost = yield from operations.settle_if_held(settled)
        elif not settled:
            jobs = yield from operations.take(self._wish(places))
        else:
            lost, jobs = yield from operations.exchange(settled, self._wish(places))
        return lost, self._core.holdings(jobs, asked_at)

    def _wish(self, places: int) -> Wish:
        registry = self._core.registry
        return Wish(
            worker=self.name,
            lease=lease_micros(DEFAULT_LEASE),
            leases=registry.leases(),
            limit=places,
            queues=self._queues,
            kinds=list(registry.tasks),
        )

    def _told(self, done: Sequence[tuple[Holding, Settled]], lost: Sequence[Settled]) -> None:
        for held, one in done:
            self._core.keeper.drop(held)
            if any(one is other for other in lost):
                self._core.events.lost(held.job)
            else:
                held.is_settled(one)
                self._mind_delay(one.delay)

    def _mind_delay(self, delay: int | None) -> None:
        """What we gave back for later is due then, and nobody announces it."""
        if delay is not None:
            self._next_tick = min(self._next_tick, monotonic() + delay / 1_000_000)

    def _free(self) -> int:
        return self._concurrency - len(self._running)

    # -- handlers -------------------------------------------------------------------------------

    def _keep(self, held: Holding) -> None:
        """From the claim until it is settled: a neighbour that blocks the loop must not cost a lease."""
        loop = asyncio.get_running_loop()
        lease = self._core.lease_of(held.job)
        self._core.keeper.keep(held, lease, lambda: loop.call_soon_threadsafe(self._interrupt, held))

    def _interrupt(self, held: Holding) -> None:
        for task, running in self._running.items():
            if running is held:
                task.cancel()

    def _start(self, held: Holding) -> None:
        task = asyncio.get_running_loop().create_task(self._run_one(held))
        self._running[task] = held
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.pop(task)
        self._changed.set()

    async def _run_one(self, held: Holding) -> None:
        context = Context(Claim(held))
        try:
            task = self._core.registry.tasks[held.job.kind]
            outcome = await perform(held, task, context, self._threads)
            if held.settled:
                await self._mind_commit(held)
                return
            self._done.append((held, settlement(held, outcome, context)))
        except asyncio.CancelledError:
            self._done.append((held, held.settled_by(Released())))
        except LeaseLost:
            self._core.keeper.drop(held)  # whoever has the job now settles it

    async def _mind_commit(self, held: Holding) -> None:
        """`ctx.complete(within=…)` and then no commit: the attempt failed, and says why."""
        job = await self._core.store.run_async(self._core.get(held.job.id))
        if still_ours(job, held):
            self._done.append((held, held.settled_by(held.raised(NOT_COMMITTED))))

    # -- rest, hints, upkeep --------------------------------------------------------------------

    async def _rest(self) -> None:
        self._changed.clear()
        now = monotonic()
        wake_at = self._next_tick if self._look_at is None else min(self._next_tick, self._look_at)
        await self._change_within(max(wake_at - now, 0.001))
        if self._look_at is not None and monotonic() >= self._look_at:
            self._look_at, self._hungry = None, True

    async def _change_within(self, seconds: float) -> None:
        # Not wait_for(): on 3.11 it swallows a cancellation that comes together with the change.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _hear(self, hint: str) -> None:
        """Somebody enqueued something, somewhere; a hint that begins with `!` is our own voice."""
        if hint.startswith("!"):
            return
        if self._queues is not None and hint and hint not in self._queues:
            return
        self._hungry = True
        self._look_at = monotonic() + SECOND_LOOK
        self._next_tick = min(self._next_tick, max(monotonic(), self._last_tick + SOON))
        self._changed.set()

    async def _listening(self) -> None:
        pause = 0.1
        while True:
            began = monotonic()
            try:
                await self._core.store.listen(self._hear)
            except Exception as error:  # hints are a comfort; without them the poll finds everything
                log.debug("not listening: %s", error)
            pause = 0.1 if monotonic() - began > LONGEST_BACK_OFF else min(pause * 2, LONGEST_BACK_OFF)
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311

    async def _tick(self) -> None:
        """Do the upkeep that is due, plan the next tick; now and then say that we are here."""
        self._last_tick = monotonic()
        store = self._core.store
        try:
            upcoming = await store.run_async(self._look_ahead())
            if upcoming.overdue:
                self._core.swept(await store.run_async(lambda _: upkeep.sweep()))
        except StoreUnavailable as error:
            await self._back_off(error)
            return
        self._failures = 0
        self._hungry = self._hungry or upcoming.overdue or upcoming.ready
        await self._prune()
        poll = self._core.settings.poll
        wait = (
            poll if upcoming.seconds is None else max(upcoming.seconds, SOON if upcoming.overdue else 0.005)
        )
        self._next_tick = self._last_tick + (wait if wait < poll else _jittered(poll))

    async def _prune(self) -> None:
        """Now and then, remove what the settings say need not be kept."""
        if self._last_tick < self._next_prune:
            return
        self._next_prune = self._last_tick + PRUNE_EVERY * (0.5 + random.random())  # noqa: S311
        for operation in self._core.retention():
            with suppress(StoreUnavailable):
                await self._core.store.run_async(operation)

    def _look_ahead(self) -> Operation[Upcoming]:
        """Saying that we are here is a write, and wakes others where stores announce every commit."""
        if self._last_tick - self._said_at < self._core.settings.poll * 0.9:
            return lambda _: upkeep.upcoming()
        self._said_at = self._last_tick
        busy = {"concurrency": self._concurrency, "running": len(self._running)}
        kinds = list(self._core.registry.tasks)
        return lambda _: upkeep.tick(self.name, self._queues, kinds, **busy)

    async def _back_off(self, error: StoreUnavailable) -> None:
        """The store is away: say so once, wait, try again."""
        self._failures += 1
        if self._failures == 1:
            log.warning("the worker lost its store and keeps trying: %s", error)
        pause = min(0.1 * 2**self._failures, LONGEST_BACK_OFF)
        self._next_tick = 0.0
        await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311

    # -- the end --------------------------------------------------------------------------------

    async def _wind_down(self, grace: float) -> None:
        """Let handlers finish, then cancel those that can be, and settle what there is to settle."""
        deadline = monotonic() + grace
        while self._running and not self._hurried and (left := deadline - monotonic()) > 0:
            await self._settle_rest()
            self._changed.clear()
            await self._change_within(left)
        cancelled = [task for task, held in self._running.items() if self._is_async(held)]
        for task in cancelled:
            task.cancel()
        if cancelled:
            await asyncio.wait(cancelled, timeout=5)
        await self._settle_rest()
        for held in self._running.values():
            self._core.keeper.drop(held)  # a thread that goes on keeps its job until its lease ends

    def _is_async(self, held: Holding) -> bool:
        return self._core.registry.tasks[held.job.kind].is_async

    async def _settle_rest(self) -> None:
        if self._done:
            with suppress(StoreUnavailable):
                await self._turn(0)


_numbers = itertools.count(1)


def _own_name() -> str:
    """This process's identity; a second worker in it is told apart by a number."""
    number = next(_numbers)
    return worker_name() if number == 1 else f"{worker_name()}/{number}"


def _jittered(seconds: float) -> float:
    """Workers that started together should not do their upkeep together."""
    return seconds * (0.9 + 0.1 * random.random())  # noqa: S311


def _handle_signals(loop: asyncio.AbstractEventLoop, stop: Any) -> list[signal.Signals]:
    handled = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop)
            handled.append(number)
        except (ValueError, RuntimeError, NotImplementedError):  # not in the main thread, or Windows
            pass
    return handled


def _unhandle_signals(loop: asyncio.AbstractEventLoop, handled: Sequence[signal.Signals]) -> None:
    for number in handled:
        loop.remove_signal_handler(number)
