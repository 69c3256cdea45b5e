"""What the worker processes of a trial do alike, what they record about their claims, and how it is read."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec

from dibs.app.claims import SyncClaim
from dibs.clock import monotonic

RecordedEvent = Literal["waiting", "claimed", "started", "ended", "settled", "wrote", "refused"]


class TrialOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What all worker processes of a trial have in common; times are seconds."""

    queue: str
    kind: str
    lease: float
    batch: int
    longest_work: float
    seed: int
    renews: bool
    """Whether an old lease is renewed before a job begins, so that a slow machine makes no run overlap."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What happened to a claim, when (the machine's monotonic clock), and the store's times of the claim."""

    event: RecordedEvent
    at: float
    job: UUID = UUID(int=0)
    token: int = 0
    claimed_at: datetime | None = None
    lease_until: datetime | None = None


class Recorder:
    """A file to which records are appended, each in one write: what was written survives kill -9."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: RecordedEvent, claim: SyncClaim) -> None:
        job = claim.job
        self.write(Record(event, monotonic(), job.id, claim.token, job.claimed_at, job.lease_until))

    def write(self, record: Record) -> None:
        os.write(self._file, msgspec.json.encode(record) + b"\n")


class RecordFile:
    """A growing file of records, read in whole lines: a kill may have torn the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.records: list[Record] = []
        self.settled = 0

    def read(self) -> list[Record]:
        """Return all records so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            new = [_decode(line) for line in whole.splitlines()]
            self.records += new
            self.settled += sum(record.event == "settled" for record in new)
        return self.records


_decode = msgspec.json.Decoder(Record).decode


@dataclass(frozen=True, slots=True)
class ProcessLog:
    """All that one process recorded; `killed_at` is the latest time at which it can have been alive."""

    records: list[Record]
    killed_at: float | None = None


def claims_in_hand(records: Iterable[Record]) -> dict[int, UUID]:
    """Return token and job of each claim of one process that is not over."""
    claims: dict[int, UUID] = {}
    for record in records:
        if record.event == "claimed":
            claims[record.token] = record.job
        elif record.event in ("settled", "refused"):
            claims.pop(record.token, None)
    return claims
