"""Where a worker's last claims ended, so that the next one goes on from there (ADR 21).

A claim that looks from the beginning of a line steps over the remains of every job that was claimed there,
for as long as the store can't clear them away: while somebody holds an old snapshot, these are ever more. But
what is new may stand before a mark: an urgent job, one that comes back for another attempt, one whose enqueue
was committed late. So marks are soon forgotten: one part in `SHARE` of the time goes into claims without, and
no job waits longer than `LONGEST` for one.
"""

from collections.abc import Sequence

from dibs.clock import monotonic
from dibs.jobs.job import Job
from dibs.operations.questions import Mark

SHARE = 10
LONGEST = 1.0  # seconds


class Marks:
    """The last job claimed in each line, while that is worth knowing."""

    def __init__(self, *, pay: bool) -> None:
        self._pay = pay
        self._lines: dict[tuple[str, str], Mark] = {}
        self._until = 0.0

    def get(self) -> list[Mark]:
        """What the next claim may be told; nothing when it is time to look from the beginning."""
        return list(self._lines.values()) if monotonic() < self._until else []

    def ended(self, jobs: Sequence[Job], *, full: bool, told: Sequence[Mark], took: float) -> None:
        """A claim took these jobs, in this order, in so many seconds; `full` when there may be more."""
        if not full or not self._pay:
            self._until = 0.0
            return
        if not told:
            self._lines, self._until = {}, monotonic() + min(SHARE * took, LONGEST)
        for line, job in {(job.queue, job.kind): job for job in jobs}.items():
            self._lines[line] = Mark(*line, job.priority, job.run_at, job.id)
