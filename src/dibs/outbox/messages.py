"""Messages of an outbox: what a caller may publish, and what a stored message is for one of its brokers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from dibs.clock import from_micros
from dibs.errors import BadRequest
from dibs.jobs import payload
from dibs.jobs.ids import new_id, parse_id
from dibs.jobs.states import Retry
from dibs.operations.scripts import Row
from dibs.settings import MIB

MOST_BROKERS = 100
LONGEST_ERROR = 10_000


class Status(StrEnum):
    """The state of a message for one broker. Example: `message.status == Status.published`"""

    pending = "pending"  # to be published, not tried yet
    processing = "processing"  # a relay holds it until its lock ends
    published = "published"
    failed = "failed"  # the last attempt failed; tried again once its back-off is over
    abandoned = "abandoned"  # out of attempts; kept until an operator redrives it


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of the messages for one broker. Example: `await outbox.standings()`"""

    broker: str
    counts: Mapping[str, int]
    """How many are in each status."""
    lag: float
    """For how many seconds the oldest unpublished message has been waiting; 0 if there is none."""


COLUMNS = (
    *("position", "message_id", "broker", "topic", "message_key", "payload", "headers", "status"),
    *("attempts", "max_attempts", "token", "locked_by", "locked_until", "available_at"),
    *("created_at", "published_at", "error"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message on its way to one broker; `id` is the same for all brokers. Example: `message.payload`"""

    id: UUID
    topic: str
    key: str | None
    payload: Any
    headers: Mapping[str, str]
    broker: str
    status: Status
    attempts: int
    max_attempts: int
    created_at: datetime
    available_at: datetime
    published_at: datetime | None
    error: str | None
    token: int | None
    locked_by: str | None
    locked_until: datetime | None
    position: int
    body: str
    """The payload as JSON text, as it was stored."""

    def stamps(self) -> dict[str, str]:
        """Return the headers that a broker gets: the caller's, and the id, key, token and time of dibs."""
        ours = {
            "dibs-id": str(self.id),
            "dibs-key": self.key,
            "dibs-token": None if self.token is None else str(self.token),
            "dibs-time": self.created_at.isoformat(),
        }
        return {**self.headers, **{name: value for name, value in ours.items() if value is not None}}


Messages = Message | Sequence[Message]


def message(row: Row) -> Message:
    """Return a stored row as a message."""
    return Message(
        id=UUID(row["message_id"]),
        topic=row["topic"],
        key=row["message_key"],
        payload=payload.decode(row["payload"]),
        headers=payload.decode(row["headers"]),
        broker=row["broker"],
        status=Status(row["status"]),
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        created_at=_time(row["created_at"]),
        available_at=_time(row["available_at"]),
        published_at=_optional_time(row["published_at"]),
        error=row["error"],
        token=row["token"],
        locked_by=row["locked_by"],
        locked_until=_optional_time(row["locked_until"]),
        position=row["position"],
        body=row["payload"],
    )


def _optional_time(value: int | datetime | None) -> datetime | None:
    return None if value is None else _time(value)


def _time(value: int | datetime) -> datetime:
    """Return a stored time: microseconds in SQLite, naive UTC in MySQL, the session's zone in PostgreSQL."""
    if isinstance(value, int):
        return from_micros(value)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# -- checks of what a caller passes ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message that was checked and can be stored."""

    id: UUID
    stored: Mapping[str, Any]
    brokers: Sequence[str]


def new_message(
    topic: str,
    value: Any,
    *,
    key: str | None,
    headers: Mapping[str, str] | None,
    brokers: Sequence[str],
    id: UUID | str | None,
    max_attempts: int,
) -> NewMessage:
    """Check what was passed to `publish`; `BadRequest` says what is wrong with it."""
    names = _broker_names(brokers)
    made = new_id() if id is None else parse_id(id, "message")
    stored = {
        "id": str(made),
        "topic": payload.check_name(topic, "topic"),
        "key": None if key is None else payload.check_name(key, "key"),
        "payload": payload.encode(value, "payload", MIB),
        "headers": payload.encode(_with_trace(_headers(headers)), "headers", MIB),
        "max_attempts": check_attempts(max_attempts),
    }
    return NewMessage(made, stored, [payload.check_name(name, "broker") for name in names])


def _broker_names(brokers: Sequence[str]) -> list[str]:
    given = [brokers] if isinstance(brokers, str) else brokers
    names = list(dict.fromkeys(given)) if isinstance(given, Collection) else []
    if not 0 < len(names) <= MOST_BROKERS:
        raise BadRequest(f"brokers={brokers!r}: name the 1 to {MOST_BROKERS} brokers that should get it")
    return names


def check_attempts(number: int) -> int:
    return payload.check_whole(number, "max_attempts", 1, payload.MOST_ATTEMPTS)


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(headers, Mapping | None):
        raise BadRequest(f"headers must be a mapping of names to strings, not {headers!r}")
    given = dict(headers or {})
    for name, value in given.items():
        payload.check_name(name, "a header's name")
        if not isinstance(value, str) or any(sign in value for sign in "\r\n\x00"):
            raise BadRequest(f"header {name!r} must be a string on one line, not {value!r}")
        if name.lower().startswith("dibs-"):
            raise BadRequest(f"header {name!r}: names that begin with 'dibs-' are given by dibs")
    return given


def _with_trace(headers: dict[str, str]) -> dict[str, str]:
    """Add the current trace context, unless the caller gave one."""
    if "traceparent" in headers:
        return headers
    try:
        from opentelemetry.propagate import inject
    except ImportError:
        return headers
    carrier: dict[str, str] = {}
    inject(carrier)
    return {**carrier, **headers}


def check_claimed(messages: Messages) -> list[Message]:
    """Return the messages as a list; refuse what `claim_batch` did not return."""
    if not isinstance(messages, Message | Iterable):
        raise BadRequest(f"{messages!r} is not a message: pass what claim_batch returned")
    claimed = [messages] if isinstance(messages, Message) else list(messages)
    for one in claimed:
        if not isinstance(one, Message):
            raise BadRequest(f"{one!r} is not a message: pass what claim_batch returned")
        if one.token is None:
            raise BadRequest(f"message {one.id} was never claimed: pass what claim_batch returned")
    return claimed


# -- a failed attempt -----------------------------------------------------------------------------


def after_failure(message: Message, policy: Retry, chance: float) -> tuple[Status, int]:
    """Return the status that a failed attempt leads to, and the delay before the next, in microseconds."""
    if policy.again and message.attempts < message.max_attempts:
        return Status.failed, policy.delay(message.attempts, chance)
    return Status.abandoned, 0


def error_text(error: Any) -> str:
    """Return an error as it is stored: its class and its message, or the text that was given."""
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return text.replace("\x00", "\\x00")[:LONGEST_ERROR].encode("utf-8", "replace").decode()
    return payload.check_text(error, "error", MIB)
