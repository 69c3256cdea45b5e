"""New jobs on MySQL and MariaDB: one insert, or several steps where an id, key or position may be taken."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from dibs.engines.mysql.gates import Gates, MysqlGates, gates_of
from dibs.engines.sql.engine import Plan, Query
from dibs.engines.sql.values import (
    CHUNK_ROWS,
    CHUNK_SIZE,
    as_hex,
    as_ids,
    as_json,
    chunks,
    text_size,
    timed,
)
from dibs.jobs.gates import gate_of, has_gate
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.jobs.states import JobState
from dibs.operations.scripts import Row, Tuples

_UNIQUE, _TRAIN, _SLOT = (NEW_JOB_COLUMNS.index(name) for name in ("unique_key", "train", "slot"))

# The columns that `enqueue` sends of each job, in the order of its block.
_STORED = (
    *("id", "kind", "queue", "args", "priority", "state", "max_attempts", "run_at", "enqueued_at"),
    *("unique_key", "on_cancelled", "on_failed", "pipeline_id", "parent_id", "tags", "meta"),
)
# Further columns of jobs that have a gate or a unique key.
_STORED_AT_GATES = ("train", "slot", "slot_policy", "slot_limit", "position", "unique_until")


class MysqlEnqueue(MysqlGates):
    """The answers that store jobs: enqueue, children of settlements, ticks of schedules."""

    def _enqueue(self, jobs: Tuples, fresh: bool, finished: str = "finished") -> Plan:
        [clock] = yield Query("now", {})
        new = [timed(dict(zip(NEW_JOB_COLUMNS, values, strict=True)), clock["now"]) for values in jobs]
        if fresh and all(map(_is_plain, new)):
            yield from self._store("enqueue", _STORED, new, stored_by=None)
            return [{**job, "holder": job["id"], "is_new": True} for job in new]
        gates = yield from self._lock_gates((yield from self._gates_of_new(new)))
        answers: list[Row] = []
        for batch in _batches(new):
            answers += yield from self._enqueue_carefully(batch, fresh, gates, finished)
        yield from self._open_gates(gates)
        return (yield from self._with_states(answers)) if gates else answers

    def _store(
        self, block: str, names: Sequence[str], new: Sequence[Mapping[str, Any]], stored_by: UUID | None
    ) -> Plan:
        for chunk in chunks([job[name] for name in names] for job in new):
            yield Query(block, {"jobs": chunk, "stored_by": as_hex(stored_by)})
        return []

    def _gates_of_new(self, new: Sequence[Mapping[str, Any]]) -> Any:
        """Return the gates of new jobs, and of jobs with arguments and times that they may replace."""
        keys = [job["unique_key"] for job in new if job["replaces"]]
        met = (yield Query("gates_of_keys", {"keys": as_json(keys)})) if keys else []
        return [*gates_of(new), *gates_of(met)]

    def _enqueue_carefully(
        self, new: Sequence[dict[str, Any]], fresh: bool, gates: Gates, finished: str
    ) -> Plan:
        """Store all, then remove the jobs with an id, key or position that another job had."""
        for job in new:
            _take_place(job, gates)
        call = uuid4()
        met = yield from self._met(new, fresh)
        ended = set() if fresh else (yield from self._ended_before(new))
        stored = _in_order_of_keys(job for job in new if job["id"] not in ended and job["id"] not in met)
        yield from self._store("enqueue_again", (*_STORED, *_STORED_AT_GATES), stored, stored_by=call)
        holders, ours = yield from self._holders([job for job in new if job["id"] not in met], call)
        holders |= {id: id for id in ended} | met
        if not fresh:
            done = yield from self._forget_if_finished(ours, finished)
            ours -= done
            holders |= {id: id for id in done}
        yield from self._forget_if_key_lasts(new, ours, holders)
        yield from self._replace([job for job in new if job["id"] not in ours], holders, gates)
        yield from self._act_on_slot([job for job in new if job["id"] in ours], ours, holders)
        return [_stored(job, ours, holders) for job in new]

    def _met(self, new: Sequence[Mapping[str, Any]], fresh: bool) -> Any:
        """Return the jobs that have and keep the keys of new ones, by the new ids. Nothing is locked."""
        keyed = [job for job in new if job["unique_key"] is not None]
        met = {
            **(yield from self._who_has("key_holders", (job for job in keyed if not job["replaces"]))),
            **(yield from self._who_has("running_holders", (job for job in keyed if job["replaces"]))),
        }
        known = set() if fresh or not met else {row["id"] for row in (yield from self._settled(list(met)))}
        return {id: holder for id, holder in met.items() if id not in known}

    def _who_has(self, block: str, new: Iterable[Mapping[str, Any]]) -> Any:
        """Return the jobs that have the keys of new ones, by the new ids."""
        keys = {job["id"]: job["unique_key"] for job in new}
        rows = (yield Query(block, {"keys": as_json(sorted(set(keys.values())))})) if keys else ()
        holders = {row["unique_key"]: row["holder"] for row in rows}
        return {id: holders[key] for id, key in keys.items() if key in holders}

    def _holders(self, new: Sequence[Mapping[str, Any]], call: UUID) -> Any:
        """Return the job that has each id and key, and the ids that this call has stored."""
        rows = yield Query("stored", {"ids": as_ids(job["id"] for job in new)})
        holders: dict[Any, UUID] = {row["id"]: row["id"] for row in rows}
        ours = {row["id"] for row in rows if row["stored_by"] == call}
        lost = [job for job in new if job["id"] not in ours]  # ours have their keys, and are locked
        if keys := [job["unique_key"] for job in lost if job["unique_key"] is not None]:
            rows = yield Query("holders", {"keys": as_json(keys)})
            holders |= {row["unique_key"]: row["holder"] for row in rows}
        return holders, ours

    def _ended_before(self, new: Sequence[Mapping[str, Any]]) -> Any:
        """Return the finished jobs: they must not take a key from others of the same call, even briefly."""
        if len(new) == 1 or all(job["unique_key"] is None for job in new):
            return set()
        return {row["id"] for row in (yield Query("ended", {"ids": as_ids(job["id"] for job in new)}))}

    def _forget_if_finished(self, ids: set[UUID], block: str) -> Any:
        """Remove jobs that finished before they were stored again, perhaps while we waited for a lock."""
        if not ids:
            return set()
        done = {row["id"] for row in (yield Query(block, {"ids": as_ids(ids)}))}
        yield from self._each("forget", done)
        return done

    def _forget_if_key_lasts(
        self, new: Sequence[Mapping[str, Any]], ours: set[UUID], holders: dict[Any, UUID]
    ) -> Plan:
        """Remove new jobs with a key that a finished job keeps for a time."""
        keyed = [job for job in new if job["id"] in ours and job["unique_key"] is not None]
        if not keyed:
            return []
        rows = yield Query("lasting", {"keys": as_json([job["unique_key"] for job in keyed])})
        kept = {row["unique_key"]: row["holder"] for row in rows}
        lost = [job["id"] for job in keyed if job["unique_key"] in kept]
        holders.update(kept)
        for id in lost:
            del holders[id]
        ours.difference_update(lost)
        return (yield from self._each("forget", lost))

    def _replace(self, new: Sequence[Mapping[str, Any]], holders: Mapping[Any, UUID], gates: Gates) -> Plan:
        """Give a waiting job the arguments and time of the new one; a running or finished one is kept."""
        for job in new:
            if job["replaces"] and job["id"] not in holders:
                holder = holders[job["unique_key"]]
                yield from self._lock_gates_of((yield from self._live([holder])), gates)
                change = {"holder": holder, "args": job["args"], "run_at": job["run_at"]}
                yield Query("replace", self.adapt(change))
        return []

    def _act_on_slot(
        self, new: Sequence[Mapping[str, Any]], ours: set[UUID], holders: dict[Any, UUID]
    ) -> Plan:
        """Remove the new job if its slot is full (`drop`), or cancel the waiting ones (`replace`)."""
        for job in new:
            if job["slot_policy"] == "drop":
                if (holder := (yield from self._kept_instead(job))) is not None:
                    yield from self._each("forget", [job["id"]])
                    ours.discard(job["id"])
                    holders[job["id"]] = holder
            elif job["slot_policy"] == "replace":
                live = yield from self._live((yield from self._waiting_beside(job)))
                waiting = [row["id"].hex for row in live if row["state"] != JobState.running]
                reason = f"superseded by {job['id']}"
                yield from self._end([(id, JobState.cancelled.value, reason, None) for id in waiting])
        return []

    def _with_states(self, answers: Sequence[Row]) -> Plan:
        """Return the states at the end: a job may be superseded by a later one of the same call."""
        rows = yield from self._settled([answer["id"] for answer in answers])
        states = {row["id"]: row["state"] for row in rows}
        return [{**answer, "state": states.get(answer["id"])} for answer in answers]

    def _enqueue_tick(self, jobs: Tuples, **move: Any) -> Plan:
        found = yield Query("schedule_at", self.adapt(move))
        if not found:  # another worker moved it, or it was changed
            return []
        yield Query("move_schedule", self.adapt(move))
        return [*found, *((yield from self._enqueue(jobs, fresh=True)) if jobs else ())]

    def _set_schedule(self, **to: Any) -> Plan:
        makes = to["since"] is None
        found = yield Query("schedule_named" if makes else "schedule_at", self.adapt(to))
        if bool(found) == makes:
            return []
        yield Query("make_schedule" if makes else "change_schedule", self.adapt(to))
        return [{"name": to["schedule"]}]

    def _delete_schedule(self, schedule: str) -> Plan:
        found = yield Query("schedule_named", {"schedule": schedule})
        yield Query("delete_schedule", {"schedule": schedule})
        return found

    # -- shared ---------------------------------------------------------------------------------

    def _live(self, ids: Iterable[UUID], stale_after: int = 0) -> Plan:
        if not (ids := sorted(ids)):
            return []
        return (yield Query("live", {"ids": as_ids(ids), "stale_after": stale_after}))

    def _end(self, ends: Sequence[tuple[str, str, str | None, str | None]]) -> Plan:
        for chunk in chunks(ends):
            yield Query("end", {"ends": chunk})
        return (yield from self._each("forget", (UUID(one[0]) for one in ends)))

    def _settled(self, ids: Sequence[UUID]) -> Plan:
        return (yield Query("settled", {"ids": as_ids(ids)}))


def is_one_insert(jobs: Tuples, fresh: bool) -> bool:
    few = len(jobs) <= CHUNK_ROWS and sum(map(text_size, jobs)) <= CHUNK_SIZE
    return fresh and few and all(job[_UNIQUE] is job[_TRAIN] is job[_SLOT] is None for job in jobs)


def _is_plain(job: Mapping[str, Any]) -> bool:
    return job["unique_key"] is None and not has_gate(job)


def _batches(new: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the new jobs in order; one that acts on others of its slot is a batch of its own."""
    batch: list[dict[str, Any]] = []
    for job in new:
        if job["slot_policy"] in ("drop", "replace"):
            yield from ([batch] if batch else [])
            yield [job]
            batch = []
        else:
            batch.append(job)
    yield from ([batch] if batch else [])


def _in_order_of_keys(jobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by key: inserts wait for keys that other transactions store, and must wait in one order."""
    return sorted(jobs, key=lambda job: (job["unique_key"] is None, job["unique_key"] or "", job["id"]))


def _take_place(job: dict[str, Any], gates: Gates) -> None:
    """Make a new job blocked, or in a slot scheduled, until its gate opens."""
    if has_gate(job):
        waits = job["slot"] is not None and job["state"] == JobState.scheduled
        job["state"] = JobState.scheduled if waits else JobState.blocked
        job["position"] = gates[gate_of(job)].place(job["slot_policy"])


def _stored(job: Mapping[str, Any], ours: set[UUID], holders: Mapping[Any, UUID]) -> Row:
    if job["id"] in ours:
        return {**job, "holder": job["id"], "is_new": True}
    return {"id": job["id"], "holder": holders.get(job["id"]) or holders[job["unique_key"]], "is_new": False}
