"""The counts of a trial, taken from the records of its processes and from what the store returns at the end.

Nothing here knows how dibs works or how the trial was meant to go.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, pairwise
from uuid import UUID

from dibs.cli.trial.records import ProcessLog, Record, claims_in_hand

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
