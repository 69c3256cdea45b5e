"""Pipelines as values: jobs that belong together, how far they have come, and the checks of a new one.

`pipeline_id` is all it takes to belong to one. In one made by `app.pipeline` jobs also wait for others; the
store keeps which for which (ADR 18), so that any process can let the next ones go.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from dibs.errors import BadRequest
from dibs.jobs.ids import new_pipeline_id, parse_id
from dibs.jobs.job import Job, NewJob
from dibs.jobs.states import FINISHED, JobState

ON_FAILED = ("cancel", "hold")

Edge = tuple[UUID, UUID]  # parent, child


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A job of a pipeline, and the jobs that follow it. Example: `[one.job.kind for one in pipeline.tree]`"""

    job: Job
    after: tuple[UUID, ...]
    """The jobs it waits for, or that chained it. It is drawn below the first of them."""
    then: "tuple[Branch, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The jobs that share a `pipeline_id`, as they were when they were read. Example: `pipeline.progress`"""

    id: UUID
    name: str | None
    on_failed: str | None
    """What becomes of the jobs after one that failed or was cancelled; None if no job waits for another."""
    jobs: tuple[Job, ...]
    """Oldest first."""
    after: Mapping[UUID, tuple[UUID, ...]]
    """For each job that follows others: which."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of jobs in each state."""
        found = Counter(job.state for job in self.jobs)
        return {state.value: found[state] for state in JobState}

    @property
    def progress(self) -> float:
        """From 0 to 1: a finished job counts whole, a running one by its progress."""
        return sum(1.0 if job.is_finished else job.progress for job in self.jobs) / len(self.jobs)

    @property
    def is_finished(self) -> bool:
        return all(job.state in FINISHED for job in self.jobs)

    @property
    def tree(self) -> tuple[Branch, ...]:
        """The jobs that follow no other, each with the jobs that follow it."""
        known = {job.id for job in self.jobs}
        below: dict[UUID | None, list[Job]] = {}
        for job in self.jobs:
            above = next((id for id in self.after.get(job.id, ()) if id in known), None)
            below.setdefault(above, []).append(job)
        branches: dict[UUID, Branch] = {}
        for job in _deepest_first(below):
            then = tuple(branches[child.id] for child in below.get(job.id, ()))
            branches[job.id] = Branch(job=job, after=self.after.get(job.id, ()), then=then)
        return tuple(branches[job.id] for job in below.get(None, ()))


def _deepest_first(below: Mapping[UUID | None, Sequence[Job]]) -> list[Job]:
    order: list[Job] = list(below.get(None, ()))
    for job in order:
        order.extend(below.get(job.id, ()))
    return order[::-1]


class PipelineDraft:
    """The jobs of a new pipeline, in the order they were added, and which waits for which."""

    def __init__(self, name: str, on_failed: str) -> None:
        if on_failed not in ON_FAILED:
            raise BadRequest(f"on_failed={on_failed!r} of a pipeline is unknown: use 'cancel' or 'hold'")
        self.id = new_pipeline_id()
        self.name = name
        self.on_failed = on_failed
        self.jobs: dict[UUID, NewJob] = {}
        self.edges: list[Edge] = []
        self.is_sent = False

    def add(self, new: NewJob, after: Collection[NewJob | UUID | str]) -> NewJob:
        """Add a job; the jobs that it waits for must be here already, so there are no circles."""
        if not isinstance(new, NewJob):
            raise BadRequest(f"can't add {new!r} to a pipeline: pass NewJob(…) or task.new(…)")
        if self.is_sent:
            raise BadRequest(f"the pipeline {self.name!r} was enqueued: make another one")
        if new.id in self.jobs:
            raise BadRequest(f"job {new.id} is in the pipeline {self.name!r} already")
        if new.pipeline_id is not None:
            raise BadRequest(f"job {new.id} belongs to another pipeline: leave its pipeline_id= out")
        parents = dict.fromkeys(self._known(one) for one in _several(after))
        self.jobs[new.id] = new
        self.edges += [(parent, new.id) for parent in parents]
        return new

    def _known(self, one: NewJob | UUID | str) -> UUID:
        id = one.id if isinstance(one, NewJob) else parse_id(one)
        if id not in self.jobs:
            raise BadRequest(
                f"after= names job {id}, which is not in the pipeline {self.name!r}: add it first"
            )
        return id


def _several(after: Collection[NewJob | UUID | str]) -> Collection[NewJob | UUID | str]:
    if isinstance(after, NewJob | UUID | str):
        raise BadRequest("after= takes a list of jobs, even for one: after=[first]")
    if not isinstance(after, Iterable):
        raise BadRequest(f"after={after!r} is not a list of jobs: after=[first, second], or leave it out")
    return after
