"""What the worker processes of a trial record, and the counts that are taken from it.

The counts know nothing of dibs or of the plan of a trial: they come from the records, and from what the store
returns at the end.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, pairwise
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


# -- dibs demo: runs, by the clock of the machine -----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    jobs: int
    succeeded: int
    lost: int
    ran_twice_at_once: int
    came_back_after_the_kill: int

    @property
    def is_good(self) -> bool:
        return self.lost == 0 and self.ran_twice_at_once == 0 and self.came_back_after_the_kill > 0


def count(enqueued: Iterable[UUID], succeeded: Iterable[UUID], logs: Sequence[ProcessLog]) -> Counts:
    """Count the jobs that the store has acknowledged, `enqueued`, by what became of them."""
    wanted, done = set(enqueued), set(succeeded)
    return Counts(
        jobs=len(wanted),
        succeeded=len(wanted & done),
        lost=len(wanted - (done & {record.job for record in _records(logs) if record.event == "ended"})),
        ran_twice_at_once=sum(map(_overlap, _runs(logs).values())),
        came_back_after_the_kill=len(_came_back(logs)),
    )


def _runs(logs: Iterable[ProcessLog]) -> Mapping[UUID, list[tuple[float, float]]]:
    """Return the start and the end of each run, by job."""
    runs: defaultdict[UUID, list[tuple[float, float]]] = defaultdict(list)
    for log in logs:
        ends = {record.token: record.at for record in log.records if record.event == "ended"}
        never = float("inf") if log.killed_at is None else log.killed_at
        for record in log.records:
            if record.event == "started":
                runs[record.job].append((record.at, ends.get(record.token, never)))
    return runs


def _overlap(runs: list[tuple[float, float]]) -> bool:
    return any(start < end for (_, end), (start, _) in pairwise(sorted(runs)))


def _came_back(logs: Sequence[ProcessLog]) -> set[UUID]:
    """Return the jobs that a killed process had claimed and not settled, and that were claimed later."""
    latest: defaultdict[UUID, int] = defaultdict(int)
    for record in _records(logs):
        latest[record.job] = max(latest[record.job], record.token)
    killed = (log for log in logs if log.killed_at is not None)
    held = chain.from_iterable(claims_in_hand(log.records).items() for log in killed)
    return {job for token, job in held if latest[job] > token}


def _records(logs: Iterable[ProcessLog]) -> Iterator[Record]:
    return chain.from_iterable(log.records for log in logs)


# -- dibs verify: claims, by the clock of the store ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the records say. The first four must be 0."""

    double_claims: int
    """Claims that began while another claim of the same job was held."""
    late_writes: int
    """Settlements and renewals that were accepted although a later claim had the job, or a second time."""
    tokens_not_growing: int
    """Later claims of a job without a greater token."""
    lost: int
    """Jobs that were acknowledged and never finished."""
    claims: int
    came_back: int
    """Jobs of killed or frozen processes that other processes then claimed."""
    refused: int
    """Settlements that were refused, because the claim was no longer held."""

    @property
    def is_good(self) -> bool:
        return not (self.double_claims or self.late_writes or self.tokens_not_growing or self.lost)


def judge(enqueued: Iterable[UUID], succeeded: Iterable[UUID], records: Sequence[Record]) -> Verdict:
    claims: defaultdict[UUID, list[Record]] = defaultdict(list)
    settled: defaultdict[UUID, list[int]] = defaultdict(list)
    for record in records:
        if record.event == "claimed":
            claims[record.job].append(record)
        elif record.event == "settled":
            settled[record.job].append(record.token)
    by_time = [sorted(of_one, key=_began) for of_one in claims.values()]
    return Verdict(
        double_claims=sum(_held_twice(of_one, settled) for of_one in by_time),
        late_writes=sum(_late(tokens, claims[job]) for job, tokens in settled.items())
        + sum(record.event == "wrote" and record.token < _greatest(claims[record.job]) for record in records),
        tokens_not_growing=sum(
            one.token >= next.token for of_one in by_time for one, next in pairwise(of_one)
        ),
        lost=len(set(enqueued) - set(succeeded)),
        claims=sum(map(len, claims.values())),
        came_back=sum(len(of_one) > 1 for of_one in by_time),
        refused=sum(record.event == "refused" for record in records),
    )


def _began(claim: Record) -> tuple[datetime, int]:
    assert claim.claimed_at is not None
    return claim.claimed_at, claim.token


def _held_twice(claims: Sequence[Record], settled: Mapping[UUID, Sequence[int]]) -> int:
    """Count claims that began before the lease of an earlier one ended, or after it had succeeded."""
    return sum(
        later.claimed_at < earlier.lease_until or earlier.token in settled.get(earlier.job, ())  # type: ignore[operator]
        for earlier, later in pairwise(claims)
    )


def _late(tokens: Sequence[int], claims: Sequence[Record]) -> int:
    return sum(token < _greatest(claims) for token in tokens) + len(tokens) - 1


def _greatest(claims: Sequence[Record]) -> int:
    return max((claim.token for claim in claims), default=0)
