"""A worker's part in `@app.every`: look at the schedules when one of them ticks, and at no other time."""

import random
from datetime import datetime

from dibs.app.verbs import Core

JITTER = 0.05  # seconds; of many workers that wait for one tick, most find it taken and write nothing


class Cron:
    """The schedules of one app as one worker minds them. Every `now` is the store's."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._next_ticks: dict[str, datetime | None] = {}

    async def enqueue_due(self, now: datetime) -> bool:
        """Enqueue the jobs of the ticks that are due and that nobody else took; were there any?"""
        if not any(self._is_due(schedule.name, now) for schedule in self._core.schedules):
            return False
        ticked = await self._core.store.run_async(self._core.enqueue_due(now))
        self._next_ticks = dict(ticked.next_ticks)
        if ticked.jobs:
            self._core.events.enqueued(ticked.jobs)
        return bool(ticked.jobs)

    def seconds(self, now: datetime) -> float:
        """How long until the next tick, as far as we know."""
        ticks = [tick for tick in self._next_ticks.values() if tick is not None]
        if not ticks:
            return float("inf")
        return max((min(ticks) - now).total_seconds(), 0.0) + JITTER * random.random()  # noqa: S311

    def _is_due(self, name: str, now: datetime) -> bool:
        if name not in self._next_ticks:
            return True
        tick = self._next_ticks[name]
        return tick is not None and tick <= now
