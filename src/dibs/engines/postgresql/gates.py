"""Trains and slots on PostgreSQL: a row per gate, locked before jobs (gates.sql).

Each plan that changes which jobs may go is `_lock_gates`, what the question does, `_open_gates`: three
statements or more, because the jobs at a gate must be read after its lock was taken.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dibs.engines.hints import hint_of
from dibs.engines.sql.engine import LOOKS, Plan, Query, SqlEngine, columns
from dibs.jobs.gates import (
    OFFER,
    WAITING_READ,
    GateJob,
    Key,
    Left,
    SlotOpening,
    first_to_hold,
    gate_of,
    giving_way,
    has_room,
    left_train,
    new_position,
    open_slot,
)
from dibs.jobs.job import StoredJob
from dibs.jobs.states import JobState
from dibs.operations.scripts import Row, Rows


class LockedGates:
    """The gates that a plan has locked, and the positions it may give there."""

    def __init__(self, rows: Rows, places: Mapping[Key, int]) -> None:
        self.held_by: dict[Key, UUID | None] = {}
        self._last: dict[Key, int] = {}
        for row in rows:
            key = row["sort"], row["name"]
            self.held_by[key] = row["held_by"]
            self._last[key] = row["last_position"] - places.get(key, 0)

    def __contains__(self, key: Key) -> bool:
        return key in self.held_by

    def next_position(self, key: Key, slot_policy: str | None = None) -> int:
        position = new_position(key[0], slot_policy, self._last[key])
        self._last[key] = max(self._last[key], abs(position))
        return position


@dataclass(slots=True)
class LoadedSlot:
    """A slot as it was read under its lock."""

    is_offered: bool
    is_used: bool
    jobs: list[GateJob] = field(default_factory=list)


class PostgresGates(SqlEngine):
    """What a question does at gates."""

    # -- lock and open --------------------------------------------------------------------------

    def _lock_gates(self, keys: Collection[Key], places: Mapping[Key, int] | None = None) -> Any:
        """Lock all of them at once, by key, and reserve positions there."""
        places = places or {}
        wanted = sorted(set(keys))
        if not wanted:
            return LockedGates([], places)
        given = {**_named(wanted), "places": [places.get(key, 0) for key in wanted]}
        rows = yield Query("lock_gates", given)
        if gone := [(row["sort"], row["name"]) for row in rows if row["was_gone"]]:
            yield Query("look_at_members", {"trains": trains_of(gone), "slots": slots_of(gone)})
        return LockedGates(rows, places)

    def _lock_if_free(self, keys: Collection[Key], places: Mapping[Key, int]) -> Any:
        """Return (the gates, locked; the gates that another transaction has locked) without waiting."""
        wanted = sorted(set(keys))
        rows = yield Query("lock_if_free", _named(wanted))
        taken = {_key_of(row) for row in rows if row["is_there"] and not row["is_free"]}
        absent = [_key_of(row) for row in rows if not row["is_there"]]
        if absent or places:
            return (yield from self._lock_gates(set(wanted) - taken, places)), taken
        return LockedGates([row for row in rows if row["is_free"]], {}), taken

    def _lock_free_gates(self, keys: Collection[Key]) -> Any:
        """Lock the gates of these that are free."""
        wanted = sorted(set(keys))
        yield Query("make_gates", _named(wanted))
        rows = yield Query("lock_free_gates", _named(wanted))
        return [(row["sort"], row["name"]) for row in rows]

    def _open_gates(
        self, keys: Iterable[Key], ended: Sequence[Row] = (), *, tell: bool = True, mends: bool = False
    ) -> Plan:
        """Let through the jobs that may go, and only them; return them, and the jobs that must wait again."""
        trains, slots = trains_of(keys := set(keys)), slots_of(keys)
        moved: list[Row] = []
        if trains:
            moved += yield Query("open_trains", {"names": trains, "tell": tell, **_holders(ended)})
        if slots:
            moved += yield from self._open_slots(slots, tell=tell, mends=mends)
        return moved

    def _open_slots(self, names: Sequence[str], *, tell: bool, mends: bool) -> Plan:
        slots = yield from self._slots(names)
        openings = {
            name: open_slot(slot.jobs, has_offer=slot.is_offered, mends=mends) for name, slot in slots.items()
        }
        gone = [name for name, slot in slots.items() if not slot.is_used]
        ends = [name for name, one in openings.items() if one.offer == "none" and slots[name].is_offered]
        # A claimer may just have skipped a job that was ready before, because this transaction has locked it.
        hints = {hint_of(job.queue, [job.kind]) for one in openings.values() for job in one.ready}
        given = _applied(openings) | {
            "not_offered": [name for name in ends if name not in gone],
            "gone": gone,
            "wake": sorted(hints) if tell else [],
        }
        if any(given.values()):
            yield Query("open_slots", {**given, "micros": OFFER})
        return [row for one in openings.values() for row in _moved(one)]

    def _slots(self, names: Sequence[str], waiting: int = 1) -> Any:
        """Return these slots, by name; from here on no ready job of theirs can start."""
        slots: dict[str, LoadedSlot] = {}
        for row in (yield Query("slots", {"names": names, "waiting": waiting})):
            slot = slots.setdefault(row["name"], LoadedSlot(row["is_offered"], row["is_used"]))
            slot.jobs += [] if row["id"] is None else [GateJob.of(row)]
        return slots

    def _gates_of(self, ids: Sequence[UUID]) -> Any:
        rows = yield Query("gates_of", {"ids": ids})
        return [gate_of(row) for row in rows]

    # -- claim ----------------------------------------------------------------------------------

    def _overtaking(self, job: UUID) -> Any:
        """Make a job that its slot blocks ready, to be claimed by name; return its slot, to be opened."""
        rows = yield Query("behind_slot", {"job": job})
        keys = [("slot", row["slot"]) for row in rows]
        for pause in LOOKS if keys else ():
            if pause:
                yield Query("rest", {"seconds": pause})
            _, taken = yield from self._lock_if_free(keys, {})
            if not taken:
                [slot] = (yield from self._slots(slots_of(keys))).values()
                goes = has_room(rows[0]["slot_limit"], slot.jobs)
                return keys if goes and (yield Query("overtake", {"job": job})) else []
        return []

    # -- jobs that go to another store, or come from one ------------------------------------------

    def _let_next_go(self, departed: Sequence[Row]) -> Plan:
        keys = [gate_of(row) for row in departed]
        return (yield from self._open_gates((yield from self._lock_free_gates(keys)))) if keys else []

    def _join_again(self, jobs: Sequence[StoredJob]) -> Plan:
        """Put jobs from another store at their old positions, perhaps before a job that is ready here."""
        if not jobs:
            return []
        keys = [gate_of(columns(job)) for job in jobs]
        yield from self._lock_gates(keys)
        yield Query("close_trains", {"names": trains_of(keys)})
        yield Query(
            "raise_positions", {**_named(keys), "positions": [abs(job.position or 0) for job in jobs]}
        )
        return (yield from self._open_gates(keys))

    # -- upkeep and acts ------------------------------------------------------------------------

    def _stage(self, limit: int) -> Plan:
        staged = yield Query("stage", {"limit": limit})
        restless = yield Query("restless_slots", {"limit": limit})
        if not restless:
            return staged
        free = yield from self._lock_free_gates([("slot", row["name"]) for row in restless])
        names = slots_of(free)
        at_slots = yield Query("stage_at_slots", {"names": names, "limit": limit})
        yield from self._open_gates(free)
        if any(row["is_over"] for row in restless):  # an offer may be new by now: a due job was let through
            yield from self._end_offers(names)
        return [*staged, *at_slots]

    def _end_offers(self, names: Sequence[str]) -> Plan:
        """Put ready jobs that give way behind all others of their slots."""
        over = yield Query("end_offers", {"names": names})
        slots = yield from self._slots([row["name"] for row in over], WAITING_READ)
        positions: dict[UUID, int] = {}
        last: dict[Key, int] = {}
        for row in over:
            for nth, job in enumerate(giving_way(slots[row["name"]].jobs), 1):
                positions[job.id] = last["slot", row["name"]] = row["last_position"] + nth
        if not positions:
            return []
        yield Query("place", {"ids": list(positions), "positions": list(positions.values())})
        yield Query("raise_positions", {**_named(list(last)), "positions": list(last.values())})
        return (yield from self._open_gates(last))

    def _sweep(self, limit: int) -> Plan:
        swept = yield Query("sweep", {"limit": limit})
        dead = yield Query("expired_at_gates", {"limit": limit})
        if not dead:
            return swept
        free = yield from self._lock_free_gates([gate_of(row) for row in dead])
        which = {"trains": trains_of(free), "slots": slots_of(free), "limit": limit}
        at_gates = yield Query("sweep_at_gates", which)
        yield from self._open_gates(free, [row for row in at_gates if row["train"] is not None])
        return [*swept, *at_gates]

    def _cancel(self, ids: Sequence[UUID], reason: str | None) -> Plan:
        keys = yield from self._gates_of(ids)
        yield from self._lock_gates(keys)
        rows = yield Query("cancel", {"ids": ids, "reason": reason})
        if keys:
            ends = {row["id"]: {**row, "state": JobState.cancelled} for row in rows if row["train"]}
            yield from self._open_gates(keys, [ends[id] for id in ids if id in ends])
        return rows

    def _retry(self, ids: Sequence[UUID]) -> Plan:
        """Retry jobs: one that holds its train at its old position, others as new jobs that pre-empt none."""
        keys = yield from self._gates_of(ids)
        places = {key: len(ids) for key in keys if key[0] == "train"}
        gates = yield from self._lock_gates(keys, places)
        rows = yield from self._unless_key_is_kept((yield Query("retry", {"ids": ids})))
        back = {row["id"]: gate_of(row) for row in rows if row["train"] or row["slot"]}
        positions: dict[UUID, int] = {}
        for id in (id for id in ids if id in back):
            if back[id][0] == "slot":
                positions[id] = 0
            elif gates.held_by[back[id]] != id:
                positions[id] = gates.next_position(back[id])
        if back:
            yield Query("let_go", {"names": trains_of(back.values()), "ids": list(back)})
            yield Query("place", {"ids": list(positions), "positions": list(positions.values())})
        yield from self._open_gates(keys)
        return rows

    def _unless_key_is_kept(self, retried: Rows) -> Plan:
        """Delete one of the two rows of each retried job with a unique key: the live or the finished one."""
        keyed = [row["id"] for row in retried if row["unique_key"] is not None]
        if not keyed:
            return retried
        kept = {row["id"] for row in (yield Query("forget_kept_keys", {"ids": keyed}))}
        yield Query("forget_retried", {"ids": [id for id in keyed if id not in kept]})
        return [row for row in retried if row["id"] not in kept]

    def _recover(self, job: UUID, **claim: Any) -> Plan:
        keys = [key for key in (yield from self._gates_of([job])) if key[0] == "slot"]
        yield from self._lock_gates(keys)
        rows = yield Query("recover", {"job": job, **claim})
        yield from self._open_gates(keys)
        return rows

    def _delete(self, ids: Sequence[UUID]) -> Plan:
        keys = yield from self._gates_of(ids)
        yield from self._lock_gates(keys)
        live = yield Query("delete_live", {"ids": ids})
        finished = yield Query("delete_finished", {"ids": ids})
        if trains := trains_of(keys):
            yield Query("let_go", {"names": trains, "ids": [row["id"] for row in finished]})
        yield from self._open_gates(keys)
        return [*live, *finished]

    def _release_train(self, name: str) -> Plan:
        rows = yield Query("release", {"name": name})
        yield from self._open_gates([("train", name)] if rows else [])
        return rows

    def _mend_gates(self, after_sort: str | None, after_name: str | None, limit: int) -> Plan:
        where = {"after_sort": after_sort, "after_name": after_name, "limit": limit}
        found = yield Query("gates_after", where)
        keys = [(row["sort"], row["name"]) for row in found]
        if trains := trains_of(keys):
            yield Query("drop_stale_holds", {"names": trains})
        yield from self._open_gates(keys, mends=True)
        return found

    def _mend_named(self, after: str, limit: int) -> Plan:
        yield Query("walk_by_index", {})
        return (yield from super()._mend_named(after, limit))

    def _make_gates(self, keys: Sequence[Key]) -> Plan:
        free = yield from self._lock_free_gates(keys)
        return (yield from self._open_gates(free))


def _key_of(gate: Row) -> Key:
    return gate["sort"], gate["name"]


def trains_of(keys: Iterable[Key]) -> list[str]:
    return sorted({name for sort, name in keys if sort == "train"})


def slots_of(keys: Iterable[Key]) -> list[str]:
    return sorted({name for sort, name in keys if sort == "slot"})


def _named(keys: Sequence[Key]) -> dict[str, Any]:
    return {"sorts": [sort for sort, _ in keys], "names": [name for _, name in keys]}


def _holders(ended: Sequence[Row]) -> dict[str, Any]:
    """Return for each train the ended job that holds it if it was the head; they ended in this order."""
    left: dict[str, list[Left]] = {}
    for row in ended:
        if row["train"] is not None:
            left.setdefault(row["train"], []).append(left_train(row, row["state"]))
    first = {train: job for train, jobs in left.items() if (job := first_to_hold(jobs)) is not None}
    return {
        "ended": [job.id for job in first.values()],
        "trains": list(first),
        "positions": [job.position for job in first.values()],
    }


def _applied(openings: Mapping[str, SlotOpening]) -> dict[str, list[Any]]:
    """Return what `open_slots` changes, one array per column."""
    ones = openings.values()
    return {
        "let_through": [id for one in ones for id in one.let_through],
        "sent_back": [id for one in ones for id in one.sent_back],
        "asked": [id for one in ones for id in one.asked],
        "reasons": [one.reason for one in ones for _ in one.asked],
        "offered": [name for name, one in openings.items() if one.offer == "new"],
    }


def _moved(opening: SlotOpening) -> list[Row]:
    ready = [{"id": job.id, "state": "ready", "queue": job.queue, "kind": job.kind} for job in opening.ready]
    return [*ready, *({"id": id, "state": "blocked"} for id in opening.sent_back)]
