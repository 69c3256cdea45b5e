"""Trains and slots on MySQL and MariaDB: load under locks what jobs/gates.py decides about, and apply it.

A plan locks the rows of its gates, then the jobs that it changes at them. It notes in `LockedGate` what has
happened, and ends with `_open_gates`, which lets the next jobs through and writes the rows of the gates.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from dibs.engines.sql.engine import Answer, Plan, Query, SqlEngine
from dibs.engines.sql.values import as_hex, as_ids, as_json, as_moment, chunks, later
from dibs.jobs.gates import (
    OFFER,
    WAITING_READ,
    GateJob,
    Key,
    Left,
    gate_of,
    giving_way,
    has_gate,
    has_room,
    kept_instead,
    left_train,
    new_position,
    open_slot,
    open_train,
    waiting_needed,
)
from dibs.jobs.states import JobState
from dibs.operations.scripts import Row, Rows

JUST_MADE = -1  # the last position of a gate that has just been made


@dataclass(slots=True)
class LockedGate:
    """The row of a gate that this transaction has locked, and what it did there."""

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
        """The name in the column `gate` of its jobs."""
        return self.key[0][0] + self.key[1]

    @property
    def is_made(self) -> bool:
        return self.last_position == JUST_MADE

    @property
    def is_left(self) -> bool:
        """Whether no live job is at it and no ended one holds it."""
        return self.is_empty and self.held_by is None

    @property
    def noted(self) -> tuple[Any, ...]:
        return self.last_position, self.held_by, self.offer_ends

    def next_position(self) -> int:
        self.last_position += 1
        return self.last_position

    def place(self, slot_policy: str | None) -> int:
        """Return the position of a job that comes here."""
        position = new_position(self.key[0], slot_policy, self.last_position)
        self.last_position = max(self.last_position, abs(position))
        return position


Gates = dict[Key, LockedGate]


class MysqlGates(SqlEngine):
    """What a question does at gates."""

    def _each(self, block: str, ids: Iterable[UUID], **given: Any) -> Plan:
        """Run one statement for all of these, and none if there are none."""
        if ids := list(ids):
            yield Query(block, {"ids": as_ids(ids), **given})
        return []

    # -- the questions --------------------------------------------------------------------------

    def _release_train(self, name: str) -> Plan:
        gates = yield from self._lock_gates([("train", name)])
        [gate] = gates.values()
        was_there, was_held = gate.stored[0] != JUST_MADE, gate.held_by is not None
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

    def _make_gates(self, keys: Sequence[Key]) -> Plan:
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
        """Lock these gates in the order of their keys, and make the missing ones."""
        wanted = sorted(set(keys))
        for chunk in chunks(wanted):
            yield Query("lock_gates", {"gates": chunk})
        return (yield from self._read_gates("locked_gates", wanted))

    def _lock_with_patience(self, keys: Collection[Key], patience: str | None) -> Any:
        """Return (these gates, locked; with patience `none` the gates that are locked elsewhere)."""
        if patience == "short":
            yield Query("wait_briefly", {})
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
        """Lock the gates of these that are free."""
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
        """Lock gates to which jobs came after the first read: this late it may cost a deadlock."""
        missing = {gate_of(job) for job in jobs if has_gate(job)} - gates.keys()
        gates.update((yield from self._lock_gates(missing)) if missing else {})
        return []

    # -- what other plans do at a gate ------------------------------------------------------------

    def _kept_instead(self, job: Mapping[str, Any]) -> Any:
        """Return the job that is kept instead of a new one with the policy `drop`, if its slot was full."""
        beside = {"gate": f"s{job['slot']}", "job": job["id"].hex, "limit": job["slot_limit"]}
        members = yield Query("slot_members", beside)
        return kept_instead(job["slot_limit"], [GateJob(**row) for row in members])

    def _waiting_beside(self, job: Mapping[str, Any]) -> Any:
        """Return the ids of the other jobs of its slot that have not started."""
        rows = yield Query("slot_waiting", {"gate": f"s{job['slot']}", "job": job["id"].hex})
        return [row["id"] for row in rows]

    def _has_room(self, gate: LockedGate, limit: int) -> Any:
        return has_room(limit, (yield from self._slot(gate, (yield from self._line(gate, 0)))))

    def _end_offers(self, limit: int) -> Plan:
        """Put ready jobs that give way behind all others of their slots."""
        over = yield Query("offers_over", {"limit": limit})
        gates = yield from self._lock_free_gates((row["sort"], row["name"]) for row in over)
        passed: Gates = {}
        for key, gate in gates.items():
            jobs = yield from self._slot(gate, (yield from self._line(gate, WAITING_READ)))
            turns = giving_way(jobs)
            yield from self._set_places([(job.id, gate.next_position()) for job in turns])
            gate.offer_ends, gate.moved = None, True
            if turns:
                passed[key] = gate
        yield from self._note_gates([gate for gate in gates.values() if gate.key not in passed])
        return (yield from self._open_gates(passed))

    def _set_places(self, places: Sequence[tuple[UUID, int]]) -> Plan:
        for chunk in chunks(places):
            yield Query("place", {"places": chunk})
        return []

    # -- opening ----------------------------------------------------------------------------------

    def _open_gates(self, gates: Gates, *, mends: bool = False) -> Plan:
        """Let through the jobs that may go, and only them; delete a gate after its last job."""
        yield from self._open_trains([gate for key, gate in gates.items() if key[0] == "train"])
        for key, gate in gates.items():
            if key[0] == "slot":
                yield from self._open_slot(gate, mends)
        for chunk in chunks(gate.key for gate in gates.values() if gate.is_left):
            yield Query("forget_gates", {"gates": chunk})
        return (yield from self._note_gates([gate for gate in gates.values() if not gate.is_left]))

    def _note_gates(self, gates: Sequence[LockedGate]) -> Plan:
        changed = [gate for gate in gates if gate.moved or gate.noted != gate.stored]
        for chunk in chunks(_row(gate) for gate in changed):
            yield Query("note_gates", {"gates": chunk})
        return []

    def _open_trains(self, trains: Sequence[LockedGate]) -> Plan:
        if not trains:
            return []
        rows = yield Query("train_heads", {"gates": as_json([gate.name for gate in trains])})
        heads = {row["gate"]: _head(row) for row in rows}
        opened: list[UUID] = []
        for gate in trains:
            head = heads[gate.name]
            opening = open_train(head, gate.held_by, gate.left)
            gate.held_by, gate.is_empty = opening.held_by, head is None
            if head is not None and opening.opens:
                gate.moved = True
                opened.append(head.id)
        return (yield from self._each("open_heads", sorted(opened)))

    def _open_slot(self, gate: LockedGate, mends: bool) -> Plan:
        line = yield from self._line(gate, 2)
        if (needed := waiting_needed(line)) > 2:
            line = yield from self._line(gate, needed)
        jobs = yield from self._slot(gate, line)
        opening = open_slot(jobs, has_offer=gate.offer_ends is not None, mends=mends)
        yield from self._each("set_states", sorted(opening.sent_back), state=JobState.blocked.value)
        yield from self._each("set_states", sorted(opening.let_through), state=JobState.ready.value)
        yield from self._each("ask_to_cancel", sorted(opening.asked), reason=opening.reason)
        gate.moved |= bool(opening.sent_back or opening.let_through)
        if opening.offer != "kept":
            gate.offer_ends = later(gate.now, OFFER) if opening.offer == "new" else None
        if not jobs:
            gate.is_empty = not (yield Query("slot_in_use", {"gate": gate.name}))
        return []

    def _line(self, gate: LockedGate, waiting: int) -> Any:
        """Return the ready jobs of a slot, and the first of the blocked ones, without a lock."""
        rows = yield Query("slot_line", {"gate": gate.name, "limit": waiting})
        return [GateJob(**row) for row in rows]

    def _slot(self, gate: LockedGate, line: Sequence[GateJob]) -> Any:
        """Return what these jobs are now, and the running ones. No ready job can start from here on."""
        ready = sorted(job.id for job in line if job.state == JobState.ready)
        locked = (yield Query("lock_ready", {"ids": as_ids(ready)})) if ready else []
        running = yield Query("slot_running", {"gate": gate.name})
        going = {row["id"]: GateJob(**row) for row in (*running, *locked)}
        going = {id: job for id, job in going.items() if job.state in (JobState.ready, JobState.running)}
        return [*going.values(), *(job for job in line if job.state == JobState.blocked)]


def gates_of(jobs: Iterable[Mapping[str, Any]]) -> list[Key]:
    return [gate_of(job) for job in jobs if has_gate(job)]


def leave(gates: Gates, job: Row, state: str | None) -> None:
    """Note that a job has ended in this state, or was deleted (None)."""
    if job["train"] is not None and job["position"] is not None:
        gates[gate_of(job)].left.append(left_train(job, state))


def note_moves(gates: Gates) -> None:
    """Mark gates that were locked without a write, so that transactions that saw them see a change."""
    for gate in gates.values():
        gate.moved = True


def _head(row: Row) -> GateJob | None:
    return None if row["id"] is None else GateJob(row["id"], row["state"], row["position"])


def _gate(row: Row) -> LockedGate:
    stored = (row["last_position"], row["held_by"], row["offer_ends"])
    return LockedGate((row["sort"], row["name"]), row["now"], *stored, stored=stored)


def _row(gate: LockedGate) -> list[Any]:
    ends = None if gate.offer_ends is None else as_moment(gate.offer_ends)
    return [*gate.key, gate.last_position, as_hex(gate.held_by), ends]


# -- Answers within a caller's transaction: its snapshot may be older than the rows that it locks

# A consistent read shows the rows as of the caller's first statement; a locking read shows the newest ones.
# The same reads, locking.
NEWEST = {
    "lasting": "lasting_newest",
    "train_heads": "train_heads_newest",
    "slot_line": "slot_line_newest",
    "slot_running": "slot_running_newest",
    "slot_members": "slot_members_newest",
    "slot_waiting": "slot_waiting_newest",
    "slot_in_use": "slot_in_use_newest",
}

# Blocks that read the holders of unique keys without a lock.
HOLDERS = ("key_holders", "running_holders")


def on_newest(answer: Answer) -> Answer:
    return lambda **params: _beside_snapshot(answer(**params))


def _beside_snapshot(plan: Plan) -> Plan:
    """Run a plan in the caller's transaction, with locking reads where its snapshot is too old.

    Not everywhere: at REPEATABLE READ they lock gaps as well, which block every enqueue.
    """
    query, is_old = next(plan), False
    seen: dict[Key, int] = {}
    while True:
        assert isinstance(query, Query)
        if query.name == "lock_gates":
            seen |= {_key(row): row["changes"] for row in (yield replace(query, name="gates_seen"))}
        newest = NEWEST.get(query.name) if is_old or query.name == "lasting" else None
        rows = yield query if newest is None else replace(query, name=newest)
        if query.name in HOLDERS and rows:
            rows = yield from _still_there(rows)
        if query.name == "locked_gates" and any(_has_changed(row, seen) for row in rows):
            is_old = True
            yield replace(query, name="doubt_gates")
        try:
            query = plan.send(rows)
        except StopIteration as done:
            answer: Rows = done.value
            return answer


def _still_there(holders: Rows) -> Plan:
    """Return the holders that still have their keys, whatever a snapshot shows."""
    keys = as_json(sorted(row["unique_key"] for row in holders))
    newest = yield Query("key_holders_newest", {"keys": keys})
    there = {(row["unique_key"], row["holder"]) for row in newest}
    return [row for row in holders if (row["unique_key"], row["holder"]) in there]


def _key(gate: Row) -> Key:
    return gate["sort"], gate["name"]


def _has_changed(gate: Row, seen: Mapping[Key, int]) -> bool:
    """Return whether a locked gate has changed since we read it; a number below 0 is in doubt."""
    before = seen.get(_key(gate))
    if before is None:
        return bool(gate["last_position"] != JUST_MADE)
    return before < 0 or bool(gate["changes"] != before + 1)
