"""What an enqueue announces, and how often."""

from collections.abc import Sequence
from typing import Any

from dibs.clock import monotonic
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.operations.questions import hint_of

_KIND, _QUEUE = NEW_JOB_COLUMNS.index("kind"), NEW_JOB_COLUMNS.index("queue")

EVERY = 0.02  # seconds between two hints for one queue


def hints_for(jobs: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    """One hint per queue that these jobs, rows of `NEW_JOB_COLUMNS`, go to."""
    kinds: dict[str, set[str]] = {}
    for job in jobs:
        kinds.setdefault(job[_QUEUE], set()).add(job[_KIND])
    return {queue: hint_of(queue, kinds[queue]) for queue in sorted(kinds)}


class Hints:
    """Hints of one process: the first for a queue at once, then at most every 20 ms.

    On PostgreSQL a notification takes a lock of the whole server at commit, so there is never one per job.
    What falls into the gap is found by the second look that a woken worker takes.
    """

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def due(self, jobs: Sequence[tuple[Any, ...]], *, always: bool = False) -> list[str]:
        now = monotonic()
        hints = hints_for(jobs)
        due = [queue for queue in hints if always or now - self._told.get(queue, -1.0) >= EVERY]
        self._told |= dict.fromkeys(due, now)
        return [hints[queue] for queue in due]
