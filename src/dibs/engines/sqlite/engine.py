"""The answers of SQLite, made of the blocks of jobs.sql.

Every answer that writes runs in one `begin immediate` transaction, so it is the only writer of the file.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from dibs.engines.sql.blocks import Dialect, schema_version
from dibs.engines.sql.engine import READS, Plan, Query, columns
from dibs.engines.sql.pipelines import PipelineAnswers
from dibs.engines.sql.values import SQLITE_READERS, as_json, as_sqlite, timed
from dibs.engines.sqlite.gates import SqliteGates, slots_of
from dibs.jobs.gates import Key, gate_of, has_gate
from dibs.jobs.job import NEW_JOB_COLUMNS, StoredJob
from dibs.jobs.states import FINISHED, JobState, errors_with_death, swept_state
from dibs.operations.questions import SETTLEMENT_COLUMNS, Traits
from dibs.operations.scripts import Row, Rows, Step, Tuples

# 3.40 has no 'subsec' modifier; a julian day is exact to the millisecond once it is rounded.
NOW = "cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000"

OLDEST = "3.35"

SPELLINGS = {
    "now": NOW,
    "now_minus": f"{NOW} - :$1",
    "minus": "$1 - :$2",
    "uuid": "text",
    "texts": "text",
    "false": "0",
    "id": ":$1",
    "if_free": "",
    "true": "1",
    "as_job": "",
    "in_ids": "in (select value from json_each(:$1))",
    "is_in": "$1 in (select value from json_each(:$2))",
    "is_given": "$1 in (select value from json_each(:ids))",
    "in_numbers": "in (select value from json_each(:$1))",
    "in_texts": "in (select value from json_each(:$1))",
    "like": "$1 glob :$2",
    "holds": "instr(lower($1), :$2) > 0",
    "has_tags": (
        "not exists (select 1 from json_each(:$1) wanted"
        " where wanted.value not in (select tag.value from json_each(job.tags) tag))"
    ),
}


class SQLite(SqliteGates):
    """One file, one writer at a time, many processes on one machine."""

    traits = Traits(joins_caller=True, migrates_itself=True, wakes=True)

    readers = SQLITE_READERS

    def __init__(self, prefix: str = "dibs") -> None:
        self.dialect = Dialect(name="sqlite", spellings=SPELLINGS, prefix=prefix)
        own = self._own_answers()
        self.answers = own | PipelineAnswers(self, own).answers()
        self.answers_within = {**self.answers, "refuse": self._refuse_within}

    def needs_transaction(self, step: Step) -> bool:
        return step.question not in READS

    def ids(self, ids: Iterable[UUID]) -> Any:
        return as_json(list(ids))

    def superseded(self, query: Query, rows: Rows) -> Sequence[UUID]:
        return ()  # there is no other converter: all were found before

    def lock_pipelines_soon(self, ids: Sequence[UUID]) -> Plan:
        raise AssertionError("on SQLite nothing is locked but the file")

    def pattern(self, text: str) -> str:
        return re.sub(r"[\[?]", r"[\g<0>]", text)

    def adapt(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: as_sqlite(value) for name, value in params.items()}

    # -- enqueue --------------------------------------------------------------------------------

    def _enqueue(self, jobs: Tuples, fresh: bool) -> Plan:
        gates: list[Key] = []
        answers = yield from self._store(jobs, fresh, gates)
        yield from self._open_gates(gates)
        return (yield from self._with_states(answers)) if gates else answers

    def _store(self, jobs: Tuples, fresh: bool, gates: list[Key]) -> Plan:
        """Store the jobs; add their gates to `gates`, which the caller opens."""
        [clock] = yield Query("now", {})
        known = yield from self._holders(jobs, fresh)
        answers: list[Row] = []
        plain: list[dict[str, Any]] = []
        for values in jobs:
            job = timed(dict(zip(NEW_JOB_COLUMNS, values, strict=True)), clock["now"])
            holder = known.get(job["id"]) or known.get(job["unique_key"])
            if holder is not None and holder != job["id"] and job["replaces"]:
                gates += yield from self._replace(holder, job)
            elif holder is None and has_gate(job):
                holder = yield from self._enqueue_gated(job)
                gates.append(gate_of(job))
            elif holder is None:
                plain.append(job)
            answers.append({**job, "holder": holder or job["id"], "is_new": holder is None})
        if plain:
            yield Query("enqueue", [self.adapt(job) for job in plain], many=True)
        return answers

    def _enqueue_gated(self, job: dict[str, Any]) -> Any:
        """Store a job at its gate, or return the id of the job it is dropped for."""
        if (holder := (yield from self._kept_instead(job))) is not None:
            return holder
        if job["slot_policy"] == "replace":
            waiting = yield Query("slot_waiting", {"name": job["slot"]})
            for other in waiting:
                yield from self._take_out(other["id"], JobState.cancelled, f"superseded by {job['id']}")
        job["position"] = yield from self._position(job)
        later = job["slot"] is not None and job["state"] == JobState.scheduled
        job["state"] = JobState.scheduled if later else JobState.blocked
        yield Query("enqueue", self.adapt(job))
        return None

    def _replace(self, holder: UUID, job: Mapping[str, Any]) -> Any:
        """Give a waiting job the arguments and time of the new one; a running or finished one is kept."""
        new = {"holder": holder, "args": job["args"], "run_at": job["run_at"]}
        replaced = yield Query("replace", self.adapt(new))
        return [gate_of(other) for other in replaced if has_gate(other)]

    def _with_states(self, answers: Sequence[Row]) -> Plan:
        """Return the states at the end: a job may be superseded by a later one of the same call."""
        rows = yield Query("settled", self.adapt({"ids": [answer["id"] for answer in answers]}))
        states = {row["id"]: row["state"] for row in rows}
        return [{**answer, "state": states.get(answer["id"])} for answer in answers]

    def _holders(self, jobs: Tuples, fresh: bool) -> Any:
        """Return the taken ids and unique keys, each with the id of the job that has it."""
        ids = [] if fresh else [job[0] for job in jobs]
        keys = [key for job in jobs if (key := job[_UNIQUE]) is not None]
        if not ids and not keys:
            return {}
        rows = yield Query("holders", self.adapt({"ids": ids, "keys": keys}))
        by_id = {row["id"]: row["id"] for row in rows} if ids else {}
        return by_id | {row["unique_key"]: row["id"] for row in rows if row["unique_key"]}

    def _enqueue_tick(self, jobs: Tuples, **move: Any) -> Plan:
        moved = yield Query("move_schedule", self.adapt(move))
        if not moved or not jobs:
            return moved
        return [*moved, *(yield from self._enqueue(jobs, fresh=True))]

    # -- claim ----------------------------------------------------------------------------------

    def _claim(self, limit: int, look: bool, **wish: Any) -> Plan:
        filter = {"queues": wish["queues"], "kinds": wish["kinds"]}
        lines = yield Query("lines", self.adapt(filter))
        near: list[tuple[Any, ...]] = []
        for line in lines:
            place = {"queue": line["queue"], "kind": line["kind"], "limit": limit}
            rows = yield Query("near", place)
            near += [(-row["priority"], row["due"], row["near"], line) for row in rows]
        ids = _within_places(sorted(near, key=lambda job: job[:3]), limit)
        return (yield from self._leased(ids, look, wish))

    def _claim_job(self, job: UUID, look: bool, **wish: Any) -> Plan:
        rows = yield Query("wanted", {"job": str(job)})
        overtaking = [] if rows else (yield Query("wanted_of_slot", {"job": str(job)}))
        if overtaking and not (yield from self._has_room(overtaking[0])):
            overtaking = []
        yield from self._set_states([job for _ in overtaking], JobState.ready)
        claimed = yield from self._leased([row["near"] for row in rows or overtaking], look, wish)
        yield from self._open_gates(slots_of(overtaking))
        return claimed

    def _claim_within_limits(self, **wish: Any) -> Plan:
        raise AssertionError("SQLite applies limits in every claim and never returns `limited`")

    def _leased(self, ids: Sequence[str], look: bool, wish: Mapping[str, Any]) -> Plan:
        header = {"limited": False, "overdue": False, "crowded": False}
        if look:
            [answer] = yield Query("overdue", {})
            header["overdue"] = bool(answer["overdue"])
        if not ids:
            return [header | {"id": None}]
        [counter] = yield Query("tokens", {"taken": len(ids)})
        lease = {name: wish[name] for name in ("worker", "lease", "leases")}
        token = counter["value"] - len(ids) + 1
        rows = yield Query("lease", self.adapt({**lease, "ids": ids, "token": token}))
        return [{**header, **row} for row in sorted(rows, key=lambda row: row["token"])]

    # -- settle, renew --------------------------------------------------------------------------

    def _settle(self, settlements: Tuples, children: Tuples) -> Plan:
        applied: list[Row] = []
        gates: list[Key] = []
        for values in settlements:
            given = dict(zip(SETTLEMENT_COLUMNS, values, strict=True))
            if (yield from self._settle_one(given, gates)):
                applied.append({"id": given["id"]})
        won = {row["id"] for row in applied}
        for child in children:
            if child[_PARENT] in won:
                yield from self._store([child], fresh=False, gates=gates)
        yield from self._open_gates(gates)
        return applied

    def _settle_one(self, given: dict[str, Any], gates: list[Key]) -> Plan:
        """Apply a settlement if the claim holds; add its gate to `gates`, which the caller opens."""
        params = self.adapt({**given, "ends": given["state"] in FINISHED})
        if ended := (yield Query("settle_ended", params)):
            yield Query("forget", {"id": params["id"]})
            gates += yield from self._leave_gate(ended[0], ended[0]["state"])
            return ended
        returned = [] if params["ends"] else (yield Query("settle_returned", params))
        gates += slots_of(returned)
        return returned

    def _exchange(self, settlements: Any, children: Any, **wish: Any) -> Plan:
        applied = yield from self._settle(settlements, children)
        first, *rest = yield from self._claim(**wish)
        return [{**first, "settled": [row["id"] for row in applied]}, *rest]

    def _renew(self, claims: Sequence[tuple[UUID, int]], lease: int) -> Plan:
        held: list[Row] = []
        for id, token in claims:
            held += yield Query("renew", {"id": str(id), "token": token, "lease": lease})
        return held

    # -- upkeep and acts ------------------------------------------------------------------------

    def _sweep(self, limit: int) -> Plan:
        expired = yield Query("expired", {"limit": limit})
        gates: list[Key] = []
        for job in expired:
            errors = errors_with_death(job, job["now"])
            if (state := swept_state(job)) in FINISHED:
                gates += yield from self._end(job["id"], state, job["cancel_reason"], errors)
            else:
                yield Query("sweep_returned", {"id": str(job["id"]), "errors": errors})
                gates += slots_of([job])
        yield from self._open_gates(gates)
        return [{**job, "state": swept_state(job)} for job in expired]

    def _cancel(self, ids: Sequence[UUID], reason: str | None) -> Plan:
        standing = yield Query("standing", self.adapt({"ids": ids}))
        gates: list[Key] = []
        for job in standing:
            if job["state"] == JobState.running:
                yield Query("ask_to_cancel", {"id": str(job["id"]), "reason": reason})
            else:
                gates += yield from self._end(job["id"], JobState.cancelled, reason)
        yield from self._open_gates(gates)
        return standing

    def _end(self, id: UUID, state: JobState, message: str | None, errors: str | None = None) -> Any:
        """End a job without a settlement; return its gate, which the caller opens."""
        ended = yield from self._take_out(id, state, message, errors)
        return (yield from self._leave_gate(ended, state))

    def _take_out(self, id: UUID, state: JobState, message: str | None, errors: str | None = None) -> Any:
        """Transfer a job to the finished table without a settlement."""
        change = {"id": str(id), "state": state.value, "message": message, "errors": errors}
        [ended] = yield Query("end", change)
        yield Query("forget", {"id": str(id)})
        return ended

    def _update(self, **change: Any) -> Plan:
        updated = yield Query("update", self.adapt(change))
        yield from self._open_gates(gate_of(job) for job in updated if has_gate(job))
        return updated

    def _retry(self, ids: Sequence[UUID]) -> Plan:
        changed: list[Row] = []
        gates: list[Key] = []
        for id in map(str, ids):  # one after the other: each is as old as its turn in the call
            if due := (yield Query("retry_scheduled", {"id": id})):
                gates += slots_of(due)
                changed += due
            elif back := (yield Query("retry_finished", {"id": id})):
                yield Query("forget_finished", {"id": id})
                if has_gate(back[0]):
                    gates += yield from self._rejoin(back[0])
                changed += back
        yield from self._open_gates(gates)
        return changed

    def _recover(self, **claim: Any) -> Plan:
        recovered = yield Query("recover", self.adapt(claim))
        yield from self._open_gates(slots_of(recovered))
        return recovered

    def _stage(self, limit: int) -> Plan:
        staged = yield Query("stage", {"limit": limit})
        yield from self._open_gates(slots_of(staged))
        yield from self._end_offers(limit)
        return staged

    def _delete(self, ids: Sequence[UUID]) -> Plan:
        params = self.adapt({"ids": ids})
        live = yield Query("delete_live", params)
        finished = yield Query("delete_finished", params)
        freed = yield Query("let_go", params)
        gates = [gate_of(job) for job in live if has_gate(job)]
        yield from self._open_gates([*gates, *((gate["sort"], gate["name"]) for gate in freed)])
        return [*live, *finished]

    def _let_next_go(self, departed: Sequence[Row]) -> Plan:
        return (yield from self._open_gates(map(gate_of, departed)))

    def _lock_gates(self, keys: Sequence[tuple[str, str]]) -> Plan:
        """Make sure that the gates exist; there is no other writer to lock out."""
        for sort, name in keys:
            yield Query("make_gate", {"sort": sort, "name": name})
        return []

    def _join_again(self, jobs: Sequence[StoredJob]) -> Plan:
        keys = [gate_of(columns(job)) for job in jobs]
        for (sort, name), job in zip(keys, jobs, strict=True):
            yield Query("close_train", {"sort": sort, "name": name})
            yield Query("raise_position", {"sort": sort, "name": name, "position": abs(job.position or 0)})
        return (yield from self._open_gates(keys))

    def _many(self, block: str, rows: Sequence[Mapping[str, Any]]) -> Plan:
        return (yield Query(block, [self.adapt(row) for row in rows], many=True))

    # -- reads ----------------------------------------------------------------------------------

    def _ready_lines(self, queues: Sequence[str] | None) -> Plan:
        return (yield Query("lines", self.adapt({"queues": queues, "kinds": None})))

    def _examine(self) -> Plan:
        facts = yield Query("examine", {"needed": OLDEST, "schema": str(schema_version("sqlite"))})
        [file] = [row["file"] for row in (yield Query("files", {})) if row["name"] == "main"]
        return [*facts, *(about_file(file) if file else [_fact("kept", "jobs", "nowhere")])]


_UNIQUE, _PARENT = (NEW_JOB_COLUMNS.index(name) for name in ("unique_key", "parent_id"))


def _within_places(near: Tuples, limit: int) -> list[str]:
    """Return the first `limit` jobs in claiming order, within the limits of their queues."""
    taken: dict[str, int] = {}
    ids: list[str] = []
    for *_, id, line in near:
        used = taken.get(line["queue"], 0)
        if len(ids) < limit and (line["places"] is None or used < line["places"]):
            taken[line["queue"]] = used + 1
            ids.append(id)
    return ids


# -- What the system knows of the file: facts for the doctor -------------------------------------

MOUNTS = Path("/proc/self/mounts")


def about_file(file: str) -> Iterator[Row]:
    """Yield the file's path, file system and size, the size of its log, and the free space."""
    yield _fact("file", "path", file)
    with suppress(OSError):
        yield _fact("file", "bytes", Path(file).stat().st_size)
        yield _fact("disk", "free bytes", shutil.disk_usage(Path(file).parent).free)
    with suppress(OSError):
        yield _fact("file", "log bytes", Path(f"{file}-wal").stat().st_size)
    with suppress(OSError):
        yield _fact("file", "file system", file_system(file, MOUNTS.read_text(encoding="utf-8")))


def file_system(file: str, mounts: str) -> str:
    """Return the kind of a file's file system, from the system's table of mounts."""
    path, best, kind = os.path.realpath(file), "", "unknown"
    for line in mounts.splitlines():
        _, place, sort, *_ = line.split(" ")
        place = place.replace("\\040", " ")
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, sort
    return kind


def _fact(fact: str, about: str, value: object) -> Row:
    return {"fact": fact, "about": about, "value": str(value)}
