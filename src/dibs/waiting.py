"""How `wait` looks at a job: often at first, then more patiently, until a deadline."""

from uuid import UUID

from dibs.clock import monotonic
from dibs.errors import NotFound
from dibs.jobs.ids import parse_id
from dibs.jobs.job import Job

QUICKEST_LOOK, SLOWEST_LOOK = 0.02, 0.5  # seconds between two looks


class Looks:
    """The looks of one call."""

    def __init__(self, id: UUID | str, timeout: float | None) -> None:
        self._id = parse_id(id)
        self._deadline = None if timeout is None else monotonic() + timeout
        self._timeout = timeout
        self._pause = QUICKEST_LOOK

    def over(self, job: Job | None) -> bool:
        if job is None:
            raise NotFound(self._id)
        if job.is_finished:
            return True
        if self._deadline is not None and monotonic() >= self._deadline:
            raise TimeoutError(f"job {job.id} is still {job.state} after {self._timeout} s")
        return False

    def pause(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 1.5, SLOWEST_LOOK)
        return pause if self._deadline is None else max(min(pause, self._deadline - monotonic()), 0)
