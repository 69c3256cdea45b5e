"""Trains and slots on SQLite: the plans of `memory/gates.py`, over the blocks of gates.sql."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dibs.engines.sql.engine import Plan, Query
from dibs.engines.sql.gates import MendingEngine
from dibs.jobs.states import LOOKED_AT, PATIENCE, JobState, fits, giving_way, holds, in_the_way
from dibs.operations.scripts import Row, Rows

Key = tuple[str, str]  # "train" or "slot", and its name


class SqliteGates(MendingEngine):
    """What a question does at gates. Each plan ends with `_open_gates`, which lets through who may go."""

    # -- the questions --------------------------------------------------------------------------

    def _release_train(self, name: str) -> Plan:
        standing = yield Query("standing_train", {"name": name})
        yield Query("release", {"name": name})
        yield from self._open_gates([("train", name)] if standing else [])
        return standing

    def _mend_gates(self, after_sort: str | None, after_name: str | None, limit: int) -> Plan:
        where = {"after_sort": after_sort, "after_name": after_name, "limit": limit}
        found = yield Query("gates_after", where)
        for gate in found:
            yield Query("drop_stale_hold", gate)
        yield from self._open_gates(((gate["sort"], gate["name"]) for gate in found), mends=True)
        return found

    def _put_up(self, keys: Sequence[Key]) -> Plan:
        for sort, name in keys:
            yield Query("make_gate", {"sort": sort, "name": name})
        return (yield from self._open_gates(keys))

    # -- the moves ------------------------------------------------------------------------------

    def _kept_instead(self, job: Mapping[str, Any]) -> Any:
        """Who keeps the place of a new job with the policy `drop`, if its slot is full."""
        if job["slot_policy"] != "drop":
            return None
        members = yield Query("slot_members", {"name": job["slot"]})
        full = not fits(job["slot_limit"], [member["slot_limit"] for member in members])
        return members[0]["id"] if full else None

    def _position(self, job: Mapping[str, Any]) -> Any:
        """Trains: one after the other. Slots: all alike, but a pre-empting job is before all others."""
        sort, name = gate_of(job)
        yield Query("make_gate", {"sort": sort, "name": name})
        if sort == "slot" and job["slot_policy"] != "preempt":
            return 0
        [row] = yield Query("next_position", {"sort": sort, "name": name})
        position: int = row["last_position"]
        return position if sort == "train" else -position

    def _rejoin(self, job: Row) -> Any:
        """The gate of a retried job, to be opened.

        Who holds its train gets its old place, others its end; a slot's job pushes nobody.
        """
        released = yield Query("let_go", self.adapt({"ids": [job["id"]]}))
        if not released:
            position = yield from self._position({**job, "slot_policy": None})
            yield Query("place", {"id": str(job["id"]), "position": position})
        return [gate_of(job)]

    def _leave_gate(self, job: Row, state: str) -> Any:
        """The gate of a job that has ended like this, to be opened for the next; or a person must come."""
        if job["position"] is None:
            return []
        sort, name = gate_of(job)
        if sort == "train" and holds(JobState(state), job["on_cancelled"], job["on_failed"]):
            yield Query("make_gate", {"sort": sort, "name": name})
            yield Query("hold_train", {"name": name, "id": str(job["id"]), "position": job["position"]})
        return [(sort, name)]

    def _room_beside(self, job: Row) -> Any:
        running = yield Query("slot_running", {"name": job["slot"]})
        return fits(job["slot_limit"], [other["slot_limit"] for other in running])

    def _pass_on(self, limit: int) -> Plan:
        """Slots whose offer is over: who is ready and gives way goes behind all who had no turn yet."""
        over = yield Query("offers_over", {"limit": limit})
        passed: list[Key] = []
        for slot in over:
            line = yield Query("slot_line", {"name": slot["name"], "limit": LOOKED_AT})
            for job in giving_way(line):
                [row] = yield Query("next_position", {"sort": "slot", "name": slot["name"]})
                yield Query("place", {"id": str(job["id"]), "position": row["last_position"]})
                passed.append(("slot", slot["name"]))
            yield Query("end_offer", {"name": slot["name"]})
        return (yield from self._open_gates(passed))

    # -- who may go -----------------------------------------------------------------------------

    def _open_gates(self, keys: Iterable[Key], *, mends: bool = False) -> Plan:
        """Let through who may go, and only them; the last one leaves no trace."""
        for sort, name in sorted(set(keys)):
            if sort == "train":
                yield Query("open_train", {"name": name})
            else:
                yield from self._open_slot(name, mends)
            yield Query("forget_gate", {"sort": sort, "name": name})
        return []

    def _open_slot(self, name: str, mends: bool) -> Plan:
        running = yield Query("slot_running", {"name": name})
        line = yield from self._line(name)
        chosen, waiting = _turns(running, line)
        yield from self._move([job for job in waiting if job["state"] == JobState.ready], JobState.blocked)
        started = [job for job in chosen if job["state"] == JobState.blocked]
        yield from self._move(started, JobState.ready)
        offer = {"offered": bool(chosen and waiting), "is_new": bool(started), "mends": mends}
        yield Query("set_offer", {"name": name, **offer, "patience": PATIENCE})
        return (yield from self._preempt(running, chosen, waiting))

    def _line(self, name: str) -> Any:
        """As many of the line as could go, and one more."""
        line: Rows = yield Query("slot_line", {"name": name, "limit": 2})
        if line and line[0]["slot_limit"] > 1:
            line = yield Query("slot_line", {"name": name, "limit": line[0]["slot_limit"] + 1})
        return line

    def _move(self, jobs: Sequence[Row], state: JobState) -> Plan:
        if jobs:
            yield Query("move", self.adapt({"ids": [job["id"] for job in jobs], "state": state}))
        return []

    def _preempt(self, running: Rows, chosen: Sequence[Row], waiting: Sequence[Row]) -> Plan:
        if waiting and waiting[0]["position"] < 0:
            first, ready = waiting[0], [job["slot_limit"] for job in chosen]
            stand = [(job["slot_limit"], job["position"], bool(job["asked"])) for job in running]
            for at in in_the_way(first["slot_limit"], first["position"], stand, ready):
                reason = f"pre-empted by {first['id']}"
                yield Query("ask_to_cancel", {"id": str(running[at]["id"]), "reason": reason})
        return []


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


def has_gate(job: Mapping[str, Any]) -> bool:
    return job["train"] is not None or job["slot"] is not None


def gate_of(job: Mapping[str, Any]) -> Key:
    return ("train", job["train"]) if job["train"] is not None else ("slot", job["slot"])


def slots_of(jobs: Collection[Row]) -> list[Key]:
    return [("slot", job["slot"]) for job in jobs if job["slot"] is not None]
