"""Pipelines of the reference engine: who waits for whom, and what an end means to those after it (ADR 18).

The other answers only note which jobs ended, came back or were deleted; `_go_on` then moves those after them,
in the same question.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dibs.engines.memory.gates import MemoryGates
from dibs.engines.memory.storage import Record
from dibs.jobs.gates import has_gate
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.jobs.states import JobState, by_time, doomed_by
from dibs.operations.scripts import Row, Rows

DOOMED = "parent"  # `settled_as` of those cancelled for a job before them; a retry of that one undoes it


@dataclass(eq=False)
class Steps:
    """A pipeline whose jobs wait for each other; kept as long as one of them is, or one that they chained."""

    name: str
    on_failed: str
    members: set[UUID] = field(default_factory=set)
    parents: dict[UUID, dict[UUID, bool]] = field(default_factory=dict)
    """By child: whom it waits for, and whether that one has succeeded."""
    children: dict[UUID, list[UUID]] = field(default_factory=dict)

    def waits(self, child: UUID) -> bool:
        return not all(self.parents.get(child, {}).values())


class MemoryPipelines(MemoryGates):
    """The memory engine's answers about pipelines, and what its other answers lead to there."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[UUID, Steps] = {}
        self._ended: list[Record] = []
        self._came_back: list[Record] = []

    def _store(self, new: Record) -> tuple[UUID, UUID, bool]:
        raise NotImplementedError

    def _answer(self, id: UUID, holder: UUID, is_new: bool) -> Row:
        raise NotImplementedError

    def _come_back(self, job: Record) -> None:
        raise NotImplementedError

    # -- the questions --------------------------------------------------------------------------

    def _enqueue_pipeline(
        self, pipeline: tuple[UUID, str, str], edges: Sequence[tuple[UUID, UUID]], jobs: Sequence[Any]
    ) -> Rows:
        id, name, on_failed = pipeline
        if id in self._steps:
            return []
        steps = self._steps[id] = Steps(name, on_failed)
        for parent, child in edges:
            steps.parents.setdefault(child, {})[parent] = False
            steps.children.setdefault(parent, []).append(child)
        with self._opening_once():
            stored = [self._store(dict(zip(NEW_JOB_COLUMNS, job, strict=True))) for job in jobs]
        self._go_on()
        return [self._answer(id, holder, is_new) for id, holder, is_new in stored]

    def _parents(self, jobs: Collection[UUID]) -> Rows:
        return [
            {"child": child, "parent": parent, "met": met}
            for steps in self._steps.values()
            for child in steps.parents.keys() & set(jobs)
            for parent, met in steps.parents[child].items()
        ]

    def _pipelines(self, ids: Collection[UUID] | None) -> Rows:
        wanted = {job["pipeline_id"] for job in self._live.values()} if ids is None else ids
        found = ((id, self._steps[id]) for id in wanted if id in self._steps)
        return [{"id": id, "name": steps.name, "on_failed": steps.on_failed} for id, steps in found]

    def _mend(self, after_sort: str | None, after_name: str | None, limit: int) -> Rows:
        if after_sort in (None, "pipeline"):
            ids = sorted(id for id in self._steps if after_name is None or str(id) > after_name)[:limit]
            for id in ids:
                self._mend_steps(self._steps[id])
            if ids:
                return [{"sort": "pipeline", "name": str(id)} for id in ids]
            after_sort = after_name = None
        return super()._mend(after_sort, after_name, limit)

    def _mend_steps(self, steps: Steps) -> None:
        """Nobody waits for who is nowhere: pruned before one after it was retried, say."""
        unmet = {
            parent
            for child, parents in steps.parents.items()
            if child in self._live
            for parent, met in parents.items()
            if not met
        }
        for parent in unmet - self._live.keys() - self._finished.keys():
            self._without(steps, parent)

    # -- the moves ------------------------------------------------------------------------------

    def _add_step(self, job: Record) -> None:
        """A job that is new here belongs to its pipeline, if that is one of these."""
        if (steps := self._steps.get(job["pipeline_id"])) is not None:
            steps.members.add(job["id"])

    def _waits_for_parents(self, job: Record) -> bool:
        steps = self._steps.get(job["pipeline_id"])
        return steps is not None and steps.waits(job["id"])

    def _set_off(self, job: Record) -> None:
        """Everybody it waited for has succeeded: it gets its place, like a new job."""
        if job["slot_policy"] == "replace":
            self._supersede(job)
        if has_gate(job):
            self._join(job)
        else:
            self._wait(job, by_time(job["run_at"], self._clock()))

    def _go_on(self) -> None:
        """What the ends and returns of this question mean to those after them: who is older comes first."""
        while self._ended or self._came_back:
            ended, self._ended = sorted(self._ended, key=_id), []
            back, self._came_back = self._came_back, []
            with self._opening_once():
                for job in sorted(self._freed(ended), key=_id):
                    self._set_off(job)
                for job in ended:
                    self._after_failure(job)
                for job in back:
                    self._after_return(job)

    def _freed(self, ended: Sequence[Record]) -> Iterator[Record]:
        """Of those who waited for these: who waits for nobody any more."""
        for parent in ended:
            steps = self._steps.get(parent["pipeline_id"])
            if steps is None or parent["state"] != JobState.succeeded:
                continue
            for child in steps.children.get(parent["id"], ()):
                steps.parents[child][parent["id"]] = True
                if child in self._live and not steps.waits(child):
                    yield self._live[child]

    def _after_failure(self, job: Record) -> None:
        steps = self._steps.get(job["pipeline_id"])
        has_failed = job["state"] != JobState.succeeded and job["id"] in self._finished
        if steps is not None and has_failed and steps.on_failed == "cancel":
            self._doom(steps, job["id"], doomed_by(job["id"], job["state"]))

    def _doom(self, steps: Steps, id: UUID, message: str) -> None:
        """All after this job are cancelled, those after them included."""
        for child in _following(steps, id):
            job = self._live.get(child)
            if job is not None and job["state"] == JobState.blocked:
                job["settled_as"] = DOOMED
                self._finish(job, JobState.cancelled, message)

    def _after_return(self, job: Record) -> None:
        """Those cancelled for it wait again, unless another of their parents has failed."""
        if job["settled_as"] == DOOMED:
            job["settled_as"] = None
        steps = self._steps.get(job["pipeline_id"])
        reached = [] if steps is None else list(steps.children.get(job["id"], ()))
        for child in reached:
            assert steps is not None
            doomed = self._finished.get(child)
            if doomed is not None and doomed["settled_as"] == DOOMED and self._may_wait(steps, child):
                doomed |= {"settled_as": None, "position": None}
                self._come_back(doomed)
                self._wait(doomed, JobState.blocked)
                reached += steps.children.get(child, ())

    def _may_wait(self, steps: Steps, child: UUID) -> bool:
        return all(met or parent in self._live for parent, met in steps.parents[child].items())

    def _deleted(self, job: Record) -> None:
        """Nobody waits for what is gone: those after it are cancelled, and could be retried without it."""
        steps = self._steps.get(job["pipeline_id"])
        if steps is None or job["id"] not in steps.members:
            return
        if job["state"] != JobState.succeeded:
            self._without(steps, job["id"])
        self._drop_step(job)

    def _without(self, steps: Steps, id: UUID) -> None:
        self._doom(steps, id, doomed_by(id, None))
        for child in steps.children.pop(id, ()):
            del steps.parents[child][id]

    def _drop_step(self, job: Record) -> None:
        steps = self._steps.get(job["pipeline_id"])
        if steps is not None:
            steps.members.discard(job["id"])
            for parent in steps.parents.pop(job["id"], {}):
                steps.children[parent].remove(job["id"])
            if not steps.members:
                del self._steps[job["pipeline_id"]]

    def _is_waited_for(self, job: Record) -> bool:
        """Whether a job that has not finished may still ask for its result."""
        steps = self._steps.get(job["pipeline_id"])
        return steps is not None and any(child in self._live for child in steps.children.get(job["id"], ()))


def _id(job: Record) -> UUID:
    id: UUID = job["id"]
    return id


def _following(steps: Steps, first: UUID) -> list[UUID]:
    """All after this one, nearest first."""
    reached = [first]
    seen = {first}
    for id in reached:
        after = [child for child in steps.children.get(id, ()) if child not in seen]
        seen.update(after)
        reached += after
    return reached[1:]
