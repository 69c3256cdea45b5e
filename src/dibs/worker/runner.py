"""Handlers run in lanes: tasks that take one claim after another, for as long as there are any.

A task per job is the dearest thing about a short job. So one lane runs all that never wait for anything;
when a handler does wait, the next claim gets a lane of its own, and so all of them run at once. A lane that
was cancelled, or whose handler left something in its context variables, takes no further claim: what one
job did to its surroundings never reaches another.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from dibs.app.claims import Claim, ClaimState
from dibs.app.context import Context
from dibs.app.dibs import Dibs
from dibs.app.running import broken_off, not_committed, perform, settlement, surrounded
from dibs.errors import LeaseLost
from dibs.jobs.states import Released
from dibs.operations.settle import SettleRequest
from dibs.worker.isolation.pool import Processes, is_isolated


class Lanes:
    """The claims of one worker that wait to be run or are running."""

    def __init__(self, run: Callable[[ClaimState], Awaitable[None]], ended: Callable[[], None]) -> None:
        self._run = run
        self._ended = ended
        self._waiting: deque[ClaimState] = deque()
        self._running: dict[ClaimState, asyncio.Task[None]] = {}
        self._newest: asyncio.Task[None] | None = None  # the loop alone would not keep it alive

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    def start(self, claims: Iterable[ClaimState]) -> None:
        self._waiting.extend(claims)
        self._open()

    def cancel(self, held: ClaimState) -> "asyncio.Task[None] | None":
        """Interrupt this claim's handler, if it has begun; the lane that ran it is answered."""
        lane = self._running.get(held)
        if lane is not None:
            lane.cancel()
        return lane

    def running(self) -> "list[tuple[ClaimState, asyncio.Task[None]]]":
        """The claims whose handlers have begun, each with the lane that runs it."""
        return list(self._running.items())

    def held(self) -> list[ClaimState]:
        return [*self._running, *self._waiting]

    def take_waiting(self) -> list[ClaimState]:
        """Those that have not begun; they never will."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def _open(self) -> None:
        """A lane, and when it has made its first step a look whether anybody still waits."""
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._newest = loop.create_task(self._lane(), name="dibs-lane")
            loop.call_soon(self._open)

    async def _lane(self) -> None:
        lane = asyncio.current_task()
        assert lane is not None
        fresh = copy_context()
        while self._waiting:
            held = self._waiting.popleft()
            self._running[held] = lane
            try:
                await self._run(held)
            finally:
                del self._running[held]
                self._ended()
            if lane.cancelling() or copy_context() != fresh:
                return


class Attempts:
    """Where the handlers of one worker run: on its loop, in its threads, in its processes."""

    state: Any = None
    """What the lifespan of the app made for them."""

    def __init__(
        self, app: Dibs, concurrency: int, mind_commit: Callable[[ClaimState, SettleRequest], Awaitable[None]]
    ) -> None:
        self._core = app._core
        self._concurrency = concurrency
        self._mind_commit = mind_commit
        self._processes = Processes(app)

    async def open(self) -> None:
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="dibs-job")
        await self._processes.open()

    async def close(self) -> None:
        self.state = None
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._processes.close()

    def stop_if_lost(self, held: ClaimState) -> None:
        """A handler in a process of its own is not cancelled with its lane."""
        self._processes.stop_if_lost(held)

    async def run(self, held: ClaimState) -> SettleRequest | None:
        """What came of it, or None when there is nothing to settle any more."""
        task = self._core.registry.tasks[held.job.kind]
        context, elsewhere = None, None
        if task.signature.context is not None:
            context = Context(Claim(held), self.state)
        if is_isolated(task):
            context = context or Context(Claim(held), self.state)
            elsewhere = partial(self._processes.call, held, task, context)
        try:
            outcome = await surrounded(held, perform(held, task, context, self._threads, elsewhere))
            if held.settled:
                one = held.settled_by(not_committed(held, outcome))
            else:
                one = settlement(held, outcome, context)
        except asyncio.CancelledError:
            one = held.settled_by(Released())
        except LeaseLost:
            self._core.keeper.drop(held)  # whoever has the job now settles it
            return None
        except Exception as error:
            one = broken_off(held, error)
        if held.settled:  # by `ctx.complete(within=…)`, which may come to nothing
            await self._mind_commit(held, one)
            return None
        return one
