"""Pipelines on SQL: what the end, return or removal of a job means to those that wait for it (ADR 18).

Each plan here goes around the engine's own: it locks the pipelines in question, lets the engine answer, and
then moves those after the jobs that were changed, in the same transaction. A settlement of a job in no such
pipeline never comes by.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from dibs.engines.moves import MovingEngine
from dibs.engines.sql import Plan, Query
from dibs.ids import may_have_steps
from dibs.jobs import NEW_JOB_COLUMNS
from dibs.scripts import Row, Rows, Step
from dibs.states import FINISHED, JobState, doomed_by

DOOMED = "parent"  # `settled_as` of those cancelled for a job before them; a retry of that one undoes it

_STORING = frozenset({"enqueue", "enqueue_tick", "settle", "exchange"})
_SETTLING = frozenset({"settlements", "children", "patience", "keys"})
_IN_PIPELINE = {"find": "find_in_pipeline", "find_oldest": "find_oldest_in_pipeline"}
_AROUND = frozenset({"cancel", "sweep", "retry", "delete", "prune", "mend"})

_TRAIN, _SLOT, _POLICY, _LIMIT, _PIPELINE = (
    NEW_JOB_COLUMNS.index(name) for name in ("train", "slot", "slot_policy", "slot_limit", "pipeline_id")
)
_PARENT = NEW_JOB_COLUMNS.index("parent_id")
_NOT_STORED: dict[str, Any] = {"delay": None, "unique_key": None, "unique_for": None, "replaces": False}


class SqlSteps(MovingEngine):
    """Goes before an engine's class: `class Stepped(SqlSteps, Engine)`."""

    finds_by_pipeline = True  # `find` leaves every filter open, and so finds no index

    def answer(self, step: Step, *, own: bool = True) -> Plan:
        if step.question in _AROUND:
            plan: Any = getattr(self, f"_{step.question}_steps")
            return plan(step, own)  # type: ignore[no-any-return]
        if step.question == "enqueue_pipeline":
            return self._enqueue_pipeline(own=own, **step.params)
        if "steps" in step.params:
            return self._settle_steps(step, own)
        if step.question in _IN_PIPELINE and step.params["pipeline_id"] and self.finds_by_pipeline:
            return self._block(Step(_IN_PIPELINE[step.question], step.params))
        if step.question in _STORING and (slots := _replaced_slots(step)):
            return self._replace_steps(step, slots, own)
        return super().answer(step, own=own)

    def needs_transaction(self, step: Step) -> bool:
        if step.question in _AROUND or "steps" in step.params or step.question == "enqueue_pipeline":
            return True
        if step.question in _STORING and _replaced_slots(step):
            return True
        return step.question not in STEP_READS and super().needs_transaction(step)

    def ids(self, ids: Iterable[UUID]) -> Any:
        """Ids as the blocks take them."""
        raise NotImplementedError

    def _ask(self, block: str, ids: Iterable[UUID], **more: Any) -> Plan:
        return (yield Query(block, {**self.adapt(more), "ids": self.ids(ids)}))

    # -- the questions --------------------------------------------------------------------------

    def _enqueue_pipeline(
        self,
        pipeline: tuple[UUID, str, str],
        edges: Sequence[tuple[UUID, UUID]],
        jobs: Sequence[Any],
        own: bool,
    ) -> Plan:
        id, name, on_failed = pipeline
        if not (yield from self._insert_pipeline({"id": id, "name": name, "on_failed": on_failed})):
            return []
        waiting = {child for _, child in edges}
        store = Step("enqueue", {"jobs": _bare(jobs, waiting), "fresh": True})
        superseded = yield from self._in_slots(_replaced_slots(store))
        noted: list[UUID] = []
        answers = yield from self._noting(super().answer(store, own=own), noted)
        if waiting:
            yield from self._make_wait(jobs, edges, waiting)
        rows = [_blocked(row) if job[0] in waiting else row for job, row in zip(jobs, answers, strict=True)]
        if not _replaced_slots(store):
            return rows
        own_ids = [job[0] for job in jobs]  # one of its steps may supersede another
        came = yield from self._came_since(superseded, noted)
        yield from self._go_on([*(row["id"] for row in superseded), *came, *own_ids], own)
        found = yield from super().answer(Step("settled", {"ids": own_ids}), own=own)
        states = {row["id"]: row["state"] for row in found}
        return [{**row, "state": states[id]} for id, row in zip(own_ids, rows, strict=True)]

    def _make_wait(self, jobs: Sequence[Any], edges: Sequence[Any], waiting: Collection[UUID]) -> Plan:
        yield Query("insert_parents", {"edges": _edges(edges)})
        yield from self._ask("block_new_steps", waiting)
        for job in jobs:
            if job[0] in waiting and (job[_TRAIN], job[_SLOT]) != (None, None):
                yield Query("name_gate", self.adapt({"id": job[0], **_gate(job)}))
        return []

    def _in_slots(self, slots: Collection[str]) -> Plan:
        """Steps that will make room there, their pipelines locked."""
        if not slots:
            return []
        found = yield Query("steps_in_slots", self.adapt({"slots": sorted(slots)}))
        yield from self._lock(found)
        return found

    def _insert_pipeline(self, about: Mapping[str, Any]) -> Plan:
        return (yield Query("insert_pipeline", self.adapt(about)))

    def _parents(self, jobs: Sequence[UUID]) -> Plan:
        rows = yield Query("parents", {"jobs": self.ids(jobs)})
        return [{"child": row["id"], "parent": row["parent_id"], "met": bool(row["met"])} for row in rows]

    def _pipelines(self, ids: Sequence[UUID] | None) -> Plan:
        if ids is None:
            return (yield Query("open_pipelines", {}))
        return (yield from self._ask("pipelines", ids))

    # -- around the engine's own plans ----------------------------------------------------------

    def _settle_steps(self, step: Step, own: bool) -> Plan:
        """An exchange settles first, so that it may claim whom its settlements let go."""
        given = {name: value for name, value in step.params.items() if name in _SETTLING}
        steps = step.params["steps"]
        wanted = sorted({pipeline for _, pipeline in steps})
        locked, taken = yield from self._lock_pipelines(wanted, given.get("patience"))
        late = {id for id, pipeline in steps if pipeline in taken}
        given = _without(given, late) if late else given
        rows = (yield from self.answer(Step("settle", given), own=own)) if given["settlements"] else []
        rows = [*rows, *({"id": id, "waits": True} for id in late)]
        waiting = {row["id"] for row in rows if row.get("waits")}
        settled = {row["id"] for row in rows} - waiting
        yield from self._go_on([id for id, _ in steps if id in settled] if locked else [], own)
        if step.question == "settle":
            return rows
        wish = {name: value for name, value in step.params.items() if name not in (*given, "steps")}
        first, *others = yield from super().answer(Step("claim", wish), own=own)
        return [{**first, "settled": list(settled), "waiting": list(waiting)}, *others]

    def _replace_steps(self, step: Step, slots: Collection[str], own: bool) -> Plan:
        found = yield from self._in_slots(slots)
        noted: list[UUID] = []
        rows = yield from self._noting(super().answer(step, own=own), noted)
        steps = [job[0] for job in _new_jobs(step) if may_have_steps(job[_PIPELINE])]
        came = yield from self._came_since(found, noted)
        ended = [*(row["id"] for row in found), *came, *steps]  # one may supersede another
        yield from self._go_on(ended, own)
        return rows

    def superseded(self, query: Query, rows: Rows) -> Sequence[UUID]:
        """The jobs that this statement of a plan has ended, to make room for a new one."""
        raise NotImplementedError

    def _noting(self, plan: Plan, noted: list[UUID]) -> Plan:
        """The same plan; whom it supersedes is noted: more than we saw, if somebody came before its lock."""
        rows: Any = None
        while True:
            try:
                query = plan.send(rows)
            except StopIteration as done:
                answer: Rows = done.value
                return answer
            rows = yield query
            if isinstance(query, Query):
                noted += self.superseded(query, rows)

    def _came_since(self, found: Rows, noted: Sequence[UUID]) -> Any:
        """Those of them who were not found when we looked, their pipelines locked as well, late."""
        came = sorted(set(noted) - {row["id"] for row in found})
        if came:
            yield from self._locked_steps(came)
        return came

    def _cancel_steps(self, step: Step, own: bool) -> Plan:
        ids, reason = step.params["ids"], step.params["reason"]
        found = yield from self._locked_steps(ids)
        waiting = [row["id"] for row in found if row["waits"]]
        yield from self._end_waiting(waiting, reason, None)
        others = [id for id in ids if id not in waiting] if waiting else ids
        rows = (
            (yield from super().answer(Step("cancel", {**step.params, "ids": others}), own=own))
            if others
            else []
        )
        changed = [*rows, *({"id": id, "worker": None} for id in waiting)]
        yield from self._go_on(sorted({row["id"] for row in changed} & {row["id"] for row in found}), own)
        return changed

    def _sweep_steps(self, step: Step, own: bool) -> Plan:
        rows = yield from super().answer(step, own=own)
        ended = [row["id"] for row in rows if row["state"] in FINISHED]
        found = (yield from self._locked_steps(ended)) if ended else ()
        yield from self._go_on([row["id"] for row in found], own)
        return rows

    def _retry_steps(self, step: Step, own: bool) -> Plan:
        ids = step.params["ids"]
        found = yield from self._locked_steps(ids)
        if not found:
            return (yield from super().answer(step, own=own))
        waiting = {row["id"] for row in (yield from self._ask("waiting_if_retried", ids))}
        yield from self._block_again(waiting)
        others = [id for id in ids if id not in waiting]
        rows = (yield from super().answer(Step("retry", {"ids": others}), own=own)) if others else []
        changed = [*rows, *({"id": id} for id in waiting)]
        ended = {row["id"] for row in found if row["state"] in FINISHED}  # else it was only made due
        yield from self._revive({row["id"] for row in changed} & ended)
        return changed

    def _delete_steps(self, step: Step, own: bool) -> Plan:
        ids = step.params["ids"]
        found = yield from self._locked_steps(ids)
        if waiting := [row["id"] for row in found if row["waits"]]:
            yield from self._ask("forget_steps", waiting)
        others = [id for id in ids if id not in waiting] if waiting else ids
        rows = (yield from super().answer(Step("delete", {"ids": others}), own=own)) if others else []
        rows = [*rows, *({"id": id} for id in waiting)]
        gone = {row["id"] for row in rows}
        deleted = [row for row in found if row["id"] in gone]
        if not deleted:
            return rows
        for row in deleted:
            if row["state"] != JobState.succeeded:
                yield from self._doom(row["id"], doomed_by(row["id"], None))
        yield from self._ask("forget_unmet", gone)
        yield from self._ask("forget_parents", gone)
        yield from self._ask("forget_pipelines", {row["pipeline_id"] for row in deleted})
        return rows

    def _prune_steps(self, step: Step, own: bool) -> Plan:
        rows = yield from super().answer(step, own=own)
        if rows:
            yield from self._ask("forget_parents", [row["id"] for row in rows])
        some = {"before": step.params["before"], "limit": step.params["limit"]}
        old = yield Query("old_pipelines", self.adapt(some))
        if old:
            yield from self._ask("forget_pipelines", [row["id"] for row in old])
        return rows

    def _forget_these(self, leaving: Sequence[Row]) -> Plan:
        """Who departs leaves whom it waited for behind; all have ended."""
        yield from super()._forget_these(leaving)
        if pipelines := {row["pipeline_id"] for row in leaving if may_have_steps(row["pipeline_id"])}:
            yield from self._ask("forget_parents", [row["id"] for row in leaving])
            yield from self._ask("forget_pipelines", pipelines)
        return []

    def _mend_steps(self, step: Step, own: bool) -> Plan:
        """A page of the pipelines in which somebody waits; after the last of them, gates."""
        sort, name, limit = (step.params[name] for name in ("after_sort", "after_name", "limit"))
        if sort in (None, "pipeline"):
            after = UUID(int=0) if name is None else UUID(name)
            found = yield Query("waiting_pipelines", self.adapt({"after": after, "limit": limit}))
            if found:
                yield from self._mend_parents([row["id"] for row in found])
                return [{"sort": "pipeline", "name": str(row["id"])} for row in found]
            step = Step("mend", {"after_sort": None, "after_name": None, "limit": limit})
        return (yield from super().answer(step, own=own))

    def _mend_parents(self, pipelines: Sequence[UUID]) -> Plan:
        """Parents that somebody waits for and that are nowhere count as deleted."""
        if not (yield from self._ask("missing_parents", pipelines)):
            return []
        yield from self._ask("lock_pipelines", sorted(pipelines))
        missing = [row["id"] for row in (yield from self._ask("missing_parents", pipelines))]
        for id in missing:
            yield from self._doom(id, doomed_by(id, None))
        if missing:
            yield from self._ask("forget_unmet", missing)
            yield from self._ask("forget_parents", missing)
        return []

    def _locked_steps(self, ids: Collection[UUID]) -> Plan:
        """Those of these jobs that others may wait for, their pipelines locked."""
        found = yield from self._ask("steps_among", ids)
        if found:
            yield from self._lock(found)
            found = yield from self._ask("steps_among", ids)  # as they are under the lock
        return found

    def _lock_pipelines(self, ids: Sequence[UUID], patience: str | None) -> Any:
        """(these pipelines, locked; those that somebody else has locked, where nobody is waited for)."""
        if patience == "none":
            free = yield from self._ask("free_pipelines", ids)
            if len(free) == len(ids):
                return free, set()
            there = {row["id"] for row in (yield from self._ask("pipelines", ids))}  # or gone
            return free, there - {row["id"] for row in free}
        if patience == "short":
            yield from self._lock_soon(ids)
        return (yield from self._ask("lock_pipelines", ids)), set()

    def _lock_soon(self, ids: Sequence[UUID]) -> Plan:
        """Lock these, or fail after a second."""
        raise NotImplementedError

    def _lock(self, steps: Rows) -> Plan:
        if steps:
            yield from self._ask("lock_pipelines", sorted({row["pipeline_id"] for row in steps}))
        return []

    # -- the moves ------------------------------------------------------------------------------

    def _go_on(self, ids: Sequence[UUID], own: bool) -> Plan:
        """What the ends of these mean to those after them."""
        ended = (yield from self._ask("ended_steps", ids)) if ids else ()
        for row in ended:
            if row["state"] != JobState.succeeded and row["on_failed"] == "cancel":
                yield from self._doom(row["id"], doomed_by(row["id"], row["state"]))
        if done := [row["id"] for row in ended if row["state"] == JobState.succeeded]:
            yield from self._ask("meet_parents", done)
            yield from self._set_off((yield from self._freed(done)), own)
        return []

    def _freed(self, done: Sequence[UUID]) -> Plan:
        """Of those who waited for these: who waits for nobody any more."""
        edges = yield from self._ask("siblings_met", done)
        free = {row["id"] for row in edges} - {row["id"] for row in edges if not row["met"]}
        return (yield from self._ask("waiting_steps", sorted(free))) if free else ()

    def _set_off(self, freed: Rows, own: bool) -> Plan:
        """Everybody they waited for has succeeded: they get their places, like new jobs."""
        if not freed:
            return []
        yield from self._ask("forget_steps", [row["id"] for row in freed])
        jobs = [tuple({**row, **_NOT_STORED}[name] for name in NEW_JOB_COLUMNS) for row in freed]
        yield from self.answer(Step("enqueue", {"jobs": jobs, "fresh": True}), own=own)
        may_supersede = any(row["slot_policy"] == "replace" for row in freed)
        for row in freed:
            kept = {"id": row["id"], "enqueued_at": row["enqueued_at"]}
            yield Query("keep_enqueued_at", self.adapt(kept))
            if may_supersede:
                yield Query("keep_enqueued_at_of_finished", self.adapt(kept))
        return []

    def _doom(self, id: UUID, message: str) -> Plan:
        """All after this job are cancelled, those after them included."""
        found = yield from self._following(id)
        return (yield from self._end_waiting([row["id"] for row in found], message, DOOMED))

    def _following(self, id: UUID) -> Plan:
        return (yield Query("following_steps", self.adapt({"id": id})))

    def _end_waiting(self, ids: Sequence[UUID], message: str | None, settled_as: str | None) -> Plan:
        """Those who are at no gate yet: nobody else needs to know."""
        if ids:
            yield from self._ask("end_steps", ids, message=message, settled_as=settled_as)
            yield from self._ask("forget_steps", ids)
        return []

    def _revive(self, ids: Collection[UUID]) -> Plan:
        """Those cancelled for these wait again, unless another of their parents has failed."""
        while ids:
            ids = [row["id"] for row in (yield from self._ask("revivable_steps", ids))]
            yield from self._block_again(ids)
        return []

    def _block_again(self, ids: Collection[UUID]) -> Plan:
        if ids:
            yield from self._ask("block_steps", ids)
            yield from self._ask("forget_finished_steps", ids)
        return []


STEP_READS = frozenset({"parents", "pipelines"})


def _replaced_slots(step: Step) -> set[str]:
    """Slots whose waiting jobs make room for a new one of this question."""
    return {job[_SLOT] for job in _new_jobs(step) if job[_POLICY] == "replace"}


def _new_jobs(step: Step) -> Sequence[tuple[Any, ...]]:
    jobs: Sequence[tuple[Any, ...]]
    jobs = step.params["jobs" if step.question in ("enqueue", "enqueue_tick") else "children"]
    return jobs


def _bare(jobs: Sequence[tuple[Any, ...]], waiting: Collection[UUID]) -> list[tuple[Any, ...]]:
    """Who waits takes no place yet."""
    return [_without_gate(job) if job[0] in waiting else job for job in jobs]


def _without_gate(job: tuple[Any, ...]) -> tuple[Any, ...]:
    values = list(job)
    values[_TRAIN] = values[_SLOT] = values[_POLICY] = values[_LIMIT] = None
    return tuple(values)


def _gate(job: tuple[Any, ...]) -> dict[str, Any]:
    return {"train": job[_TRAIN], "slot": job[_SLOT], "slot_policy": job[_POLICY], "slot_limit": job[_LIMIT]}


def _blocked(row: Row) -> Row:
    return {**row, "state": JobState.blocked}


def _without(given: Mapping[str, Any], late: Collection[UUID]) -> dict[str, Any]:
    """What is given to settle, but for these."""
    without = {**given, "settlements": [one for one in given["settlements"] if one[0] not in late]}
    without["children"] = [child for child in given["children"] if child[_PARENT] not in late]
    without["keys"] = {id: key for id, key in given["keys"].items() if id not in late}
    return without


def _edges(edges: Sequence[tuple[UUID, UUID]]) -> str:
    """(child, place, parent) of each, as JSON."""
    return msgspec.json.encode(
        [[child, place, parent] for place, (parent, child) in enumerate(edges)]
    ).decode()
