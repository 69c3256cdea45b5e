"""How a move is to be done, what it has done so far, and its result."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Self
from uuid import UUID

from dibs.clock import SECOND, monotonic
from dibs.errors import BadRequest
from dibs.settings import Duration, span

Running = Literal["wait", "leave"]
Told = Callable[[int, int], None]  # how many jobs were moved, of how many

FIRST_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmovedJob:
    """A job that stayed where it was: a job of the target has its unique key."""

    id: UUID
    unique: str
    holder: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """The result of a move."""

    jobs: dict[str, int]
    """How many jobs were stored in the target, by state."""
    known: int
    """How many the target had already, by their ids."""
    refused: list[UnmovedJob]
    queues: int
    """How many queues have a setting that was copied."""
    schedules: int
    """How many schedules have a last tick that was copied."""
    source: dict[str, int]
    """What the source holds now, by state."""
    target: dict[str, int]
    problems: list[str]
    """What does not add up, a sentence each; empty when everything is in the target."""

    def without_lock(self) -> Self:
        """Return the report without the job of the target that was the lock of this move."""
        return replace(self, target={**self.target, "running": self.target["running"] - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePreview:
    """What a move would do."""

    jobs: dict[str, int]
    """How many jobs would be moved, by state; jobs that are on their way already are `departed`."""
    running: int
    staying: dict[str, int]
    """How many would stay, by queue: they wait in trains or for slots, and their queue is not paused."""
    queues: int
    schedules: int
    target: dict[str, int]


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """What to do about running jobs, and the function that is called with the progress."""

    running: Running
    timeout: Duration | None
    told: Told | None

    def __post_init__(self) -> None:
        if self.running not in ("wait", "leave"):
            raise BadRequest(f"running={self.running!r} is unknown: use 'wait' or 'leave'")
        if self.timeout is not None:
            span(self.timeout, what="timeout")

    def deadline(self) -> float:
        if self.timeout is None:
            return float("inf")
        return monotonic() + span(self.timeout, what="timeout") / SECOND


@dataclass(slots=True)
class MoveProgress:
    """What a move has done so far."""

    source: UUID
    target: UUID
    total: int
    told: Told | None
    limit: int = FIRST_BATCH
    jobs: Counter[str] = field(default_factory=Counter)
    known: int = 0
    refused: dict[UUID, UnmovedJob] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return self.jobs.total() + self.known

    def report(self) -> None:
        if self.told is not None:
            self.told(self.done, max(self.total, self.done))
