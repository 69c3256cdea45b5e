"""The nouns: a `Job` as the store has it, a `NewJob` on its way there, a `JobError` of an attempt."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Self, get_args, get_type_hints
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr, replace

from dibs.errors import BadRequest
from dibs.jobs.ids import new_id
from dibs.jobs.payload import decode
from dibs.jobs.states import FINISHED, JobState, OnConflict, SlotPolicy, TrainPolicy
from dibs.settings import Duration


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """Why one attempt failed. Example: `[error.message for error in job.errors]`"""

    attempt: int
    token: int
    at: datetime
    worker: str | None
    type: str
    message: str
    traceback: str | None = None


# Neither can be part of a cycle, and a hundred thousand of them would keep the collector busy.
class Job(msgspec.Struct, frozen=True, gc=False):
    """One piece of work as it was when read; yours to keep. Example: `(await app.get(job.id)).state`"""

    id: UUID
    kind: str
    queue: str
    args: dict[str, Any]
    priority: int
    state: JobState
    attempts: int
    max_attempts: int
    run_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    token: int | None = None
    lease_until: datetime | None = None
    train: str | None = None
    slot: str | None = None
    is_current: bool = False
    unique: str | None = None
    pipeline_id: UUID | None = None
    parent_id: UUID | None = None
    progress: float = 0.0
    message: str | None = None
    result: Any = None
    errors: list[JobError] = []
    tags: list[str] = []
    meta: dict[str, Any] = {}
    is_new: bool = False

    def __repr__(self) -> str:
        tries = f"attempt {self.attempts} of {self.max_attempts}"
        return f"<Job {self.id} {self.kind!r}: {self.state}, {tries}>"

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED


# The columns of a job, in the order in which every engine returns them.
JOB_COLUMNS = (
    *("id", "kind", "queue", "args", "priority", "state", "attempts", "max_attempts"),
    *("run_at", "enqueued_at", "claimed_at", "finished_at", "worker", "token", "lease_until"),
    *("train", "slot", "unique_key", "pipeline_id", "parent_id", "progress", "message"),
    *("result", "errors", "tags", "meta"),
)


class StoredJob(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """Everything a store keeps of a job: what `dibs move` transfers to another one, as JSON text.

    A new column belongs here, and nowhere else, for it to be moved. One that is forgotten is a test that
    fails: nothing a store keeps is dropped in silence.
    """

    id: UUID
    kind: str
    queue: str
    args: str
    priority: int
    state: str
    max_attempts: int
    run_at: datetime
    enqueued_at: datetime
    attempts: int = 0
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    token: int | None = None
    lease_until: datetime | None = None
    train: str | None = None
    slot: str | None = None
    on_cancelled: str = "advance"
    on_failed: str = "advance"
    unique_key: str | None = None
    pipeline_id: UUID | None = None
    parent_id: UUID | None = None
    progress: float = 0.0
    message: str | None = None
    result: str | None = None
    errors: str = "[]"
    tags: str = "[]"
    meta: str = "{}"
    cancel_reason: str | None = None
    settled_token: int | None = None
    settled_as: str | None = None
    position: int | None = None
    slot_policy: str | None = None
    slot_limit: int | None = None
    unique_until: datetime | None = None

    @property
    def is_gated(self) -> bool:
        """Whether it is unfinished and has a train or a slot."""
        return not self.is_finished and (self.train is not None or self.slot is not None)

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    @property
    def own_key(self) -> str | None:
        """The unique key that it needs for itself; one that has finished needs none."""
        return None if self.is_finished else self.unique_key


# Each column that a store keeps, with the type of its values where it has one.
STORED_TYPES: dict[str, type] = {
    name: next(type for type in (*get_args(hint), hint) if type is not NoneType)
    for name, hint in get_type_hints(StoredJob).items()
}

_write_stored = msgspec.json.Encoder().encode
_read_stored = msgspec.json.Decoder(StoredJob).decode


def stored_text(row: Mapping[str, Any]) -> str:
    """Return a row as the text that is moved; a column that `StoredJob` doesn't know is an error."""
    return _write_stored(StoredJob(**row)).decode()


def read_stored(text: str) -> StoredJob:
    return _read_stored(text)


# -- Jobs that come from another store: which are new, and the position of each in its train ---------


def sorted_out(
    jobs: Sequence[StoredJob], holders: dict[Any, UUID]
) -> tuple[list[dict[str, Any]], list[StoredJob]]:
    """Return (an answer for each, the new ones); `holders` are the jobs that have an id or a key."""
    answers, new = [], []
    for job in jobs:
        holder = holders.get(job.id) or holders.get(job.own_key)
        answers.append({"id": job.id, "holder": holder or job.id, "is_new": holder is None})
        if holder is None:
            new.append(job)
            holders |= {job.id: job.id} | ({} if job.own_key is None else {job.own_key: job.id})
    return answers, new


def by_train(jobs: Iterable[StoredJob]) -> dict[str, list[StoredJob]]:
    """Return the jobs that wait in trains, of each train in the order of their positions."""
    trains: dict[str, list[StoredJob]] = {}
    for job in sorted(jobs, key=lambda job: job.position or 0):
        if job.is_gated and job.train is not None and job.position is not None:
            trains.setdefault(job.train, []).append(job)
    return trains


def placed(jobs: Sequence[StoredJob], last: Mapping[str, int]) -> list[StoredJob]:
    """Return the jobs; on these trains behind the last position, in the order of their old ones."""
    coming = {name: waiting for name, waiting in by_train(jobs).items() if name in last}
    places = {job.id: last[name] + nth for name in coming for nth, job in enumerate(coming[name], 1)}
    return [replace(job, position=places.get(job.id, job.position)) for job in jobs]


# -- New jobs -------------------------------------------------------------------------------------

# What an enqueue sends to the store for each job, in this order.
NEW_JOB_COLUMNS = (
    *("id", "kind", "queue", "args", "priority", "run_at", "delay", "max_attempts"),
    *("unique_key", "on_cancelled", "on_failed", "pipeline_id", "parent_id", "tags", "meta"),
    *("train", "slot", "slot_policy", "slot_limit", "unique_for", "replaces"),
)

STATES = {state.value: state for state in JobState}
_read_errors = msgspec.json.Decoder(list[JobError]).decode


def job_from_row(row: Mapping[str, Any], *, is_new: bool = False, is_current: bool | None = None) -> Job:
    """Return a fresh Job from a row of `JOB_COLUMNS`; its JSON is decoded here and nowhere else.

    Without `is_current` a running job of a slot is current and no other: so it is with what was just claimed.
    """
    return Job(  # by position, in the order of its fields: by name it takes twice as long
        row["id"],
        row["kind"],
        row["queue"],
        decode(row["args"]),
        row["priority"],
        STATES[row["state"]],
        row["attempts"],
        row["max_attempts"],
        row["run_at"],
        row["enqueued_at"],
        row["claimed_at"],
        row["finished_at"],
        row["worker"],
        row["token"],
        row["lease_until"],
        row["train"],
        row["slot"],
        row["slot"] is not None and row["state"] == JobState.running if is_current is None else is_current,
        row["unique_key"],
        row["pipeline_id"],
        row["parent_id"],
        progress_of(row),
        row["message"],
        None if (result := row["result"]) is None else decode(result),
        [] if (errors := row["errors"]) == "[]" else _read_errors(errors),
        [] if (tags := row["tags"]) == "[]" else decode(tags),
        {} if (meta := row["meta"]) == "{}" else decode(meta),
        is_new,
    )


def progress_of(row: Mapping[str, Any]) -> float:
    """Return how far a job got; one that succeeded is all done, whatever its handler reported last."""
    return 1.0 if row["state"] == JobState.succeeded else row["progress"]


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to be enqueued. Its id is made with it: enqueueing it again stores nothing new.

    What is left out is taken from the kind's registration where the enqueuer has one.
    Example: `await app.enqueue(NewJob("send_receipt", args={"order_id": 42}))`"""

    kind: str
    args: Mapping[str, Any] | None = None
    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: Duration | None = None
    max_attempts: int | None = None
    train: str | None = None
    slot: str | tuple[Any, ...] | None = None
    slot_policy: SlotPolicy | None = None
    slot_limit: int | None = None
    unique: str | None = None
    unique_for: Duration | None = None
    on_conflict: OnConflict | None = None
    pipeline_id: UUID | str | None = None
    tags: Sequence[str] = ()
    meta: Mapping[str, Any] | None = None
    on_cancelled: TrainPolicy | None = None
    on_failed: TrainPolicy | None = None
    id: UUID = None  # type: ignore[assignment]
    _own_gate: bool = False  # the caller chose train= or slot=, if only to have none
    _own_unique: bool = False  # and the same of unique=
    _fresh: bool = False  # the last: a copy is made of all that stands before it

    def __post_init__(self) -> None:
        if self.id is None:
            key = self.train or self.slot or self.unique
            force_setattr(self, "id", new_id(key if isinstance(key, str) else None))
            force_setattr(self, "_fresh", True)

    def __copy__(self) -> Self:
        """Copy the job with its id; neither a copy nor an unpickled job counts as fresh."""
        return type(self)(*self._values())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._values()

    def take_fresh(self) -> bool:
        """Return True the first time: this id can't have been stored yet, so the store need not check."""
        fresh = self._fresh
        force_setattr(self, "_fresh", False)
        return fresh

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "_fresh")


def not_a_new_job(thing: Any) -> BadRequest:
    """Return the error for enqueueing anything but a `NewJob`."""
    if isinstance(thing, Iterable) and not isinstance(thing, str | bytes | Mapping):
        name = type(thing).__name__
        return BadRequest(f"can't enqueue a {name}: pass its jobs one by one, with a star: (*jobs)")
    return BadRequest(f"can't enqueue {thing!r}: pass NewJob(…) or task.new(…)")
