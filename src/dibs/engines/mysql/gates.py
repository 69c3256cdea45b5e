"""Trains and slots on MySQL and MariaDB: the plans of `memory/gates.py`, over the blocks of gates.sql.

A plan locks the rows of its gates, then what it changes at them; it notes in `Gate` what has happened, and
ends with `_open_gates`, which lets through who may go and writes the rows of the gates.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from dibs.engines.mysql.values import as_hex, as_ids, as_json, as_moment, chunks, later
from dibs.engines.sql.engine import Plan, Query
from dibs.engines.sql.gates import MendingEngine
from dibs.jobs.states import LOOKED_AT, PATIENCE, JobState, fits, giving_way, holds, in_the_way
from dibs.operations.scripts import Row, Rows

Key = tuple[str, str]  # "train" or "slot", and its name

NOBODY_WAS_HERE = -1


@dataclass(slots=True)
class Left:
    """A job that is not on its train any more; `holds` if its end is one for a person to look at."""

    id: UUID
    position: int
    holds: bool


@dataclass(slots=True)
class Gate:
    """The row of a gate, which this transaction has locked, and what it did there."""

    key: Key
    now: datetime
    last_position: int
    held_by: UUID | None
    offer_ends: datetime | None
    stored: tuple[Any, ...]
    is_empty: bool = False
    moved: bool = False
    left: list[Left] = field(default_factory=list)

    @property
    def name(self) -> str:
        """As the column `gate` of its jobs spells it."""
        return self.key[0][0] + self.key[1]

    @property
    def is_made(self) -> bool:
        return self.last_position == NOBODY_WAS_HERE

    @property
    def is_left(self) -> bool:
        """Nobody is at it, and nobody holds it."""
        return self.is_empty and self.held_by is None

    @property
    def noted(self) -> tuple[Any, ...]:
        return self.last_position, self.held_by, self.offer_ends

    def next_position(self) -> int:
        self.last_position += 1
        return self.last_position

    def place(self, job: Mapping[str, Any]) -> int:
        """Trains: one after the other. Slots: all alike, but a pre-empting job is before all others."""
        if self.key[0] == "train":
            return self.next_position()
        return -self.next_position() if job["slot_policy"] == "preempt" else 0


Gates = dict[Key, Gate]


class MysqlGates(MendingEngine):
    """What a question does at gates."""

    def _each(self, block: str, ids: Iterable[UUID], **given: Any) -> Plan:
        """One statement for all of these, none for none."""
        if ids := list(ids):
            yield Query(block, {"ids": as_ids(ids), **given})
        return []

    # -- the questions --------------------------------------------------------------------------

    def _release_train(self, name: str) -> Plan:
        gates = yield from self._lock_gates([("train", name)])
        [gate] = gates.values()
        was_there, was_held = gate.stored[0] != NOBODY_WAS_HERE, gate.held_by is not None
        gate.held_by = None
        yield from self._open_gates(gates)
        return [{"was_held": was_held}] if was_there else []

    def _mend_gates(self, after_sort: str | None, after_name: str | None, limit: int) -> Plan:
        found = yield Query(
            "gates_after", {"after_sort": after_sort, "after_name": after_name, "limit": limit}
        )
        gates = yield from self._lock_free_gates((row["sort"], row["name"]) for row in found)
        holders = [gate.held_by for gate in gates.values() if gate.held_by is not None]
        known = {row["id"] for row in (yield Query("settled", {"ids": as_ids(holders)}))} if holders else ()
        for gate in gates.values():
            if gate.held_by not in known:
                gate.held_by = None
        yield from self._open_gates(gates, mends=True)
        return found

    def _put_up(self, keys: Sequence[Key]) -> Plan:
        return (yield from self._open_gates((yield from self._lock_gates(keys))))

    def _gates(self, names: Collection[str] | None, **page: Any) -> Plan:
        given = None if names is None else as_json(list(names))
        return (yield Query("gates", {**self.adapt(page), "names": given}))

    def _current(self, slots: Collection[str]) -> Plan:
        names = {"slots": as_json(list(slots)), "gates": as_json([f"s{slot}" for slot in slots])}
        latest: dict[str, Row] = {}
        for row in sorted((yield Query("current", names)), key=lambda row: row["token"]):
            latest[row["slot"]] = row
        return list(latest.values())

    # -- locks ----------------------------------------------------------------------------------

    def _lock_gates(self, keys: Iterable[Key]) -> Any:
        """These gates, locked in the order of their keys; those that are not there are made."""
        wanted = sorted(set(keys))
        for chunk in chunks(wanted):
            yield Query("lock_gates", {"gates": chunk})
        return (yield from self._read_gates("locked_gates", wanted))

    def _lock_with_patience(self, keys: Collection[Key], patience: str | None) -> Any:
        """(these gates, locked; those of them that somebody else has locked, where nobody is waited for)."""
        if patience == "short":
            yield from self._read_gates("gates_soon", sorted(keys))
        if patience != "none":
            return (yield from self._lock_gates(keys)), set()
        free = yield from self._lock_free_gates(keys)
        note_moves(free)
        missing = sorted(set(keys) - free.keys())
        taken = set()
        for chunk in chunks(missing):
            taken |= {(row["sort"], row["name"]) for row in (yield Query("gates_seen", {"gates": chunk}))}
        absent = yield from self._lock_gates(set(missing) - taken)
        return free | absent, taken

    def _lock_free_gates(self, keys: Iterable[Key]) -> Any:
        """Those of these gates that nobody has locked."""
        return (yield from self._read_gates("free_gates", sorted(set(keys))))

    def _read_gates(self, block: str, keys: Sequence[Key]) -> Any:
        gates: Gates = {}
        for chunk in chunks(keys):
            for row in (yield Query(block, {"gates": chunk})):
                gate = _gate(row)
                if gate.is_made:
                    [used] = yield Query("last_position", {"gate": gate.name})
                    gate.last_position = int(used["last_position"])
                gates[gate.key] = gate
        return gates

    def _lock_gates_of(self, jobs: Sequence[Row], gates: Gates) -> Plan:
        """Of jobs that came to a gate after we looked: its lock comes late, and may cost a deadlock."""
        missing = {gate_of(job) for job in jobs if has_gate(job)} - gates.keys()
        gates.update((yield from self._lock_gates(missing)) if missing else {})
        return []

    # -- the moves ------------------------------------------------------------------------------

    def _kept_instead(self, job: Mapping[str, Any]) -> Any:
        """Who keeps the place of a new job with the policy `drop`, if its slot was full without it."""
        members = yield Query("slot_members", {"gate": f"s{job['slot']}", "job": job["id"].hex})
        full = not fits(job["slot_limit"], [member["slot_limit"] for member in members])
        return members[0]["id"] if full else None

    def _waiting_beside(self, job: Mapping[str, Any]) -> Any:
        """The other jobs of its slot that have not started."""
        members = yield Query("slot_members", {"gate": f"s{job['slot']}", "job": job["id"].hex})
        return [member["id"] for member in members if member["state"] != JobState.running]

    def _going(self, gate: Gate, line: Rows) -> Any:
        """(who runs, who is ready): from here on nobody starts, for whoever is ready is locked."""
        ready = [job["id"] for job in line if job["state"] == JobState.ready]
        locked = (yield Query("looked_ready", {"ids": as_ids(sorted(ready))})) if ready else []
        running = {job["id"]: job for job in (yield Query("slot_running", {"gate": gate.name}))}
        running |= {job["id"]: job for job in locked if job["state"] == JobState.running}
        still_ready = {job["id"] for job in locked if job["state"] == JobState.ready}
        return sorted(running.values(), key=lambda job: job["token"]), still_ready

    def _room_beside(self, gate: Gate, limit: int) -> Any:
        line = yield Query("slot_line", {"gate": gate.name, "limit": 0})
        running, _ = yield from self._going(gate, line)
        return fits(limit, [job["slot_limit"] for job in running])

    def _pass_on(self, limit: int) -> Plan:
        """Slots whose offer is over: who is ready and gives way goes behind all who had no turn yet."""
        over = yield Query("offers_over", {"limit": limit})
        gates = yield from self._lock_free_gates((row["sort"], row["name"]) for row in over)
        passed: Gates = {}
        for key, gate in gates.items():
            line = yield Query("slot_line", {"gate": gate.name, "limit": LOOKED_AT})
            _, ready = yield from self._going(gate, line)
            turns = [job["id"] for job in sorted(giving_way(line), key=_turn) if job["id"] in ready]
            yield from self._set_places([(id, gate.next_position()) for id in turns])
            gate.offer_ends, gate.moved = None, True
            if turns:
                passed[key] = gate
        yield from self._note_gates([gate for gate in gates.values() if gate.key not in passed])
        return (yield from self._open_gates(passed))

    def _set_places(self, places: Sequence[tuple[UUID, int]]) -> Plan:
        for chunk in chunks(places):
            yield Query("place", {"places": chunk})
        return []

    # -- who may go -----------------------------------------------------------------------------

    def _open_gates(self, gates: Gates, *, mends: bool = False) -> Plan:
        """Let through who may go, and only them; the last one leaves no trace."""
        yield from self._open_trains([gate for key, gate in gates.items() if key[0] == "train"])
        for key, gate in gates.items():
            if key[0] == "slot":
                yield from self._open_slot(gate, mends)
        for chunk in chunks(gate.key for gate in gates.values() if gate.is_left):
            yield Query("forget_gates", {"gates": chunk})
        return (yield from self._note_gates([gate for gate in gates.values() if not gate.is_left]))

    def _note_gates(self, gates: Sequence[Gate]) -> Plan:
        changed = [gate for gate in gates if gate.moved or gate.noted != gate.stored]
        for chunk in chunks(_row(gate) for gate in changed):
            yield Query("note_gates", {"gates": chunk})
        return []

    def _open_trains(self, trains: Sequence[Gate]) -> Plan:
        """A train's head goes, unless the train waits for a person."""
        if not trains:
            return []
        rows = yield Query("train_heads", {"gates": as_json([gate.name for gate in trains])})
        heads = {row["gate"]: row for row in rows}
        for gate in trains:
            head = heads[gate.name]
            gate.is_empty = head["id"] is None
            gate.held_by = gate.held_by or _who_holds(gate.left, head["position"])
        opened = [gate for gate in trains if _may_open(gate, heads[gate.name])]
        for gate in opened:
            gate.moved = True
        return (yield from self._each("open_heads", sorted(heads[gate.name]["id"] for gate in opened)))

    def _open_slot(self, gate: Gate, mends: bool) -> Plan:
        line = yield from self._line(gate)
        running, ready = yield from self._going(gate, line)
        line = [job for job in line if job["state"] != JobState.ready or job["id"] in ready]
        chosen, waiting = _turns(running, line)
        back = [job["id"] for job in waiting if job["state"] == JobState.ready]
        started = [job["id"] for job in chosen if job["state"] == JobState.blocked]
        yield from self._each("move", sorted(back), state=JobState.blocked.value)
        yield from self._each("move", sorted(started), state=JobState.ready.value)
        gate.moved |= bool(back or started)
        gate.offer_ends = _offer(gate, offered=bool(chosen and waiting), is_new=bool(started), mends=mends)
        yield from self._preempt(running, chosen, waiting)
        if not running and not line:
            gate.is_empty = not (yield Query("somebody_there", {"gate": gate.name}))
        return []

    def _line(self, gate: Gate) -> Any:
        """As many of the line as could go, and one more."""
        line = sorted((yield Query("slot_line", {"gate": gate.name, "limit": 2})), key=_turn)
        if line and line[0]["slot_limit"] > 1:
            wanted = {"gate": gate.name, "limit": line[0]["slot_limit"] + 1}
            line = sorted((yield Query("slot_line", wanted)), key=_turn)
        return line

    def _preempt(self, running: Rows, chosen: Sequence[Row], waiting: Sequence[Row]) -> Plan:
        if not waiting or waiting[0]["position"] >= 0:
            return []
        first, ready = waiting[0], [job["slot_limit"] for job in chosen]
        stand = [(job["slot_limit"], job["position"], bool(job["asked"])) for job in running]
        asked = in_the_way(first["slot_limit"], first["position"], stand, ready)
        stopping = sorted(running[at]["id"] for at in asked)
        reason = f"pre-empted by {first['id']}"
        return (yield from self._each("ask_to_cancel", stopping, reason=reason))


def has_gate(job: Mapping[str, Any]) -> bool:
    return job["train"] is not None or job["slot"] is not None


def gate_of(job: Mapping[str, Any]) -> Key:
    return ("train", job["train"]) if job["train"] is not None else ("slot", job["slot"])


def gates_of(jobs: Iterable[Mapping[str, Any]]) -> list[Key]:
    return [gate_of(job) for job in jobs if has_gate(job)]


def leave(gates: Gates, job: Row, state: str | None) -> None:
    """A job has ended like this, or is deleted (None): the next one may go, or a person must come."""
    if job["train"] is not None and job["position"] is not None:
        stops = state is not None and holds(JobState(state), job["on_cancelled"], job["on_failed"])
        gates[gate_of(job)].left.append(Left(job["id"], job["position"], stops))


def _who_holds(left: Sequence[Left], first: int | None) -> UUID | None:
    """Of those who left, one after another, the first whose end stops the train: it must have been its head.

    `first` is the position of the first who is still there.
    """
    for at, job in enumerate(left):
        others = [other.position for other in left[at + 1 :]] + ([] if first is None else [first])
        if job.holds and all(job.position < position for position in others):
            return job.id
    return None


def note_moves(gates: Gates) -> None:
    """For gates that were locked without a write: whoever saw them before must see that they have changed."""
    for gate in gates.values():
        gate.moved = True


def _may_open(train: Gate, head: Row) -> bool:
    return train.held_by is None and bool(head["state"] == JobState.blocked)


def _turns(running: Rows, line: Rows) -> tuple[list[Row], list[Row]]:
    """(who goes, who waits) of those in line."""
    going = [job["slot_limit"] for job in running]
    chosen: list[Row] = []
    for job in line:
        if not fits(job["slot_limit"], going):
            break
        going.append(job["slot_limit"])
        chosen.append(job)
    return chosen, list(line[len(chosen) :])


def _turn(job: Row) -> tuple[Any, ...]:
    return job["position"], -job["priority"], job["run_at"], job["id"]


def _offer(gate: Gate, *, offered: bool, is_new: bool, mends: bool) -> datetime | None:
    """Somebody waits behind a ready job: it has so long to be taken. One that led to nothing is over."""
    if not offered:
        return None
    begins = is_new or (gate.offer_ends is None and not mends)
    return later(gate.now, PATIENCE) if begins else gate.offer_ends


def _gate(row: Row) -> Gate:
    stored = (row["last_position"], row["held_by"], row["offer_ends"])
    return Gate((row["sort"], row["name"]), row["now"], *stored, stored=stored)


def _row(gate: Gate) -> list[Any]:
    ends = None if gate.offer_ends is None else as_moment(gate.offer_ends)
    return [*gate.key, gate.last_position, as_hex(gate.held_by), ends]
