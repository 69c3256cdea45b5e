"""How PostgreSQL stores and settles jobs that have a unique key, a train or a slot, and many plain ones."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from dibs.engines.hints import Hints
from dibs.engines.postgresql.gates import LockedGates, PostgresGates
from dibs.engines.sql.engine import Copy, Plan, Query
from dibs.jobs.gates import GateJob, Key, gate_of, kept_instead
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.jobs.states import JobState
from dibs.operations.questions import SETTLEMENT_COLUMNS
from dibs.operations.scripts import Row

ENOUGH_RACES = 20  # a key that is taken, and then has no holder, this often points at a bug

Values = tuple[Any, ...]  # a new job or a settlement, in the order of its columns

_ID, _UNIQUE, _PARENT, _TRAIN, _SLOT, _POLICY, _LIMIT, _REPLACES = (
    NEW_JOB_COLUMNS.index(name)
    for name in ("id", "unique_key", "parent_id", "train", "slot", "slot_policy", "slot_limit", "replaces")
)
_RUN_AT, _DELAY = NEW_JOB_COLUMNS.index("run_at"), NEW_JOB_COLUMNS.index("delay")
_COPIED = tuple(n for n in NEW_JOB_COLUMNS[:_TRAIN] if n not in ("run_at", "delay", "unique_key"))
_SETTLED_TRAIN, _SETTLED_SLOT = SETTLEMENT_COLUMNS.index("train"), SETTLEMENT_COLUMNS.index("slot")


class PostgresEnqueue(PostgresGates):
    """What stores jobs at gates: enqueue, and settlements with their children."""

    _hints: Hints

    # -- enqueue --------------------------------------------------------------------------------

    def _lock_for(self, jobs: Sequence[Values]) -> Any:
        """Lock the gates of these new jobs, and of the jobs that they may replace."""
        places = Counter(filter(None, map(gate_of_new, jobs)))
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
            for id in (yield from self._forget_finished([job[_ID] for job in new])):
                del answers[id]
        if keyed := [job[_ID] for job in new if job[_UNIQUE] is not None]:
            for row in (yield Query("forget_kept_keys", {"ids": keyed})):
                answers[row["id"]] = {"holder": row["holder"], "is_new": False}
        return []

    def _forget_finished(self, ids: Sequence[UUID]) -> Any:
        """Take back new jobs with the id of a finished one; return their ids."""
        rows = yield Query("enqueue_forget_finished", {"ids": ids})
        known = [row["id"] for row in rows if not row["is_tried"]]
        if len(known) < len(rows):
            yield Query("delete_finished", {"ids": [row["id"] for row in rows if row["is_tried"]]})
        return known

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

    def _copy(self, jobs: Sequence[Values]) -> Plan:
        """Store many plain jobs by a bulk load."""
        [clock] = yield Query("now", {})
        now = clock["now"]
        records = [
            (*job[:_RUN_AT], *job[_DELAY + 1 : _UNIQUE], *job[_UNIQUE + 1 : _TRAIN], "ready", now, now)
            for job in jobs
        ]
        yield Copy("dibs_jobs", (*_COPIED, "state", "run_at", "enqueued_at"), records)
        yield from self._wake(self._hints.due(jobs, always=True))
        return [{"is_new": True, "state": "ready", "run_at": now, "enqueued_at": now}] * len(jobs)

    def _wake(self, queues: Sequence[str]) -> Plan:
        return (yield Query("wake", {"wake": queues})) if queues else ()

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
        places = Counter(filter(None, map(gate_of_new, children)))
        waiting: set[UUID] = set()
        if patience in ("none", "wary") and keys:
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
        """Store children without a key or a gate; `moment` is when all of them are due, else now."""
        jobs = [child for child in children if child[_PARENT] in won]
        if not jobs:
            return []
        yield Query("chain", columns_of(jobs, moment))
        yield from self._forget_finished([job[_ID] for job in jobs])
        return []

    def settlements(self, settlements: Sequence[Values]) -> dict[str, Any]:
        raise NotImplementedError


def gate_of_new(job: Values) -> Key | None:
    """Return the train or slot of a new job."""
    return _key(job[_TRAIN], job[_SLOT])


def _position(job: Values, gates: LockedGates) -> int | None:
    key = gate_of_new(job)
    return None if key is None else gates.next_position(key, job[_POLICY])


def is_bare(job: Values) -> bool:
    """Return whether a job has no unique key, train or slot."""
    return job[_UNIQUE] is None and job[_TRAIN] is None and job[_SLOT] is None


def is_plain(job: Values) -> bool:
    """Return whether it is bare, and due at once."""
    return job[_RUN_AT] is None and not job[_DELAY] and is_bare(job)


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


def _key(train: str | None, slot: str | None) -> Key | None:
    if train is not None:
        return "train", train
    return None if slot is None else ("slot", slot)


def columns_of(jobs: Sequence[Values], moment: Any = None) -> dict[str, Any]:
    """Return one array per column, and the time to use instead of the statement's own."""
    columns = dict(zip(NEW_JOB_COLUMNS, map(list, zip(*jobs, strict=True)), strict=True))
    return {**columns, "moment": moment}
