"""The only place that reads a clock of this process.

Times of jobs are always the store's. What is read here is either monotonic (how long ago did I
claim this?) or feeds the `memory` store, which has no clock but ours, and the ids.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

MILLISECOND = 1_000
SECOND = 1_000_000

_WALL_AT_START = time.time_ns() // 1_000
_MONOTONIC_AT_START = time.monotonic_ns() // 1_000

# CLOCK_BOOTTIME keeps running while the machine sleeps; CLOCK_MONOTONIC does not, and a laptop
# that woke up would believe that its leases are fresh.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


# Seconds that only grow, also while the machine is suspended. No Python function: it is called for every job.
monotonic: Callable[[], float] = (
    time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
)
wall_nanos = time.time_ns


def store_micros() -> int:
    """Return the time of the memory store: wall time at start, then steps that can't go backwards."""
    return _WALL_AT_START + time.monotonic_ns() // 1_000 - _MONOTONIC_AT_START


def wall() -> float:
    """Return this machine's time; only to compare it with a store's."""
    return time.time()


def id_millis() -> int:
    """Return milliseconds since 1970, as in the time part of an id."""
    return wall_nanos() // 1_000_000


def from_micros(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / SECOND, UTC)


def to_micros(moment: datetime) -> int:
    return round(moment.timestamp() * SECOND)
