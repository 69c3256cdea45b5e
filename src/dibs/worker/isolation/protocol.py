"""The messages between a worker and the processes of its isolated jobs: JSON, each behind its length."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dibs.jobs import payload
from dibs.jobs.job import Job, NewJob, not_a_new_job
from dibs.jobs.states import CancelledBy, Outcome, Raised, Snoozed, Succeeded
from dibs.worker.isolation.importing import AppLocation

HEADER = 4  # bytes
LONGEST = 2**31


# -- from the worker ----------------------------------------------------------------------------


class LoadApp(msgspec.Struct, tag=True):
    """The first message: which app to import."""

    app: AppLocation
    arguments: list[str]
    log_level: int


class RunJob(msgspec.Struct, tag=True):
    """A job to run. `asked_at` is read from a clock that both processes share."""

    job: Job
    asked_at: float


class Reply(msgspec.Struct, tag=True):
    """The reply to a request: the jobs it asked for, if any, or its error, by the name of the class."""

    error: str | None = None
    message: str = ""
    jobs: list[Job] = []


class StopReason(msgspec.Struct, tag=True):
    """The reason for the signal that follows."""

    lost: bool
    cancel_reason: str | None
    timed_out: bool


class EndProcess(msgspec.Struct, tag=True):
    """The last message: there are no more jobs."""


# -- from the process ---------------------------------------------------------------------------


class AppLoaded(msgspec.Struct, tag=True):
    """The app is imported."""


class LoadFailed(msgspec.Struct, tag=True):
    """The app can't be imported, and why."""

    reason: str


class ProgressNote(msgspec.Struct, tag=True):
    """A request to note the progress of the job."""

    fraction: float
    message: str | None


class ParentsRequest(msgspec.Struct, tag=True):
    """A request for the parents of the job."""


class JobCompleted(msgspec.Struct, tag=True):
    """The handler settled its job in a transaction of its own, which may not be committed yet."""


class HandlerEnded(msgspec.Struct, tag=True):
    """The end of a handler; `outcome` names a class of `dibs.jobs.states`, `about` its fields."""

    outcome: str
    about: dict[str, Any]
    children: list[dict[str, Any]]


class LogMessage(msgspec.Struct, tag=True):
    """A log record for which the process has no handler."""

    logger: str
    level: int
    text: str


ToChild = LoadApp | RunJob | Reply | StopReason | EndProcess
ToWorker = AppLoaded | LoadFailed | ProgressNote | ParentsRequest | JobCompleted | HandlerEnded | LogMessage

read_in_child = msgspec.json.Decoder(ToChild).decode
read_in_worker = msgspec.json.Decoder(ToWorker).decode


def frame(message: ToChild | ToWorker) -> bytes:
    text = msgspec.json.encode(message)
    return len(text).to_bytes(HEADER, "big") + text


def length_of(header: bytes) -> int:
    """Return the length of the message behind this header; refuse one that no message has."""
    length = int.from_bytes(header, "big")
    if length > LONGEST:
        raise ValueError(f"a message of {length:,} bytes: something else was written to our socket")
    return length


# -- outcomes and follow-up jobs ----------------------------------------------------------------


_OUTCOMES: dict[str, type[Any]] = {kind.__name__: kind for kind in (Succeeded, Raised, Snoozed, CancelledBy)}


def handler_ended(outcome: Outcome, children: Sequence[NewJob], limit: int) -> HandlerEnded:
    """Make the message; `BadRequest` where a follow-up job has no JSON form."""
    about = msgspec.to_builtins(outcome)
    return HandlerEnded(type(outcome).__name__, about, [_to_fields(new, limit) for new in children])


def outcome_of(message: HandlerEnded) -> Outcome:
    outcome: Outcome = _OUTCOMES[message.outcome](**message.about)
    return outcome


def children_of(message: HandlerEnded) -> list[NewJob]:
    return [_from_fields(fields) for fields in message.children]


def _to_fields(new: NewJob, limit: int) -> dict[str, Any]:
    if not isinstance(new, NewJob):
        raise not_a_new_job(new)
    fields = {name: getattr(new, name) for name in new.__struct_fields__ if name != "_fresh"}
    if isinstance(new.delay, timedelta):
        fields["delay"] = new.delay.total_seconds()
    # Through text and back: what the arguments were in this process (models, dataclasses) ends here.
    read: dict[str, Any] = payload.decode(payload.encode(fields, f"the new {new.kind!r}", 2 * limit))
    return read


def _from_fields(fields: dict[str, Any]) -> NewJob:
    run_at, slot = fields["run_at"], fields["slot"]
    return NewJob(
        **{
            **fields,
            "id": UUID(fields["id"]),
            "run_at": None if run_at is None else datetime.fromisoformat(run_at),
            "slot": tuple(slot) if isinstance(slot, list) else slot,
        }
    )
