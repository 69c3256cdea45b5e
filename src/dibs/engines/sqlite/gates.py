"""Trains and slots on SQLite: the blocks of gates.sql load what jobs/gates.py decides about, and apply it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from dibs.engines.sql.engine import Plan, Query, SqlEngine
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
from dibs.jobs.states import JobState
from dibs.operations.scripts import Row


class SqliteGates(SqlEngine):
    """What a question does at gates. Each plan ends with `_open_gates`, which lets the next jobs through."""

    # -- the questions --------------------------------------------------------------------------

    def _release_train(self, name: str) -> Plan:
        standing = yield Query("standing_train", {"name": name})
        yield Query("hold_train", {"name": name, "held_by": None})
        yield from self._open_gates([("train", name)] if standing else [])
        return standing

    def _mend_gates(self, after_sort: str | None, after_name: str | None, limit: int) -> Plan:
        where = {"after_sort": after_sort, "after_name": after_name, "limit": limit}
        found = yield Query("gates_after", where)
        for gate in found:
            yield Query("drop_stale_hold", gate)
        yield from self._open_gates(((gate["sort"], gate["name"]) for gate in found), mends=True)
        return found

    def _make_gates(self, keys: Sequence[Key]) -> Plan:
        for sort, name in keys:
            yield Query("make_gate", {"sort": sort, "name": name})
        return (yield from self._open_gates(keys))

    # -- what other plans do at a gate ------------------------------------------------------------

    def _kept_instead(self, job: Mapping[str, Any]) -> Any:
        """Return the job that is kept instead of a new one with the policy `drop`, if its slot is full."""
        if job["slot_policy"] != "drop":
            return None
        members = yield Query("slot_members", {"name": job["slot"], "limit": job["slot_limit"]})
        return kept_instead(job["slot_limit"], [GateJob(**row) for row in members])

    def _position(self, job: Mapping[str, Any]) -> Any:
        """Return the position of a job that comes to its gate."""
        sort, name = gate_of(job)
        yield Query("make_gate", {"sort": sort, "name": name})
        [gate] = yield Query("last_position", {"sort": sort, "name": name})
        position = new_position(sort, job["slot_policy"], gate["last_position"])
        if position:
            yield Query("raise_position", {"sort": sort, "name": name, "position": abs(position)})
        return position

    def _rejoin(self, job: Row) -> Any:
        """Put a retried job at its gate, which is then to be opened.

        It has its old position if it holds its train, or else the one of a new job. In a slot it pre-empts no
        other.
        """
        released = yield Query("let_go", self.adapt({"ids": [job["id"]]}))
        if not released:
            position = yield from self._position({**job, "slot_policy": None})
            yield Query("place", {"id": str(job["id"]), "position": position})
        return [gate_of(job)]

    def _leave_gate(self, job: Row, state: str) -> Any:
        """Return the gate of a job that ended in this state, to be opened; hold its train if it must be."""
        if job["position"] is None:
            return []
        sort, name = gate_of(job)
        left = left_train(job, state)
        if sort == "train" and left.holds:
            yield Query("make_gate", {"sort": sort, "name": name})
            head, held_by = yield from self._train(name)
            held_by = open_train(head, held_by, [left]).held_by
            yield Query("hold_train", self.adapt({"name": name, "held_by": held_by}))
        return [(sort, name)]

    def _has_room(self, job: Row) -> Any:
        return has_room(job["slot_limit"], (yield from self._slot(job["slot"], waiting=0)))

    def _end_offers(self, limit: int) -> Plan:
        """Put ready jobs that give way behind all others of their slots."""
        over = yield Query("offers_over", {"limit": limit})
        passed: list[Key] = []
        for slot in over:
            position = slot["last_position"]
            for job in giving_way((yield from self._slot(slot["name"], WAITING_READ))):
                position += 1
                yield Query("place", {"id": str(job.id), "position": position})
                passed.append(("slot", slot["name"]))
            yield Query("raise_position", {"sort": "slot", "name": slot["name"], "position": position})
            yield Query("set_offer", {"name": slot["name"], "offer": "none", "micros": 0})
        return (yield from self._open_gates(passed))

    # -- opening ----------------------------------------------------------------------------------

    def _open_gates(self, keys: Iterable[Key], *, mends: bool = False) -> Plan:
        """Let through the jobs that may go, and only them; delete a gate after its last job."""
        for sort, name in sorted(set(keys)):
            if sort == "train":
                yield from self._open_train(name)
            else:
                yield from self._open_slot(name, mends)
            yield Query("forget_gate", {"sort": sort, "name": name})
        return []

    def _open_train(self, name: str) -> Plan:
        head, held_by = yield from self._train(name)
        if open_train(head, held_by).opens:
            yield Query("open_head", {"id": str(head.id)})
        return []

    def _open_slot(self, name: str, mends: bool) -> Plan:
        jobs = yield from self._slot(name, waiting=2)
        if waiting_needed(jobs) > 2:
            jobs = yield from self._slot(name, waiting_needed(jobs))
        [gate] = yield Query("offer", {"name": name})
        opening = open_slot(jobs, has_offer=gate["is_offered"], mends=mends)
        yield from self._set_states(opening.sent_back, JobState.blocked)
        yield from self._set_states(opening.let_through, JobState.ready)
        if opening.offer != "kept":
            yield Query("set_offer", {"name": name, "offer": opening.offer, "micros": OFFER})
        for id in opening.asked:
            yield Query("ask_to_cancel", {"id": str(id), "reason": opening.reason})
        return []

    def _train(self, name: str) -> Any:
        """Return (the first job of a train, the ended job that holds it)."""
        [row] = yield Query("train", {"name": name})
        head = None if row["id"] is None else GateJob(row["id"], row["state"], row["position"])
        return head, row["held_by"]

    def _slot(self, name: str, waiting: int) -> Any:
        """Return the running and the ready jobs of a slot, and the first of the blocked ones."""
        rows = yield Query("slot", {"name": name, "limit": waiting})
        return [GateJob(**row) for row in rows]

    def _set_states(self, ids: Sequence[UUID], state: JobState) -> Plan:
        if ids:
            yield Query("set_states", self.adapt({"ids": list(ids), "state": state}))
        return []


def slots_of(jobs: Collection[Row]) -> list[Key]:
    return [("slot", job["slot"]) for job in jobs if job["slot"] is not None]
