"""The upkeep of a worker: report that it is here, sweep, enqueue the ticks of schedules, prune, mend.

Every worker does all of it; there is no leader. Each round sets the time of the next: when a job is due, a
lease ends or a schedule ticks, and after `poll` seconds at the latest.
"""

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial

from dibs.app.callbacks import PendingEvent, swept_events
from dibs.app.state import AppState
from dibs.clock import SECOND, monotonic
from dibs.engines.store import Store
from dibs.errors import DibsError, StoreUnavailable
from dibs.events import log
from dibs.jobs.job import Job
from dibs.operations import upkeep
from dibs.operations.minutes import (
    DONE,
    DURATION,
    FAILED,
    LATENCY,
    MINUTE,
    NOTHING,
    QUARTER,
    add_to_minute,
    added,
    bucket_of,
    forget_minutes,
    minute_of,
)
from dibs.operations.schedules import RECORDED_EVERY, enqueue_due
from dibs.operations.scripts import Row, Script, Step
from dibs.operations.settle import forget_refusals
from dibs.operations.upkeep import Upcoming
from dibs.worker.exchange import USUAL_LEASE, EndedAttempt
from dibs.worker.listening import HintListener
from dibs.worker.state import SOON, QueueKind, UpkeepTimer


@cache
def _own_version() -> str | None:
    from importlib.metadata import distributions  # only workers need what this loads

    return next((found.version for found in distributions(name="dibs")), None)  # a bundle has none


@dataclass(eq=False)
class Upkeep:
    """The parts of an upkeep round, in their order: `report`, `sweep`, `schedules.enqueue_due`, `finish`."""

    _core: AppState
    _name: str
    _queues: list[str] | None
    _listener: HintListener
    _timer: UpkeepTimer
    _minutes: "MinuteCounters"
    _next_naming: float = 0.0
    _reported_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.schedules = ScheduleTicks(self._core)
        self._rare = RareUpkeep(self._core)
        self._unknown_kinds = UnknownKinds()

    def open(self) -> None:
        self._reported_at = float("-inf")
        self._rare.begin(monotonic())

    async def report(self, **busy: int) -> Upcoming:
        """Report that this worker is here, at most once per poll, and return what is due.

        The report is a write; where stores announce commits it wakes other workers.
        """
        store, poll, now = self._core.store, self._core.settings.poll, self._timer.began_at
        if now - self._reported_at < poll * 0.9 and not self._listener.wants_echo:
            return await store.run_async(lambda _: upkeep.upcoming())
        kinds = list(self._core.registry.tasks)
        with self._listener.expecting_echo():
            tick = partial(upkeep.tick, self._name, self._queues, kinds, version=_own_version(), **busy)
            upcoming = await store.run_async(lambda _: tick())
        self._reported_at = now
        return upcoming

    async def sweep(self) -> list[PendingEvent]:
        """Stage due jobs and take back jobs with leases that ran out; return what callbacks should know."""
        swept = await self._core.store.run_async(lambda _: upkeep.sweep())
        return swept_events(self._core.swept(swept))

    async def finish(self, upcoming: Upcoming, *, is_idle: bool) -> bool:
        """Do the rare parts, and set the time of the next round; an idle worker names kinds it can't run.

        Return whether it found a handler for one of them.
        """
        began_at, has_learned = self._timer.began_at, False
        if upcoming.ready and is_idle and began_at >= self._next_naming:
            self._next_naming = began_at + self._core.settings.poll
            has_learned = await self.name_unknown_kinds()
        with suppress(StoreUnavailable):
            await self._minutes.write_if_due(upcoming.now)
        await self._rare.do(began_at)
        self._timer.next_at = min(self._timer.next_at, began_at + self._pause(upcoming, began_at))
        return has_learned

    async def close(self) -> None:
        """Write what was counted, and report that the worker has left."""
        with suppress(DibsError):
            await self._minutes.write_rest()
            await self._core.store.run_async(lambda _: upkeep.leave(self._name))

    async def name_unknown_kinds(self) -> bool:
        """Log the kinds of ready jobs for which this worker has no handler; return whether it found one."""
        try:
            pairs = await self._core.store.run_async(lambda _: ready_pairs(self._queues))
        except StoreUnavailable:
            return False
        registry = self._core.registry
        found = [kind for _, kind in pairs if kind not in registry.tasks and registry.knows(kind)]
        self._unknown_kinds.log_new(pairs, known=registry.tasks)
        return bool(found)

    def _pause(self, upcoming: Upcoming, now: float) -> float:
        # With a round as often as the shortest lease, a worker is there when any lease ends.
        shortest_lease = min([USUAL_LEASE, *self._core.registry.leases.values()]) / SECOND
        poll = min(self._listener.poll(self._core.settings.poll), shortest_lease)
        wait = min(poll, self.schedules.seconds(upcoming.now), self._rare.seconds(now))
        if upcoming.seconds is not None:
            wait = min(wait, max(upcoming.seconds, SOON if upcoming.overdue else 0.005))
        if wait < poll:
            return wait
        return poll * (0.9 + 0.1 * random.random())  # noqa: S311 (workers that started together diverge)


JITTER = 0.05  # seconds; of many workers that wait for one tick, most find it enqueued and write nothing


class ScheduleTicks:
    """The next ticks of all schedules, as far as this worker knows. Every `now` is the store's."""

    def __init__(self, core: AppState) -> None:
        self._core = core
        self._next_ticks: dict[str, datetime | None] = {}
        self._changes = 0  # what the store said of its schedules when they were read
        self._recorded: set[str] = set()
        self._record_at: datetime | None = None

    async def enqueue_due(self, upcoming: Upcoming) -> bool:
        """Enqueue the jobs of due ticks that no other worker has enqueued; return whether there were any."""
        core, now = self._core, upcoming.now
        known = dict(core.schedules.definitions)
        if not (self._has_to_read(known, upcoming) or self._is_due(now)):
            return False
        is_first = not known.keys() <= self._recorded
        ticked = await core.store.run_async(lambda _: enqueue_due(known, now, is_first=is_first))
        self._next_ticks, self._changes = dict(ticked.next_ticks), upcoming.schedules
        self._recorded, self._record_at = set(known), now + RECORDED_EVERY
        if ticked.jobs:
            self._core.events.enqueued(ticked.jobs)
        return bool(ticked.jobs)

    def seconds(self, now: datetime) -> float:
        """Return the seconds to the next tick."""
        ticks = [tick for tick in self._next_ticks.values() if tick is not None]
        if not ticks:
            return float("inf")
        return max((min(ticks) - now).total_seconds(), 0.0) + JITTER * random.random()  # noqa: S311

    def _has_to_read(self, known: Collection[str], upcoming: Upcoming) -> bool:
        """Return whether a schedule was set or deleted, or this app's own must be recorded."""
        if upcoming.schedules != self._changes or not self._recorded.issuperset(known):
            return True
        return bool(known) and (self._record_at is None or upcoming.now >= self._record_at)

    def _is_due(self, now: datetime) -> bool:
        return any(tick is not None and tick <= now for tick in self._next_ticks.values())


PRUNE_EVERY = 600.0  # seconds
MEND_EVERY = 60.0  # seconds from the end of one pass over all gates to the next
PAGES = 5  # of gates that are mended one after another
PAUSE = 1.0  # seconds to the next pages, for each worker: together they check 500 gates a second


class RareUpkeep:
    """Upkeep that is not part of every round: prune finished jobs, mend gates."""

    def __init__(self, core: AppState) -> None:
        self._core = core
        self._next_prune = self._next_mend = 0.0
        self._mended: Row | None = None  # the last gate of this pass so far
        self._pause = PAUSE

    def begin(self, now: float) -> None:
        """Choose random times, so that workers that started together don't do this together."""
        self._next_prune = now + PRUNE_EVERY * random.random()  # noqa: S311
        self._next_mend = now + MEND_EVERY * random.random()  # noqa: S311

    async def do(self, now: float) -> None:
        """Do what is due; leave it to the next round if the store is away."""
        try:
            await self._prune(now)
            await self._mend(now)
        except StoreUnavailable:
            return

    def seconds(self, now: float) -> float:
        """Return the seconds to the next page, while a pass over the gates is under way."""
        return math.inf if self._mended is None else max(self._next_mend - now, 0.0)

    async def _prune(self, now: float) -> None:
        if now < self._next_prune:
            return
        self._next_prune = now + PRUNE_EVERY * (0.5 + random.random())  # noqa: S311
        for operation in self._core.retention():
            await self._core.store.run_async(operation)
        await self._core.store.run_async(lambda _: forget_refusals())

    async def _mend(self, now: float) -> None:
        """Continue a pass over all gates: what an operator deleted stops no train."""
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


MOST_REMEMBERED = 1000  # kinds; further ones are not logged


class UnknownKinds:
    """The kinds without a handler that were logged already."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log_new(self, pairs: Sequence[QueueKind], known: Collection[str]) -> None:
        for queue, kind in self.new_among(pairs, known):
            log.warning(
                "● no handler here for the kind %r: its jobs in the queue %r wait for a worker that has one",
                kind,
                queue,
                extra={"fields": {"event": "unknown_kind", "kind": kind, "queue": queue}},
            )

    def new_among(self, pairs: Sequence[QueueKind], known: Collection[str]) -> list[QueueKind]:
        """Return the first pair of every kind that is neither known nor was logged before."""
        fresh: dict[str, str] = {}
        for queue, kind in pairs:
            if kind not in known and kind not in self._logged and len(self._logged) < MOST_REMEMBERED:
                fresh[kind] = queue
                self._logged.add(kind)
        return [(queue, kind) for kind, queue in fresh.items()]


def ready_pairs(queues: Sequence[str] | None) -> Script[list[QueueKind]]:
    """Return the queue-kind pairs that have ready jobs in these queues."""
    rows = yield Step("ready_lines", {"queues": queues})
    return [(row["queue"], row["kind"]) for row in rows]


# -- Counts for charts: integers in memory, written once a minute, a row for each queue and kind --

MOST_LINES = 1_000  # queues and kinds that are counted between two writes; further ones are not
FORGET_EVERY = 60  # minutes
MILLI = timedelta(milliseconds=1)
_COLUMN_OF = {"succeeded": DONE, "failed": FAILED, "retried": FAILED}

Lines = dict[QueueKind, list[int]]


class MinuteCounters:
    """The counts of one worker since it last wrote them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: Lines = {}
        self._quarters: defaultdict[int, Lines] = defaultdict(dict)
        self._minute: int | None = None  # of the store's clock, in which these are counted
        self._forgot = 0

    def count(self, over: Iterable[EndedAttempt]) -> None:
        """Count attempts that were settled just now."""
        now, asked_at, duration, lines = monotonic(), -1.0, DURATION, self._lines
        for held, one in over:
            job, column = held.job, _COLUMN_OF.get(one.settled_as)
            if column is None or (line := lines.get((job.queue, job.kind)) or self._new_line(job)) is None:
                continue
            if held.asked_at != asked_at:  # jobs that were claimed together mostly end together
                asked_at = held.asked_at
                duration = DURATION + bucket_of(int((now - asked_at) * 1000))
            waited: timedelta = job.claimed_at - job.run_at  # type: ignore[operator]
            line[column] += 1
            line[LATENCY + bucket_of(waited // MILLI)] += 1
            line[duration] += 1

    def _new_line(self, job: Job) -> list[int] | None:
        if len(self._lines) >= MOST_LINES:
            return None
        line = self._lines[job.queue, job.kind] = list(NOTHING)
        return line

    async def write_if_due(self, now: datetime) -> None:
        """Write what was counted in a minute that is over, by the store's clock."""
        minute = minute_of(now)
        if self._minute is None:
            self._minute = minute
        if minute != self._minute:
            await self.write()
            self._minute = minute
            if minute // FORGET_EVERY != self._forgot:
                self._forgot = minute // FORGET_EVERY
                await self._store.run_async(lambda _: forget_minutes(minute))
        for quarter in [quarter for quarter in self._quarters if quarter + QUARTER <= minute]:
            await self._write_quarter(quarter)

    async def write(self) -> None:
        """Write the counts of this minute; what could not be written is written with the next."""
        if self._minute is None:
            return
        lines, self._lines = self._lines, {}
        quarter = self._quarters[self._minute // QUARTER * QUARTER]
        try:
            for key in sorted(lines):
                await self._add(MINUTE, self._minute, key, lines[key])
                _add_line(quarter, key, lines.pop(key))
        finally:
            for key, line in lines.items():
                _add_line(self._lines, key, line)

    async def write_rest(self) -> None:
        """Write all that was counted: the worker ends."""
        await self.write()
        for quarter in list(self._quarters):
            await self._write_quarter(quarter)

    async def _write_quarter(self, quarter: int) -> None:
        lines = self._quarters[quarter]
        for key in sorted(lines):
            await self._add(QUARTER, quarter, key, lines[key])
            del lines[key]
        del self._quarters[quarter]

    async def _add(self, width: int, minute: int, key: QueueKind, line: Sequence[int]) -> None:
        await self._store.run_async(lambda _: add_to_minute(width, minute, *key, line))


def _add_line(lines: Lines, key: QueueKind, line: Sequence[int]) -> None:
    lines[key] = list(added([line, lines.get(key, NOTHING)]))
