"""The answers of PostgreSQL, made of the blocks of jobs.sql."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from dibs.engines.hints import Hints, hint_of
from dibs.engines.postgresql.enqueue import (
    PostgresEnqueue,
    apart,
    children_of,
    columns_of,
    gate_of_new,
    is_bare,
    is_plain,
    settled_gate,
)
from dibs.engines.sql.blocks import Dialect, schema_version
from dibs.engines.sql.engine import LOOKS, Answer, Plan, Query, claiming_order
from dibs.engines.sql.pipelines import PipelineAnswers, concerns_pipelines
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.operations.questions import SETTLEMENT_COLUMNS, Traits
from dibs.operations.scripts import Row, Rows, Step, Tuples

SPELLINGS = {
    "now": "statement_timestamp()",
    "moment": "coalesce(cast(:moment as timestamptz), statement_timestamp())",
    "now_minus": "statement_timestamp() - cast(:$1 as bigint) * interval '1 microsecond'",
    "minus": "$1 - cast(:$2 as bigint) * interval '1 microsecond'",
    "uuid": "uuid",
    "texts": "text[]",
    "if": "cast(:$1 as boolean)",
    "id": "cast(:$1 as uuid)",
    "as_gate": 'collate "C"',
    "as_job": 'collate "default"',
    "in_ids": "= any (cast(:$1 as uuid[]))",
    "in_texts": "= any (cast(:$1 as text[]))",
    "is_in": "$1 = any (cast(:$2 as text[]))",
    "is_given": "$1 = any (cast(:ids as uuid[]))",
    "in_numbers": "= any (cast(:$1 as bigint[]))",
    "holds": 'strpos(lower($1 collate "C"), :$2) > 0',
    "has_tags": "cast(job.tags as jsonb) @> cast(:$1 as jsonb)",
}

OLDEST = "12"  # the first with `as materialized`, without which a claim may take too many

# Above this number of queue-kind pairs it is cheaper to find the ones that exist.
MOST_NAMED_LINES = 32
# From this number of jobs on a bulk load is faster than an insert.
COPY_FROM = 500

# The columns of a settlement without its claim and its gate; and their usual values.
_OUTCOME = slice(SETTLEMENT_COLUMNS.index("state"), SETTLEMENT_COLUMNS.index("train"))
_GATE, _NO_GATE = slice(_OUTCOME.stop, _OUTCOME.stop + 2), (None, None)
_JUST_SUCCEEDED = ("succeeded", "succeeded", None, False, None, "[]", None, None)
# Questions with answers of several statements.
TOGETHER = frozenset(
    {
        *("claim_within_limits", "delete", "age", "enqueue_tick", "stage", "sweep", "cancel", "retry"),
        *("recover", "release_train", "mend", "depart", "arrive", "give_back", "set_schedule", "update"),
    }
)


class PostgreSQL(PostgresEnqueue):
    """Row locks that are skipped, many jobs per statement, one sequence for the tokens."""

    traits = Traits(joins_caller=True, wakes=True, echoes=True, locks_gates=True, goes_on=True)
    may_index_args = True

    def __init__(self, prefix: str = "dibs") -> None:
        self.dialect = Dialect(name="postgresql", spellings=SPELLINGS, prefix=prefix)
        self._hints = Hints(naming=True)
        own: dict[str, Answer] = self._own_answers() | {
            "enqueue": partial(self._enqueue, may_copy=True),
            "set_schedule": self._waking(self._set_schedule),
            "update": self._waking(self._update),
            "retry": self._waking(self._retry),
            "recover": self._waking(self._recover),
            **self._blocks("tick"),
        }
        # A bulk load needs a connection of our own.
        within = own | {
            "enqueue": partial(self._enqueue, may_copy=False),
            "settled": self._settled_by_now,
            "refuse": self._refuse_within,
        }
        self.answers = own | PipelineAnswers(self, own).answers()
        self.answers_within = within | PipelineAnswers(self, within).answers()

    def plain_answer(self, step: Step) -> Plan | None:
        """Return the answer of one statement to what most questions are about: jobs without any relation.

        They have no train, slot, unique key or children, and no job waits for them.
        """
        asked = step.params
        match step.question:
            case "claim":
                return self._claim(**asked)
            case "enqueue" if asked["fresh"] and all(map(is_bare, asked["jobs"])):
                return self._enqueue_bare(asked["jobs"])
            case "settle" if _is_plain_settlement(asked):
                return self._settle_plain(asked["settlements"])
            case "exchange" if _is_plain_settlement(asked):
                return self._exchange(**asked)
        return None

    def needs_transaction(self, step: Step) -> bool:
        if concerns_pipelines(step):
            return True
        match step.question:
            case "enqueue":
                return not step.params["fresh"] or not all(map(is_bare, step.params["jobs"]))
            case "settle" | "exchange":
                given = step.params
                several = bool(given["children"]) or given.get("patience") == "wary"
                return several or any(map(settled_gate, given["settlements"]))
            case question:
                return question in TOGETHER

    def ids(self, ids: Iterable[UUID]) -> Any:
        return list(ids)

    def superseded(self, query: Query, rows: Rows) -> Sequence[UUID]:
        return [row["id"] for row in rows] if query.name == "supersede" else ()

    def lock_pipelines_soon(self, ids: Sequence[UUID]) -> Plan:
        return (yield Query("wait_briefly", {}))  # for the locks that follow

    def _settled_by_now(self, ids: Sequence[UUID]) -> Plan:
        """Read under a lock: in the caller's old snapshot a job may look unclaimed although it is claimed.

        PostgreSQL then raises 40001.
        """
        yield Query("look_at_these", {"ids": ids})
        return (yield Query("settled", {"ids": ids}))

    def adapt(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**params, "tags": _json(params["tags"])} if "tags" in params else params

    def _enqueue(self, jobs: Tuples, fresh: bool, may_copy: bool) -> Plan:
        plain = [job for job in jobs if is_bare(job)]
        if fresh and len(plain) == len(jobs):
            return (yield from self._enqueue_bare(jobs, may_copy=may_copy))
        placed = [job for job in jobs if not is_bare(job)]
        gates = yield from self._lock_for(placed)
        # Each statement has a time of its own, but jobs that are enqueued together are due together.
        moment = (yield Query("now", {}))[0]["now"] if plain and placed else None
        answers: dict[UUID, Row] = {}
        if plain:
            rows = yield Query("enqueue_again", columns_of(plain, moment))
            answers |= {row["id"]: row for row in rows}
            if answers and not fresh:
                for id in (yield from self._forget_finished(list(answers))):
                    del answers[id]
        if placed:
            answers |= yield from self._enqueue_placed(placed, gates, moment, fresh)
            states, others = yield from self._find_places(placed, gates, answers, moment)
            moved = yield from self._open_gates({*gates.held_by, *others})
            answers = _in_states(answers, states | {row["id"]: row["state"] for row in moved})
        yield from self._wake(self._hints.due(_to_hint(jobs, answers), always=not may_copy))
        return _in_order(jobs, answers)

    def _enqueue_bare(self, jobs: Tuples, *, may_copy: bool = True) -> Plan:
        if may_copy and len(jobs) >= COPY_FROM and all(map(is_plain, jobs)):
            return (yield from self._copy(jobs))
        wake = self._hints.due(jobs, always=not may_copy)
        if len(jobs) == 1:
            return (yield Query("enqueue_one", _one(jobs[0], wake)))
        rows = yield Query("enqueue", {**columns_of(jobs), "wake": wake})
        return _in_order(jobs, {row["id"]: row for row in rows})

    def _enqueue_tick(self, jobs: Tuples, **move: Any) -> Plan:
        moved = yield Query("move_schedule", move)
        if not moved or not jobs:
            return moved
        return [*moved, *(yield from self._enqueue(jobs, fresh=True, may_copy=False))]

    def _claim(self, **wish: Any) -> Plan:
        if "named" in wish and (rows := (yield Query("claim_named", _wish(wish)))):
            return sorted(rows, key=claiming_order)
        if wish.get("marks"):
            return (yield Query("exchange_on", self.settlements([]) | _going_on(wish)))
        if (line := _only_line(wish)) is not None and (rows := (yield Query("claim_line", line))):
            return sorted(rows, key=claiming_order)
        return (yield Query("claim", _wish(wish)))

    def _claim_job(self, **wish: Any) -> Plan:
        """Retry for up to 1.5 s while another transaction has the job's row locked; it may not claim it."""
        for pause in LOOKS:
            if pause:
                yield Query("rest", {"seconds": pause})
            [row] = yield Query("claim_job", _wish(wish))
            if not row["crowded"]:
                return [row]
        return [{**row, "crowded": False, "limited": False}]

    def _claim_within_limits(self, **wish: Any) -> Plan:
        params = _wish(wish) | {"walk": True}
        if wish["job"] is None:
            yield Query("lock_limits", params)
            return (yield Query("claim_within_limits", params))
        slots = yield from self._overtaking(wish["job"])
        yield Query("lock_limits", params)
        rows = yield Query("claim_job_within_limits", params)
        yield from self._open_gates(slots)
        return rows

    def _settle_plain(self, settlements: Tuples) -> Plan:
        return (yield Query("settle", self.settlements(settlements)))

    def _settle(self, settlements: Any, children: Any, patience: str | None = None, keys: Any = None) -> Plan:
        del keys  # here an enqueue that finds a taken key locks nothing
        plain, applied, _, waiting = yield from self._settle_gated(settlements, children, patience, tell=True)
        rows: list[Row] = [*applied, *({"id": id, "waits": True} for id in waiting)]
        if plain:
            settled = yield Query("settle", self.settlements(plain))
            yield from self._chain(children_of(plain, children), {row["id"] for row in settled})
            rows += settled
        return rows

    def _exchange(
        self, settlements: Any, children: Any, patience: str | None = None, keys: Any = None, **wish: Any
    ) -> Plan:
        """Settle at gates first, so that the claim may take the jobs that become ready."""
        gated = self._settle_gated(settlements, children, patience, tell=False)
        plain, applied, moved, waiting = yield from gated
        if wish.get("marks"):
            first, *rest = yield Query("exchange_on", self.settlements(plain) | _going_on(wish))
        else:
            first, *rest = yield Query("exchange", self.settlements(plain) | _wish(wish))
        yield from self._chain(children_of(plain, children), set(first["settled"]))
        if moved:
            yield from self._wake(_left(moved, {first["id"], *(row["id"] for row in rest)}))
        settled = [*first["settled"], *(row["id"] for row in applied)]
        return [{**first, "settled": settled, "waiting": list(waiting)}, *rest]

    def _settle_gated(self, settlements: Any, children: Any, patience: str | None, *, tell: bool) -> Any:
        """Return (plain settlements, to apply; the others, applied; jobs let through; ids that wait)."""
        locked: set[UUID] = set()
        if patience == "wary":  # no job is waited for that another transaction has locked
            ids = [one[0] for one in settlements]
            locked = {row["id"] for row in (yield Query("locked_rows", {"ids": ids}))}
        gated, plain = apart([one for one in settlements if one[0] not in locked], children)
        if not gated:
            return plain, (), (), locked
        theirs = children_of(gated, children)
        at_gates = self._settle_at_gates(gated, theirs, tell=tell, patience=patience)
        applied, moved, waiting = yield from at_gates
        return plain, applied, moved, waiting | locked

    def settlements(self, settlements: Tuples) -> dict[str, Any]:
        usual: list[tuple[Any, ...]] = []
        others: list[tuple[Any, ...]] = []
        for one in settlements:
            (usual if one[_OUTCOME] == _JUST_SUCCEEDED else others).append(one)
        return {
            "succeeded": [one[0] for one in usual],
            "tokens": [one[1] for one in usual],
            "settlements": _json([Given(*values) for values in others]),
        }

    def _renew(self, claims: Sequence[tuple[UUID, int]], lease: int) -> Plan:
        ids, tokens = [id for id, _ in claims], [token for _, token in claims]
        return (yield Query("renew", {"ids": ids, "tokens": tokens, "lease": lease}))

    def _update(self, job: UUID, **change: Any) -> Plan:
        keys = yield from self._gates_of([job])
        yield from self._lock_gates(keys)
        rows = yield Query("update", {"job": job, **change})
        yield from self._open_gates(keys)
        return rows

    def _waking(self, answer: Answer) -> Answer:
        """Return the answer with a hint for any worker, if it changed something."""

        def plan(**asked: Any) -> Plan:
            rows = yield from answer(**asked)
            yield from self._wake([""] if rows else [])
            return rows

        return plan

    def _set_queue(self, **setting: Any) -> Plan:
        yield from super()._set_queue(**setting)
        return (yield from self._wake([setting["queue"]]))

    def _many(self, block: str, rows: Sequence[Mapping[str, Any]]) -> Plan:
        return (yield Query(block, {"rows": _json(rows)}))

    def _arrive(self, store: UUID, jobs: Sequence[str]) -> Plan:
        answers = yield from super()._arrive(store, jobs)
        yield from self._wake([""] if any(row["is_new"] for row in answers) else [])
        return answers

    def _outrun(self, token: int) -> Plan:
        yield Query("outrun_alone", {})
        return (yield from super()._outrun(token))

    def _ready_lines(self, queues: Sequence[str] | None) -> Plan:
        return (yield Query("ready_lines", {"queues": queues, "kinds": None, "walk": True}))

    def _examine(self) -> Plan:
        return (yield Query("examine", {"needed": OLDEST, "schema": str(schema_version("postgresql"))}))


def _is_plain_settlement(asked: Mapping[str, Any]) -> bool:
    is_alone = not asked["children"] and "steps" not in asked and asked.get("patience") != "wary"
    return is_alone and all(one[_GATE] == _NO_GATE for one in asked["settlements"])


class Given(msgspec.Struct, gc=False, omit_defaults=True):
    """A settlement as the statement reads it; defaults are left out."""

    id: UUID
    token: int
    state: str
    settled_as: str
    delay: int | None = None
    refund: bool = False
    result: str | None = None
    errors: str = "[]"
    message: str | None = None
    pipeline_id: UUID | None = None
    train: str | None = None
    slot: str | None = None


def _wish(wish: Mapping[str, Any]) -> dict[str, Any]:
    queues, kinds = wish["queues"], wish["kinds"]
    walk = queues is None or kinds is None or len(queues) * len(kinds) > MOST_NAMED_LINES
    return {**wish, "walk": walk, "leases": _json(wish["leases"])}


def _going_on(wish: Mapping[str, Any]) -> dict[str, Any]:
    marks = _json([mark._asdict() for mark in wish["marks"]])
    return {**wish, "leases": _json(wish["leases"]), "marks": marks, "ahead": wish.get("ahead", [])}


def _only_line(wish: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of `claim_line`, if the request is for one queue-kind pair and only for jobs."""
    match wish:
        case {"queues": [queue], "kinds": [kind], "look": False}:
            return {**wish, "queue": queue, "kind": kind, "leases": _json(wish["leases"])}
        case _:
            return None


def _one(job: tuple[Any, ...], wake: Sequence[str]) -> dict[str, Any]:
    values = zip(NEW_JOB_COLUMNS, job, strict=True)
    return {**dict(values), "moment": None, "hint": wake[0] if wake else None}


def _in_states(answers: Mapping[UUID, Row], states: Mapping[UUID, str]) -> dict[UUID, Row]:
    """Return the states at the end: a job may be superseded by a later one of the same call."""
    return {id: {**row, "state": states[id]} if id in states else row for id, row in answers.items()}


def _to_hint(jobs: Tuples, answers: Mapping[UUID, Row]) -> list[tuple[Any, ...]]:
    """Return the jobs to send hints for; for one at a gate that is done when it becomes ready."""
    states = ((job, answers.get(job[0], {}).get("state")) for job in jobs)
    return [job for job, state in states if state == "scheduled" or gate_of_new(job) is None]


def _left(moved: Sequence[Row], taken: set[UUID]) -> list[str]:
    """Return hints for the jobs that became ready and were not claimed at once."""
    left = [row for row in moved if row["state"] == "ready" and row["id"] not in taken]
    return sorted({hint_of(row["queue"], [row["kind"]]) for row in left})


def _in_order(jobs: Tuples, answers: Mapping[UUID, Row]) -> list[Row]:
    return [answers.get(job[0]) or {"holder": job[0], "is_new": False} for job in jobs]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
