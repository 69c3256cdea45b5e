"""How jobs leave the reference engine for another store, and come from one (ADR 17)."""

from collections.abc import Sequence
from itertools import count
from typing import Any
from uuid import UUID

from dibs.clock import from_micros, to_micros
from dibs.engines.memory.gates import KEPT_TIMES, UNSET, MemoryGate, Record, is_gated
from dibs.engines.memory.queries import MemoryQueries
from dibs.jobs.job import (
    STORED_TYPES,
    StoredJob,
    by_train,
    placed,
    read_stored,
    sorted_out,
    stored_text,
)
from dibs.jobs.states import JobState
from dibs.operations.scripts import Row, Rows


class MemoryMoves(MemoryQueries):
    """The memory engine's answers to a move between stores."""

    def __init__(self) -> None:
        super().__init__()
        self._identity: UUID | None = None
        self._departures: dict[UUID, tuple[UUID, str]] = {}
        self._arrivals: set[tuple[UUID, UUID]] = set()

    def _forget(self, job: Record, state: JobState | None = None) -> None:
        raise NotImplementedError

    def _identify(self, new: UUID | None) -> Rows:
        self._identity = self._identity or new
        return [] if self._identity is None else [{"id": self._identity}]

    def _depart(self, store: UUID, after: UUID | None, limit: int) -> Rows:
        holding = {gate.held_by for gate in self._gates_by_key.values()}
        ended = {
            id: job
            for id, job in self._finished.items()
            if id not in holding and not self._is_waited_for(job)
        }
        jobs = {**{id: job for id, job in self._live.items() if self._may_depart(job)}, **ended}
        leaving = sorted(id for id in jobs if after is None or id > after)
        with self._opening_once():
            return [self._part_with(jobs[id], store) for id in leaving[:limit]]

    def _may_depart(self, job: Record) -> bool:
        """Return whether a job may leave now: at a gate only while its queue is paused, from no held train.

        A job of a pipeline stays until the pipeline has ended, because its dependencies would stay behind.
        """
        if job["state"] == JobState.running or job["pipeline_id"] in self._by_pipeline:
            return False
        gate = self._gate_of(job) if is_gated(job) else None
        paused = self._settings.get(job["queue"], UNSET)["paused"]
        return gate is None or (paused and gate.held_by is None)

    def _part_with(self, job: Record, store: UUID) -> Row:
        if self._finished.pop(job["id"], None) is None:
            self._forget(job)
        self._leave_pipeline(job)
        times = {name: from_micros(job[name]) for name in KEPT_TIMES if job[name] is not None}
        text = stored_text(job | times)
        self._departures[job["id"]] = (store, text)
        return {"id": job["id"], "job": text}

    def _departed(self, limit: int) -> Rows:
        rows = [{"id": id, "store": to, "job": text} for id, (to, text) in sorted(self._departures.items())]
        return rows[:limit]

    def _arrive(self, store: UUID, jobs: Sequence[str]) -> Rows:
        come = [read_stored(text) for text in jobs]
        rows = self._take_in(come, [job.id for job in come if (job.id, store) in self._arrivals])
        self._arrivals |= {(row["id"], store) for row in rows if row["is_new"]}
        return rows

    def _take_in(self, jobs: Sequence[StoredJob], noted: Sequence[UUID] = ()) -> Rows:
        """Store the jobs with an id and a unique key that are free; return a row for each."""
        holders: dict[Any, UUID] = {id: id for id in noted}
        holders |= {job.id: job.id for job in jobs if self._known(job.id)}
        keys = [job.own_key for job in jobs if job.own_key in self._by_unique]
        rows, new = sorted_out(jobs, holders | {key: self._by_unique[key] for key in keys})
        with self._opening_once():
            for job in self._with_places(new):
                self._settle_in(job)
        return rows

    def _with_places(self, jobs: Sequence[StoredJob]) -> list[StoredJob]:
        """Return the same jobs; if one of a train can't have its old position, all of them go to its end."""
        last: dict[str, int] = {}
        for train, coming in by_train(jobs).items():
            gate = self._gates_by_key.get(("train", train))
            if gate is not None and self._clash(gate, coming):
                last[train] = gate.last_position
        return placed(jobs, last)

    def _clash(self, gate: MemoryGate, coming: Sequence[StoredJob]) -> bool:
        """Return whether a position is taken, the running job would be behind, or the train is held."""
        here = {job["position"]: job["state"] for job in map(self._live.__getitem__, gate.members)}
        running = [position for position, state in here.items() if state == JobState.running]
        first = coming[0].position or 0
        taken = any(job.position in here for job in coming)
        return gate.held_by is not None or taken or any(position >= first for position in running)

    def _settle_in(self, job: StoredJob) -> None:
        record: Record = {name: getattr(job, name) for name in STORED_TYPES}
        record |= {name: to_micros(record[name]) for name in KEPT_TIMES if record[name] is not None}
        self._tokens = count(max(next(self._tokens), (job.token or 0) + 1))
        self._join_pipeline(record)
        if job.is_finished:
            self._finished[job.id] = record
            if job.unique_until is not None and job.unique_key is not None:
                self._unique_for[job.unique_key] = job.id
            return
        self._live[job.id] = record
        if job.unique_key is not None:
            self._by_unique[job.unique_key] = job.id
        if job.is_gated:
            self._join_again(record)
        else:
            self._wait(record, JobState(job.state))

    def _give_back(self, store: UUID, ids: Sequence[UUID]) -> Rows:
        rows = self._take_in([read_stored(self._departures[id][1]) for id in ids if id in self._departures])
        self._landed("out", store, [row["id"] for row in rows if row["holder"] == row["id"]])
        return rows

    def _landed(self, way: str, store: UUID, ids: Sequence[UUID] | None) -> Rows:
        gone = set(ids or ())

        def is_kept(id: UUID, other: UUID) -> bool:
            return other != store or (ids is not None and id not in gone)

        if way == "in":
            self._arrivals = {one for one in self._arrivals if is_kept(*one)}
        else:
            departed = self._departures.items()
            self._departures = {id: one for id, one in departed if is_kept(id, one[0])}
        return []
