"""Answers in SQL: what the engines of SQLite, PostgreSQL and MySQL share.

The answer to a question is a *plan*: a generator that yields queries and is sent their rows, so that one plan
serves both faces, dibs' own connections and the caller's. An engine lists its plans in `answers`, one for
each question; `answers_within` has the plans for a caller's connection, which may differ.
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import structs

from dibs.engines.sql.blocks import Dialect
from dibs.jobs.gates import Key
from dibs.jobs.ids import may_have_steps
from dibs.jobs.job import (
    StoredJob,
    by_train,
    placed,
    read_stored,
    sorted_out,
    stored_text,
)
from dibs.jobs.states import FINISHED, JobState
from dibs.operations.queries import PATTERNS
from dibs.operations.scripts import Row, Rows, Step, Tuples

# Seconds before each read of a job that is claimed by its id while another transaction has its row locked.
LOOKS = (0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.3, 0.5)

AT_JOBS = "job"  # the sort of what `mend` visits after the gates that have a row: names that jobs have

FIRST = UUID(int=0)  # before every id

# Questions that change nothing.
READS = frozenset(
    {
        *("get", "find", "find_oldest", "search", "count", "counts", "queues", "settled", "explain", "now"),
        *("workers", "upcoming", "schedules", "ready_lines", "backlog", "examine", "echo"),
        *("gates", "current", "parents", "pipelines", "newest_pipelines", "pipeline_counts"),
        *("glance", "glance_at_queue", "traffic", "departed", "minutes", "refusals"),
    }
)


# Blocks with a filter; their variants, for states without `succeeded` and for a pipeline, read fewer rows.
FINDERS = {
    "find": ("find_in_states", "find_in_pipeline"),
    "find_oldest": ("find_oldest_in_states", "find_oldest_in_pipeline"),
    "search": ("search_in_states", "search_in_pipeline"),
    "count": ("count_in_states", "count_in_pipeline"),
    "search_by_args": ("search_by_args", "search_by_args"),
}


@dataclass(frozen=True, slots=True)
class Query:
    """One statement of a plan, by the name of its block."""

    name: str
    params: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    many: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows for a bulk load; only connections of our own can do this."""

    table: str
    columns: tuple[str, ...]
    records: Tuples


Plan = Generator[Query | Copy, Rows, Rows]
Answer = Callable[..., Plan]  # takes the parameters of its question


class SqlEngine:
    """The answers that every SQL engine gives in the same way."""

    dialect: Dialect
    answers: Mapping[str, Answer]
    answers_within: Mapping[str, Answer]
    finds_by_pipeline = True
    """Whether `find` has blocks of its own for pipelines; the general one can't use their index."""
    may_index_args = False
    """Whether an operator can make an index of arguments, by which it then searches."""
    readers: Mapping[str, Callable[[Any], Any]] = {}
    """Functions that convert a driver's values, by the name of the column."""

    # What each database does in its own way.
    _enqueue: Answer
    _enqueue_tick: Answer
    _claim: Answer
    _claim_job: Answer
    _claim_within_limits: Answer
    _settle: Answer
    _exchange: Answer
    _renew: Answer
    _stage: Answer
    _sweep: Answer
    _cancel: Answer
    _update: Answer
    _retry: Answer
    _recover: Answer
    _delete: Answer
    _release_train: Answer
    _ready_lines: Answer
    _examine: Answer

    def _own_answers(self) -> dict[str, Answer]:
        """Return the answers to all questions but the ones about pipelines; some databases replace a few."""
        return {
            "enqueue": self._enqueue,
            "enqueue_tick": self._enqueue_tick,
            "set_schedule": self._set_schedule,
            "claim": self._claim,
            "claim_job": self._claim_job,
            "claim_within_limits": self._claim_within_limits,
            "settle": self._settle,
            "exchange": self._exchange,
            "renew": self._renew,
            "stage": self._stage,
            "sweep": self._sweep,
            "tick": self._tick,
            "age": self._age,
            "cancel": self._cancel,
            "update": self._update,
            "retry": self._retry,
            "recover": self._recover,
            "delete": self._delete,
            "set_queue": self._set_queue,
            "release_train": self._release_train,
            "mend": self._mend,
            **{name: partial(self._find, name) for name in ("find", "find_oldest", "count")},
            "search": self._search,
            "refuse": self._refuse,
            "counts": self._counts,
            "ready_lines": self._ready_lines,
            "examine": self._examine,
            **self._blocks("get", "glance", "glance_at_queue", "settled", "explain", "progress", "prune"),
            **self._blocks("queues", "backlog", "gates", "current", "schedules", "workers", "leave"),
            **self._blocks("add_to_minute", "minutes", "forget_minutes", "refusals", "forget_refusals"),
            **self._blocks("delete_schedule", "upcoming", "now", "echo", "departed", "traffic"),
            "identify": self._identify,
            "depart": self._depart,
            "arrive": self._arrive,
            "give_back": self._give_back,
            "landed": self._landed,
        }

    def answer(self, step: Step, *, own: bool = True) -> Plan:
        """Return the plan for a question, on a connection of our own or on the caller's."""
        answers = self.answers if own else self.answers_within
        return answers[step.question](**step.params)

    def needs_transaction(self, step: Step) -> bool:
        """Return whether the answer takes more than one statement that must stand or fall together."""
        raise NotImplementedError

    def read(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Rows:
        """Return a driver's rows with the values that operations expect."""
        answer = [dict(zip(names, row, strict=True)) for row in rows]
        readers = [(name, self.readers[name]) for name in names if name in self.readers]
        for row in answer:
            for name, reader in readers:
                if row[name] is not None:
                    row[name] = reader(row[name])
        return answer

    def adapt(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters as this database's drivers take them."""
        return params

    def ids(self, ids: Iterable[UUID]) -> Any:
        """Return ids as the blocks take them."""
        raise NotImplementedError

    def superseded(self, query: Query, rows: Rows) -> Sequence[UUID]:
        """Return the jobs that this query of a plan has cancelled for a new one in their slot."""
        raise NotImplementedError

    def lock_pipelines_soon(self, ids: Sequence[UUID]) -> Plan:
        """Lock these, or fail after a second."""
        raise NotImplementedError

    def insert_pipeline(self, about: Mapping[str, Any]) -> Plan:
        """Return a row if the pipeline is new."""
        return (yield Query("insert_pipeline", self.adapt(about)))

    def following_jobs(self, id: UUID) -> Plan:
        """Return the jobs that wait for this one, directly or not."""
        return (yield Query("following_steps", self.adapt({"id": id})))

    def _blocks(self, *questions: str) -> dict[str, Answer]:
        """Return answers that are one block, of the question's name."""
        return {question: partial(self._ask, question) for question in questions}

    def _ask(self, block: str, **params: Any) -> Plan:
        return (yield Query(block, self.adapt(params)))

    def _find(self, block: str, **filter: Any) -> Plan:
        likes = {name: self.pattern(filter[name]) for name in PATTERNS if filter[name] is not None}
        return (yield Query(*self._finding(block, {**filter, **likes})))

    def _search(self, contained: tuple[str, str] | None, **wanted: Any) -> Plan:
        """Search by the index of arguments, if an operator has made it."""
        if contained is not None and self.may_index_args:
            [index] = yield Query("has_args_index", {})
            if index["ready"]:
                as_text, as_json = contained
                by_index = {**wanted, "as_text": as_text, "as_json": as_json}
                return (yield from self._find("search_by_args", **by_index))
        return (yield from self._find("search", **wanted))

    def pattern(self, text: str) -> str:
        """Return a pattern with `*` as this database compares it."""
        return re.sub("[!%_]", r"!\g<0>", text).replace("*", "%")

    def _finding(self, block: str, filter: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the variant of the block that reads the fewest rows, and its parameters."""
        in_states, in_pipeline = FINDERS[block]
        states = filter["states"]
        if filter["pipeline_id"] and self.finds_by_pipeline:
            return in_pipeline, self.adapt(filter)
        if states is None or JobState.succeeded in states:
            return block, self.adapt(filter)
        wanted = {state.value: state in states for state in (JobState.failed, JobState.cancelled)}
        live = set(states) - FINISHED
        if block == "find" and live == {JobState.running}:
            return in_states, self.adapt({**filter, **wanted, "live": False, "running": True})
        only_find = {"running": False} if block == "find" else {}
        return in_states, self.adapt({**filter, **wanted, **only_find, "live": bool(live)})

    def _refuse(self, **write: Any) -> Plan:
        yield Query("refuse", self.adapt(write))
        return (yield Query("trim_refusals", self.adapt(write)))

    def _refuse_within(self, **write: Any) -> Plan:
        """Leave the caller's transaction as it is: it is about to be told of the lost lease."""
        yield from ()
        return []

    def _counts(self, queue: str | None) -> Plan:
        return (yield Query("counts", {}) if queue is None else Query("counts_of_queue", {"queue": queue}))

    def _set_queue(self, **setting: Any) -> Plan:
        sets = setting["paused"] or setting["max_running"] is not None
        return (yield Query("set_queue" if sets else "lift_from_queue", self.adapt(setting)))

    def _set_schedule(self, **to: Any) -> Plan:
        block = "make_schedule" if to["since"] is None else "change_schedule"
        return (yield Query(block, self.adapt(to)))

    def _tick(self, **about: Any) -> Plan:
        yield Query("tick", about)
        yield Query("forget_workers", about)
        return (yield Query("upcoming", {}))

    def _age(self, micros: int) -> Plan:
        for block in ("age_jobs", "age_schedules", "age_gates", "age_finished"):
            yield Query(block, {"micros": micros})
        return []

    # -- gates that lost their row, or kept it -------------------------------------------------------

    def _mend(self, after_sort: str | None, after_name: str | None, limit: int) -> Plan:
        if after_sort != AT_JOBS:
            found = yield from self._mend_gates(after_sort, after_name, limit)
            if found:
                return found
            after_name = None
        return (yield from self._mend_named(after_name or "s", limit))

    def _mend_named(self, after: str, limit: int) -> Plan:
        """Visit a page of the slots, then of the trains that jobs name; `s` or `t` stands before the name."""
        sort = "train" if after[0] == "t" else "slot"
        found = yield Query("gates_named", {"sort": sort, "after": after[1:], "limit": limit})
        if not found and sort == "slot":
            return (yield from self._mend_named("t", limit))
        lost = [(sort, row["name"]) for row in found if row["is_lost"]]
        if lost:
            yield from self._make_gates(lost)
        return [{"sort": AT_JOBS, "name": sort[0] + row["name"]} for row in found]

    def _mend_gates(self, after_sort: str | None, after_name: str | None, limit: int) -> Plan:
        raise NotImplementedError

    def _make_gates(self, keys: Sequence[Key]) -> Plan:
        """Make these gates anew, and open them."""
        raise NotImplementedError

    # -- `dibs move`: each answer is one transaction, a job is in the tables of jobs or noted as departed ----

    def _many(self, block: str, rows: Sequence[Mapping[str, Any]]) -> Plan:
        """Store these rows by a block, in the way this database takes many."""
        raise NotImplementedError

    def _key_holders(self, keys: Sequence[str]) -> Plan:
        return (yield Query("key_holders", self.adapt({"keys": list(keys)})))

    def _outrun(self, token: int) -> Plan:
        """Make all later claims have a greater token than this."""
        return (yield Query("outrun", {"token": token}))

    def _identify(self, new: UUID | None) -> Plan:
        rows = yield Query("identity", {})
        if rows or new is None:
            return rows
        yield Query("become", self.adapt({"new": new}))
        return [{"id": new}]

    # -- out ------------------------------------------------------------------------------------

    def _depart(self, store: UUID, after: UUID | None, limit: int) -> Plan:
        which = self.adapt({"after": after or FIRST, "limit": limit})
        live = yield Query("departing", which)
        ended = yield Query("departing_finished", which)
        leaving = sorted([*live, *ended], key=lambda row: row["id"])[:limit]
        rows = [{"id": row["id"], "job": stored_text(row)} for row in leaving]
        if rows:
            yield from self._note("out", store, rows)
            yield from self._forget_these(leaving)
            yield from self._forget_pipelines(leaving)
            in_line = [row for row in leaving if row["position"] is not None]
            yield from self._let_next_go([row for row in in_line if row["state"] not in FINISHED])
        return rows

    def _forget_these(self, leaving: Sequence[Row]) -> Plan:
        """Delete these jobs from both tables."""
        params = self.adapt({"ids": [row["id"] for row in leaving]})
        yield Query("delete_live", params)
        return (yield Query("delete_finished", params))

    def _forget_pipelines(self, leaving: Sequence[Row]) -> Plan:
        """Remove the edges of jobs that depart; all jobs of their pipelines have ended."""
        if pipelines := {row["pipeline_id"] for row in leaving if may_have_steps(row["pipeline_id"])}:
            yield Query("forget_parents", {"ids": self.ids(row["id"] for row in leaving)})
            yield Query("forget_pipelines", {"ids": self.ids(pipelines)})
        return []

    def _let_next_go(self, departed: Sequence[Row]) -> Plan:
        """Open the gates of these jobs. Their rows are locked, so a locked gate is left to `mend`."""
        raise NotImplementedError

    def _note(self, way: str, store: UUID, rows: Iterable[Row]) -> Plan:
        return (yield from self._many("note_moves", [{**row, "way": way, "store": store} for row in rows]))

    # -- in -------------------------------------------------------------------------------------

    def _arrive(self, store: UUID, jobs: Sequence[str]) -> Plan:
        come = [read_stored(text) for text in jobs]
        noted = yield Query("noted", self.adapt({"store": store, "ids": [job.id for job in come]}))
        seen = {row["id"] for row in noted}
        answers = yield from self._take_in([job for job in come if job.id not in seen])
        new = [{"id": row["id"], "job": None} for row in answers if row["is_new"]]
        if new:
            yield from self._note("in", store, new)
        known = [{"id": job.id, "holder": job.id, "is_new": False} for job in come if job.id in seen]
        return [*answers, *known]

    def _give_back(self, store: UUID, ids: Sequence[UUID]) -> Plan:
        rows = yield Query("departed_these", self.adapt({"store": store, "ids": list(ids)}))
        answers = yield from self._take_in([read_stored(row["job"]) for row in rows])
        back = [row["id"] for row in answers if row["holder"] == row["id"]]
        yield from self._landed("out", store, back)
        return answers

    def _landed(self, way: str, store: UUID, ids: Sequence[UUID] | None) -> Plan:
        if ids is None:
            yield Query("landed_all", self.adapt({"way": way, "store": store}))
        elif ids:
            yield Query("landed", self.adapt({"way": way, "store": store, "ids": list(ids)}))
        return []

    def _take_in(self, jobs: Sequence[StoredJob]) -> Plan:
        """Store the jobs with a free id and unique key; return one row for each job."""
        if not jobs:
            return []
        known = yield Query("settled", self.adapt({"ids": [job.id for job in jobs]}))
        holders: dict[Any, UUID] = {row["id"]: row["id"] for row in known}
        if keys := [job.own_key for job in jobs if job.own_key is not None]:
            holders |= {row["unique_key"]: row["holder"] for row in (yield from self._key_holders(keys))}
        answers, new = sorted_out(jobs, holders)
        new = yield from self._with_places(new)
        if tokens := [job.token for job in new if job.token is not None]:
            yield from self._outrun(max(tokens))
        yield from self._insert(
            "store_live", [blocked(job) if job.is_gated else job for job in new if not job.is_finished]
        )
        if gated := [job for job in new if job.is_gated]:
            yield from self._join_again(gated)
        yield from self._insert("store_finished", [job for job in new if job.is_finished])
        return answers

    def _with_places(self, jobs: Sequence[StoredJob]) -> Any:
        """Return the jobs with their positions; if one is taken, all of its train go to the end."""
        if keys := [_gate(job) for job in jobs if job.is_gated]:
            yield from self._lock_gates(keys)
        last: dict[str, int] = {}
        for name, coming in by_train(jobs).items():
            given = {"name": name, "positions": [job.position for job in coming]}
            [train] = yield Query("clash", self.adapt({**given, "first": coming[0].position}))
            if train["is_clash"]:
                last[name] = train["last_position"]
        return placed(jobs, last)

    def _lock_gates(self, keys: Sequence[tuple[str, str]]) -> Any:
        raise NotImplementedError

    def _join_again(self, jobs: Sequence[StoredJob]) -> Plan:
        """Open the gates of jobs that arrived with positions of another store."""
        return []
        yield

    def _insert(self, block: str, jobs: Sequence[StoredJob]) -> Plan:
        return (yield from self._many(block, [columns(job) for job in jobs])) if jobs else []


def claiming_order(row: Row) -> tuple[Any, ...]:
    return -row["priority"], row["run_at"], row["id"]


def columns(job: StoredJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


def blocked(job: StoredJob) -> StoredJob:
    """Return the job in the state in which it waits for its gate, or for its time."""
    later = job.train is None and job.state == JobState.scheduled
    return structs.replace(job, state=str(JobState.scheduled if later else JobState.blocked))


def _gate(job: StoredJob) -> tuple[str, str]:
    return ("slot", job.slot or "") if job.train is None else ("train", job.train)
