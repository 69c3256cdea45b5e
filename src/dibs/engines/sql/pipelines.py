"""Pipelines on SQL: what the end, return or removal of a job means to the jobs that wait for it (ADR 18).

Each answer here wraps the engine's own: it locks the pipelines in question, runs the engine's answer, and
then enqueues or cancels the jobs after the changed ones, in the same transaction. Plain jobs never get here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from dibs.engines.sql.engine import Answer, Plan, Query, SqlEngine
from dibs.engines.sql.values import as_json
from dibs.jobs.ids import may_have_steps
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.jobs.states import FINISHED, JobState, doomed_by
from dibs.operations.scripts import Rows, Step

CANCELLED_BY_PARENT = "parent"  # `settled_as` of jobs cancelled for one before them; its retry undoes that

_WRAPPED = frozenset({"cancel", "sweep", "retry", "delete", "prune", "mend", "enqueue_pipeline"})
_ENQUEUEING = {"enqueue": "jobs", "enqueue_tick": "jobs", "settle": "children", "exchange": "children"}
_SETTLING = frozenset({"settlements", "children", "patience", "keys"})

_TRAIN, _SLOT, _POLICY, _LIMIT, _PIPELINE, _PARENT = (
    NEW_JOB_COLUMNS.index(name)
    for name in ("train", "slot", "slot_policy", "slot_limit", "pipeline_id", "parent_id")
)
_NOT_STORED: dict[str, Any] = {"delay": None, "unique_key": None, "unique_for": None, "replaces": False}


def concerns_pipelines(step: Step) -> bool:
    """Return whether the answer may be one of `PipelineAnswers`, and so takes several statements."""
    if step.question in _WRAPPED or "steps" in step.params:
        return True
    return step.question in _ENQUEUEING and bool(_replaced_slots(step.params[_ENQUEUEING[step.question]]))


class PipelineAnswers:
    """The answers to questions that may concern pipelines, around those of an engine."""

    def __init__(self, database: SqlEngine, inner: Mapping[str, Answer]) -> None:
        self._database = database
        self._inner = inner

    def answers(self) -> dict[str, Answer]:
        return {
            "enqueue": partial(self._enqueue, "enqueue"),
            "enqueue_tick": partial(self._enqueue, "enqueue_tick"),
            "settle": self._settle,
            "exchange": self._exchange,
            "cancel": self._cancel,
            "sweep": self._sweep,
            "retry": self._retry,
            "delete": self._delete,
            "prune": self._prune,
            "mend": self._mend,
            "enqueue_pipeline": self._enqueue_pipeline,
            "parents": self._parents,
            "pipelines": self._pipelines,
            "newest_pipelines": self._newest,
            "pipeline_counts": partial(self._ask, "pipeline_counts"),
        }

    def _ask(self, block: str, ids: Iterable[UUID], **more: Any) -> Plan:
        return (yield Query(block, {**self._database.adapt(more), "ids": self._database.ids(ids)}))

    def _newest(self, after: UUID, limit: int) -> Plan:
        page = self._database.adapt({"after": after, "limit": limit})
        live = yield Query("newest_live_pipelines", page)
        finished = yield Query("newest_finished_pipelines", page)
        ids = {row["id"] for row in (*live, *finished)}
        return [{"id": id} for id in sorted(ids, reverse=True)[:limit]]

    # -- new jobs -------------------------------------------------------------------------------

    def _enqueue(self, question: str, jobs: Sequence[Any], **about: Any) -> Plan:
        return self._superseding(self._inner[question](jobs=jobs, **about), jobs)

    def _superseding(self, answer: Plan, jobs: Sequence[Any]) -> Plan:
        slots = _replaced_slots(jobs)
        return self._supersede(answer, jobs, slots) if slots else answer

    def _supersede(self, answer: Plan, jobs: Sequence[Any], slots: Collection[str]) -> Plan:
        """Continue the pipelines of jobs that new ones in these slots supersede."""
        found = yield from self._in_slots(slots)
        rows: Rows
        rows, superseded = yield from self._noting(answer)
        new = [job[0] for job in jobs if may_have_steps(job[_PIPELINE])]  # one may supersede another
        came = yield from self._came_since(found, superseded)
        yield from self._continue([*(row["id"] for row in found), *came, *new])
        return rows

    def _enqueue_pipeline(
        self, pipeline: tuple[UUID, str, str], edges: Sequence[tuple[UUID, UUID]], jobs: Sequence[Any]
    ) -> Plan:
        id, name, on_failed = pipeline
        about = {"id": id, "name": name, "on_failed": on_failed}
        if not (yield from self._database.insert_pipeline(about)):
            return []
        waiting = {child for _, child in edges}
        bare = [_without_gate(job) if job[0] in waiting else job for job in jobs]
        found = yield from self._in_slots(_replaced_slots(bare))
        answers, superseded = yield from self._noting(self._inner["enqueue"](jobs=bare, fresh=True))
        if waiting:
            yield from self._make_wait(jobs, edges, waiting)
        rows = [
            {**row, "state": JobState.blocked} if job[0] in waiting else row
            for job, row in zip(jobs, answers, strict=True)
        ]
        if not _replaced_slots(bare):
            return rows
        own = [job[0] for job in jobs]  # one of its jobs may supersede another
        came = yield from self._came_since(found, superseded)
        yield from self._continue([*(row["id"] for row in found), *came, *own])
        states = {row["id"]: row["state"] for row in (yield from self._inner["settled"](ids=own))}
        return [{**row, "state": states[id]} for id, row in zip(own, rows, strict=True)]

    def _make_wait(self, jobs: Sequence[Any], edges: Sequence[Any], waiting: Collection[UUID]) -> Plan:
        yield Query("insert_parents", {"edges": _edges(edges)})
        yield from self._ask("block_new_steps", waiting)
        for job in jobs:
            if job[0] in waiting and (job[_TRAIN], job[_SLOT]) != (None, None):
                yield Query("name_gate", self._database.adapt({"id": job[0], **_gate(job)}))
        return []

    def _in_slots(self, slots: Collection[str]) -> Plan:
        """Lock the pipelines of jobs that will be superseded in these slots; return the jobs."""
        if not slots:
            return []
        found = yield Query("steps_in_slots", self._database.adapt({"slots": sorted(slots)}))
        yield from self._lock(found)
        return found

    def _noting(self, plan: Plan) -> Any:
        """Run a plan; return its rows, and the jobs it superseded.

        These are more than `_in_slots` found if one was enqueued before the plan locked the slot.
        """
        superseded: list[UUID] = []
        rows: Any = None
        while True:
            try:
                query = plan.send(rows)
            except StopIteration as done:
                return done.value, superseded
            rows = yield query
            if isinstance(query, Query):
                superseded += self._database.superseded(query, rows)

    def _came_since(self, found: Rows, superseded: Sequence[UUID]) -> Any:
        """Return the superseded jobs that `_in_slots` did not find, their pipelines locked as well, late."""
        came = sorted(set(superseded) - {row["id"] for row in found})
        if came:
            yield from self._locked_jobs(came)
        return came

    # -- settle ---------------------------------------------------------------------------------

    def _settle(self, steps: Sequence[Any] | None = None, **given: Any) -> Plan:
        if steps is None:
            return self._superseding(self._inner["settle"](**given), given["children"])
        return self._settle_jobs(steps, given)

    def _exchange(self, steps: Sequence[Any] | None = None, **given: Any) -> Plan:
        if steps is None:
            return self._superseding(self._inner["exchange"](**given), given["children"])
        return self._settle_then_claim(steps, given)

    def _settle_then_claim(self, steps: Sequence[Any], given: Mapping[str, Any]) -> Plan:
        """Settle first, so that the claim may take the jobs that the settlements let go."""
        settling = {name: value for name, value in given.items() if name in _SETTLING}
        rows = yield from self._settle_jobs(steps, settling)
        waiting = [row["id"] for row in rows if row.get("waits")]
        settled = [row["id"] for row in rows if not row.get("waits")]
        request = {name: value for name, value in given.items() if name not in _SETTLING}
        first, *others = yield from self._inner["claim"](**request)
        return [{**first, "settled": settled, "waiting": waiting}, *others]

    def _settle_jobs(self, steps: Sequence[tuple[UUID, UUID]], given: Mapping[str, Any]) -> Plan:
        """Settle what is not behind a locked pipeline; continue the pipelines of `steps`."""
        wanted = sorted({pipeline for _, pipeline in steps})
        locked, taken = yield from self._lock_pipelines(wanted, given.get("patience"))
        late = {id for id, pipeline in steps if pipeline in taken}
        given = _without(given, late) if late else given
        rows = (yield from self._settle(**given)) if given["settlements"] else []
        settled = {row["id"] for row in rows if not row.get("waits")}
        yield from self._continue([id for id, _ in steps if id in settled] if locked else [])
        return [*rows, *({"id": id, "waits": True} for id in late)]

    # -- other questions ------------------------------------------------------------------------

    def _cancel(self, ids: Sequence[UUID], reason: str | None) -> Plan:
        found = yield from self._locked_jobs(ids)
        waiting = [row["id"] for row in found if row["waits"]]
        yield from self._end_waiting(waiting, reason, None)
        others = [id for id in ids if id not in waiting] if waiting else ids
        rows = (yield from self._inner["cancel"](ids=others, reason=reason)) if others else []
        changed = [*rows, *({"id": id, "worker": None} for id in waiting)]
        yield from self._continue(sorted({row["id"] for row in changed} & {row["id"] for row in found}))
        return changed

    def _sweep(self, limit: int) -> Plan:
        rows = yield from self._inner["sweep"](limit=limit)
        ended = [row["id"] for row in rows if row["state"] in FINISHED]
        found = (yield from self._locked_jobs(ended)) if ended else ()
        yield from self._continue([row["id"] for row in found])
        return rows

    def _retry(self, ids: Sequence[UUID]) -> Plan:
        found = yield from self._locked_jobs(ids)
        if not found:
            return (yield from self._inner["retry"](ids=ids))
        waiting = {row["id"] for row in (yield from self._ask("waiting_if_retried", ids))}
        yield from self._block_again(waiting)
        others = [id for id in ids if id not in waiting]
        rows = (yield from self._inner["retry"](ids=others)) if others else []
        changed = [*rows, *({"id": id} for id in waiting)]
        ended = {row["id"] for row in found if row["state"] in FINISHED}  # else it was only made due
        yield from self._revive({row["id"] for row in changed} & ended)
        return changed

    def _delete(self, ids: Sequence[UUID]) -> Plan:
        found = yield from self._locked_jobs(ids)
        if waiting := [row["id"] for row in found if row["waits"]]:
            yield from self._ask("forget_steps", waiting)
        others = [id for id in ids if id not in waiting] if waiting else ids
        rows = (yield from self._inner["delete"](ids=others)) if others else []
        rows = [*rows, *({"id": id} for id in waiting)]
        gone = {row["id"] for row in rows}
        deleted = [row for row in found if row["id"] in gone]
        if not deleted:
            return rows
        for row in deleted:
            if row["state"] != JobState.succeeded:
                yield from self._cancel_following(row["id"], doomed_by(row["id"], None))
        yield from self._ask("forget_unmet", gone)
        yield from self._ask("forget_parents", gone)
        yield from self._ask("forget_pipelines", {row["pipeline_id"] for row in deleted})
        return rows

    def _prune(self, **which: Any) -> Plan:
        rows = yield from self._inner["prune"](**which)
        if rows:
            yield from self._ask("forget_parents", [row["id"] for row in rows])
        some = {"before": which["before"], "limit": which["limit"]}
        old = yield Query("old_pipelines", self._database.adapt(some))
        if old:
            yield from self._ask("forget_pipelines", [row["id"] for row in old])
        return rows

    def _mend(self, after_sort: str | None, after_name: str | None, limit: int) -> Plan:
        """Mend a page of the pipelines with waiting jobs; after the last of them, gates."""
        if after_sort in (None, "pipeline"):
            after = UUID(int=0) if after_name is None else UUID(after_name)
            page = self._database.adapt({"after": after, "limit": limit})
            found = yield Query("waiting_pipelines", page)
            if found:
                yield from self._mend_parents([row["id"] for row in found])
                return [{"sort": "pipeline", "name": str(row["id"])} for row in found]
            after_sort = after_name = None
        return (yield from self._inner["mend"](after_sort=after_sort, after_name=after_name, limit=limit))

    def _mend_parents(self, pipelines: Sequence[UUID]) -> Plan:
        """Treat parents that are waited for and do not exist as deleted."""
        if not (yield from self._ask("missing_parents", pipelines)):
            return []
        yield from self._ask("lock_pipelines", sorted(pipelines))
        missing = [row["id"] for row in (yield from self._ask("missing_parents", pipelines))]
        for id in missing:
            yield from self._cancel_following(id, doomed_by(id, None))
        if missing:
            yield from self._ask("forget_unmet", missing)
            yield from self._ask("forget_parents", missing)
        return []

    def _parents(self, jobs: Sequence[UUID]) -> Plan:
        rows = yield Query("parents", {"jobs": self._database.ids(jobs)})
        return [{"child": row["id"], "parent": row["parent_id"], "met": bool(row["met"])} for row in rows]

    def _pipelines(self, ids: Sequence[UUID] | None) -> Plan:
        if ids is None:
            return (yield Query("open_pipelines", {}))
        return (yield from self._ask("pipelines", ids))

    # -- locks ----------------------------------------------------------------------------------

    def _locked_jobs(self, ids: Collection[UUID]) -> Plan:
        """Return the jobs of these that belong to a pipeline, once that is locked."""
        found = yield from self._ask("steps_among", ids)
        if found:
            yield from self._lock(found)
            found = yield from self._ask("steps_among", ids)  # as they are under the lock
        return found

    def _lock_pipelines(self, ids: Sequence[UUID], patience: str | None) -> Any:
        """Return the pipelines that are locked now, and the ids of others' where we must not wait."""
        if patience in ("none", "wary"):
            free = yield from self._ask("free_pipelines", ids)
            if len(free) == len(ids):
                return free, set()
            there = {row["id"] for row in (yield from self._ask("pipelines", ids))}  # or gone
            return free, there - {row["id"] for row in free}
        if patience == "short":
            yield from self._database.lock_pipelines_soon(ids)
        return (yield from self._ask("lock_pipelines", ids)), set()

    def _lock(self, jobs: Rows) -> Plan:
        if jobs:
            yield from self._ask("lock_pipelines", sorted({row["pipeline_id"] for row in jobs}))
        return []

    # -- what follows from the end of a job -----------------------------------------------------

    def _continue(self, ids: Sequence[UUID]) -> Plan:
        """Enqueue, or cancel, the jobs that waited for the end of these."""
        ended = (yield from self._ask("ended_steps", ids)) if ids else ()
        for row in ended:
            if row["state"] != JobState.succeeded and row["on_failed"] == "cancel":
                yield from self._cancel_following(row["id"], doomed_by(row["id"], row["state"]))
        if done := [row["id"] for row in ended if row["state"] == JobState.succeeded]:
            yield from self._ask("meet_parents", done)
            yield from self._enqueue_freed((yield from self._freed(done)))
        return []

    def _freed(self, done: Sequence[UUID]) -> Plan:
        """Return the jobs that waited for these and have no other parent left."""
        edges = yield from self._ask("siblings_met", done)
        free = {row["id"] for row in edges} - {row["id"] for row in edges if not row["met"]}
        return (yield from self._ask("waiting_steps", sorted(free))) if free else ()

    def _enqueue_freed(self, freed: Rows) -> Plan:
        """Give jobs with no parent left to wait for their positions, as if they were new."""
        if not freed:
            return []
        yield from self._ask("forget_steps", [row["id"] for row in freed])
        jobs = [tuple({**row, **_NOT_STORED}[name] for name in NEW_JOB_COLUMNS) for row in freed]
        yield from self._enqueue("enqueue", jobs=jobs, fresh=True)
        may_supersede = any(row["slot_policy"] == "replace" for row in freed)
        for row in freed:
            kept = self._database.adapt({"id": row["id"], "enqueued_at": row["enqueued_at"]})
            yield Query("keep_enqueued_at", kept)
            if may_supersede:
                yield Query("keep_enqueued_at_of_finished", kept)
        return []

    def _cancel_following(self, id: UUID, message: str) -> Plan:
        """Cancel all jobs that wait for this one, directly or not."""
        found = yield from self._database.following_jobs(id)
        return (yield from self._end_waiting([row["id"] for row in found], message, CANCELLED_BY_PARENT))

    def _end_waiting(self, ids: Sequence[UUID], message: str | None, settled_as: str | None) -> Plan:
        """Cancel jobs that wait for parents; they are at no gate yet."""
        if ids:
            yield from self._ask("end_steps", ids, message=message, settled_as=settled_as)
            yield from self._ask("forget_steps", ids)
        return []

    def _revive(self, ids: Collection[UUID]) -> Plan:
        """Let jobs that were cancelled for these wait again, unless another of their parents has failed."""
        while ids:
            ids = [row["id"] for row in (yield from self._ask("revivable_steps", ids))]
            yield from self._block_again(ids)
        return []

    def _block_again(self, ids: Collection[UUID]) -> Plan:
        if ids:
            yield from self._ask("block_steps", ids)
            yield from self._ask("forget_finished_steps", ids)
        return []


def _replaced_slots(jobs: Sequence[Any]) -> set[str]:
    """Return the slots in which a new job supersedes the waiting ones."""
    return {job[_SLOT] for job in jobs if job[_POLICY] == "replace"}


def _without_gate(job: tuple[Any, ...]) -> tuple[Any, ...]:
    values = list(job)
    values[_TRAIN] = values[_SLOT] = values[_POLICY] = values[_LIMIT] = None
    return tuple(values)


def _gate(job: tuple[Any, ...]) -> dict[str, Any]:
    return {"train": job[_TRAIN], "slot": job[_SLOT], "slot_policy": job[_POLICY], "slot_limit": job[_LIMIT]}


def _without(given: Mapping[str, Any], late: Collection[UUID]) -> dict[str, Any]:
    """Return the parameters of `settle` without these jobs."""
    without = {**given, "settlements": [one for one in given["settlements"] if one[0] not in late]}
    without["children"] = [child for child in given["children"] if child[_PARENT] not in late]
    without["keys"] = {id: key for id, key in given["keys"].items() if id not in late}
    return without


def _edges(edges: Sequence[tuple[UUID, UUID]]) -> str:
    """Return (child, order, parent) of each edge, as JSON."""
    ordered = [[child, order, parent] for order, (parent, child) in enumerate(edges)]
    return as_json(ordered)
