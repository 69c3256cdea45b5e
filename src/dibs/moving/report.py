"""How a move is to be done, what it has done so far, and what it came to."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from dibs.clock import monotonic
from dibs.errors import BadRequest
from dibs.settings import Duration, span

Running = Literal["wait", "leave"]
Told = Callable[[int, int], None]  # how many jobs were moved, of how many

FIRST_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTaken:
    """A job that stayed where it was: a job of the target has its unique key."""

    id: UUID
    unique: str
    holder: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a move came to."""

    jobs: dict[str, int]
    """How many jobs were stored in the target, by state."""
    known: int
    """How many the target had already, by their ids."""
    refused: list[KeyTaken]
    queues: int
    """How many queues have a setting that was copied."""
    schedules: int
    """How many schedules have a last tick that was copied."""
    source: dict[str, int]
    """What the source holds now, by state."""
    target: dict[str, int]
    problems: list[str]
    """What does not add up, a sentence each; empty when everything is in the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a move would do."""

    jobs: dict[str, int]
    """How many jobs would be moved, by state; those that are on their way already are `departed`."""
    running: int
    staying: dict[str, int]
    """How many would stay, by queue: they wait in trains or for slots, and their queue is not paused."""
    queues: int
    schedules: int
    target: dict[str, int]


@dataclass(frozen=True, slots=True)
class Way:
    """How to go about it."""

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
        return monotonic() + span(self.timeout, what="timeout") / 1_000_000


@dataclass(slots=True)
class Log:
    """What was done so far."""

    source: UUID
    target: UUID
    total: int
    told: Told | None
    limit: int = FIRST_BATCH
    jobs: Counter[str] = field(default_factory=Counter)
    known: int = 0
    refused: dict[UUID, KeyTaken] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return self.jobs.total() + self.known

    def tell(self) -> None:
        if self.told is not None:
            self.told(self.done, max(self.total, self.done))
