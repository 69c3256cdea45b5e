"""Where the reference engine keeps its jobs, and the small changes that its answers are made of."""

import heapq
from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from typing import Any
from uuid import UUID

from dibs.clock import from_micros
from dibs.jobs.job import JOB_COLUMNS
from dibs.jobs.states import JobState
from dibs.operations.questions import GLANCED_COLUMNS
from dibs.operations.scripts import Row

Record = dict[str, Any]
Pair = tuple[str, str]  # queue, kind

TIMES = ("run_at", "enqueued_at", "claimed_at", "finished_at", "lease_until")
KEPT_TIMES = (*TIMES, "unique_until")
UNSET: Record = {"paused": False, "max_running": None}


class Storage:
    """Jobs by id, and the indexes over them. Times are in microseconds, one `_moment` per question."""

    def __init__(self) -> None:
        self._live: dict[UUID, Record] = {}
        self._finished: dict[UUID, Record] = {}
        self._by_unique: dict[str, UUID] = {}
        self._unique_for: dict[str, UUID] = {}  # finished jobs that keep their key for a time
        self._pairs: defaultdict[Pair, list[tuple[int, int, UUID]]] = defaultdict(list)
        self._scheduled: list[tuple[int, UUID]] = []
        self._running: dict[UUID, Record] = {}
        self._settings: dict[str, Record] = {}
        self._here: dict[str, Record] = {}
        self._schedules_by_name: dict[str, Record] = {}
        self._refused: dict[UUID, dict[tuple[int, str], Record]] = {}
        self._counted: dict[tuple[int, int, str, str], tuple[int, ...]] = {}
        self._tokens = count(1)
        self._moment = 0

    def _clock(self) -> int:
        return self._moment

    def _known(self, id: UUID) -> bool:
        return id in self._live or id in self._finished

    def _each(self, ids: Iterable[UUID]) -> list[Record]:
        found = (self._live.get(id) or self._finished.get(id) for id in ids)
        return [job for job in found if job is not None]

    def _held(self, id: UUID, token: int) -> Record | None:
        job = self._running.get(id)
        return job if job is not None and job["token"] == token else None

    def _wait(self, job: Record, state: JobState) -> None:
        job["state"] = state
        if state == JobState.ready:
            heapq.heappush(self._pairs[pair_of(job)], rank(job))
        elif state == JobState.scheduled:
            heapq.heappush(self._scheduled, (job["run_at"], job["id"]))

    def _head(self, pair: Pair) -> tuple[int, int, UUID] | None:
        """Return the first ready job of a queue-kind pair, and forget entries that no longer hold."""
        heap = self._pairs[pair]
        while heap:
            job = self._live.get(heap[0][2])
            if job is not None and job["state"] == JobState.ready and rank(job) == heap[0]:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _next_due(self) -> int | None:
        """Return when the first scheduled job is due, and forget entries that no longer hold."""
        while self._scheduled:
            run_at, id = self._scheduled[0]
            job = self._live.get(id)
            if job is not None and (job["state"], job["run_at"]) == (JobState.scheduled, run_at):
                return run_at
            heapq.heappop(self._scheduled)
        return None

    def _row(self, job: Record) -> dict[str, Any]:
        row = {name: job[name] for name in JOB_COLUMNS}
        return row | {name: from_micros(row[name]) for name in TIMES if row[name] is not None}

    def _glanced(self, job: Record) -> Row:
        return {name: job[name] for name in GLANCED_COLUMNS} | {"run_at": from_micros(job["run_at"])}

    def _standing(self, job: Record) -> Row:
        names = ("id", "token", "cancel_reason")
        return {"lease_until": from_micros(job["lease_until"])} | {name: job[name] for name in names}


def pair_of(job: Record) -> Pair:
    return job["queue"], job["kind"]


def rank(job: Record) -> tuple[int, int, UUID]:
    return -job["priority"], job["run_at"], job["id"]
