"""The answers of MySQL and MariaDB, made of the blocks of jobs.sql.

An answer that writes is one transaction: a locking read, a decision in Python, writes by primary key. The
number of changed rows is never used: these servers count rows that differ, not rows that matched.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec

from dibs.engines.mysql.claims import MysqlSettle
from dibs.engines.mysql.enqueue import is_one_insert
from dibs.engines.mysql.gates import Gates, gates_of, leave, note_moves, on_newest
from dibs.engines.sql.blocks import Dialect, schema_version
from dibs.engines.sql.engine import READS, Answer, Plan, Query, columns
from dibs.engines.sql.pipelines import PipelineAnswers, concerns_pipelines
from dibs.engines.sql.values import (
    MYSQL_READERS,
    as_ids,
    as_json,
    as_mysql,
    chunks,
)
from dibs.jobs.gates import Key, gate_of, has_gate
from dibs.jobs.job import STORED_TYPES, StoredJob
from dibs.jobs.states import FINISHED, JobState, errors_with_death, swept_state
from dibs.operations.questions import Traits
from dibs.operations.scripts import Row, Rows, Step

# Fixed while one statement runs, in UTC whatever time zone the session has.
NOW = "utc_timestamp(6)"

# The type of a stored job's value in JSON, and the expression that makes a value of its column.
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
    "by_lease": "force index (dibs_jobs_leases)",
    "now": NOW,
    "now_minus": f"{NOW} - interval :$1 microsecond",
    "minus": "$1 - interval :$2 microsecond",
    "text": "char",
    "uuid": "char",
    "texts": "char",
    "in_ids": "in (:$1)",
    "in_texts": "in (:$1)",
    "is_in": "find_in_set($1, :$2)",
    # By key, one row for each id: left to itself the server reads a small table whole, and locks it.
    "given": (
        "json_table(:ids, '$[*]' columns (id char(32) character set ascii path '$')) given"
        " straight_join $1 job force index (primary) on job.id = unhex(given.id)"
    ),
    "is_given": "true",
    "join": "straight_join",
    # MySQL refuses a locking clause that covers a `json_table`; MariaDB can name no table.
    "of": "/*!80017 of $1 */",
    "newest": "for update /*!80017 of $1 */",
    "share": "/*M! lock in share mode */ /*!80017 for share of $1 */",
    "bigint": "signed",
    "holds": "locate(:$2, lower($1)) > 0",
    "has_tags": "json_contains(job.tags, :$1)",
    "next_token": "/*M! nextval(dibs_token) + */ 0",
    # Where the settings are: MariaDB and MySQL have them in different schemas.
    "variables": "/*M! information_schema.$1 */ /*!80017 performance_schema.$1 */",
    "isolation": "/*M! 'tx_isolation' */ /*!80017 'transaction_isolation' */",
    "names": "/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */",
}

OLDEST = {"MariaDB": "10.6", "MySQL": "8.0.17"}  # locks that are skipped, JSON as rows


# A report is not worth locks that last: what a stopped process leaves half done is harmless.
REPORTS = frozenset(("tick", "leave", "add_to_minute", "forget_minutes", "refuse", "forget_refusals"))


class MySQL(MysqlSettle):
    """Row locks that are skipped, JSON for many rows at once; MariaDB 10.6 or MySQL 8.0.17 and later."""

    traits = Traits(joins_caller=True, locks_gates=True, goes_on=True)

    readers = MYSQL_READERS
    finds_by_pipeline = False

    def __init__(self, prefix: str = "dibs") -> None:
        self.dialect = Dialect(name="mysql", spellings=SPELLINGS, prefix=prefix)
        own: dict[str, Answer] = self._own_answers() | {
            "delete_schedule": self._delete_schedule,
            "settled": self._settled,
            "progress": self._progress,
            "prune": self._prune,
            "gates": self._gates,
            "current": self._current,
            "get": self._get,
            "glance": self._glance,
        }
        writes = {question: answer for question, answer in own.items() if question not in READS}
        within = own | {question: on_newest(answer) for question, answer in writes.items()}
        within |= {"get": self._get_beside_snapshot, "refuse": self._refuse_within}
        self.answers = own | PipelineAnswers(self, own).answers()
        self.answers_within = within | PipelineAnswers(self, within).answers()

    def needs_transaction(self, step: Step) -> bool:
        if step.question == "enqueue":
            return concerns_pipelines(step) or not is_one_insert(**step.params)
        return step.question not in READS and step.question not in REPORTS

    # -- pipelines ------------------------------------------------------------------------------

    def ids(self, ids: Iterable[UUID]) -> Any:
        return as_json([id.hex for id in ids])

    def superseded(self, query: Query, rows: Rows) -> Sequence[UUID]:
        """Read the ids from the query: there is no `returning` here."""
        if query.name != "end":
            return ()
        params: Any = query.params
        return [UUID(id) for id, *_ in msgspec.json.decode(params["ends"])]

    def lock_pipelines_soon(self, ids: Sequence[UUID]) -> Plan:
        yield Query("wait_briefly", {})
        return (yield Query("pipelines_soon", {"ids": self.ids(ids)}))

    def following_jobs(self, id: UUID) -> Plan:
        """Go level by level: a recursive part can't lock, and would read a caller's old snapshot."""
        following: set[UUID] = set()
        ids = {id}
        while ids:
            children = yield Query("children_of", {"ids": self.ids(sorted(ids))})
            ids = {row["id"] for row in children} - following
            following |= ids
        if not following:
            return []
        return (yield Query("waiting_steps", {"ids": self.ids(sorted(following))}))

    def insert_pipeline(self, about: Mapping[str, Any]) -> Plan:
        """Recognise our own row by a random number: there is no `returning` here.

        A locking read before the insert would, at REPEATABLE READ, lock the gap for the inserts of others.
        """
        call = uuid4().int >> 65
        yield Query("insert_pipeline", self.adapt({**about, "changes": call}))
        rows = yield Query("pipeline_changes", {"ids": self.ids([about["id"]])})
        return [about] if rows[0]["changes"] == call else []

    def adapt(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: as_mysql(value) for name, value in params.items()}

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
        return [{**job, "state": swept_state(job)} for job in (*plain, *gated)]

    def _bury(self, expired: Sequence[Row], gates: Gates) -> Plan:
        """Return or end these jobs, which are locked, as are their gates."""
        ends = [
            (job["id"].hex, swept_state(job).value, job["cancel_reason"], errors_with_death(job, job["now"]))
            for job in expired
        ]
        yield from self._end([one for one in ends if one[1] != JobState.ready])
        for chunk in chunks(one for one in ends if one[1] == JobState.ready):
            yield Query("sweep_returned", {"ends": chunk})
        for job in expired:
            if swept_state(job) in FINISHED:
                leave(gates, job, swept_state(job))
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
        """Return the live jobs of these, and their and the other gates, all locked, gates first."""
        found = yield Query("gates_of", {"ids": as_ids(ids)})
        keys = [*gates_of(found), *((row["sort"], row["name"]) for row in also)]
        gates = yield from self._lock_gates(keys)
        live = yield from self._live(ids, stale_after)
        yield from self._lock_gates_of(live, gates)
        return live, gates

    def _update(self, job: UUID, **change: Any) -> Plan:
        live, gates = yield from self._live_at_gates([job])
        waiting = [{"id": row["id"]} for row in live if row["state"] != JobState.running]
        if waiting:
            yield Query("update", self.adapt({"job": job, **change}))
        yield from self._open_gates(gates)
        return waiting

    def _retry(self, ids: Sequence[UUID]) -> Plan:
        found = yield Query("gates_of_ended", {"ids": as_ids(ids)})
        _, gates = yield from self._live_at_gates(ids, [_named(gate) for gate in gates_of(found)])
        ended = yield Query("failed_or_cancelled", {"ids": as_ids(sorted(ids))})
        wanted = yield from self._with_free_keys(ended)
        yield from self._each("retry", wanted)
        # Again: a job that had such a key may have finished meanwhile, and keep it.
        free = yield from self._with_free_keys(ended)
        yield from self._each("forget", (id for id in wanted if id not in free))
        live = yield from self._live(ids)
        back = [row for row in live if row["id"] in wanted]
        yield from self._each("forget_finished", (row["id"] for row in back))
        scheduled = [row["id"] for row in live if row["state"] == JobState.scheduled]
        yield from self._each("hurry", scheduled)
        yield from self._rejoin(_as_given(back, ids), gates)
        return [{"id": id} for id in (*(row["id"] for row in back), *scheduled)]

    def _with_free_keys(self, ended: Rows) -> Any:
        """Return the ids of jobs with a unique key that no other finished job keeps."""
        keys = sorted({row["unique_key"] for row in ended if row["unique_key"] is not None})
        lasting = (yield Query("lasting", {"keys": as_json(keys)})) if keys else ()
        holders = {row["unique_key"]: row["holder"] for row in lasting}
        return [row["id"] for row in ended if holders.get(row["unique_key"], row["id"]) == row["id"]]

    def _rejoin(self, jobs: Sequence[Row], gates: Gates) -> Plan:
        """Give retried jobs a position: the holder of a train its old one, others the end; none pre-empts."""
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

    # -- reads ----------------------------------------------------------------------------------

    def _get(self, ids: Sequence[UUID], block: str = "get") -> Plan:
        return (yield Query(block, {"ids": as_ids(ids)}))

    def _get_beside_snapshot(self, ids: Sequence[UUID]) -> Plan:
        """Lock only jobs that the snapshot lacks: a running job with a locked row would lose its lease."""
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
        """Read facts; other transactions only if the user may see them, else the query is an error."""
        facts = yield Query("examine", {"oldest": as_json(OLDEST), "schema": schema_version("mysql")})
        if not (yield Query("may_see_others", {})):
            return [*facts, {"fact": "unseen", "about": "transactions", "value": "the privilege PROCESS"}]
        return [*facts, *(yield Query("open_transactions", {}))]


def _named(key: Key) -> Row:
    return {"sort": key[0], "name": key[1]}


def _as_given(rows: Iterable[Row], ids: Sequence[UUID]) -> list[Row]:
    """Return the rows in the order of these ids."""
    order = {id: at for at, id in enumerate(ids)}
    return sorted(rows, key=lambda row: order[row["id"]])
