"""Counts of ended attempts by the minute: workers add to them, charts read them.

The last four hours are kept by the minute, three days by the quarter of an hour.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import msgspec

from dibs.errors import BadRequest
from dibs.operations.scripts import Row, Script, Step

BUCKETS = 24
"""Each twice as wide as the one before: below 1 ms, 1, 2 to 3, 4 to 7 ms … 70 minutes and more."""
_LETTERS = "abcdefghijklmnopqrstuvwx"
DONE, FAILED, LATENCY, DURATION = 0, 1, 2, 2 + BUCKETS
MINUTE_COLUMNS = (
    *("done", "failed"),
    *(f"latency_{letter}" for letter in _LETTERS),
    *(f"duration_{letter}" for letter in _LETTERS),
)
NOTHING = (0,) * len(MINUTE_COLUMNS)


def bucket_of(millis: int) -> int:
    bits = millis.bit_length() if millis > 0 else 0
    return bits if bits < BUCKETS else BUCKETS - 1


class Histogram(msgspec.Struct, frozen=True):
    """How many attempts took how long. Example: `[one.latency.counts for one in await app.stats()]`"""

    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """Return the seconds within which this share of them (0.95, say) was; None of none.

        Within a bucket they are taken to be spread evenly.
        """
        left = self.total * min(max(share, 0.0), 1.0)
        if not self.total:
            return None
        for bucket, count in enumerate(self.counts):
            if count and left <= count:
                low, high = (1 << bucket) >> 1, 1 << bucket
                return (low + (high - low) * left / count) / 1000
            left -= count
        raise AssertionError("the counts of a histogram add up to its total")


class MinuteStats(msgspec.Struct, frozen=True, kw_only=True):
    """What ended in one stretch of time: of all, or a queue or kind. Example: `await app.stats("mail")`"""

    at: datetime
    """When it begins."""
    seconds: int
    """How long it is."""
    queue: str | None
    kind: str | None
    done: int
    """Attempts that succeeded."""
    failed: int
    """Attempts that failed, also when the job was retried."""
    latency: Histogram
    """From when the job was ready to be claimed, by `run_at`, until it was claimed."""
    duration: Histogram
    """From the claim until the attempt was settled."""


def added(some: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the sums of rows of counts."""
    return tuple(map(sum, zip(NOTHING, *some, strict=True)))


# -- adding and reading ---------------------------------------------------------------------------

MINUTE, QUARTER = 1, 15  # minutes
KEPT = {MINUTE: 4 * 60, QUARTER: 72 * 60}
LONGEST_BY_MINUTE = 3 * 60  # a chart of more has quarters of an hour
MOST_BUCKETS = 2_000


def minute_of(time: datetime) -> int:
    """Return the minutes since 1970."""
    return int(time.timestamp()) // 60


def add_to_minute(width: int, minute: int, queue: str, kind: str, counts: Sequence[int]) -> Script[None]:
    """Add these counts to a minute, or to a quarter of an hour that begins with it."""
    about = {"width": width, "at_minute": minute, "queue": queue, "kind": kind}
    yield Step("add_to_minute", {**about, **dict(zip(MINUTE_COLUMNS, counts, strict=True))})


def forget_minutes(now: int) -> Script[None]:
    """Remove counts that are kept no longer."""
    for width, kept in KEPT.items():
        yield Step("forget_minutes", {"width": width, "before": now - kept})


def read_minutes(
    of: Mapping[str, Any], since: int, width: int | None, by: str | None
) -> Script[list[MinuteStats]]:
    """Return the counts of the last `since` minutes, in stretches of `width` minutes."""
    [clock] = yield Step("now", {})
    now = minute_of(clock["now"])
    step = width or (MINUTE if since <= LONGEST_BY_MINUTE else QUARTER)
    if since // step > MOST_BUCKETS:
        raise BadRequest(f"that are {since // step:,} stretches, and at most {MOST_BUCKETS:,} are returned")
    fine = step % QUARTER != 0 or since <= LONGEST_BY_MINUTE
    begins = (now - since) // step * step + step
    # What workers have counted of the latest two quarters may not be there yet but by the minute.
    border = begins if fine else max((now // QUARTER - 1) * QUARTER, begins)
    which = {"queue": of["queue"], "kind": of["kind"], "by_queue": by == "queue", "by_kind": by == "kind"}
    rows: list[Row] = []
    for each, first, last in ((QUARTER, begins, border), (MINUTE, border, now + 1)):
        if first < last:
            rows += yield Step("minutes", {**which, "width": each, "first": first, "last": last})
    found = _by_stretch(rows, step)
    if by is None:
        found = {(at, None, None): [] for at in range(begins, now + 1, step)} | found
    return [_stats(step, key, counts) for key, counts in sorted(found.items(), key=_order)]


Key = tuple[int, str | None, str | None]


def _order(item: tuple[Key, Any]) -> tuple[int, str, str]:
    (at, queue, kind), _ = item
    return at, queue or "", kind or ""


def _by_stretch(rows: Iterable[Row], step: int) -> dict[Key, list[list[int]]]:
    def key(row: Row) -> Key:
        return row["at_minute"] // step * step, row["queue"], row["kind"]

    ordered = sorted(rows, key=lambda row: _order((key(row), None)))
    return {
        at: [[int(row[name]) for name in MINUTE_COLUMNS] for row in same]
        for at, same in groupby(ordered, key)
    }


def _stats(step: int, key: Key, rows: Iterable[Sequence[int]]) -> MinuteStats:
    at, queue, kind = key
    counts = added(rows)
    return MinuteStats(
        at=datetime.fromtimestamp(at * 60, UTC),
        seconds=step * 60,
        queue=queue,
        kind=kind,
        done=counts[0],
        failed=counts[FAILED],
        latency=Histogram(counts[LATENCY : LATENCY + BUCKETS]),
        duration=Histogram(counts[DURATION : DURATION + BUCKETS]),
    )
