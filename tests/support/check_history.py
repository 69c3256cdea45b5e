"""A second checker of histories of `dibs verify --history`, from the guide alone: it imports nothing of dibs.

    python -m tests.support.check_history FILE

It prints each rule that is broken and the job in question, and ends with 1 if there is one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from typing import Any

NEVER = float("inf")


def broken_rules(lines: Iterable[str]) -> list[tuple[str, str]]:
    events = [json.loads(line) for line in lines]
    jobs: dict[str, Job] = {}
    for event in events:
        if "job" in event:
            jobs.setdefault(event["job"], Job()).take(event)
    broken = [(rule, id) for id, job in jobs.items() for rule in job.complaints()]
    for train in _members(events, "train").values():
        for place, id in enumerate(train[1:], 1):
            ahead = jobs[train[place - 1]]
            first, holder = jobs[id].first_noted(), ahead.holder()
            if first is not None and holder is not None and first < ahead.sent.get(holder, NEVER):
                broken.append(("trains out of order", id))
    for slot in _members(events, "slot").values():
        spans = sorted(span for id in slot for span in jobs[id].spans(id))
        for (_, _, until, sent, one), (begin, _, _, noted, other) in pairwise(spans):
            if one != other and begin < until and noted[0] < sent[1]:
                broken.append(("slots held twice", other))
    return broken


def _members(events: list[dict[str, Any]], gate: str) -> dict[str, list[str]]:
    members: dict[str, list[str]] = {}
    for event in events:
        if event["event"] == "enqueued" and gate in event:
            members.setdefault(event[gate], []).append(event["job"])
    return members


class Job:
    """What the history says of one job."""

    def __init__(self) -> None:
        self.enqueued = self.succeeded = False
        self.claims: dict[int, tuple[datetime, datetime, float]] = {}
        self.sent: dict[int, float] = {}
        self.settled: list[int] = []
        self.wrote: list[int] = []

    def take(self, event: dict[str, Any]) -> None:
        what, token = event["event"], event.get("token", 0)
        if what == "enqueued":
            self.enqueued = True
        elif what == "succeeded":
            self.succeeded = True
        elif what == "claimed":
            times = (datetime.fromisoformat(event[name]) for name in ("claimed_at", "lease_until"))
            self.claims[token] = (*times, event["at"])  # type: ignore[assignment]
        elif what == "ended":
            self.sent[token] = event["at"]
        elif what in ("settled", "wrote"):
            (self.settled if what == "settled" else self.wrote).append(token)

    def holder(self) -> int | None:
        return max(self.claims, default=None)

    def first_noted(self) -> float | None:
        first = min(self.claims, key=lambda token: (self.claims[token][0], token), default=None)
        return None if first is None else self.claims[first][2]

    def spans(self, id: str) -> Iterable[tuple[datetime, int, datetime, tuple[float, float], str]]:
        for token, (begin, until, noted) in self.claims.items():
            yield begin, token, until, (noted, self.sent.get(token, NEVER)), id

    def complaints(self) -> Iterable[str]:
        if self.enqueued and not self.succeeded:
            yield "lost"
        holder = self.holder() or 0
        yield from ["late writes"] * sum(token < holder for token in (*self.settled, *self.wrote))
        yield from ["late writes"] * (len(self.settled) - 1)
        in_time = sorted(self.claims, key=lambda token: (self.claims[token][0], token))
        for before, after in pairwise(in_time):
            if self.claims[after][0] < self.claims[before][1] or before in self.settled:
                yield "double claims"
            if after < before:
                yield "tokens not growing"


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        found = broken_rules(file)
    for rule, job in found:
        print(f"{rule}: {job}")
    sys.exit(1 if found else 0)
