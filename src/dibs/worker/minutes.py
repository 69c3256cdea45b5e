"""What a worker counts for charts: how many attempts ended, how long they had waited and took.

It adds integers in memory, and writes them once a minute: one row for each queue and kind.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from dibs.clock import monotonic
from dibs.engines.store import Store
from dibs.jobs.job import Job
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
from dibs.worker.exchange import EndedAttempt
from dibs.worker.state import QueueKind

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
        now, asked_at, duration = monotonic(), -1.0, DURATION
        for held, one in over:
            column = _COLUMN_OF.get(one.settled_as)
            if column is None or (line := self._line(held.job)) is None:
                continue
            if held.asked_at != asked_at:  # jobs that were claimed together mostly end together
                asked_at = held.asked_at
                duration = DURATION + bucket_of(int((now - asked_at) * 1000))
            waited: timedelta = held.job.claimed_at - held.job.run_at  # type: ignore[operator]
            line[column] += 1
            line[LATENCY + bucket_of(waited // MILLI)] += 1
            line[duration] += 1

    def _line(self, job: Job) -> list[int] | None:
        line = self._lines.get((job.queue, job.kind))
        if line is None and len(self._lines) < MOST_LINES:
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
