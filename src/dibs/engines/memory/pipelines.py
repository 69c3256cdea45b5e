"""Pipelines of the reference engine: which job waits for which, and what follows when one ends (ADR 18).

The other answers only note which jobs ended, came back or were deleted; `_go_on` then changes the jobs after
them, in the same question.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dibs.engines.memory.gates import MemoryGates, Record
from dibs.jobs.gates import has_gate
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.jobs.states import JobState, by_time, doomed_by
from dibs.operations.scripts import Row, Rows

WITH_PARENT = "parent"  # `settled_as` of a job cancelled with its parent; a retry of the parent undoes it


@dataclass(eq=False)
class MemoryPipeline:
    """A pipeline with jobs that wait for each other; kept as long as one of its jobs."""

    name: str
    on_failed: str
    members: set[UUID] = field(default_factory=set)
    parents: dict[UUID, dict[UUID, bool]] = field(default_factory=dict)
    """By child: its parents, and whether each has succeeded."""
    children: dict[UUID, list[UUID]] = field(default_factory=dict)

    def waits(self, child: UUID) -> bool:
        return not all(self.parents.get(child, {}).values())


class MemoryPipelines(MemoryGates):
    """The memory engine's answers about pipelines, and what its other answers lead to there."""

    def __init__(self) -> None:
        super().__init__()
        self._by_pipeline: dict[UUID, MemoryPipeline] = {}
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
        if id in self._by_pipeline:
            return []
        made = self._by_pipeline[id] = MemoryPipeline(name, on_failed)
        for parent, child in edges:
            made.parents.setdefault(child, {})[parent] = False
            made.children.setdefault(parent, []).append(child)
        with self._opening_once():
            stored = [self._store(dict(zip(NEW_JOB_COLUMNS, job, strict=True))) for job in jobs]
        self._go_on()
        return [self._answer(id, holder, is_new) for id, holder, is_new in stored]

    def _parents(self, jobs: Collection[UUID]) -> Rows:
        return [
            {"child": child, "parent": parent, "met": met}
            for pipeline in self._by_pipeline.values()
            for child in pipeline.parents.keys() & set(jobs)
            for parent, met in pipeline.parents[child].items()
        ]

    def _pipelines(self, ids: Collection[UUID] | None) -> Rows:
        wanted = {job["pipeline_id"] for job in self._live.values()} if ids is None else ids
        found = ((id, self._by_pipeline[id]) for id in wanted if id in self._by_pipeline)
        return [{"id": id, "name": pipeline.name, "on_failed": pipeline.on_failed} for id, pipeline in found]

    def _mend(self, after_sort: str | None, after_name: str | None, limit: int) -> Rows:
        if after_sort in (None, "pipeline"):
            ids = sorted(id for id in self._by_pipeline if after_name is None or str(id) > after_name)[:limit]
            for id in ids:
                self._mend_pipeline(self._by_pipeline[id])
            if ids:
                return [{"sort": "pipeline", "name": str(id)} for id in ids]
            after_sort = after_name = None
        return super()._mend(after_sort, after_name, limit)

    def _mend_pipeline(self, pipeline: MemoryPipeline) -> None:
        """Let no job wait for a parent that is gone, for example pruned before a child was retried."""
        unmet = {
            parent
            for child, parents in pipeline.parents.items()
            if child in self._live
            for parent, met in parents.items()
            if not met
        }
        for parent in unmet - self._live.keys() - self._finished.keys():
            self._without(pipeline, parent)

    # -- what other answers lead to -------------------------------------------------------------

    def _join_pipeline(self, job: Record) -> None:
        """Note a new job in its pipeline, if that has jobs that wait."""
        if (pipeline := self._by_pipeline.get(job["pipeline_id"])) is not None:
            pipeline.members.add(job["id"])

    def _waits_for_parents(self, job: Record) -> bool:
        pipeline = self._by_pipeline.get(job["pipeline_id"])
        return pipeline is not None and pipeline.waits(job["id"])

    def _set_off(self, job: Record) -> None:
        """Enqueue a job that waits for no parent any more, like a new job."""
        if job["slot_policy"] == "replace":
            self._supersede(job)
        if has_gate(job):
            self._join(job)
        else:
            self._wait(job, by_time(job["run_at"], self._clock()))

    def _go_on(self) -> None:
        """Change the jobs after the ones that ended or came back in this question, the oldest first."""
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
        """Yield the children of these jobs that wait for no parent any more."""
        for parent in ended:
            pipeline = self._by_pipeline.get(parent["pipeline_id"])
            if pipeline is None or parent["state"] != JobState.succeeded:
                continue
            for child in pipeline.children.get(parent["id"], ()):
                pipeline.parents[child][parent["id"]] = True
                if child in self._live and not pipeline.waits(child):
                    yield self._live[child]

    def _after_failure(self, job: Record) -> None:
        pipeline = self._by_pipeline.get(job["pipeline_id"])
        has_failed = job["state"] != JobState.succeeded and job["id"] in self._finished
        if pipeline is not None and has_failed and pipeline.on_failed == "cancel":
            self._cancel_after(pipeline, job["id"], doomed_by(job["id"], job["state"]))

    def _cancel_after(self, pipeline: MemoryPipeline, id: UUID, message: str) -> None:
        """Cancel all jobs after this one, near and far."""
        for child in _following(pipeline, id):
            job = self._live.get(child)
            if job is not None and job["state"] == JobState.blocked:
                job["settled_as"] = WITH_PARENT
                self._finish(job, JobState.cancelled, message)

    def _after_return(self, job: Record) -> None:
        """Let the jobs cancelled with it wait again, unless another of their parents has failed."""
        if job["settled_as"] == WITH_PARENT:
            job["settled_as"] = None
        pipeline = self._by_pipeline.get(job["pipeline_id"])
        reached = [] if pipeline is None else list(pipeline.children.get(job["id"], ()))
        for child in reached:
            assert pipeline is not None
            ended = self._finished.get(child)
            if (
                ended is not None
                and ended["settled_as"] == WITH_PARENT
                and all(met or parent in self._live for parent, met in pipeline.parents[child].items())
            ):
                ended |= {"settled_as": None, "position": None}
                self._come_back(ended)
                self._wait(ended, JobState.blocked)
                reached += pipeline.children.get(child, ())

    def _deleted(self, job: Record) -> None:
        """Cancel the jobs after a deleted one; they can be retried without it."""
        pipeline = self._by_pipeline.get(job["pipeline_id"])
        if pipeline is None or job["id"] not in pipeline.members:
            return
        if job["state"] != JobState.succeeded:
            self._without(pipeline, job["id"])
        self._leave_pipeline(job)

    def _without(self, pipeline: MemoryPipeline, id: UUID) -> None:
        self._cancel_after(pipeline, id, doomed_by(id, None))
        for child in pipeline.children.pop(id, ()):
            del pipeline.parents[child][id]

    def _leave_pipeline(self, job: Record) -> None:
        pipeline = self._by_pipeline.get(job["pipeline_id"])
        if pipeline is not None:
            pipeline.members.discard(job["id"])
            for parent in pipeline.parents.pop(job["id"], {}):
                pipeline.children[parent].remove(job["id"])
            if not pipeline.members:
                del self._by_pipeline[job["pipeline_id"]]

    def _is_waited_for(self, job: Record) -> bool:
        """Return whether an unfinished job may still ask for its result."""
        pipeline = self._by_pipeline.get(job["pipeline_id"])
        return pipeline is not None and any(
            child in self._live for child in pipeline.children.get(job["id"], ())
        )


def _id(job: Record) -> UUID:
    id: UUID = job["id"]
    return id


def _following(pipeline: MemoryPipeline, first: UUID) -> list[UUID]:
    """Return all jobs after this one, the nearest first."""
    reached = [first]
    seen = {first}
    for id in reached:
        after = [child for child in pipeline.children.get(id, ()) if child not in seen]
        seen.update(after)
        reached += after
    return reached[1:]
