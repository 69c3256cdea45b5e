"""The life of a job: its states, what may follow what, and what a finished attempt leads to.

Engines apply these rules under a guard. Three they repeat in SQL and Lua, because only the store knows the
moment: what a sweep makes of an expired lease (`swept`), that a job asked to cancel never goes back to
waiting (`put_back`), and that a job of a slot waits as `blocked`. The state machine test compares them. Which
job of a train or slot may go is decided in gates.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, assert_never

from msgspec import Struct, json

from dibs.clock import SECOND
from dibs.errors import BadRequest

SlotPolicy = Literal["wait", "replace", "preempt", "drop"]
OnConflict = Literal["keep", "replace"]
TrainPolicy = Literal["advance", "hold"]  # what becomes of a train when its head failed or was cancelled
Isolation = Literal["process"]


class JobState(StrEnum):
    """Where a job is in its life; each is also its name. Example: `JobState.ready == "ready"`"""

    scheduled = "scheduled"  # due later: delayed, snoozed, or waiting out a back-off
    blocked = "blocked"  # behind its train, its slot or a parent
    ready = "ready"  # claimable now
    running = "running"  # leased to one worker
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"


WAITING = frozenset({JobState.scheduled, JobState.blocked, JobState.ready})
FINISHED = frozenset({JobState.succeeded, JobState.failed, JobState.cancelled})

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.scheduled: frozenset({JobState.ready, JobState.blocked, JobState.cancelled}),
    JobState.blocked: frozenset({JobState.ready, JobState.scheduled, JobState.cancelled}),
    JobState.ready: frozenset(  # scheduled: its time was replaced
        {JobState.running, JobState.blocked, JobState.scheduled, JobState.cancelled}
    ),
    JobState.running: frozenset({JobState.ready, JobState.scheduled, JobState.blocked}) | FINISHED,
    JobState.succeeded: frozenset(),
    JobState.failed: frozenset({JobState.ready, JobState.blocked}),  # only by a person's retry
    JobState.cancelled: frozenset({JobState.ready, JobState.blocked}),  # only by a person's retry
}

WORKER_DIED = "worker died"
LONGEST_PAUSE = 100 * 366 * 24 * 3600  # seconds: every store can keep a time that far away


# -- How long to wait before the next attempt ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retry:
    """The back-off: `min(cap, base ** attempts)`, give or take the jitter. Example: `Retry.fixed(30)`"""

    base: float
    cap: float
    jitter: float
    again: bool = True

    def __post_init__(self) -> None:
        _seconds(self.base, "base")
        _seconds(self.cap, "cap")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise BadRequest(f"jitter={self.jitter!r} must be a number from 0 to 1: a part of the pause")

    @classmethod
    def exponential(
        cls, base: float | timedelta = 2, cap: float | timedelta = 3600, jitter: float = 0.1
    ) -> "Retry":
        """Return a back-off that grows with every attempt, up to `cap` seconds."""
        return cls(base=_seconds(base, "base"), cap=_seconds(cap, "cap"), jitter=jitter)

    @classmethod
    def fixed(cls, seconds: float | timedelta) -> "Retry":
        """Return a back-off with the same pause after every attempt."""
        pause = _seconds(seconds, "seconds")
        return cls(base=max(pause, 1), cap=pause, jitter=0)

    @classmethod
    def never(cls) -> "Retry":
        """Return a back-off that retries nothing: the first failure is the last."""
        return cls(base=0, cap=0, jitter=0, again=False)

    def delay(self, attempts: int, chance: float) -> int:
        """Return microseconds to wait after `attempts`; `chance` in 0…1 selects a point in the jitter."""
        try:
            seconds = min(self.cap, float(self.base) ** attempts)
        except OverflowError:
            seconds = self.cap
        return round(min(seconds * (1 + self.jitter * (2 * chance - 1)), LONGEST_PAUSE) * SECOND)


# -- What an attempt may end with ---------------------------------------------------------------


class Succeeded(Struct, frozen=True, gc=False):
    result: str | None  # JSON text


class Raised(Struct, frozen=True, gc=False):
    error: dict[str, Any]
    retry: bool = True


class Snoozed(Struct, frozen=True, gc=False):
    delay: int


class Released(Struct, frozen=True, gc=False):
    pass


class CancelledBy(Struct, frozen=True, gc=False):
    reason: str | None


Outcome = Succeeded | Raised | Snoozed | Released | CancelledBy


class Settlement(Struct, frozen=True, gc=False):
    """What a finished attempt turns its job into. Only `settle` builds one.

    `settled_as` names the outcome in the store, so that the same settlement sent twice can be
    distinguished from another one. `delay` is added to the store's clock by the store; None keeps `run_at`.
    """

    state: JobState
    settled_as: str
    delay: int | None = None
    refund: bool = False
    result: str | None = None
    error: dict[str, Any] | None = None
    message: str | None = None


_SUCCEEDED = JobState.succeeded  # an enum takes its time to find its members


def settle(attempts: int, max_attempts: int, outcome: Outcome, retry: Retry, chance: float) -> Settlement:
    """Return what the job becomes after this outcome. No clock, no store: a value."""
    match outcome:
        case Succeeded(result):
            return Settlement(_SUCCEEDED, "succeeded", result=result)
        case Raised(error, retry=True) if retry.again and attempts < max_attempts:
            delay = retry.delay(attempts, chance)
            return Settlement(_waiting(delay), "retried", delay=delay, error=error)
        case Raised(error):
            return Settlement(JobState.failed, "failed", error=error)
        case Snoozed(delay):
            return Settlement(_waiting(delay), "snoozed", delay=delay, refund=True)
        case Released():
            return Settlement(JobState.ready, "released", refund=True)
        case CancelledBy(reason):
            return Settlement(JobState.cancelled, "cancelled", message=reason)
        case _:
            assert_never(outcome)


def put_back(state: JobState, *, cancel_asked: bool) -> JobState:
    """Return the state of a job that is given back; one that was asked to cancel never waits again."""
    return JobState.cancelled if cancel_asked and state not in FINISHED else state


def swept(attempts: int, max_attempts: int, *, cancel_asked: bool) -> JobState:
    """Return the state of a running job after its lease ran out."""
    if cancel_asked:
        return JobState.cancelled
    return JobState.ready if attempts < max_attempts else JobState.failed


def swept_state(job: Mapping[str, Any]) -> JobState:
    """Return the same of a row."""
    return swept(job["attempts"], job["max_attempts"], cancel_asked=job["cancel_reason"] is not None)


def errors_with_death(job: Mapping[str, Any], at: datetime) -> str:
    """Return the job's errors, with the one for a lease that ran out."""
    death = {
        "attempt": job["attempts"],
        "token": job["token"],
        "at": at,
        "worker": job["worker"],
        "type": "LeaseLost",
        "message": WORKER_DIED,
    }
    return json.encode([*json.decode(job["errors"]), death]).decode()


def by_time(run_at: int, now: int) -> JobState:
    """Return the state of a waiting job that no gate and no parent blocks."""
    return JobState.ready if run_at <= now else JobState.scheduled


# -- Pipelines: what the end of a job means to those after it (ADR 18) ---------------------------


def doomed_by(id: object, state: str | None) -> str:
    """Return the reason of a cancelled job: its parent ended in this state, or was deleted (None)."""
    words = {JobState.failed: "failed", JobState.cancelled: "was cancelled", None: "was deleted"}
    return f"job {id} before it {words[None if state is None else JobState(state)]}"


def _seconds(duration: float | timedelta, what: str) -> float:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not _is_number(seconds) or not 0 <= seconds <= LONGEST_PAUSE:  # nor NaN, which compares to nothing
        raise BadRequest(f"{what}={duration!r}: give seconds or a timedelta, from 0 to a hundred years")
    return seconds


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _waiting(delay: int) -> JobState:
    return JobState.scheduled if delay > 0 else JobState.ready
