"""What a worker and the processes of its isolated jobs say to each other: JSON, each behind its length."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dibs.jobs import payload
from dibs.jobs.job import Job, NewJob, not_a_new_job
from dibs.jobs.states import CancelledBy, Outcome, Raised, Snoozed, Succeeded
from dibs.worker.isolation.importing import Place

HEADER = 4  # bytes
LONGEST = 2**31


# -- from the worker ----------------------------------------------------------------------------


class Load(msgspec.Struct, tag=True):
    """The first thing a process hears: which app to import."""

    place: Place
    arguments: list[str]
    log_level: int


class Run(msgspec.Struct, tag=True):
    """Run this job. `asked_at` is read from a clock that both processes share."""

    job: Job
    asked_at: float


class Answer(msgspec.Struct, tag=True):
    """To a question: the jobs it asked for, if any, or the error it met, by the name of its class."""

    error: str | None = None
    message: str = ""
    jobs: list[Job] = []


class Stop(msgspec.Struct, tag=True):
    """Why the signal that follows is sent."""

    lost: bool
    cancel_reason: str | None
    timed_out: bool


class Leave(msgspec.Struct, tag=True):
    """There is nothing more to do."""


# -- from the process ---------------------------------------------------------------------------


class Ready(msgspec.Struct, tag=True):
    """The app is imported."""


class Unable(msgspec.Struct, tag=True):
    """The app can't be imported, and why."""

    reason: str


class Progress(msgspec.Struct, tag=True):
    fraction: float
    message: str | None


class Parents(msgspec.Struct, tag=True):
    """Which jobs were before this one, and what did they come to?"""


class Completed(msgspec.Struct, tag=True):
    """The handler settled its job in a transaction of its own, which may not be committed yet."""


class Ended(msgspec.Struct, tag=True):
    """The handler has ended; `outcome` names a class of `dibs.jobs.states`, `about` its fields."""

    outcome: str
    about: dict[str, Any]
    children: list[dict[str, Any]]


class Said(msgspec.Struct, tag=True):
    """A log record that nothing in the process was there to write down."""

    logger: str
    level: int
    text: str


ToChild = Load | Run | Answer | Stop | Leave
ToWorker = Ready | Unable | Progress | Parents | Completed | Ended | Said

read_in_child = msgspec.json.Decoder(ToChild).decode
read_in_worker = msgspec.json.Decoder(ToWorker).decode


def frame(message: ToChild | ToWorker) -> bytes:
    text = msgspec.json.encode(message)
    return len(text).to_bytes(HEADER, "big") + text


def length_of(header: bytes) -> int:
    """How long the message behind this header is; nothing of ours is ever that long."""
    length = int.from_bytes(header, "big")
    if length > LONGEST:
        raise ValueError(f"a message of {length:,} bytes: something else was written to our socket")
    return length


# -- outcomes and follow-up jobs ----------------------------------------------------------------


_OUTCOMES: dict[str, type[Any]] = {kind.__name__: kind for kind in (Succeeded, Raised, Snoozed, CancelledBy)}


def ended(outcome: Outcome, children: Sequence[NewJob], limit: int) -> Ended:
    """`BadRequest` where a follow-up job has no JSON form."""
    about = msgspec.to_builtins(outcome)
    return Ended(type(outcome).__name__, about, [_written(new, limit) for new in children])


def outcome_of(message: Ended) -> Outcome:
    outcome: Outcome = _OUTCOMES[message.outcome](**message.about)
    return outcome


def children_of(message: Ended) -> list[NewJob]:
    return [_read(fields) for fields in message.children]


def _written(new: NewJob, limit: int) -> dict[str, Any]:
    if not isinstance(new, NewJob):
        raise not_a_new_job(new)
    fields = {name: getattr(new, name) for name in new.__struct_fields__ if name != "_fresh"}
    if isinstance(new.delay, timedelta):
        fields["delay"] = new.delay.total_seconds()
    # Through text and back: what the arguments were in this process (models, dataclasses) ends here.
    read: dict[str, Any] = payload.decode(payload.encode(fields, f"the new {new.kind!r}", 2 * limit))
    return read


def _read(fields: dict[str, Any]) -> NewJob:
    run_at, slot = fields["run_at"], fields["slot"]
    return NewJob(
        **{
            **fields,
            "id": UUID(fields["id"]),
            "run_at": None if run_at is None else datetime.fromisoformat(run_at),
            "slot": tuple(slot) if isinstance(slot, list) else slot,
        }
    )
