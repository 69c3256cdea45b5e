"""What every worker does now and then, besides its ticks. No leader: each is a guarded statement."""

import math
import random

from dibs.app.verbs import Core
from dibs.errors import StoreUnavailable
from dibs.operations import upkeep
from dibs.operations.scripts import Row
from dibs.worker.strangers import Strangers, ready_lines

PRUNE_EVERY = 600.0  # seconds
MEND_EVERY = 60.0  # seconds from the end of one round to the next
PAGES = 5  # of a round, one after another
PAUSE = 1.0  # seconds to the next ones, for each worker there is: together they look at 500 gates a second


class Chores:
    """One worker's: remove what need not be kept, mend gates, name the kinds that it does not know."""

    def __init__(self, core: Core, queues: list[str] | None) -> None:
        self._core = core
        self._queues = queues
        self._strangers = Strangers()
        self._next_prune = self._next_mend = self._next_roll_call = 0.0
        self._mended: Row | None = None  # the last gate that was looked at in this round
        self._pause = PAUSE

    def begin(self, now: float) -> None:
        """Workers that started together should not do these together."""
        self._next_prune = now + PRUNE_EVERY * random.random()  # noqa: S311
        self._next_mend = now + MEND_EVERY * random.random()  # noqa: S311

    async def do(self, now: float) -> None:
        """Those that are due; a store that is away is met again at the next tick."""
        try:
            await self._prune(now)
            await self._mend(now)
        except StoreUnavailable:
            return

    def seconds(self, now: float) -> float:
        """Until the next page, while a round of mending is under way."""
        return math.inf if self._mended is None else max(self._next_mend - now, 0.0)

    async def name_strangers(self, now: float) -> None:
        """Jobs are ready and this worker took none of them: are there kinds that it doesn't know?"""
        if now < self._next_roll_call:
            return
        self._next_roll_call = now + self._core.settings.poll
        await self.name_last_strangers()

    async def name_last_strangers(self) -> None:
        """Whoever ends says what it leaves, however busy it was until then."""
        try:
            lines = await self._core.store.run_async(lambda _: ready_lines(self._queues))
        except StoreUnavailable:
            return
        self._strangers.mention(lines, known=self._core.registry.tasks)

    async def _prune(self, now: float) -> None:
        if now < self._next_prune:
            return
        self._next_prune = now + PRUNE_EVERY * (0.5 + random.random())  # noqa: S311
        for operation in self._core.retention():
            await self._core.store.run_async(operation)

    async def _mend(self, now: float) -> None:
        """Go on with a round over all gates: what a person deleted stops no train."""
        if now < self._next_mend:
            return
        self._next_mend = now + MEND_EVERY * (0.5 + random.random())  # noqa: S311
        if self._mended is None:
            self._pause = PAUSE * max(1, len(await self._core.store.run_async(self._core.workers())))
        for _ in range(PAGES):
            page = await self._core.store.run_async(lambda _: upkeep.mend(self._mended))
            self._mended = page[-1] if page else None
            if not page:
                return
        self._next_mend = now + self._pause
