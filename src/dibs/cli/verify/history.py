"""What the processes of `dibs verify` write down, and the judge of it.

The judge knows nothing of how dibs works: it sees what was enqueued, what each claim was told by the store
(token, from when, until when), what became of it, and what the store says at the end.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec

Event = Literal["waiting", "claimed", "settled", "wrote", "refused"]
KIND = "dibs-verify"
NOBODY = UUID(int=0)


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One line of a process: what happened to which claim; times are the store's."""

    event: Event
    worker: str
    job: UUID = NOBODY
    token: int = 0
    claimed_at: datetime | None = None
    lease_until: datetime | None = None


class Writer:
    """Appends lines to a file, each in one write: what was written survives kill -9."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


_read = msgspec.json.Decoder(Line).decode


def read_lines(files: Iterable[Path]) -> list[Line]:
    """All whole lines; the last one of a process that was killed may be torn."""
    texts = [file.read_bytes().rpartition(b"\n")[0] for file in files if file.exists()]
    return [_read(line) for text in texts for line in text.splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the history says. The first four must be 0."""

    double_claims: int
    """Claims that began while another of the same job was held."""
    late_writes: int
    """What was accepted though a later claim had the job: a settlement, a renewal; or one a second time."""
    tokens_not_growing: int
    """Later claims of a job without a greater token."""
    lost: int
    """Jobs that were acknowledged, and that nobody finished."""
    claims: int
    came_back: int
    """Jobs of killed or frozen processes that others then claimed."""
    refused: int
    """Settlements of claims that were no longer held: those who came late were told."""

    @property
    def is_good(self) -> bool:
        return not (self.double_claims or self.late_writes or self.tokens_not_growing or self.lost)


def judge(enqueued: Iterable[UUID], succeeded: Iterable[UUID], lines: Sequence[Line]) -> Verdict:
    claims: defaultdict[UUID, list[Line]] = defaultdict(list)
    settled: defaultdict[UUID, list[int]] = defaultdict(list)
    for line in lines:
        if line.event == "claimed":
            claims[line.job].append(line)
        elif line.event == "settled":
            settled[line.job].append(line.token)
    by_time = [sorted(of_one, key=_began) for of_one in claims.values()]
    return Verdict(
        double_claims=sum(_overlaps(of_one, settled) for of_one in by_time),
        late_writes=sum(_late(tokens, claims[job]) for job, tokens in settled.items())
        + sum(line.event == "wrote" and line.token < _greatest(claims[line.job]) for line in lines),
        tokens_not_growing=sum(
            one.token >= next.token for of_one in by_time for one, next in pairwise(of_one)
        ),
        lost=len(set(enqueued) - set(succeeded)),
        claims=sum(map(len, claims.values())),
        came_back=sum(len(of_one) > 1 for of_one in by_time),
        refused=sum(line.event == "refused" for line in lines),
    )


def _began(claim: Line) -> tuple[datetime, int]:
    assert claim.claimed_at is not None
    return claim.claimed_at, claim.token


def _overlaps(claims: Sequence[Line], settled: Mapping[UUID, Sequence[int]]) -> int:
    """A claim is held until its lease is over; one that was settled with success is the last of its job."""
    return sum(
        later.claimed_at < earlier.lease_until or earlier.token in settled.get(earlier.job, ())  # type: ignore[operator]
        for earlier, later in pairwise(claims)
    )


def _late(tokens: Sequence[int], claims: Sequence[Line]) -> int:
    return sum(token < _greatest(claims) for token in tokens) + len(tokens) - 1


def _greatest(claims: Sequence[Line]) -> int:
    return max((claim.token for claim in claims), default=0)
