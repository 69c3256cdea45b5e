"""A worker's ticks: sweep what is due, mind the schedules, do the chores, say that it is here.

Every worker does all of it; there is no leader. Each tick plans the next: when a job is due, a lease ends or
a schedule ticks, and after `poll` seconds at the latest.
"""

import random
from collections.abc import Callable

from dibs.app.callbacks import Fate, swept_fates
from dibs.app.verbs import Core
from dibs.clock import SECOND, monotonic
from dibs.operations import upkeep
from dibs.operations.upkeep import Upcoming
from dibs.worker.chores import Chores
from dibs.worker.cron import Cron
from dibs.worker.listening import Hearing
from dibs.worker.trips import USUAL_LEASE

SOON = 0.2  # seconds between two ticks at the least


class Ticks:
    """When the next one is due, and what is done in it. Times are those of `monotonic()`."""

    def __init__(self, core: Core, name: str, queues: list[str] | None, hearing: Hearing) -> None:
        self._core = core
        self._name = name
        self._queues = queues
        self._hearing = hearing
        self._cron = Cron(core)
        self.chores = Chores(core, queues)
        self.next_at = self._last = 0.0
        self._said_at = float("-inf")

    def open(self, tell: Callable[[list[Fate]], None]) -> None:
        """A run begins; what becomes of swept claims is told so."""
        self._tell = tell
        self.next_at, self._said_at = 0.0, float("-inf")
        self.chores.begin(monotonic())

    def within(self, seconds: float) -> None:
        """There is one in so many seconds at the latest."""
        self.next_at = min(self.next_at, monotonic() + seconds)

    def soon(self) -> None:
        """As soon as it is decent after the last one."""
        self.next_at = min(self.next_at, self._last + SOON)

    def begin(self) -> None:
        self._last, self.next_at = monotonic(), float("inf")

    async def look(self, **busy: int) -> Upcoming:
        """What is due. Saying that we are here is a write, and wakes others where stores announce commits."""
        store, poll = self._core.store, self._core.settings.poll
        if self._last - self._said_at < poll * 0.9 and not self._hearing.wants_echo:
            return await store.run_async(lambda _: upkeep.upcoming())
        kinds = list(self._core.registry.tasks)
        with self._hearing.calling():
            said = await store.run_async(lambda _: upkeep.tick(self._name, self._queues, kinds, **busy))
        self._said_at = self._last
        return said

    async def catch_up(self, upcoming: Upcoming) -> bool:
        """Do what is due; is there anything to claim then?"""
        if upcoming.overdue:
            swept = await self._core.store.run_async(lambda _: upkeep.sweep())
            self._tell(swept_fates(self._core.swept(swept)))
        ticked = await self._cron.enqueue_due(upcoming.now)
        return upcoming.overdue or upcoming.ready or ticked

    async def finish(self, upcoming: Upcoming, *, idle: bool) -> None:
        """Do the chores, and plan the next one; `idle` when this worker took nothing since the last."""
        if upcoming.ready and idle:
            await self.chores.name_strangers(self._last)
        await self.chores.do(self._last)
        self.next_at = min(
            self.next_at, self._last + self._pause(upcoming)
        )  # what came meanwhile counts, too

    def _pause(self, upcoming: Upcoming) -> float:
        poll = min(self._hearing.poll(self._core.settings.poll), self._shortest_lease())
        wait = min(poll, self._cron.seconds(upcoming.now), self.chores.seconds(self._last))
        if upcoming.seconds is not None:
            wait = min(wait, max(upcoming.seconds, SOON if upcoming.overdue else 0.005))
        return wait if wait < poll else _jittered(poll)

    def _shortest_lease(self) -> float:
        """Seconds. Whoever looks that often sees every lease before it ends, and is there when it does."""
        return min([USUAL_LEASE, *self._core.registry.leases.values()]) / SECOND


def _jittered(seconds: float) -> float:
    """Workers that started together should not do their upkeep together."""
    return seconds * (0.9 + 0.1 * random.random())  # noqa: S311
