"""Convoys of the reference engine: jobs of a train that run under the lease of their head (ADR 19)."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import UUID

from dibs.contract import CONVOY_COLUMNS
from dibs.engines.memory.gates import Gate
from dibs.engines.memory.shelves import Record
from dibs.engines.memory.steps import Stepped
from dibs.scripts import Rows
from dibs.states import JobState


class Convoyed(Stepped):
    """The memory engine's answers about convoys."""

    def _followers(self, job: UUID, token: int, limit: int) -> Rows:
        head = self._held(job, token)
        gate = None if head is None or head["train"] is None else self._gate_of(head)
        if head is None or gate is None or head["lease_until"] <= self._clock():
            return []
        behind = (other for other in self._in_order(gate) if other["position"] > head["position"])
        return [self._row(other) | self._facts(other) for other in islice(behind, limit)]

    def _facts(self, job: Record) -> dict[str, Any]:
        setting = self._settings.get(job["queue"])
        is_open = setting is None or not (setting["paused"] or setting["max_running"] is not None)
        return {"new_token": next(self._tokens), "is_due": job["run_at"] <= self._clock(), "is_open": is_open}

    def _in_order(self, gate: Gate) -> Iterator[Record]:
        """Who is on a train, one after another: only as much of its line is sorted as is asked for."""
        near = [(gate.line[0], 0)] if gate.line else []
        while near:
            (turn, id), at = heapq.heappop(near)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(gate.line):
                    heapq.heappush(near, (gate.line[child], child))
            job = self._live.get(id)
            if job is not None and job["position"] == turn[0] and job["state"] == JobState.blocked:
                yield job

    def _start_followers(self, convoy: Sequence[tuple[Any, ...]]) -> Sequence[Mapping[str, Any]]:
        """Those that are still blocked behind a head that is still held run from now on, each by itself."""
        rides = [dict(zip(CONVOY_COLUMNS, values, strict=True)) for values in convoy]
        for ride in rides:
            head, job = self._held(ride["head"], ride["head_token"]), self._live.get(ride["id"])
            if head is not None and job is not None and _is_behind(job, head):
                self._start(job, head, ride)
        return rides

    def _start(self, job: Record, head: Record, ride: Mapping[str, Any]) -> None:
        job |= {
            "state": JobState.running,
            "attempts": job["attempts"] + 1,
            "worker": head["worker"],
            "token": ride["token"],
            "claimed_at": self._clock() - ride["began"],
            "lease_until": self._clock() + ride["lease"],
        }
        self._running[job["id"]] = job

    def _date_ends(self, rides: Sequence[Mapping[str, Any]]) -> None:
        """Those that were settled just now ended one after another, not all of them now."""
        for ride in rides:
            if ride["ended"] is not None and (job := self._finished.get(ride["id"])) is not None:
                job["finished_at"] = self._clock() - ride["ended"]


def _is_behind(job: Record, head: Record) -> bool:
    """A job that waits for its parents has no position, and is behind nobody."""
    return (
        job["state"] == JobState.blocked
        and job["train"] == head["train"]
        and job["position"] is not None
        and job["position"] > head["position"]
    )
