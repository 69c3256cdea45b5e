"""A worker's ticks: sweep what is due, mind the schedules, do the chores, say that it is here.

Every worker does all of it; there is no leader. Each tick plans the next: when a job is due, a lease ends or
a schedule ticks, and after `poll` seconds at the latest.
"""

import math
import random
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from dibs.app.callbacks import PendingEvent, swept_events
from dibs.app.state import AppState
from dibs.clock import SECOND, monotonic
from dibs.errors import StoreUnavailable
from dibs.events import log
from dibs.operations import upkeep
from dibs.operations.schedules import enqueue_due
from dibs.operations.scripts import Row, Script, Step
from dibs.operations.upkeep import Upcoming
from dibs.worker.exchange import USUAL_LEASE
from dibs.worker.listening import Hearing

SOON = 0.2  # seconds between two ticks at the least


class Ticks:
    """When the next one is due, and what is done in it. Times are those of `monotonic()`."""

    def __init__(self, core: AppState, name: str, queues: list[str] | None, hearing: Hearing) -> None:
        self._core = core
        self._name = name
        self._queues = queues
        self._hearing = hearing
        self._cron = Cron(core)
        self.chores = Chores(core, queues)
        self.next_at = self._last = 0.0
        self._said_at = float("-inf")

    def open(self, tell: Callable[[list[PendingEvent]], None]) -> None:
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
            self._tell(swept_events(self._core.swept(swept)))
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


JITTER = 0.05  # seconds; of many workers that wait for one tick, most find it taken and write nothing


class Cron:
    """The schedules of one app as one worker minds them. Every `now` is the store's."""

    def __init__(self, core: AppState) -> None:
        self._core = core
        self._next_ticks: dict[str, datetime | None] = {}

    async def enqueue_due(self, now: datetime) -> bool:
        """Enqueue the jobs of the ticks that are due and that nobody else took; were there any?"""
        if not any(self._is_due(schedule.name, now) for schedule in self._core.schedules):
            return False
        core = self._core
        ticked = await core.store.run_async(
            lambda _: enqueue_due(list(core.schedules), core.registry.prepare, now)
        )
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


PRUNE_EVERY = 600.0  # seconds
MEND_EVERY = 60.0  # seconds from the end of one round to the next
PAGES = 5  # of a round, one after another
PAUSE = 1.0  # seconds to the next ones, for each worker there is: together they look at 500 gates a second


class Chores:
    """One worker's: remove what need not be kept, mend gates, name the kinds that it does not know."""

    def __init__(self, core: AppState, queues: list[str] | None) -> None:
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
            self._pause = PAUSE * max(
                1, len(await self._core.store.run_async(lambda _: upkeep.workers(self._core.silence)))
            )
        for _ in range(PAGES):
            page = await self._core.store.run_async(lambda _: upkeep.mend(self._mended))
            self._mended = page[-1] if page else None
            if not page:
                return
        self._next_mend = now + self._pause


MOST_REMEMBERED = 1000  # kinds; whoever makes up more of them has heard enough


class Strangers:
    """Remembers which kinds have been mentioned."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def mention(self, lines: Sequence[tuple[str, str]], known: Collection[str]) -> None:
        """One line in the log for every kind that is new to us."""
        for queue, kind in self.new_among(lines, known):
            log.warning(
                "● no handler here for the kind %r: its jobs in the queue %r wait for a worker that has one",
                kind,
                queue,
                extra={"fields": {"event": "unknown_kind", "kind": kind, "queue": queue}},
            )

    def new_among(self, lines: Sequence[tuple[str, str]], known: Collection[str]) -> list[tuple[str, str]]:
        """(queue, kind) of the first line of every kind that is neither known nor was mentioned before."""
        fresh: dict[str, str] = {}
        for queue, kind in lines:
            if kind not in known and kind not in self._said and len(self._said) < MOST_REMEMBERED:
                fresh[kind] = queue
                self._said.add(kind)
        return [(queue, kind) for kind, queue in fresh.items()]


def ready_lines(queues: Sequence[str] | None) -> Script[list[tuple[str, str]]]:
    """Which (queue, kind) have ready jobs in these queues."""
    rows = yield Step("ready_lines", {"queues": queues})
    return [(row["queue"], row["kind"]) for row in rows]
