"""The only place that reads a clock of this process.

Times of jobs are always the store's. What is read here is either monotonic (how long ago did I
claim this?) or feeds the `memory` store, which has no clock but ours, and the ids.
"""

import time
from datetime import UTC, datetime

MICROSECOND = 1
MILLISECOND = 1_000
SECOND = 1_000_000

_WALL_AT_START = time.time_ns() // 1_000
_MONOTONIC_AT_START = time.monotonic_ns() // 1_000

# CLOCK_BOOTTIME keeps running while the machine sleeps; CLOCK_MONOTONIC does not, and a laptop
# that woke up would believe that its leases are fresh.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Seconds that only grow, also while the machine is suspended."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def store_micros() -> int:
    """The clock of the memory store: wall time at start, then steps that can't go backwards."""
    return _WALL_AT_START + time.monotonic_ns() // 1_000 - _MONOTONIC_AT_START


def wall() -> float:
    """What this machine believes the time to be; only to compare it with a store's."""
    return time.time()


def id_millis() -> int:
    """Milliseconds since 1970 for the time part of an id."""
    return time.time_ns() // 1_000_000


def from_micros(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / SECOND, UTC)


def to_micros(moment: datetime) -> int:
    return round(moment.timestamp() * SECOND)
