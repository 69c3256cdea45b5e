"""SQLite's answers: which blocks of sqlite.sql make up a question.

Every answer that writes runs in one `begin immediate` transaction, so it is alone with the file.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dibs.clock import from_micros, to_micros
from dibs.contract import SETTLEMENT_COLUMNS, Traits
from dibs.engines.sql import Dialect, Plan, Query, SqlEngine
from dibs.jobs import NEW_JOB_COLUMNS
from dibs.scripts import Row, Rows, Step
from dibs.states import FINISHED, WORKER_DIED, JobState, swept

# 3.40 has no 'subsec' modifier; a julian day is exact to the millisecond once it is rounded.
NOW = "cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000"

SPELLINGS = {
    "now": NOW,
    "now_minus": f"{NOW} - :$1",
    "minus": "$1 - :$2",
    "uuid": "text",
    "text": "text",
    "texts": "text",
    "false": "0",
    "in_ids": "in (select value from json_each(:$1))",
    "in_texts": "in (select value from json_each(:$1))",
    "has_tags": (
        "not exists (select 1 from json_each(:$1) wanted"
        " where wanted.value not in (select tag.value from json_each(job.tags) tag))"
    ),
}

READS = frozenset({"get", "find", "counts", "queues", "settled", "explain", "now", "workers", "upcoming"})

_TIMES = (
    *("run_at", "enqueued_at", "claimed_at", "finished_at", "lease_until", "now"),
    *("next_due", "next_lease", "started_at", "seen_at"),
)
_IDS = ("id", "holder", "pipeline_id", "parent_id")
_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_TIMES, from_micros),
    **dict.fromkeys(_IDS, UUID),
}


class SQLite(SqlEngine):
    """One file, one writer at a time, many processes on one machine."""

    traits = Traits(durable=True, shared=True, joins_caller=True, migrates_itself=True, wakes=False)

    def __init__(self, prefix: str = "dibs") -> None:
        self.dialect = Dialect(name="sqlite", spellings=SPELLINGS, prefix=prefix)

    def needs_transaction(self, step: Step) -> bool:
        return step.question not in READS

    def read(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Rows:
        readers = [(name, _READERS[name]) for name in names if name in _READERS]
        answer = [dict(zip(names, row, strict=True)) for row in rows]
        for row in answer:
            for name, reader in readers:
                if row[name] is not None:
                    row[name] = reader(row[name])
        return answer

    def adapt(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: _plain(value) for name, value in params.items()}

    # -- enqueue --------------------------------------------------------------------------------

    def _enqueue(self, jobs: Sequence[tuple[Any, ...]], fresh: bool) -> Plan:
        [clock] = yield Query("now", {})
        known = yield from self._holders(jobs, fresh)
        answers: list[Row] = []
        new: list[dict[str, Any]] = []
        for values in jobs:
            job = dict(zip(NEW_JOB_COLUMNS, values, strict=True))
            if (holder := known.get(job["id"]) or known.get(job["unique_key"])) is not None:
                answers.append({"id": job["id"], "holder": holder, "is_new": False})
            else:
                new.append(_due(job, clock["now"]))
                answers.append({**new[-1], "holder": job["id"], "is_new": True})
        if new:
            yield Query("enqueue", [self.adapt(job) for job in new], many=True)
        return answers

    def _holders(self, jobs: Sequence[tuple[Any, ...]], fresh: bool) -> Any:
        """Ids and unique keys that are taken, each with the id of the job that has it."""
        ids = [] if fresh else [job[0] for job in jobs]
        keys = [key for job in jobs if (key := job[_UNIQUE]) is not None]
        if not ids and not keys:
            return {}
        rows = yield Query("holders", self.adapt({"ids": ids, "keys": keys}))
        by_id = {row["id"]: row["id"] for row in rows} if ids else {}
        return by_id | {row["unique_key"]: row["id"] for row in rows if row["unique_key"]}

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
        return (yield from self._leased([row["near"] for row in rows], look, wish))

    def _claim_within_limits(self, **wish: Any) -> Plan:
        raise AssertionError("SQLite holds limits in every claim and never answers `limited`")

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

    def _settle(self, settlements: Sequence[tuple[Any, ...]], children: Sequence[tuple[Any, ...]]) -> Plan:
        applied: list[Row] = []
        for values in settlements:
            given = dict(zip(SETTLEMENT_COLUMNS, values, strict=True))
            if (yield from self._settle_one(given)):
                applied.append({"id": given["id"]})
        won = {row["id"] for row in applied}
        for child in children:
            if child[_PARENT] in won:
                yield from self._enqueue([child], fresh=False)
        return applied

    def _settle_one(self, given: dict[str, Any]) -> Plan:
        params = self.adapt({**given, "ends": given["state"] in FINISHED})
        if ended := (yield Query("settle_ended", params)):
            yield Query("forget", {"id": params["id"]})
            return ended
        return [] if params["ends"] else (yield Query("settle_returned", params))

    def _exchange(self, settlements: Any, children: Any, **wish: Any) -> Plan:
        applied = yield from self._settle(settlements, children)
        first, *rest = yield from self._claim(**wish)
        return [{**first, "settled": [row["id"] for row in applied]}, *rest]

    def _renew(self, claims: Sequence[tuple[UUID, int]], lease: int) -> Plan:
        held: list[Row] = []
        for id, token in claims:
            held += yield Query("renew", {"id": str(id), "token": token, "lease": lease})
        return held

    def _tick(self, **about: Any) -> Plan:
        yield Query("tick", about)
        yield Query("forget_workers", about)
        return (yield Query("upcoming", {}))

    # -- upkeep and acts ------------------------------------------------------------------------

    def _sweep(self, limit: int) -> Plan:
        expired = yield Query("expired", {"limit": limit})
        for job in expired:
            change = {"id": str(job["id"]), "errors": _with_death(job)}
            if (state := _swept(job)) in FINISHED:
                yield Query("end", {**change, "state": state.value, "message": job["cancel_reason"]})
                yield Query("forget", {"id": change["id"]})
            else:
                yield Query("sweep_returned", change)
        return [{**job, "state": _swept(job)} for job in expired]

    def _cancel(self, ids: Sequence[UUID], reason: str | None) -> Plan:
        standing = yield Query("standing", self.adapt({"ids": ids}))
        for job in standing:
            id = str(job["id"])
            if job["state"] == JobState.running:
                yield Query("ask_to_cancel", {"id": id, "reason": reason})
            else:
                yield Query("end", {"id": id, "state": "cancelled", "message": reason, "errors": None})
                yield Query("forget", {"id": id})
        return standing

    def _retry(self, ids: Sequence[UUID]) -> Plan:
        changed: list[Row] = [*(yield Query("retry_scheduled", self.adapt({"ids": ids})))]
        for id in map(str, ids):
            if back := (yield Query("retry_finished", {"id": id})):
                yield Query("forget_finished", {"id": id})
                changed += back
        return changed

    def _delete(self, ids: Sequence[UUID]) -> Plan:
        params = self.adapt({"ids": ids})
        live = yield Query("delete_live", params)
        finished = yield Query("delete_finished", params)
        return [*live, *finished]

    def _age(self, micros: int) -> Plan:
        yield Query("age_jobs", {"micros": micros})
        return (yield Query("age_finished", {"micros": micros}))


_UNIQUE, _PARENT = (NEW_JOB_COLUMNS.index(name) for name in ("unique_key", "parent_id"))


def _due(job: dict[str, Any], now: datetime) -> dict[str, Any]:
    delay, run_at = job.pop("delay"), job["run_at"]
    due = run_at or (from_micros(to_micros(now) + delay) if delay else now)
    state = JobState.ready if due <= now else JobState.scheduled
    return {**job, "run_at": due, "enqueued_at": now, "state": state}


def _within_places(near: Sequence[tuple[Any, ...]], limit: int) -> list[str]:
    """The first `limit` in claiming order, no more of a limited queue than it has places."""
    taken: dict[str, int] = {}
    ids: list[str] = []
    for *_, id, line in near:
        used = taken.get(line["queue"], 0)
        if len(ids) < limit and (line["places"] is None or used < line["places"]):
            taken[line["queue"]] = used + 1
            ids.append(id)
    return ids


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
    return msgspec.json.encode([*msgspec.json.decode(job["errors"]), death]).decode()


def _plain(value: Any) -> Any:
    """A value as sqlite3 takes it: ids and states as text, times as microseconds, lists as JSON."""
    writer = _WRITERS.get(type(value))
    return value if writer is None else writer(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_WRITERS: dict[type, Callable[[Any], Any]] = {
    UUID: str,
    JobState: str,
    datetime: to_micros,
    list: _json,
    tuple: _json,
    dict: _json,
}
