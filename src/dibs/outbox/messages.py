"""The nouns of the outbox: a message, as one of its target brokers sees it, and the states it passes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from dibs.clock import from_micros
from dibs.jobs import payload
from dibs.operations.scripts import Row


class Status(StrEnum):
    """Where a message of an outbox stands, for one broker."""

    pending = "pending"  # to be published, not tried yet
    processing = "processing"  # a relay holds it until its lock ends
    published = "published"
    failed = "failed"  # tried in vain; tried again once its back-off is over
    abandoned = "abandoned"  # tried as often as allowed; kept until somebody redrives it


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the messages for one broker have come."""

    broker: str
    counts: Mapping[str, int]
    """How many are in each status."""
    lag: float
    """For how many seconds the oldest unpublished one has been waiting; 0 if there is none."""


COLUMNS = (
    *("position", "message_id", "broker", "topic", "message_key", "payload", "headers", "status"),
    *("attempts", "max_attempts", "token", "locked_by", "locked_until", "available_at"),
    *("created_at", "published_at", "error"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message on its way to one broker; `id` is the same for all its brokers and every repetition."""

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
        """What travels with the message, as headers: yours, and those by which consumers know it."""
        ours = {
            "dibs-id": str(self.id),
            "dibs-key": self.key,
            "dibs-token": None if self.token is None else str(self.token),
            "dibs-time": self.created_at.isoformat(),
        }
        return {**self.headers, **{name: value for name, value in ours.items() if value is not None}}


def message(row: Row) -> Message:
    """A stored row as a message."""
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
        created_at=_sure(row["created_at"]),
        available_at=_sure(row["available_at"]),
        published_at=_moment(row["published_at"]),
        error=row["error"],
        token=row["token"],
        locked_by=row["locked_by"],
        locked_until=_moment(row["locked_until"]),
        position=row["position"],
        body=row["payload"],
    )


def _moment(value: int | datetime | None) -> datetime | None:
    return None if value is None else _sure(value)


def _sure(value: int | datetime) -> datetime:
    """Microseconds in SQLite, UTC without a zone in MySQL, the session's zone in PostgreSQL."""
    if isinstance(value, int):
        return from_micros(value)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
