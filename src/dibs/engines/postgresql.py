"""PostgreSQL's answers: which blocks of postgresql.sql make up a question."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from dibs.clock import monotonic
from dibs.contract import Traits
from dibs.engines.sql import Copy, Dialect, Plan, Query, SqlEngine
from dibs.jobs import NEW_JOB_COLUMNS
from dibs.scripts import Row, Step

SPELLINGS = {
    "now": "statement_timestamp()",
    "moment": "coalesce(cast(:moment as timestamptz), statement_timestamp())",
    "now_minus": "statement_timestamp() - cast(:$1 as bigint) * interval '1 microsecond'",
    "minus": "$1 - cast(:$2 as bigint) * interval '1 microsecond'",
    "uuid": "uuid",
    "text": "text",
    "texts": "text[]",
    "false": "false",
    "in_ids": "= any (cast(:$1 as uuid[]))",
    "in_texts": "= any (cast(:$1 as text[]))",
    "has_tags": "cast(job.tags as jsonb) @> cast(:$1 as jsonb)",
}

# From how many (queue, kind) pairs on it is cheaper to walk those that exist.
MOST_NAMED_LINES = 32
# From how many jobs on a bulk load beats an insert.
COPY_FROM = 500

_QUEUE, _RUN_AT, _DELAY, _UNIQUE, _PARENT = (
    NEW_JOB_COLUMNS.index(name) for name in ("queue", "run_at", "delay", "unique_key", "parent_id")
)
_COPIED = tuple(n for n in NEW_JOB_COLUMNS if n not in ("run_at", "delay", "unique_key"))


class Hints:
    """Which queues to wake workers of: the first time at once, then at most every 20 ms.

    A notification takes a lock of the whole server at commit, so there is never one per job. What falls
    into the gap is found by the second look that a woken worker takes.
    """

    EVERY = 0.02

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def due(self, queues: Collection[str], *, always: bool = False) -> list[str]:
        now = monotonic()
        due = [queue for queue in queues if always or now - self._told.get(queue, -1.0) >= self.EVERY]
        self._told |= dict.fromkeys(due, now)
        return sorted(due)


class PostgreSQL(SqlEngine):
    """Row locks that are skipped, many jobs per statement, one sequence for the tokens."""

    traits = Traits(durable=True, shared=True, joins_caller=True, migrates_itself=False, wakes=True)

    def __init__(self, prefix: str = "dibs") -> None:
        self.dialect = Dialect(name="postgresql", spellings=SPELLINGS, prefix=prefix)
        self._hints = Hints()

    def needs_transaction(self, step: Step) -> bool:
        match step.question:
            case "enqueue":
                return not step.params["fresh"] or _mixed(step.params["jobs"])
            case "settle" | "exchange":
                return bool(step.params["children"])
            case question:
                return question in ("claim_within_limits", "delete", "age")

    def answer(self, step: Step, *, own: bool = True) -> Plan:
        """On the caller's connection a bulk load is an insert like any other."""
        if step.question == "enqueue":
            return self._enqueue(**step.params, may_copy=own)
        return super().answer(step, own=own)

    def adapt(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**params, "tags": _json(params["tags"])} if "tags" in params else params

    def _enqueue(self, jobs: Sequence[tuple[Any, ...]], fresh: bool, may_copy: bool) -> Plan:
        if may_copy and fresh and len(jobs) >= COPY_FROM and all(map(_is_plain, jobs)):
            return (yield from self._copy(jobs))
        wake = self._hints.due({job[_QUEUE] for job in jobs}, always=not may_copy)
        plain = [job for job in jobs if job[_UNIQUE] is None]
        keyed = [job for job in jobs if job[_UNIQUE] is not None]
        if plain and fresh and not keyed:
            rows = yield Query("enqueue", {**_columns(plain), "wake": wake})
            return _in_order(jobs, {row["id"]: row for row in rows})
        # Two statements have two times, but what is enqueued together is due together.
        moment = (yield Query("now", {}))[0]["now"] if plain and keyed else None
        answers: dict[UUID, Row] = {}
        if plain:
            rows = yield Query("enqueue_again", _columns(plain, moment))
            answers |= {row["id"]: row for row in rows}
        if keyed:
            answers |= yield from self._enqueue_unique(keyed, moment)
        if not fresh:
            for row in (yield Query("enqueue_forget_finished", {"ids": [job[0] for job in jobs]})):
                del answers[row["id"]]
        yield from self._wake(wake)
        return _in_order(jobs, answers)

    def _wake(self, queues: Sequence[str]) -> Plan:
        return (yield Query("wake", {"wake": queues})) if queues else ()

    def _copy(self, jobs: Sequence[tuple[Any, ...]]) -> Plan:
        [clock] = yield Query("now", {})
        now = clock["now"]
        records = [(*_without_times(job), "ready", now, now) for job in jobs]
        yield Copy("dibs_jobs", (*_COPIED, "state", "run_at", "enqueued_at"), records)
        yield from self._wake(self._hints.due({job[_QUEUE] for job in jobs}, always=True))
        return [{"is_new": True, "state": "ready", "run_at": now, "enqueued_at": now}] * len(jobs)

    def _enqueue_unique(self, jobs: Sequence[tuple[Any, ...]], moment: Any) -> Any:
        rows = yield Query("enqueue_unique", _columns(jobs, moment))
        holders = {row["unique_key"]: row for row in rows}
        held = ((job[0], holders.get(job[_UNIQUE])) for job in jobs)
        return {id: {**row, "is_new": row["holder"] == id} for id, row in held if row is not None}

    def _claim(self, **wish: Any) -> Plan:
        return (yield Query("claim", _wish(wish)))

    def _claim_job(self, **wish: Any) -> Plan:
        return (yield Query("claim_job", _wish(wish)))

    def _claim_within_limits(self, **wish: Any) -> Plan:
        params = _wish(wish) | {"walk": True}
        yield Query("lock_limits", params)
        own = "claim_within_limits" if wish["job"] is None else "claim_job_within_limits"
        return (yield Query(own, params))

    def _settle(self, settlements: Any, children: Any) -> Plan:
        rows = yield Query("settle", _settlements(settlements))
        yield from self._chain(children, {row["id"] for row in rows})
        return rows

    def _exchange(self, settlements: Any, children: Any, **wish: Any) -> Plan:
        rows = yield Query("exchange", _settlements(settlements) | _wish(wish))
        yield from self._chain(children, set(rows[0]["settled"]))
        return rows

    def _chain(self, children: Sequence[tuple[Any, ...]], won: set[UUID]) -> Plan:
        """Children of what was settled just now, in the same transaction."""
        jobs = [child for child in children if child[_PARENT] in won]
        if not jobs:
            return []
        yield Query("chain", _columns(jobs))
        return (yield Query("enqueue_forget_finished", {"ids": [job[0] for job in jobs]}))

    def _renew(self, claims: Sequence[tuple[UUID, int]], lease: int) -> Plan:
        ids, tokens = [id for id, _ in claims], [token for _, token in claims]
        return (yield Query("renew", {"ids": ids, "tokens": tokens, "lease": lease}))

    def _retry(self, ids: Sequence[UUID]) -> Plan:
        rows = yield Query("retry", {"ids": ids})
        yield from self._wake([""] if rows else [])
        return rows

    def _recover(self, **which: Any) -> Plan:
        rows = yield Query("recover", which)
        yield from self._wake([""] if rows else [])
        return rows

    def _set_queue(self, **setting: Any) -> Plan:
        yield Query("set_queue", setting)
        return (yield from self._wake([setting["queue"]]))

    def _delete(self, ids: Sequence[UUID]) -> Plan:
        live = yield Query("delete_live", {"ids": ids})
        finished = yield Query("delete_finished", {"ids": ids})
        return [*live, *finished]

    def _age(self, micros: int) -> Plan:
        yield Query("age_jobs", {"micros": micros})
        return (yield Query("age_finished", {"micros": micros}))


def _columns(jobs: Sequence[tuple[Any, ...]], moment: Any = None) -> dict[str, Any]:
    """One array per column, and the time to use instead of the statement's own."""
    columns = dict(zip(NEW_JOB_COLUMNS, map(list, zip(*jobs, strict=True)), strict=True))
    return {**columns, "moment": moment}


_SETTLEMENT_PARAMS = (
    *("ids", "tokens", "states", "settled_as", "delays", "refunds", "results", "errors"),
    *("messages", "pipelines"),
)


def _settlements(settlements: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    columns = map(list, zip(*settlements, strict=True)) if settlements else ([] for _ in range(10))
    return dict(zip(_SETTLEMENT_PARAMS, columns, strict=True))


def _wish(wish: Mapping[str, Any]) -> dict[str, Any]:
    queues, kinds = wish["queues"], wish["kinds"]
    walk = queues is None or kinds is None or len(queues) * len(kinds) > MOST_NAMED_LINES
    return {**wish, "walk": walk, "leases": _json(wish["leases"])}


def _mixed(jobs: Sequence[tuple[Any, ...]]) -> bool:
    keyed = sum(job[_UNIQUE] is not None for job in jobs)
    return 0 < keyed < len(jobs)


def _is_plain(job: tuple[Any, ...]) -> bool:
    return job[_RUN_AT] is None and not job[_DELAY] and job[_UNIQUE] is None


def _without_times(job: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*job[:_RUN_AT], *job[_DELAY + 1 : _UNIQUE], *job[_UNIQUE + 1 :])


def _in_order(jobs: Sequence[tuple[Any, ...]], answers: Mapping[UUID, Row]) -> list[Row]:
    return [answers.get(job[0]) or _known(job[0]) for job in jobs]


def _known(id: UUID) -> Row:
    return {"holder": id, "is_new": False}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
