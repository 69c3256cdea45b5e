"""Where the reference engine keeps its jobs, and its trains and slots, about which jobs/gates.py decides.

`_take_place` puts a waiting job at its gate; `_open_gate` then lets the next jobs through. Every question
that changes which jobs are at a gate ends with that, and nothing else makes a gated job `ready`.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from dibs.clock import from_micros
from dibs.jobs.gates import (
    OFFER,
    WAITING_READ,
    GateJob,
    Key,
    gate_of,
    giving_way,
    has_room,
    kept_instead,
    left_train,
    new_position,
    open_slot,
    open_train,
    waiting_needed,
)
from dibs.jobs.job import JOB_COLUMNS
from dibs.jobs.states import WAITING, JobState, by_time
from dibs.operations.questions import GLANCED_COLUMNS
from dibs.operations.scripts import Row, Rows

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


@dataclass(eq=False)
class MemoryGate:
    """One train or slot. It exists as long as a live job is at it, or an ended one holds it."""

    key: Key
    last_position: int = 0
    held_by: UUID | None = None
    """The finished job because of which a train waits for an operator."""
    offer_ends: int | None = None
    """When the ready job of a slot must have been claimed."""
    members: set[UUID] = field(default_factory=set)
    """Its live jobs. What follows is an index over them: ready and running ones, and all in order."""
    going: set[UUID] = field(default_factory=set)
    order: list[tuple[tuple[Any, ...], UUID]] = field(default_factory=list)

    @property
    def is_train(self) -> bool:
        return self.key[0] == "train"

    def add(self, job: Record) -> None:
        heapq.heappush(self.order, (_turn(job), job["id"]))


class MemoryGates(Storage):
    """The memory engine's answers about gates, and what its other answers do at them."""

    def __init__(self) -> None:
        super().__init__()
        self._gates_by_key: dict[Key, MemoryGate] = {}
        self._to_open: dict[Key, MemoryGate] | None = None
        self._offers: list[tuple[int, Key]] = []  # a heap; offers that ended otherwise are still in it

    def _finish(self, job: Record, state: JobState, message: str | None) -> None:
        raise NotImplementedError

    # -- the questions --------------------------------------------------------------------------

    def _release_train(self, name: str) -> Rows:
        gate = self._gates_by_key.get(("train", name))
        if gate is None:
            return []
        was_held, gate.held_by = gate.held_by is not None, None
        self._open_gate(gate)
        return [{"was_held": was_held}]

    def _mend(self, after_sort: str | None, after_name: str | None, limit: int) -> Rows:
        keys = sorted(self._gates_by_key)
        if after_sort is not None:
            keys = [key for key in keys if key > (after_sort, after_name or "")]
        for key in keys[:limit]:
            gate = self._gates_by_key[key]
            if gate.held_by not in self._finished:
                gate.held_by = None
            self._open_gate(gate, mends=True)
        return [{"sort": sort, "name": name} for sort, name in keys[:limit]]

    def _gates(
        self, sort: str, names: Collection[str] | None, held: bool, after: str | None, limit: int
    ) -> Rows:
        keys = self._gates_by_key if names is None else {(sort, name) for name in names}
        found = (self._gates_by_key.get(key) for key in sorted(keys) if key[0] == sort)
        matching = [
            gate
            for gate in found
            if gate is not None
            and (after is None or gate.key[1] > after)
            and (gate.held_by is not None or not held)
        ]
        return [self._about(gate) for gate in matching[:limit]]

    def _about(self, gate: MemoryGate) -> Row:
        held = gate.held_by is not None
        head = gate.held_by or self._shown_as_head(gate)
        running = sum(self._live[id]["state"] == JobState.running for id in gate.going & self._live.keys())
        length = len(gate.members) + held
        return {"name": gate.key[1], "head": head, "length": length, "held": held, "running": running}

    def _shown_as_head(self, gate: MemoryGate) -> UUID | None:
        """Return the first of a train; of a slot the job that started last, or else the next one."""
        going = self._going(gate)
        running = [job for job in going if job["state"] == JobState.running]
        if running:
            return max(running, key=lambda job: job["token"])["id"]  # type: ignore[no-any-return]
        first = min((_turn(job) for job in [*going, *self._first(gate)]), default=(None,))
        return first[-1]  # type: ignore[no-any-return]

    def _current(self, slots: Collection[str]) -> Rows:
        latest: dict[str, Record] = {}
        for job in [*self._live.values(), *self._finished.values()]:
            if job["slot"] in slots and job["token"] is not None:
                other = latest.get(job["slot"])
                latest[job["slot"]] = job if other is None or job["token"] > other["token"] else other
        return [{name: job[name] for name in ("slot", "id", "token")} for job in latest.values()]

    # -- what other answers do at a gate ----------------------------------------------------------

    def _kept_instead(self, new: Record) -> UUID | None:
        """Return the job that is kept instead of a new one with the policy `drop`, if its slot is full."""
        gate = self._gate_of(new)
        if new["slot_policy"] != "drop" or gate is None:
            return None
        return kept_instead(new["slot_limit"], [_at_gate(self._live[id]) for id in gate.members])

    def _join(self, job: Record, position: int | None = None) -> None:
        """Give a live job this position at its gate, or else the one of a new job."""
        gate = self._make_gate(job)
        gate.members.add(job["id"])
        if position is None:
            position = new_position(gate.key[0], job["slot_policy"], gate.last_position)
            gate.last_position = max(gate.last_position, abs(position))
        job["position"] = position
        self._take_place(job)

    def _join_again(self, job: Record) -> None:
        """Put a job from another store at its old position, perhaps before jobs that are here already."""
        gate = self._make_gate(job)
        gate.last_position = max(gate.last_position, abs(job["position"] or 0))
        for other in (self._live[id] for id in gate.members if gate.is_train):
            if other["state"] in (JobState.ready, JobState.scheduled):
                self._wait(other, JobState.blocked)
        self._join(job, job["position"])

    def _make_gate(self, job: Record) -> MemoryGate:
        key = gate_of(job)
        return self._gates_by_key.setdefault(key, MemoryGate(key))

    def _supersede(self, job: Record) -> None:
        """Cancel the waiting jobs of its slot: the policy `replace`."""
        gate = self._gate_of(job)
        members = [] if gate is None else [self._live[id] for id in sorted(gate.members)]
        for other in members:
            if other["state"] in WAITING:
                self._finish(other, JobState.cancelled, f"superseded by {job['id']}")

    def _take_place(self, job: Record) -> None:
        """Block a job at its gate until it is let through; in a slot it is scheduled until it is due."""
        gate = self._gates_by_key[gate_of(job)]
        later = job["slot"] is not None and job["run_at"] > self._clock()
        self._wait(job, JobState.scheduled if later else JobState.blocked)
        gate.add(job)
        self._open_gate(gate)

    def _leave_gate(self, job: Record, state: JobState | None) -> None:
        """Take away a job that ends in this state, or is deleted (None), and open its gate."""
        gate = self._gates_by_key[gate_of(job)]
        gate.members.discard(job["id"])
        del self._live[job["id"]]
        if gate.is_train:
            gate.held_by = open_train(self._head_of(gate), gate.held_by, [left_train(job, state)]).held_by
        self._open_gate(gate)

    def _let_go_of(self, job: Record) -> None:
        """Release the train that a deleted finished job holds."""
        gate = self._gate_of(job)
        if gate is not None and gate.held_by == job["id"]:
            gate.held_by = None
            self._open_gate(gate)

    def _rejoin(self, job: Record) -> None:
        """Put a retried job at its gate: at its old position if it holds its train, or else as a new job.

        In a slot it pre-empts no other.
        """
        gate = self._gate_of(job)
        if gate is not None and gate.held_by == job["id"]:
            gate.held_by = None
            self._join(job, job["position"])
        else:
            self._join(job, 0 if job["train"] is None else None)

    def _may_overtake(self, job: Record) -> bool:
        """Return whether a job that its slot blocks may be claimed by name."""
        if job["state"] != JobState.blocked or job["slot"] is None or job["position"] is None:
            return False
        return has_room(job["slot_limit"], map(_at_gate, self._going(self._gates_by_key[gate_of(job)])))

    def _end_offers(self, limit: int) -> None:
        """Put ready jobs that give way behind all others of their slots."""
        for _ in range(limit):
            if (ends := self._next_offer()) is None or ends > self._clock():
                return
            gate = self._gates_by_key[heapq.heappop(self._offers)[1]]
            jobs = [*self._going(gate), *self._first(gate, WAITING_READ)]
            passed = giving_way(map(_at_gate, jobs))
            for job in passed:
                gate.last_position += 1
                self._live[job.id]["position"] = gate.last_position
            gate.offer_ends = None
            if passed:
                self._open_gate(gate)

    def _overtook(self, job: Record) -> None:
        gate = self._gates_by_key[gate_of(job)]
        gate.going.add(job["id"])
        self._open_gate(gate)

    # -- opening ----------------------------------------------------------------------------------

    @contextmanager
    def _opening_once(self) -> Iterator[None]:
        """Open gates when all jobs of a call are there: only then is it known which one is next."""
        self._to_open = {}
        try:
            yield
        finally:
            gates, self._to_open = self._to_open.values(), None
        for gate in gates:
            self._open_gate(gate)

    def _open_gate(self, gate: MemoryGate, *, mends: bool = False) -> None:
        """Let through the jobs that may go, and only them; delete the gate after the last one."""
        if self._to_open is not None:
            self._to_open[gate.key] = gate
            return
        if gate.is_train:
            self._open_train(gate)
        else:
            self._open_slot(gate, mends)
        if not gate.members and gate.held_by is None:
            self._gates_by_key.pop(gate.key, None)

    def _open_train(self, gate: MemoryGate) -> None:
        if open_train(self._head_of(gate), gate.held_by).opens:
            [head] = self._first(gate)
            self._wait(head, by_time(head["run_at"], self._clock()))

    def _open_slot(self, gate: MemoryGate, mends: bool) -> None:
        going = self._going(gate)
        needed = waiting_needed(map(_at_gate, self._first(gate)))
        jobs = [*going, *self._first(gate, needed)]
        opening = open_slot(map(_at_gate, jobs), has_offer=gate.offer_ends is not None, mends=mends)
        for id in opening.sent_back:
            self._wait(self._live[id], JobState.blocked)
            gate.add(self._live[id])
        for id in opening.let_through:
            self._wait(self._live[id], JobState.ready)
        for id in opening.asked:
            self._live[id]["cancel_reason"] = opening.reason
        running = {job["id"] for job in going if job["state"] == JobState.running}
        gate.going = running | {job.id for job in opening.ready}
        if opening.offer == "none":
            gate.offer_ends = None
        elif opening.offer == "new":
            gate.offer_ends = self._clock() + OFFER
            heapq.heappush(self._offers, (gate.offer_ends, gate.key))

    def _head_of(self, train: MemoryGate) -> GateJob | None:
        return next(map(_at_gate, self._first(train)), None)

    def _first(self, gate: MemoryGate, many: int = 1) -> list[Record]:
        """Return the first jobs in order: of a train all live ones count, of a slot the blocked ones."""
        found: dict[UUID, Record] = {}
        while gate.order and len(found) < many:
            turn, id = heapq.heappop(gate.order)
            job = self._live.get(id)
            if job is not None and _turn(job) == turn and (gate.is_train or job["state"] == JobState.blocked):
                found[id] = job
        for job in found.values():
            gate.add(job)
        return list(found.values())

    def _going(self, gate: MemoryGate) -> list[Record]:
        """Return the ready and the running jobs of a slot."""
        going = (self._live[id] for id in gate.going if id in self._live)
        return [job for job in going if job["state"] in (JobState.ready, JobState.running)]

    def _next_offer(self) -> int | None:
        """Return when the first offer ends, and forget offers that no longer stand."""
        while self._offers:
            ends, key = self._offers[0]
            gate = self._gates_by_key.get(key)
            if gate is not None and gate.offer_ends == ends:
                return ends
            heapq.heappop(self._offers)
        return None

    def _gate_of(self, job: Record) -> MemoryGate | None:
        return self._gates_by_key.get(gate_of(job))

    def _age_gates(self, micros: int) -> None:
        for gate in self._gates_by_key.values():
            gate.offer_ends = None if gate.offer_ends is None else gate.offer_ends - micros
            gate.order = [(_turn(self._live[id]), id) for id in gate.members]
            heapq.heapify(gate.order)
        self._offers = [(ends - micros, key) for ends, key in self._offers]


def is_gated(job: Record) -> bool:
    """Return whether a job has a position at a train or slot; while it waits for its parents it has none."""
    return job["position"] is not None


def _turn(job: Record) -> tuple[Any, ...]:
    return job["position"], -job["priority"], job["run_at"], job["id"]


def _at_gate(job: Record) -> GateJob:
    return GateJob(
        id=job["id"],
        state=job["state"],
        position=job["position"],
        slot_limit=job["slot_limit"],
        priority=job["priority"],
        run_at=job["run_at"],
        queue=job["queue"],
        kind=job["kind"],
        token=job["token"],
        asked=job["cancel_reason"] is not None,
    )
