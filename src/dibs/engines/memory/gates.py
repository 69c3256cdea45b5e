"""Trains and slots of the reference engine: a gate per key, and who may go, derived from the jobs (ADR 12).

`_take_place` puts a waiting job where its gate wants it; `_open_gate` then lets through who may go. Every
question that changes who is at a gate ends with that, and nothing else makes a gated job `ready`.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from uuid import UUID

from dibs.engines.memory.storage import Record, Shelves
from dibs.jobs.states import (
    LOOKED_AT,
    PATIENCE,
    WAITING,
    JobState,
    by_time,
    fits,
    giving_way,
    holds,
    in_the_way,
)
from dibs.operations.scripts import Row, Rows

Key = tuple[str, str]  # "train" or "slot", and its name

_IN_LINE = (JobState.blocked, JobState.ready)


@dataclass(eq=False)
class Gate:
    """One train or slot. It is there as long as somebody is at it, or holds it."""

    key: Key
    last_position: int = 0
    held_by: UUID | None = None
    """The finished job that a train waits for a person with."""
    offer_ends: int | None = None
    """Until when a slot's ready job may let others wait."""
    members: set[UUID] = field(default_factory=set)
    """Its live jobs. What follows is an index over them: who is ready or runs, and who is next."""
    going: set[UUID] = field(default_factory=set)
    line: list[tuple[tuple[Any, ...], UUID]] = field(default_factory=list)

    @property
    def is_train(self) -> bool:
        return self.key[0] == "train"

    def line_up(self, job: Record) -> None:
        heapq.heappush(self.line, (_turn(job), job["id"]))


class Gated(Shelves):
    """The memory engine's answers about gates, and the moves that its other answers make at them."""

    def __init__(self) -> None:
        super().__init__()
        self._gates_by_key: dict[Key, Gate] = {}
        self._to_open: dict[Key, Gate] | None = None
        self._offers: list[tuple[int, Key]] = []  # a heap; those that ended otherwise are still in it

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

    def _about(self, gate: Gate) -> Row:
        held = gate.held_by is not None
        head = gate.held_by or self._who_goes(gate)
        return {"name": gate.key[1], "head": head, "length": len(gate.members) + held, "held": held}

    def _who_goes(self, gate: Gate) -> UUID | None:
        """A train's first; of a slot who started last, else who is ready, else who is next."""
        running = self._in_state(gate, JobState.running)
        ready = self._in_state(gate, JobState.ready)
        first = running[-1] if running else ready[0] if ready else self._first(gate)
        return None if first is None else first["id"]

    def _current(self, slots: Collection[str]) -> Rows:
        latest: dict[str, Record] = {}
        for job in [*self._live.values(), *self._finished.values()]:
            if job["slot"] in slots and job["token"] is not None:
                other = latest.get(job["slot"])
                latest[job["slot"]] = job if other is None or job["token"] > other["token"] else other
        return [{name: job[name] for name in ("slot", "id", "token")} for job in latest.values()]

    # -- the moves ------------------------------------------------------------------------------

    def _kept_instead(self, new: Record) -> UUID | None:
        """Who keeps the place of a new job with the policy `drop`, if its slot is full."""
        gate = self._gate_of(new)
        if new["slot_policy"] != "drop" or gate is None:
            return None
        members = [self._live[id] for id in gate.members]
        if fits(new["slot_limit"], [job["slot_limit"] for job in members]):
            return None
        return min(members, key=lambda job: (job["state"] != JobState.running, _turn(job)))["id"]  # type: ignore[no-any-return]

    def _join(self, job: Record, position: int | None = None) -> None:
        """A live job gets its place: a train's end (or its old place), or by the rules of its slot."""
        gate = self._gates_by_key.setdefault(_key(job), Gate(_key(job)))
        gate.members.add(job["id"])
        job["position"] = self._position(gate, job) if position is None else position
        self._take_place(job)

    def _join_again(self, job: Record) -> None:
        """One that comes from another store has its place from there, perhaps before who is here already."""
        gate = self._gates_by_key.setdefault(_key(job), Gate(_key(job)))
        gate.last_position = max(gate.last_position, abs(job["position"] or 0))
        for other in (self._live[id] for id in gate.members if gate.is_train):
            if other["state"] in (JobState.ready, JobState.scheduled):
                self._wait(other, JobState.blocked)
        self._join(job, job["position"])

    def _position(self, gate: Gate, job: Record) -> int:
        """Trains: one after the other. Slots: all alike, but a pre-empting job is before all others."""
        if job["train"] is None and job["slot_policy"] != "preempt":
            return 0
        gate.last_position += 1
        return gate.last_position if job["train"] is not None else -gate.last_position

    def _supersede(self, job: Record) -> None:
        """The policy `replace`: those of its slot that wait make room."""
        gate = self._gate_of(job)
        members = [] if gate is None else [self._live[id] for id in sorted(gate.members)]
        for other in members:
            if other["state"] in WAITING:
                self._finish(other, JobState.cancelled, f"superseded by {job['id']}")

    def _take_place(self, job: Record) -> None:
        """A job at a gate waits (again), or its time has changed: it is blocked until it is let through."""
        gate = self._gates_by_key[_key(job)]
        later = job["slot"] is not None and job["run_at"] > self._clock()
        self._wait(job, JobState.scheduled if later else JobState.blocked)
        gate.line_up(job)
        self._open_gate(gate)

    def _leave_gate(self, job: Record, state: JobState | None) -> None:
        """A job ends like this, or is deleted (None): the next one may go, or a person must come."""
        gate = self._gates_by_key[_key(job)]
        was_head = gate.is_train and gate.held_by is None and self._first(gate) is job
        gate.members.discard(job["id"])
        del self._live[job["id"]]
        if was_head and state is not None and holds(state, job["on_cancelled"], job["on_failed"]):
            gate.held_by = job["id"]
        self._open_gate(gate)

    def _let_go_of(self, job: Record) -> None:
        """A finished job is deleted: what it held goes on."""
        gate = self._gate_of(job)
        if gate is not None and gate.held_by == job["id"]:
            gate.held_by = None
            self._open_gate(gate)

    def _rejoin(self, job: Record) -> None:
        """Retried: who holds its train gets its old place, others its end; a slot's job pushes nobody."""
        gate = self._gate_of(job)
        if gate is not None and gate.held_by == job["id"]:
            gate.held_by = None
            self._join(job, job["position"])
        else:
            self._join(job, 0 if job["train"] is None else None)

    def _may_overtake(self, job: Record) -> bool:
        """Whether a job that is behind its slot may be claimed by name: nobody has started."""
        if job["state"] != JobState.blocked or job["slot"] is None or job["position"] is None:
            return False
        running = self._in_state(self._gates_by_key[_key(job)], JobState.running)
        return fits(job["slot_limit"], [other["slot_limit"] for other in running])

    def _pass_on(self, limit: int) -> None:
        """Slots whose offer is over: who is ready and gives way goes behind all who had no turn yet."""
        for gate in self._offers_over(limit):
            blocked = (job for _, job in self._members(gate) if job["state"] == JobState.blocked)
            ready = self._in_state(gate, JobState.ready)
            passed = giving_way([*islice(blocked, LOOKED_AT), *ready])
            for job in passed:
                gate.last_position += 1
                job["position"] = gate.last_position
            gate.offer_ends = None
            if passed:
                self._open_gate(gate)

    def _offers_over(self, limit: int) -> Iterator[Gate]:
        for _ in range(limit):
            ends = self._next_offer()
            if ends is None or ends > self._clock():
                return
            yield self._gates_by_key[heapq.heappop(self._offers)[1]]

    def _overtook(self, job: Record) -> None:
        gate = self._gates_by_key[_key(job)]
        gate.going.add(job["id"])
        self._open_gate(gate)

    # -- who may go -----------------------------------------------------------------------------

    @contextmanager
    def _opening_once(self) -> Iterator[None]:
        """Gates are opened when all jobs of a call are there: who goes next is known only then."""
        self._to_open = {}
        try:
            yield
        finally:
            gates, self._to_open = self._to_open.values(), None
        for gate in gates:
            self._open_gate(gate)

    def _open_gate(self, gate: Gate, *, mends: bool = False) -> None:
        """Let through who may go, and only them; the last one leaves no trace."""
        if self._to_open is not None:
            self._to_open[gate.key] = gate
            return
        if gate.is_train:
            self._open_train(gate)
        else:
            self._open_slot(gate, mends)
        if not gate.members and gate.held_by is None:
            self._gates_by_key.pop(gate.key, None)

    def _open_train(self, gate: Gate) -> None:
        head = self._first(gate)
        if gate.held_by is None and head is not None and head["state"] == JobState.blocked:
            self._wait(head, by_time(head["run_at"], self._clock()))

    def _open_slot(self, gate: Gate, mends: bool) -> None:
        running = self._in_state(gate, JobState.running)
        ready = self._in_state(gate, JobState.ready)
        for job in ready:
            gate.line_up(job)  # it has not started: somebody more urgent may take its turn
        chosen: list[Record] = []
        while (next := self._first(gate, chosen)) and fits(next["slot_limit"], _limits([*running, *chosen])):
            chosen.append(next)
            heapq.heappop(gate.line)
        for job in ready:
            if all(job is not other for other in chosen):
                self._wait(job, JobState.blocked)
        started = [job for job in chosen if job["state"] == JobState.blocked]
        for job in started:
            self._wait(job, JobState.ready)
        gate.going = {job["id"] for job in [*running, *chosen]}
        self._offer(gate, chosen, is_new=bool(started), mends=mends)
        self._preempt(gate, running, chosen)

    def _offer(self, gate: Gate, chosen: Sequence[Record], *, is_new: bool, mends: bool) -> None:
        """Somebody waits behind a ready job: it has so long to be taken. One that led to nothing is over."""
        if not chosen or self._first(gate) is None:
            gate.offer_ends = None
        elif is_new or (gate.offer_ends is None and not mends):
            gate.offer_ends = self._clock() + PATIENCE
            heapq.heappush(self._offers, (gate.offer_ends, gate.key))

    def _preempt(self, gate: Gate, running: Sequence[Record], chosen: Sequence[Record]) -> None:
        first = self._first(gate)
        if first is None or first["position"] >= 0:
            return
        stand = [(job["slot_limit"], job["position"], job["cancel_reason"] is not None) for job in running]
        for at in in_the_way(first["slot_limit"], first["position"], stand, _limits(chosen)):
            running[at]["cancel_reason"] = f"pre-empted by {first['id']}"

    def _first(self, gate: Gate, chosen: Sequence[Record] = ()) -> Record | None:
        """Whose turn it is: of a train the first of all, of a slot the first who waits and is due."""
        states = (*WAITING, JobState.running) if gate.is_train else _IN_LINE
        while gate.line:
            turn, id = gate.line[0]
            job = self._live.get(id)
            stands = job is not None and job["state"] in states and _turn(job) == turn
            if stands and all(job is not other for other in chosen):
                return job
            heapq.heappop(gate.line)
        return None

    def _in_state(self, gate: Gate, state: JobState) -> list[Record]:
        """Those of a slot that run, by their start, or that are ready, by their turn."""
        going = [self._live[id] for id in gate.going if id in self._live]
        found = [job for job in going if job["state"] == state]
        return sorted(found, key=lambda job: job["token"] if state == JobState.running else _turn(job))

    def _next_offer(self) -> int | None:
        """When the first offer ends; those that stand no longer are forgotten here."""
        while self._offers:
            ends, key = self._offers[0]
            gate = self._gates_by_key.get(key)
            if gate is not None and gate.offer_ends == ends:
                return ends
            heapq.heappop(self._offers)
        return None

    def _gate_of(self, job: Record) -> Gate | None:
        return self._gates_by_key.get(_key(job))

    def _age_gates(self, micros: int) -> None:
        for gate in self._gates_by_key.values():
            gate.offer_ends = None if gate.offer_ends is None else gate.offer_ends - micros
            gate.line = [(_turn(job), id) for id, job in self._members(gate)]
            heapq.heapify(gate.line)
        self._offers = [(ends - micros, key) for ends, key in self._offers]

    def _members(self, gate: Gate) -> Iterable[tuple[UUID, Record]]:
        return ((id, self._live[id]) for id in gate.members)


def is_gated(job: Record) -> bool:
    """Whether it has a place at a train or slot; one that waits for its parents has none yet."""
    return job["position"] is not None


def has_gate(job: Record) -> bool:
    return job["train"] is not None or job["slot"] is not None


def _key(job: Record) -> Key:
    return ("train", job["train"]) if job["train"] is not None else ("slot", job["slot"])


def _turn(job: Record) -> tuple[Any, ...]:
    return job["position"], -job["priority"], job["run_at"], job["id"]


def _limits(jobs: Iterable[Record]) -> list[int]:
    return [job["slot_limit"] for job in jobs]
