"""Refused writes: what a claim tried after it had lost its job, noted where it is refused."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from dibs.operations.scripts import Script, Step

MOST_KEPT = 20  # of a job


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A write of a claim that no longer held the job: it changed nothing."""

    at: datetime
    """By the store's clock."""
    worker: str | None
    token: int
    tried: str
    """As what it was to be settled (`succeeded`, `retried` …), or `renew` or `progress`."""


class LateWrite(NamedTuple):
    """A write to be recorded as refused."""

    job: UUID
    token: int
    worker: str | None
    tried: str


def record_refusals(writes: Iterable[LateWrite]) -> Script[None]:
    """Record these with their jobs, if they are still there; one that is repeated only once."""
    for write in writes:
        yield Step("refuse", write._asdict())


def refusals(id: UUID) -> Script[list[Refusal]]:
    """Return the refused writes of a job, oldest first."""
    rows = yield Step("refusals", {"job": id})
    found = [
        Refusal(at=row["refused_at"], worker=row["worker"], token=row["token"], tried=row["tried"])
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.at, one.token))


def forget_refusals() -> Script[None]:
    """Remove what was recorded of jobs that are gone."""
    yield Step("forget_refusals", {})
