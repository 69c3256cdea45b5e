"""MySQL's and MariaDB's answers: which blocks of jobs.sql make up a question.

An answer that writes is one transaction: a locking read, a decision in here, writes by primary key.
How many rows a statement changed is never asked: these servers count rows that differ, not rows that
matched.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dibs.engines.mysql.enqueue import is_one_insert
from dibs.engines.mysql.gates import JUST_MADE, Gates, gates_of, leave, note_moves
from dibs.engines.mysql.settle import MysqlSettle
from dibs.engines.mysql.values import (
    READERS,
    as_ids,
    as_json,
    as_plain,
    chunks,
)
from dibs.engines.sql.engine import Dialect, Plan, Query
from dibs.engines.sql.moves import MovingEngine, columns
from dibs.engines.sql.schema_files import schema_version
from dibs.jobs.gates import Key, gate_of, has_gate
from dibs.jobs.job import STORED_TYPES, StoredJob
from dibs.jobs.states import FINISHED, WORKER_DIED, JobState, swept
from dibs.operations.questions import Traits
from dibs.operations.scripts import Row, Rows, Step

# Fixed while one statement runs, in UTC whatever time zone the session has.
NOW = "utc_timestamp(6)"

# How a value of a stored job travels in JSON, and what makes a value of its column of it.
_IN_JSON = {
    UUID: ("char(32) character set ascii", "unhex(given.{name})"),
    datetime: ("datetime(6)", "given.{name}"),
    int: ("bigint", "given.{name}"),
    float: ("double", "given.{name}"),
    str: ("longtext character set utf8mb4", "given.{name}"),
}

SPELLINGS = {
    "stored_places": ", ".join(
        f"{name} {_IN_JSON[type][0]} path '$[{place}]'"
        for place, (name, type) in enumerate(STORED_TYPES.items())
    ),
    "stored_given": ", ".join(_IN_JSON[type][1].format(name=name) for name, type in STORED_TYPES.items()),
    "id": "unhex(:$1)",
    "by_id": "force index (primary)",
    "if_free": "for update skip locked",
    "now": NOW,
    "now_minus": f"{NOW} - interval :$1 microsecond",
    "minus": "$1 - interval :$2 microsecond",
    "text": "char",
    "uuid": "char",
    "texts": "char",
    "false": "false",
    "if": ":$1",
    "true": "true",
    "in_ids": "in (:$1)",
    "in_texts": "in (:$1)",
    "has_tags": "json_contains(job.tags, :$1)",
    "next_token": "/*M! nextval(dibs_token) + */ 0",
    # MariaDB's settings are tables of the one schema, MySQL's of the other.
    "variables": "/*M! information_schema.$1 */ /*!80017 performance_schema.$1 */",
    "isolation": "/*M! 'tx_isolation' */ /*!80017 'transaction_isolation' */",
    "names": "/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */",
}

READS = frozenset(
    {
        *("get", "find", "find_oldest", "counts", "queues", "settled", "explain", "now"),
        *("workers", "upcoming", "schedules", "ready_lines", "backlog", "examine", "echo"),
        *("glance", "glance_at_queue", "departed"),
        *("gates", "current"),
    }
)

# The same looks, as locking reads.
NEWEST = {
    "lasting": "lasting_newest",
    "train_heads": "train_heads_newest",
    "slot_line": "slot_line_newest",
    "slot_running": "slot_running_newest",
    "slot_members": "slot_members_newest",
    "slot_waiting": "slot_waiting_newest",
    "slot_in_use": "slot_in_use_newest",
}

# Who has a unique key, read without a lock.
HOLDERS = ("key_holders", "running_holders")

OLDEST = {"MariaDB": "10.6", "MySQL": "8.0.17"}  # locks that are skipped, JSON as rows


class MySQL(MysqlSettle, MovingEngine):
    """Row locks that are skipped, JSON for many rows at once; MariaDB 10.6 or MySQL 8.0.17 and later."""

    traits = Traits(
        durable=True,
        shared=True,
        joins_caller=True,
        migrates_itself=False,
        wakes=False,
        locks_gates=True,
        goes_on=True,
    )

    def __init__(self, prefix: str = "dibs") -> None:
        self.dialect = Dialect(name="mysql", spellings=SPELLINGS, prefix=prefix)

    def needs_transaction(self, step: Step) -> bool:
        match step.question:
            case "enqueue":
                return not is_one_insert(**step.params)
            case question:
                return question not in READS

    def answer(self, step: Step, *, own: bool = True) -> Plan:
        """The caller's transaction may see an old snapshot; what it met and does not see is looked for."""
        if step.question == "get" and not own:
            return self._get_beside_snapshot(**step.params)
        plan = super().answer(step, own=own)
        return plan if own or step.question in READS else self._beside_snapshot(plan)

    def _beside_snapshot(self, plan: Plan) -> Plan:
        """The same plan in a transaction of the caller's, with locking reads where its snapshot is too old.

        Not everywhere: at REPEATABLE READ these lock gaps as well, in which others then can't enqueue.
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

    def read(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Rows:
        readers = [(name, READERS[name]) for name in names if name in READERS]
        answer = [dict(zip(names, row, strict=True)) for row in rows]
        for row in answer:
            for name, reader in readers:
                if row[name] is not None:
                    row[name] = reader(row[name])
        return answer

    def adapt(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: as_plain(value) for name, value in params.items()}

    # -- upkeep and acts ------------------------------------------------------------------------

    def _stage(self, limit: int) -> Plan:
        rows = yield Query("due", {"limit": limit})
        yield from self._each("stage", (row["id"] for row in rows))
        in_slots = yield from self._stage_in_slots(limit)
        yield from self._end_offers(limit)
        return [*rows, *in_slots]

    def _stage_in_slots(self, limit: int) -> Plan:
        found = yield Query("due_in_slots", {"limit": limit})
        gates = yield from self._lock_free_gates(("slot", row["slot"]) for row in found)
        ours = [row["id"] for row in found if ("slot", row["slot"]) in gates]
        note_moves(gates)
        rows = (yield Query("lock_due", {"ids": as_ids(sorted(ours))})) if ours else []
        yield from self._each("set_states", (row["id"] for row in rows), state=JobState.blocked.value)
        yield from self._open_gates(gates)
        return rows

    def _sweep(self, limit: int) -> Plan:
        plain = yield Query("expired", {"limit": limit})
        yield from self._bury(plain, {})
        found = yield Query("expired_at_gates", {"limit": limit})
        gates = yield from self._lock_free_gates(gates_of(found))
        ours = [row["id"] for row in found if gate_of(row) in gates]
        note_moves(gates)
        gated = (yield Query("lock_expired", {"ids": as_ids(sorted(ours))})) if ours else []
        yield from self._bury(gated, gates)
        yield from self._open_gates(gates)
        return [{**job, "state": _swept(job)} for job in (*plain, *gated)]

    def _bury(self, expired: Sequence[Row], gates: Gates) -> Plan:
        """Give back or end these, which are locked, and so are their gates."""
        ends = [(job["id"].hex, _swept(job).value, job["cancel_reason"], _with_death(job)) for job in expired]
        yield from self._end([one for one in ends if one[1] != JobState.ready])
        for chunk in chunks(one for one in ends if one[1] == JobState.ready):
            yield Query("sweep_returned", {"ends": chunk})
        for job in expired:
            if _swept(job) in FINISHED:
                leave(gates, job, _swept(job))
        return []

    def _cancel(self, ids: Sequence[UUID], reason: str | None) -> Plan:
        live, gates = yield from self._live_at_gates(ids)
        running = [row["id"] for row in live if row["state"] == JobState.running]
        waiting = [row for row in live if row["state"] != JobState.running]
        yield from self._each("ask_to_cancel", running, reason=reason or "")
        yield from self._end([(row["id"].hex, JobState.cancelled.value, reason, None) for row in waiting])
        for row in _as_given(waiting, ids):
            leave(gates, row, JobState.cancelled)
        yield from self._open_gates(gates)
        return [{"id": row["id"], "worker": row["worker"]} for row in live]

    def _live_at_gates(
        self, ids: Sequence[UUID], also: Iterable[Mapping[str, Any]] = (), stale_after: int = 0
    ) -> Any:
        """(those of these jobs that are live, their gates and those others), all locked, gates first."""
        found = yield Query("gates_of", {"ids": as_ids(ids)})
        keys = [*gates_of(found), *((row["sort"], row["name"]) for row in also)]
        gates = yield from self._lock_gates(keys)
        live = yield from self._live(ids, stale_after)
        yield from self._lock_gates_of(live, gates)
        return live, gates

    def _retry(self, ids: Sequence[UUID]) -> Plan:
        found = yield Query("gates_of_ended", {"ids": as_ids(ids)})
        _, gates = yield from self._live_at_gates(ids, [_named(gate) for gate in gates_of(found)])
        ended = yield Query("failed_or_cancelled", {"ids": as_ids(sorted(ids))})
        wanted = yield from self._whose_key_nobody_keeps(ended)
        yield from self._each("retry", wanted)
        free = yield from self._whose_key_nobody_keeps(ended)  # who had one may have finished meanwhile
        yield from self._each("forget", (id for id in wanted if id not in free))
        live = yield from self._live(ids)
        back = [row for row in live if row["id"] in wanted]
        yield from self._each("forget_finished", (row["id"] for row in back))
        scheduled = [row["id"] for row in live if row["state"] == JobState.scheduled]
        yield from self._each("hurry", scheduled)
        yield from self._rejoin(_as_given(back, ids), gates)
        return [{"id": id} for id in (*(row["id"] for row in back), *scheduled)]

    def _whose_key_nobody_keeps(self, ended: Rows) -> Any:
        """The ids of those whose unique key no other finished job keeps for a time."""
        keys = sorted({row["unique_key"] for row in ended if row["unique_key"] is not None})
        lasting = (yield Query("lasting", {"keys": as_json(keys)})) if keys else ()
        holders = {row["unique_key"]: row["holder"] for row in lasting}
        return [row["id"] for row in ended if holders.get(row["unique_key"], row["id"]) == row["id"]]

    def _rejoin(self, jobs: Sequence[Row], gates: Gates) -> Plan:
        """Retried: who holds its train gets its old place, others its end; a slot's job pushes nobody."""
        yield from self._lock_gates_of(jobs, gates)
        places: list[tuple[UUID, int]] = []
        for job in filter(has_gate, jobs):
            gate = gates[gate_of(job)]
            if gate.held_by == job["id"]:
                gate.held_by = None
            else:
                places.append((job["id"], gate.place(None)))
        yield from self._set_places(places)
        return (yield from self._open_gates(gates))

    def _recover(self, job: UUID, token: int, stale_after: int, errors: str) -> Plan:
        live, gates = yield from self._live_at_gates([job], stale_after=stale_after)
        stale = any(row["stale"] and row["token"] == token for row in live)
        if stale:
            yield Query("recover", {"job": job.hex, "errors": errors})
        yield from self._open_gates(gates)
        return [{"id": job}] if stale else []

    def _delete(self, ids: Sequence[UUID]) -> Plan:
        holding = yield Query("held_by", {"ids": as_ids(ids)})
        live, gates = yield from self._live_at_gates(ids, holding)
        waiting = [row["id"] for row in live if row["state"] != JobState.running]
        yield from self._each("forget", waiting)
        finished = yield Query("finished", {"ids": as_ids(sorted(ids))})
        gone = [*waiting, *(row["id"] for row in finished)]
        yield from self._each("forget_finished", (row["id"] for row in finished))
        for gate in gates.values():
            gate.held_by = None if gate.held_by in gone else gate.held_by
        yield from self._open_gates(gates)
        return [{"id": id} for id in gone]

    def _prune(self, older_than: int, states: Sequence[str], before: UUID, limit: int) -> Plan:
        params = {"older_than": older_than, "states": ",".join(states), "before": before.hex, "limit": limit}
        old = yield Query("old", params)
        yield from self._each("forget_finished", (row["id"] for row in old))
        return old

    def _many(self, block: str, rows: Sequence[Mapping[str, Any]]) -> Plan:
        names = STORED_TYPES if block != "note_moves" else ("id", "way", "store", "job")
        for chunk in chunks([row[name] for name in names] for row in rows):
            yield Query(block, {"rows": chunk})
        return []

    def _forget_these(self, leaving: Sequence[Row]) -> Plan:
        ids = [row["id"] for row in leaving]
        yield from self._each("forget", ids)
        return (yield from self._each("forget_finished", ids))

    def _let_next_go(self, departed: Sequence[Row]) -> Plan:
        return (yield from self._open_gates((yield from self._lock_free_gates(gates_of(departed)))))

    def _join_again(self, jobs: Sequence[StoredJob]) -> Plan:
        gates = yield from self._lock_gates(gate_of(columns(job)) for job in jobs)
        for job in jobs:
            gate = gates[gate_of(columns(job))]
            gate.last_position = max(gate.last_position, abs(job.position or 0))
        for (sort, _), gate in gates.items():
            if sort == "train":
                yield Query("close_train", {"gate": gate.name})
        return (yield from self._open_gates(gates))

    def _key_holders(self, keys: Sequence[str]) -> Plan:
        return (yield Query("holders", {"keys": as_json(keys)}))

    def _tick(self, forget_after: int, **about: Any) -> Plan:
        yield Query("tick", about)
        yield Query("forget_workers", {"forget_after": forget_after})
        return (yield Query("upcoming", {}))

    def _age(self, micros: int) -> Plan:
        yield Query("age_jobs", {"micros": micros})
        yield Query("age_schedules", {"micros": micros})
        yield Query("age_gates", {"micros": micros})
        return (yield Query("age_finished", {"micros": micros}))

    # -- look -----------------------------------------------------------------------------------

    def _get(self, ids: Sequence[UUID], block: str = "get") -> Plan:
        return (yield Query(block, {"ids": as_ids(ids)}))

    def _get_beside_snapshot(self, ids: Sequence[UUID]) -> Plan:
        """Locks what it must: a running job whose row is locked loses its lease."""
        seen = yield from self._get(ids)
        missing = sorted(set(ids) - {row["id"] for row in seen})
        return [*seen, *((yield from self._get(missing, "get_newest")) if missing else ())]

    def _glance(self, ids: Sequence[UUID]) -> Plan:
        return (yield Query("glance", {"ids": as_ids(ids)}))

    def _finding(self, block: str, filter: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        name, params = super()._finding(block, filter)
        states = filter["states"]
        names = None if states is None else ",".join(states)
        return name, {**params, "states": names, "tags": as_json(filter["tags"])}

    def _ready_lines(self, queues: Sequence[str] | None) -> Plan:
        opening = yield from self._opening(look=False)
        lines = yield from self._walk(opening, {"queues": queues, "kinds": None, "limit": 1})
        return [{"queue": queue, "kind": kind} for queue, kind in lines]

    def _examine(self) -> Plan:
        """Transactions of others are shown only to who may see them; asking all the same is an error."""
        facts = yield Query("examine", {"oldest": as_json(OLDEST), "schema": schema_version("mysql")})
        if not (yield Query("may_see_others", {})):
            return [*facts, {"fact": "unseen", "about": "transactions", "value": "the privilege PROCESS"}]
        return [*facts, *(yield Query("open_transactions", {}))]


# -- Rows on their way in and out ---------------------------------------------------------------


def _still_there(holders: Rows) -> Plan:
    """Those of these who have their keys, whatever a snapshot says."""
    keys = as_json(sorted(row["unique_key"] for row in holders))
    newest = yield Query("key_holders_newest", {"keys": keys})
    there = {(row["unique_key"], row["holder"]) for row in newest}
    return [row for row in holders if (row["unique_key"], row["holder"]) in there]


def _key(gate: Row) -> Key:
    return gate["sort"], gate["name"]


def _has_changed(gate: Row, seen: Mapping[Key, int]) -> bool:
    """Whether anybody was at a gate, which is locked now, since we saw it; a number below 0 is in doubt."""
    before = seen.get(_key(gate))
    if before is None:
        return bool(gate["last_position"] != JUST_MADE)
    return before < 0 or bool(gate["changes"] != before + 1)


def _named(key: Key) -> Row:
    return {"sort": key[0], "name": key[1]}


def _as_given(rows: Iterable[Row], ids: Sequence[UUID]) -> list[Row]:
    """Rows in the order in which somebody named them."""
    order = {id: at for at, id in enumerate(ids)}
    return sorted(rows, key=lambda row: order[row["id"]])


def _swept(job: Row) -> JobState:
    return swept(job["attempts"], job["max_attempts"], cancel_asked=job["cancel_reason"] is not None)


def _with_death(job: Row) -> str:
    death = {
        "attempt": job["attempts"],
        "token": job["token"],
        "at": job["now"],
        "worker": job["worker"],
        "type": "LeaseLost",
        "message": WORKER_DIED,
    }
    return as_json([*msgspec.json.decode(job["errors"]), death])
