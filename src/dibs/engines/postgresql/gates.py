"""Trains and slots on PostgreSQL: a row per gate, locked before jobs (gates.sql).

Each plan that changes which jobs may go is `_lock_gates`, what the question does, `_open_gates`: three
statements or more, because the jobs at a gate must be read after its lock was taken.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from dibs.engines.sql.engine import LOOKS, Plan, Query
from dibs.engines.sql.gates import MendingEngine
from dibs.engines.sql.moves import MovingEngine, columns
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
    kept_instead,
    left_train,
    new_position,
    open_slot,
)
from dibs.jobs.job import NEW_JOB_COLUMNS, StoredJob
from dibs.jobs.states import JobState
from dibs.operations.questions import SETTLEMENT_COLUMNS, hint_of
from dibs.operations.scripts import Row, Rows

ENOUGH_RACES = 20  # a key that is taken, and then has no holder, this often points at a bug

Values = tuple[Any, ...]  # a new job or a settlement, in the order of its columns

_ID, _UNIQUE, _PARENT, _TRAIN, _SLOT, _POLICY, _LIMIT, _REPLACES = (
    NEW_JOB_COLUMNS.index(name)
    for name in ("id", "unique_key", "parent_id", "train", "slot", "slot_policy", "slot_limit", "replaces")
)
_SETTLED_TRAIN, _SETTLED_SLOT = SETTLEMENT_COLUMNS.index("train"), SETTLEMENT_COLUMNS.index("slot")


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
class Slot:
    """A slot as it was read under its lock."""

    is_offered: bool
    is_used: bool
    jobs: list[GateJob] = field(default_factory=list)


class PostgresGates(MendingEngine, MovingEngine):
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
        slots: dict[str, Slot] = {}
        for row in (yield Query("slots", {"names": names, "waiting": waiting})):
            slot = slots.setdefault(row["name"], Slot(row["is_offered"], row["is_used"]))
            slot.jobs += [] if row["id"] is None else [GateJob.of(row)]
        return slots

    def _gates_of(self, ids: Sequence[UUID]) -> Any:
        rows = yield Query("gates_of", {"ids": ids})
        return [gate_of(row) for row in rows]

    # -- enqueue --------------------------------------------------------------------------------

    def _lock_for(self, jobs: Sequence[Values]) -> Any:
        """Lock the gates of these new jobs, and of the jobs that they may replace."""
        places: dict[Key, int] = {}
        for job in jobs:
            if (key := gate_of_new(job)) is not None:
                places[key] = places.get(key, 0) + 1
        keys = set(places)
        if replacing := [job[_UNIQUE] for job in jobs if job[_REPLACES]]:
            rows = yield Query("gates_of_keys", {"keys": replacing})
            keys |= {gate_of(row) for row in rows}
        return (yield from self._lock_gates(keys, places))

    def _enqueue_placed(self, jobs: Sequence[Values], gates: LockedGates, moment: Any, fresh: bool) -> Any:
        """Store jobs with a unique key, a train or a slot; return {id: row} of jobs that were not known."""
        positions = {job[_ID]: _position(job, gates) for job in jobs}
        answers: dict[UUID, Row] = {}
        left: Sequence[Values] = jobs
        for _ in range(ENOUGH_RACES):
            given = columns_of(left, moment) | {"position": [positions[job[_ID]] for job in left]}
            rows = yield Query("enqueue_placed", given)
            answers |= {row["id"]: {**row, "is_new": True} for row in rows}
            vanished = yield from self._meet_holders(left, answers)
            left = [job for job in left if job[_ID] in vanished]
            if not left:
                yield from self._forget_known(jobs, answers, fresh)
                return answers
        raise AssertionError(f"enqueue kept losing races for {[job[_ID] for job in left]}")

    def _meet_holders(self, jobs: Sequence[Values], answers: dict[UUID, Row]) -> Any:
        """Note the holders of keys that are taken; return the jobs to try again, because a holder is gone."""
        keyed = [job for job in jobs if job[_ID] not in answers and job[_UNIQUE] is not None]
        if not keyed:
            return set()
        given = {"ids": [job[_ID] for job in keyed], "keys": [job[_UNIQUE] for job in keyed]}
        rows = yield Query("holders", given)
        answers |= {row["id"]: {**row, "is_new": False} for row in rows if row["holder"] is not None}
        return {row["id"] for row in rows if row["holder"] is None}

    def _forget_known(self, jobs: Sequence[Values], answers: dict[UUID, Row], fresh: bool) -> Plan:
        """Take back jobs with an id or a key of a job that has just finished."""
        new = [job for job in jobs if answers.get(job[_ID], {}).get("is_new")]
        if not fresh and new:
            for row in (yield Query("enqueue_forget_finished", {"ids": [job[_ID] for job in new]})):
                del answers[row["id"]]
        if keyed := [job[_ID] for job in new if job[_UNIQUE] is not None]:
            for row in (yield Query("forget_kept_keys", {"ids": keyed})):
                answers[row["id"]] = {"holder": row["holder"], "is_new": False}
        return []

    def _find_places(
        self, jobs: Sequence[Values], gates: LockedGates, answers: dict[UUID, Row], moment: Any
    ) -> Any:
        """Apply the policies of slots and keys to new jobs; return ({id: state}, other gates to open)."""
        states: dict[UUID, str] = {}
        others: set[Key] = set()
        for nth, job in enumerate(jobs):
            answer = answers.get(job[_ID], {})
            if answer.get("is_new") and job[_POLICY] in ("drop", "replace"):
                states |= yield from self._apply_policy(job, [one[_ID] for one in jobs[nth:]], answers)
            elif job[_REPLACES] and answer and not answer["is_new"]:
                others |= yield from self._replace(job, answer, gates, moment)
        return states, others

    def _apply_policy(self, job: Values, later: Sequence[UUID], answers: dict[UUID, Row]) -> Any:
        """Take a new job back if its slot is full (`drop`), or cancel the waiting ones (`replace`)."""
        where = {"name": job[_SLOT], "later": later}
        if job[_POLICY] == "drop":
            rows = yield Query("slot_members", {**where, "most": job[_LIMIT]})
            kept = kept_instead(job[_LIMIT], [GateJob.of(row) for row in rows])
            if kept is not None:
                yield Query("delete_live", {"ids": [job[_ID]]})
                answers[job[_ID]] = {"holder": kept, "is_new": False}
            return {}
        superseded = yield Query("supersede", {**where, "reason": f"superseded by {job[_ID]}"})
        return {row["id"]: JobState.cancelled.value for row in superseded}

    def _replace(self, job: Values, answer: Row, gates: LockedGates, moment: Any) -> Any:
        """Give a waiting job the arguments and the time of a new one; one that runs or ran stays as it is."""
        if "train" not in answer:  # it has finished, and keeps its key for a time
            return set()
        key = gate_of(answer)
        if key[1] is not None and key not in gates:
            yield from self._lock_gates([key])  # the job that had the key before is gone
        new = dict(zip(NEW_JOB_COLUMNS, job, strict=True))
        times = {"run_at": new["run_at"], "delay": new["delay"], "moment": moment}
        yield Query("replace", {"holder": answer["holder"], "args": new["args"], **times})
        return set() if key[1] is None else {key}

    # -- settle ---------------------------------------------------------------------------------

    def _settle_at_gates(
        self,
        settlements: Sequence[Values],
        children: Sequence[Values],
        *,
        tell: bool,
        patience: str | None,
    ) -> Any:
        """Return (settlements applied, jobs let through, ids that wait for a locked gate)."""
        gates_of = _gates_by_settlement(settlements, children)
        keys = set().union(*gates_of.values())
        places: dict[Key, int] = {}
        for child in children:
            if (key := gate_of_new(child)) is not None:
                places[key] = places.get(key, 0) + 1
        waiting: set[UUID] = set()
        if patience == "none" and keys:
            gates, taken = yield from self._lock_if_free(keys, places)
            waiting = {id for id, needed in gates_of.items() if needed & taken}
            settlements = [one for one in settlements if one[_ID] not in waiting]
            children = [child for child in children if child[_PARENT] not in waiting]
        else:
            if patience == "short":
                yield Query("wait_briefly", {})
            gates = yield from self._lock_gates(keys, places)
        rows = yield Query("settle_at_gates", self.settlements(settlements))
        applied = {row["id"]: row for row in rows}
        in_order = [applied[one[0]] for one in settlements if one[0] in applied]
        ended = [row for row in in_order if row["state"] is not None]
        others = yield from self._chain_at_gates(children, set(applied), gates)
        moved = yield from self._open_gates({*gates.held_by, *others}, ended, tell=tell)
        return in_order, moved, waiting

    def _chain_at_gates(self, children: Sequence[Values], won: set[UUID], gates: LockedGates) -> Any:
        """Store the children of settled jobs, but none with a key that is taken."""
        jobs = [child for child in children if child[_PARENT] in won]
        placed = [job for job in jobs if not is_bare(job)]
        moment = (yield Query("now", {}))[0]["now"] if placed else None
        yield from self._chain([job for job in jobs if is_bare(job)], won, moment)
        others: set[Key] = set()
        for some in _without_twins(placed):
            answers = yield from self._enqueue_placed(some, gates, moment, fresh=False)
            _, more = yield from self._find_places(some, gates, answers, moment)
            others |= more
        return others

    def _chain(self, children: Sequence[Values], won: set[UUID], moment: datetime | None = None) -> Plan:
        """Children without a key or a gate; `moment` is when all of them are due, else it is now."""
        jobs = [child for child in children if child[_PARENT] in won]
        if not jobs:
            return []
        yield Query("chain", columns_of(jobs, moment))
        return (yield Query("enqueue_forget_finished", {"ids": [job[_ID] for job in jobs]}))

    def settlements(self, settlements: Sequence[Values]) -> dict[str, Any]:
        raise NotImplementedError

    # -- claim ----------------------------------------------------------------------------------

    def _overtaking(self, job: UUID) -> Any:
        """Make a job that its slot blocks ready, to be claimed by name; return its slot, to be opened."""
        rows = yield Query("behind_slot", {"job": job})
        keys = [("slot", row["slot"]) for row in rows]
        for pause in LOOKS if keys else ():
            _, taken = yield from self._lock_if_free(keys, {})
            if not taken:
                [slot] = (yield from self._slots(slots_of(keys))).values()
                goes = has_room(rows[0]["slot_limit"], slot.jobs)
                return keys if goes and (yield Query("overtake", {"job": job})) else []
            yield Query("rest", {"seconds": pause})
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

    def _retry_at_gates(self, ids: Sequence[UUID]) -> Plan:
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

    def _recover_at_gates(self, job: UUID, **claim: Any) -> Plan:
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


def gate_of_new(job: Values) -> Key | None:
    """Return the train or slot of a new job."""
    return _key(job[_TRAIN], job[_SLOT])


def _position(job: Values, gates: LockedGates) -> int | None:
    key = gate_of_new(job)
    return None if key is None else gates.next_position(key, job[_POLICY])


def is_bare(job: Values) -> bool:
    """Without a unique key, a train or a slot."""
    return job[_UNIQUE] is None and job[_TRAIN] is None and job[_SLOT] is None


def apart(settlements: Sequence[Values], children: Sequence[Values]) -> tuple[list[Values], list[Values]]:
    """Return (settlements with a gate, or with a child that is not bare; the others)."""
    parents = {child[_PARENT] for child in children if not is_bare(child)}
    gated: list[Values] = []
    plain: list[Values] = []
    for one in settlements:
        (plain if settled_gate(one) is None and one[0] not in parents else gated).append(one)
    return gated, plain


def _gates_by_settlement(settlements: Sequence[Values], children: Sequence[Values]) -> dict[UUID, set[Key]]:
    """Return the gates that each settlement needs locked: its own, and the ones of its children."""
    needed = {one[_ID]: {key} if (key := settled_gate(one)) is not None else set() for one in settlements}
    for child in children:
        if (key := gate_of_new(child)) is not None:
            needed[child[_PARENT]].add(key)
    return needed


def children_of(settlements: Sequence[Values], children: Sequence[Values]) -> list[Values]:
    parents = {one[0] for one in settlements}
    return [child for child in children if child[_PARENT] in parents]


def _without_twins(jobs: Sequence[Values]) -> list[list[Values]]:
    """Cut these jobs where an id or a key comes again: the earlier job decides what becomes of the later."""
    pieces: list[list[Values]] = []
    seen: set[Any] = set()
    for job in jobs:
        own = {job[_ID]} if job[_UNIQUE] is None else {job[_ID], job[_UNIQUE]}
        if not pieces or own & seen:
            pieces.append([])
            seen = set()
        pieces[-1].append(job)
        seen |= own
    return pieces


def settled_gate(settlement: Values) -> Key | None:
    return _key(settlement[_SETTLED_TRAIN], settlement[_SETTLED_SLOT])


def _key_of(gate: Row) -> Key:
    return gate["sort"], gate["name"]


def _key(train: str | None, slot: str | None) -> Key | None:
    if train is not None:
        return "train", train
    return None if slot is None else ("slot", slot)


def trains_of(keys: Iterable[Key]) -> list[str]:
    return sorted({name for sort, name in keys if sort == "train"})


def slots_of(keys: Iterable[Key]) -> list[str]:
    return sorted({name for sort, name in keys if sort == "slot"})


def columns_of(jobs: Sequence[Values], moment: Any = None) -> dict[str, Any]:
    """One array per column, and the time to use instead of the statement's own."""
    columns = dict(zip(NEW_JOB_COLUMNS, map(list, zip(*jobs, strict=True)), strict=True))
    return {**columns, "moment": moment}


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
