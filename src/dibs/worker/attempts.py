"""One attempt at a job: run its handler, and say what is to be settled."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from dibs.app.claims import Claim, Holding
from dibs.app.context import Context
from dibs.app.dibs import Dibs
from dibs.app.running import broken_off, not_committed, perform, settlement, surrounded
from dibs.errors import LeaseLost
from dibs.jobs.states import Released
from dibs.operations.work import Settled
from dibs.worker.processes import Processes, is_isolated


class Attempts:
    """Where the handlers of one worker run: on its loop, in its threads, in its processes."""

    state: Any = None
    """What the lifespan of the app made for them."""

    def __init__(
        self, app: Dibs, concurrency: int, mind_commit: Callable[[Holding, Settled], Awaitable[None]]
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

    def stop_if_lost(self, held: Holding) -> None:
        """A handler in a process of its own is not cancelled with its lane."""
        self._processes.stop_if_lost(held)

    async def run(self, held: Holding) -> Settled | None:
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
