"""What the processes of a trial record, and the counts that are taken from it.

The counts know nothing of dibs or of the plan of a trial: they come from the records, and from what the store
returns at the end.
"""

import os
from collections import Counter, defaultdict
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

OfWorker = Literal["waiting", "claimed", "started", "ended", "settled", "wrote", "refused"]
OfCommand = Literal["enqueued", "killed", "frozen", "resumed", "succeeded"]
RecordedEvent = OfWorker | OfCommand


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


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a job or a worker, when (this machine's clock), and the store's times of a claim."""

    event: RecordedEvent
    at: float
    job: UUID = UUID(int=0)
    token: int = 0
    claimed_at: datetime | None = None
    lease_until: datetime | None = None
    worker: str = ""
    train: str | None = None
    slot: str | None = None


class Recorder:
    """A file to which records are appended, each in one write: what was written survives kill -9."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: RecordedEvent, claim: SyncClaim) -> None:
        job, times = claim.job, (claim.job.claimed_at, claim.job.lease_until)
        self.write(Record(event, monotonic(), job.id, claim.token, *times, worker=job.worker or ""))

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
    """What the records say. The first six must be 0."""

    double_claims: int
    """Claims that began while another claim of the same job was held."""
    late_writes: int
    """Settlements and renewals that were accepted although a later claim had the job, or a second time."""
    tokens_not_growing: int
    """Later claims of a job without a greater token."""
    trains_out_of_order: int = 0
    """Jobs of a train that were claimed before the job ahead of them had ended."""
    slots_held_twice: int = 0
    """Claims in a slot for one that began while another job of it was held."""
    lost: int
    """Jobs that were acknowledged and never finished."""
    claims: int
    came_back: int
    """Jobs of killed or frozen processes that other processes then claimed."""
    refused: int
    """Settlements that were refused, because the claim was no longer held."""

    @property
    def is_good(self) -> bool:
        return not any(getattr(self, rule) for rule in RULES)


RULES = (
    *("double_claims", "late_writes", "tokens_not_growing", "trains_out_of_order", "slots_held_twice"),
    "lost",
)


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule of `RULES` that is broken, and the job in question."""

    rule: str
    job: UUID


class ClaimHistory:
    """The claims of a history by job, in the order of the store's clock, and what became of them."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.of: defaultdict[UUID, list[Record]] = defaultdict(list)
        self.settled: defaultdict[UUID, list[int]] = defaultdict(list)
        self._ended: dict[tuple[UUID, int], float] = {}
        for record in records:
            if record.event == "claimed":
                self.of[record.job].append(record)
            elif record.event == "settled":
                self.settled[record.job].append(record.token)
            elif record.event == "ended":
                self._ended[record.job, record.token] = record.at
        for claims in self.of.values():
            claims.sort(key=_began)

    def ended(self, claim: Record) -> float:
        """Return when the settlement of a claim was sent, before the store can have taken it."""
        return self._ended.get((claim.job, claim.token), float("inf"))

    def greatest(self, job: UUID) -> int:
        return max((claim.token for claim in self.of.get(job, ())), default=0)


def judge(records: Sequence[Record]) -> Verdict:
    """Count what `find_broken` finds, and what the processes went through."""
    broken = Counter(found.rule for found in find_broken(records))
    claimed = Counter(record.job for record in records if record.event == "claimed")
    return Verdict(
        **{rule: broken[rule] for rule in RULES},
        claims=claimed.total(),
        came_back=sum(many > 1 for many in claimed.values()),
        refused=sum(record.event == "refused" for record in records),
    )


def find_broken(records: Sequence[Record]) -> Iterator[BrokenRule]:
    """Find each place where a history breaks a rule."""
    claims = ClaimHistory(records)
    for job, of_one in claims.of.items():
        for earlier, later in pairwise(of_one):
            if _overlap_of(earlier, later) or earlier.token in claims.settled[job]:
                yield BrokenRule("double_claims", job)
            if earlier.token >= later.token:
                yield BrokenRule("tokens_not_growing", job)
    for job, tokens in list(claims.settled.items()):
        late = sum(token < claims.greatest(job) for token in tokens) + len(tokens) - 1
        yield from [BrokenRule("late_writes", job)] * late
    for record in records:
        if record.event == "wrote" and record.token < claims.greatest(record.job):
            yield BrokenRule("late_writes", record.job)
    yield from _find_broken_at_gates(records, claims)
    succeeded = {record.job for record in records if record.event == "succeeded"}
    for job in dict.fromkeys(record.job for record in records if record.event == "enqueued"):
        if job not in succeeded:
            yield BrokenRule("lost", job)


def _find_broken_at_gates(records: Sequence[Record], claims: ClaimHistory) -> Iterator[BrokenRule]:
    """Compare each claim at a train or slot with the one before it.

    A claim is noted after the store gave it, and the end of a job before its settlement is sent. So a claim
    that was noted before that end surely began too early, whatever the delays of the notes.
    """
    trains, slots = defaultdict[str, list[UUID]](list), defaultdict[str, list[Record]](list)
    for record in records:
        if record.event == "enqueued" and record.train is not None:
            trains[record.train].append(record.job)
        if record.event == "enqueued" and record.slot is not None:
            slots[record.slot] += claims.of.get(record.job, ())
    for jobs in trains.values():
        for ahead, job in pairwise(one for one in jobs if one in claims.of):
            final = max(claims.of[ahead], key=lambda claim: claim.token)
            if claims.of[job][0].at < claims.ended(final):
                yield BrokenRule("trains_out_of_order", job)
    for in_slot in slots.values():
        for earlier, later in pairwise(sorted(in_slot, key=_began)):
            is_held = _overlap_of(earlier, later) and later.at < claims.ended(earlier)
            if is_held and earlier.job != later.job:
                yield BrokenRule("slots_held_twice", later.job)


def _began(claim: Record) -> tuple[datetime, int]:
    assert claim.claimed_at is not None
    return claim.claimed_at, claim.token


def _overlap_of(earlier: Record, later: Record) -> bool:
    return later.claimed_at < earlier.lease_until  # type: ignore[operator]


# -- dibs verify: the page ----------------------------------------------------------------------

MOST_SHOWN = 200
FAULTS = ("killed", "frozen", "resumed")


def page(lines: Iterable[str], problems: Sequence[str], history: Sequence[Record]) -> str:
    """Return a page with the verdict, the faults over time, and the time line of each job in question."""
    rules, came_back, ahead = _broken_rules(history), Counter[UUID](), _ahead(history)
    workers: dict[str, tuple[float, float, int]] = {}
    for record in history:
        if record.worker and record.event != "succeeded":
            begin, _, settled = workers.get(record.worker, (record.at, 0, 0))
            workers[record.worker] = begin, record.at, settled + (record.event == "settled")
        came_back[record.job] += record.event == "claimed"
    broken = [one for job in rules for one in (job, ahead.get(job)) if one is not None]
    shown = list(dict.fromkeys([*broken, *(job for job, claims in came_back.items() if claims > 1)]))[
        :MOST_SHOWN
    ]
    of_job: dict[UUID, list[Record]] = {job: [] for job in shown}
    for record in history:
        if record.job in of_job:
            of_job[record.job].append(record)
    run = {
        "lines": list(lines),
        "problems": problems,
        "workers": workers,
        "faults": [record for record in history if record.event in FAULTS],
        "jobs": [{"job": job, "rules": rules.get(job, []), "records": of_job[job]} for job in shown],
    }
    text = Path(__file__).with_name("page.html").read_text("utf-8")
    return text.replace("RUN", msgspec.json.encode(run).decode().replace("<", "\\u003c"), 1)


def _broken_rules(history: Sequence[Record]) -> Mapping[UUID, list[str]]:
    rules: defaultdict[UUID, list[str]] = defaultdict(list)
    for broken in find_broken(history):
        rules[broken.job].append(broken.rule.replace("_", " "))
    return rules


def _ahead(history: Sequence[Record]) -> Mapping[UUID, UUID]:
    """Return the job that was enqueued just before each, at the same train or slot."""
    ahead: dict[UUID, UUID] = {}
    newest: dict[str | None, UUID] = {}
    for record in history:
        if record.event == "enqueued" and (gate := record.train or record.slot) is not None:
            if gate in newest:
                ahead[record.job] = newest[gate]
            newest[gate] = record.job
    return ahead
