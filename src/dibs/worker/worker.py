"""The worker: turns and upkeep rounds until it is stopped.

Between them it rests until a handler ends, a hint arrives, or upkeep is due. Hints may be lost: the upkeep
round, at least every `poll` seconds, finds every job.
"""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress

from dibs.app import lifespan
from dibs.app.dibs import Dibs
from dibs.app.lifespan import LifespanEntry
from dibs.clock import monotonic
from dibs.engines.hints import read_hint
from dibs.errors import BadRequest, DibsError, StoreUnavailable
from dibs.jobs.ids import worker_name
from dibs.jobs.payload import check_names, check_whole
from dibs.operations.questions import STOP_HINT
from dibs.settings import Duration, span
from dibs.worker.exchange import Exchange
from dibs.worker.health import Health
from dibs.worker.isolation.importing import refuse_while_loading
from dibs.worker.listening import HintListener
from dibs.worker.runner import Runner
from dibs.worker.settlements import Settlements
from dibs.worker.state import SOON, WorkerState
from dibs.worker.turns import Turns
from dibs.worker.upkeep import MinuteCounters, Upkeep

GRACE = 10.0  # seconds
MOST_CONCURRENCY = 100_000


class Worker:
    """Runs the jobs of an app, `concurrency` at a time. Example: `await Worker(app).run(until_idle=True)`"""

    def __init__(
        self,
        app: Dibs,
        queues: Sequence[str] | None = None,
        concurrency: int = 10,
        *,
        grace: Duration = GRACE,
    ) -> None:
        if not isinstance(app, Dibs):
            raise BadRequest(f"Worker({app!r}): give the app, a Dibs, that has the jobs it is to run")
        if not app._core.registry.tasks:
            raise BadRequest(
                "no jobs are registered on this app: there is nothing this worker could run; import the "
                "modules that have its jobs first (dibs work: --import pkg.mail,pkg.billing)"
            )
        self.name = _own_name()
        self._core = core = app._core
        self._queues = check_names(queues, "queue")
        if self._queues == []:
            raise BadRequest("queues=[] names no queue: leave it out to work on all")
        self._concurrency = check_whole(concurrency, "concurrency", 1, MOST_CONCURRENCY)
        self._grace = span(grace, what="grace") / 1_000_000
        self._state = state = WorkerState(core.settings.poll)
        self._lifespan = LifespanEntry()
        self._listener = HintListener(core.store, self.name)
        exchange = Exchange(core, self.name, self._queues)
        minutes = MinuteCounters(core.store)
        self._settlements = Settlements(core, self.name, exchange, state, minutes)
        self._runner = Runner(app, self._concurrency, self._settlements, state)
        self._turns = Turns(
            core.store, self._concurrency, state, exchange, self._runner, self._settlements, self._listener
        )
        self._upkeep = Upkeep(core, self.name, self._queues, self._listener, state.upkeep, minutes)
        self._upkeep_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        queues = "all queues" if self._queues is None else f"queues {', '.join(self._queues)}"
        return f"<Worker {self.name}: {len(self._runner)} of {self._concurrency} running, {queues}>"

    @property
    def settled(self) -> int:
        """How many attempts this worker has settled so far, whatever their outcome."""
        return self._settlements.count

    async def run(self, *, until_idle: bool = False, handle_signals: bool = True) -> None:
        """Work until SIGTERM, SIGINT or `stop()`; with `until_idle`, until nothing is left to claim.

        A store that goes away is waited for; with `until_idle` for a minute, then it is `StoreUnavailable`.
        One that refuses the worker from the start, for a wrong password, say, is `StoreRefused` at once.

        Beside a server that handles signals itself, leave them to it: `handle_signals=False`.
        """
        refuse_while_loading()
        self._state.begin(until_idle=until_idle)
        self._turns.reset()
        self._settlements.open()
        self._upkeep.open()
        loop = asyncio.get_running_loop()
        handled = lifespan.handle_signals(loop, self.stop) if handle_signals else []
        listening = loop.create_task(self._listener.listen(self._hear), name="dibs-listening")
        try:
            await self._runner.open()
            async with self._lifespan.through(self._core.lifespan) as self._runner.shared:
                self._state.health.becomes("working")
                await self._work_until_done()
        except asyncio.CancelledError:
            if not self._lifespan.turned_back():
                raise
        finally:
            await self._settlements.close()
            await _cancel(
                listening, *self._turns.under_way, *([self._upkeep_task] if self._upkeep_task else [])
            )
            self._settlements.drop_all()
            lifespan.unhandle_signals(loop, handled)
            await self._runner.close()
            await self._upkeep.close()

    def stop(self) -> None:
        """Claim nothing more; running handlers get `grace` seconds. Called twice, they end at once."""
        self._state.stop()
        self._lifespan.stop(hurried=self._state.is_hurried)

    def health(self) -> Health:
        """Return whether this worker can do its work; if not, the reason."""
        about = {"worker": self.name, "running": len(self._runner), "concurrency": self._concurrency}
        return self._state.health.report(self._core.settings.poll, about, self._listener.deafness)

    # -- work -----------------------------------------------------------------------------------

    async def _work_until_done(self) -> None:
        try:
            await self._work()
            await self._wind_down(self._grace)
        except BaseException:
            with suppress(DibsError):  # the first error is the one to raise
                await asyncio.shield(self._wind_down(0))
            raise
        finally:
            await self._settlements.callbacks.finish()

    async def _work(self) -> None:
        while not self._state.is_stopping:
            if self._state.error is not None:
                raise self._state.error
            if self._turns.is_due:
                self._turns.begin()
            elif self._upkeep_task is None and self._state.upkeep.is_due:
                self._begin_upkeep()
            elif self._state.until_idle and self._is_idle():
                if self._turns.look_anew():
                    continue
                if await self._upkeep.name_unknown_kinds():
                    self._state.work.expect()
                if self._is_idle():  # still: a job may have been enqueued meanwhile
                    return
            else:
                await self._state.rest()

    def _is_idle(self) -> bool:
        is_upkeep_under_way = self._upkeep_task is not None
        is_work_left = self._state.work.is_likely or self._settlements.unsent
        return not (self._is_busy() or is_upkeep_under_way or is_work_left)

    def _is_busy(self) -> bool:
        return bool(self._runner or self._turns.under_way or self._settlements.are_waiting)

    def _hear(self, hint: str) -> None:
        """Note a hint: a job was enqueued, or a job of this worker should stop."""
        if self._listener.is_echo(hint):
            return
        if hint.startswith(STOP_HINT):
            if hint in (STOP_HINT, STOP_HINT + self.name):
                self._core.keeper.look(self._runner.held())
            return
        heard = read_hint(hint)
        if self._queues is not None and heard.queue and heard.queue not in self._queues:
            return
        if heard.id is None:  # it may be about a job that is due later
            self._state.upkeep.within(SOON)
        if heard.kind is None or self._core.registry.knows(heard.kind):
            self._turns.hint(heard)
        self._state.changed()

    # -- upkeep ---------------------------------------------------------------------------------

    def _begin_upkeep(self) -> None:
        """Start an upkeep round beside the turns: no job waits for it."""
        self._state.upkeep.begin()
        self._upkeep_task = asyncio.get_running_loop().create_task(self._do_upkeep(), name="dibs-upkeep")
        self._upkeep_task.add_done_callback(self._end_upkeep)

    def _end_upkeep(self, task: "asyncio.Task[None]") -> None:
        self._upkeep_task = None
        self._state.task_ended(task)

    async def _do_upkeep(self) -> None:
        try:
            upcoming = await self._upkeep.report(concurrency=self._concurrency, running=len(self._runner))
            if upcoming.ready:  # a sweep may have to wait for locks
                self._state.work.expect()
                self._state.changed()
            if upcoming.overdue:
                self._settlements.callbacks.tell(await self._upkeep.sweep())
            has_ticked = await self._upkeep.schedules.enqueue_due(upcoming)
        except StoreUnavailable as error:
            self._listener.store_lost()
            await self._state.wait_for_store(error)
            return
        work = self._state.work
        self._state.health.store_answered()
        work.upkeep_found(upcoming.now if upcoming.ready else None, more=upcoming.overdue or has_ticked)
        is_idle = not work.has_claimed_since_upkeep() and self._turns.room > 0
        if await self._upkeep.finish(upcoming, is_idle=is_idle):
            work.expect()
            self._state.changed()

    # -- the end --------------------------------------------------------------------------------

    async def _wind_down(self, grace: float) -> None:
        """Let handlers finish, then end the ones that can be ended, and settle what there is to settle."""
        deadline = monotonic() + grace
        while self._is_busy() and not self._state.is_hurried and (left := deadline - monotonic()) > 0:
            self._state.clear_changes()  # first: what ends while attempts are settled must not be missed
            await self._turns.settle_rest()
            await self._state.change_within(left)
        await self._runner.stop()
        await self._turns.wait()
        await self._settlements.stop_waiting()
        await self._turns.settle_rest()
        self._settlements.drop_locked()
        self._runner.give_up()


_numbers = itertools.count(1)


def _own_name() -> str:
    """Return the name of this process, with a number if it has made a worker before."""
    number = next(_numbers)
    return worker_name() if number == 1 else f"{worker_name()}/{number}"


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
