"""What the processes of the demo write down about themselves, and how it is counted.

Nothing here asks how the run was meant to go: every number comes from the records, or from what
the store answers at the end.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec

from dibs.clock import monotonic

Event = Literal["waiting", "claimed", "started", "ended", "settled", "refused"]
QUEUE = "demo"
NOBODY = UUID(int=0)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One line: what happened, when (the machine's monotonic clock), to which claim."""

    event: Event
    at: float
    job: UUID
    token: int


class Recorder:
    """Appends records to a file, each in one write: what was written survives kill -9."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: Event, job: UUID = NOBODY, token: int = 0) -> None:
        line = msgspec.json.encode(Record(event, monotonic(), job, token))
        os.write(self._file, line + b"\n")


class Tail:
    """Reads a growing file of records, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.records: list[Record] = []
        self.settled = 0

    def look(self) -> list[Record]:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            new = [_read_record(line) for line in whole.splitlines()]
            self.records += new
            self.settled += sum(record.event == "settled" for record in new)
        return self.records


_read_record = msgspec.json.Decoder(Record).decode


@dataclass(frozen=True, slots=True)
class Log:
    """All that one worker process recorded; `killed_at` is the latest moment it can have lived."""

    worker: str
    records: Sequence[Record]
    killed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One worker at one job, from start to end."""

    token: int
    start: float
    end: float


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


def count(enqueued: Iterable[UUID], succeeded: Iterable[UUID], logs: Sequence[Log]) -> Counts:
    """`enqueued` were acknowledged by the store, `succeeded` is what it says at the end."""
    wanted, done = set(enqueued), set(succeeded)
    return Counts(
        jobs=len(wanted),
        succeeded=len(wanted & done),
        lost=len(wanted - (done & worked_to_the_end(logs))),
        ran_twice_at_once=len(run_twice_at_once(logs)),
        came_back_after_the_kill=len(came_back(logs)),
    )


def worked_to_the_end(logs: Iterable[Log]) -> set[UUID]:
    return {record.job for log in logs for record in log.records if record.event == "ended"}


def run_twice_at_once(logs: Iterable[Log]) -> set[UUID]:
    """Jobs that two runs, of whatever workers, had in hand at the same moment."""
    by_job: defaultdict[UUID, list[Run]] = defaultdict(list)
    for log in logs:
        for job, run in _runs(log):
            by_job[job].append(run)
    return {job for job, runs in by_job.items() if _overlap(runs)}


def came_back(logs: Sequence[Log]) -> set[UUID]:
    """Jobs that a killed worker had claimed and not settled, and that were claimed again later."""
    latest = _latest_tokens(logs)
    killed = [log for log in logs if log.killed_at is not None]
    held = [claim for log in killed for claim in claims_in_hand(log.records).items()]
    return {job for token, job in held if latest[job] > token}


def claims_in_hand(records: Iterable[Record]) -> dict[int, UUID]:
    """Token and job of each claim of one worker that is not over."""
    claims: dict[int, UUID] = {}
    for record in records:
        if record.event == "claimed":
            claims[record.token] = record.job
        elif record.event in ("settled", "refused"):
            del claims[record.token]
    return claims


def _runs(log: Log) -> Iterator[tuple[UUID, Run]]:
    ends = {record.token: record.at for record in log.records if record.event == "ended"}
    never = float("inf") if log.killed_at is None else log.killed_at
    for record in log.records:
        if record.event == "started":
            yield record.job, Run(record.token, record.at, ends.get(record.token, never))


def _overlap(runs: list[Run]) -> bool:
    ordered = sorted(runs, key=lambda run: run.start)
    return any(later.start < earlier.end for earlier, later in pairwise(ordered))


def _latest_tokens(logs: Iterable[Log]) -> Mapping[UUID, int]:
    latest: defaultdict[UUID, int] = defaultdict(int)
    for log in logs:
        for record in log.records:
            latest[record.job] = max(latest[record.job], record.token)
    return latest
