"""Counts of ended attempts by the minute: their columns, and the values that charts are drawn from."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

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
    return min(max(millis, 0).bit_length(), BUCKETS - 1)


class Histogram(msgspec.Struct, frozen=True):
    """How many attempts took how long, in buckets of doubling width."""

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
    """What ended in one stretch of time: of all, or of one queue or kind."""

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
