"""Runs the handlers of claimed jobs: on the event loop, in threads, in processes.

An asyncio task per job would be the greatest cost of a short job. So one task runs one claim after another as
long as no handler waits; when one does, the next claim gets a task of its own, and so all of them run at
once. A task that was cancelled, or with a handler that changed its context variables, takes no further claim:
what one job did to its surroundings never reaches another.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from dibs.app import lifespan
from dibs.app.claims import Claim, ClaimState
from dibs.app.context import Context
from dibs.app.dibs import Dibs
from dibs.app.leases import KeptClaim
from dibs.app.outcomes import CANCELLED_ITSELF, broken_off, not_committed, settlement
from dibs.app.running import perform, surrounded
from dibs.clock import monotonic
from dibs.errors import LeaseLost
from dibs.events import log
from dibs.jobs.states import Released
from dibs.log_format import current_job
from dibs.operations.settle import SettleRequest
from dibs.worker.exchange import USUAL_LEASE
from dibs.worker.health import LoopWatch
from dibs.worker.isolation.pool import ProcessPool, is_isolated
from dibs.worker.settlements import Settlements
from dibs.worker.state import WorkerState

LAST_CHECK = 2.0  # seconds for handlers in threads that may ask whether they should end
LAST_CHANCE = 5.0  # seconds for handlers that were cancelled


class Runner:
    """The claims of one worker that wait to be run or are running."""

    def __init__(self, app: Dibs, concurrency: int, settlements: Settlements, state: WorkerState) -> None:
        self._core = app._core
        self._concurrency = concurrency
        self._settlements = settlements
        self._state = state
        self._processes = ProcessPool(app)
        self._waiting: deque[ClaimState] = deque()
        self._running: dict[ClaimState, asyncio.Task[None]] = {}
        self._watch = LoopWatch(self._running)
        self._newest: asyncio.Task[None] | None = None  # the loop alone would not keep it alive
        self.shared: Any = None
        """What the lifespan of the app made for the handlers: `ctx.state`."""

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    def held(self) -> list[ClaimState]:
        return [*self._running, *self._waiting]

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="dibs-job")
        self._watch.start()
        await self._processes.open()

    async def close(self) -> None:
        self._core.keeper.drop(*self.held())
        self.shared = None
        self._watch.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._processes.close()

    # -- running --------------------------------------------------------------------------------

    def start(self, claims: Sequence[ClaimState]) -> None:
        """Run these claims, with leases renewed until they are settled: a blocked loop must cost no lease.

        Release all of them if the worker stops, or if they came so late that a lease is nearly over.
        """
        leases, changed = self._core.registry.leases, self._claim_changed  # bound once, not per job
        kept = [KeptClaim(held, leases.get(held.job.kind, USUAL_LEASE), changed) for held in claims]
        if kept and (self._state.is_stopping or min(one.deadline for one in kept) <= monotonic()):
            self._settlements.release(claims)
            return
        self._core.keeper.keep_all(kept)
        self._waiting.extend(claims)
        self._run_waiting()

    def _run_waiting(self) -> None:
        """Start a task, and after its first step another one if claims still wait."""
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._newest = loop.create_task(self._run_claims(), name="dibs-runner")
            loop.call_soon(self._run_waiting)

    async def _run_claims(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        fresh = copy_context()
        while self._waiting:
            held = self._waiting.popleft()
            self._running[held] = task
            noted = current_job.set(held.job) if current_job.is_wanted else None
            try:
                await self._run(held)
            finally:
                if noted is not None:
                    current_job.reset(noted)
                del self._running[held]
                self._state.changed()
            if task.cancelling() or copy_context() != fresh:
                return

    async def _run(self, held: ClaimState) -> None:
        """Run one attempt and pass on its settlement, unless the claim was lost."""
        try:
            one = await self._attempt(held)
        except asyncio.CancelledError:
            stops = self._state.is_ending or held.stopping or held.lost
            was_asked = stops or held.cancel_reason is not None  # if not, the handler's own code did it
            one = held.settled_by(Released() if was_asked else held.raised(CANCELLED_ITSELF))
        except KeyboardInterrupt as error:
            if self._state.is_ending or lifespan.may_raise_interrupt():
                raise
            one = held.settled_by(held.raised(error))
        except LeaseLost:
            self._core.keeper.drop(held)  # the job's next holder settles it
            return
        except Exception as error:
            one = broken_off(held, error)
        if held.settled:  # by `ctx.complete(within=…)`, which may be rolled back
            await self._settlements.completions.add(held, one)
        else:
            self._settlements.add(held, one)

    async def _attempt(self, held: ClaimState) -> SettleRequest:
        task = self._core.registry.tasks[held.job.kind]
        context, in_process = None, None
        if task.signature.context is not None:
            context = Context(Claim(held), self.shared)
        if is_isolated(task):
            context = context or Context(Claim(held), self.shared)
            in_process = partial(self._processes.call, held, task, context)
        outcome = await surrounded(held, perform(held, task, context, self._threads, in_process))
        if held.settled:
            return held.settled_by(not_committed(held, outcome))
        return settlement(held, outcome, context)

    # -- ending ---------------------------------------------------------------------------------

    def _claim_changed(self, held: ClaimState) -> None:
        """Stop the handler of a claim that was lost or is to be cancelled; called from another thread."""
        self._processes.stop_if_lost(held)  # here, for the event loop may be blocked
        self._loop.call_soon_threadsafe(self._cancel, held)

    def _cancel(self, held: ClaimState) -> None:
        if (task := self._running.get(held)) is not None:
            task.cancel()

    async def stop(self) -> None:
        """Release what has not begun, and end the handlers that can be ended.

        Async and isolated handlers are cancelled. One in a thread can only ask whether it should end, and
        needs a context for that.
        """
        self._settlements.release(self._waiting)
        self._waiting.clear()
        cancelled, asked = [], []
        for held, running in list(self._running.items()):
            held.stopping = True
            task = self._core.registry.tasks[held.job.kind]
            if task.is_async or is_isolated(task):
                running.cancel()
                cancelled.append(running)
            elif task.signature.context is not None:
                asked.append(running)
        if cancelled or asked:
            await asyncio.wait([*cancelled, *asked], timeout=LAST_CHECK)
        if cancelled:
            await asyncio.wait(cancelled, timeout=LAST_CHANCE - LAST_CHECK)

    def give_up(self) -> None:
        """Renew the leases of handlers that did not end no longer; a thread keeps its job until then."""
        for held in self.held():
            self._core.keeper.drop(held)
            log.warning(
                "● %s %s did not end in time: it runs again when its lease is over",
                held.job.kind,
                held.job.id,
            )
