"""Pipelines: jobs that belong together, and how far they have come; some wait for the success of others.

`pipeline_id` is all it takes to belong to one. Those made by `app.pipeline` also know whom each of their jobs
waits for; the store keeps that (ADR 18), so that any process can let the next ones go.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from dibs.errors import BadRequest, NotFound, Refused
from dibs.jobs.ids import may_have_steps, new_pipeline_id, parse_id
from dibs.jobs.job import NEW_JOB_COLUMNS, Job, NewJob, job_from_row
from dibs.jobs.states import FINISHED, JobState
from dibs.operations.enqueue import NewRow, new_job
from dibs.operations.manage import change_all
from dibs.operations.scripts import Row, Rows, Script, Step

PAGE = 1000
ON_FAILED = ("cancel", "hold")

_ID, _UNIQUE, _POLICY, _PIPELINE, _PARENT = (
    NEW_JOB_COLUMNS.index(name) for name in ("id", "unique_key", "slot_policy", "pipeline_id", "parent_id")
)

Edge = tuple[UUID, UUID]  # parent, child


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A job of a pipeline, and those that follow it."""

    job: Job
    after: tuple[UUID, ...]
    """The jobs it waits for, or that chained it. It is drawn below the first of them."""
    then: "tuple[Branch, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The jobs that share a `pipeline_id`, as they were when they were read."""

    id: UUID
    name: str | None
    on_failed: str | None
    """What becomes of those after a job that failed or was cancelled; None if nobody waits for another."""
    jobs: tuple[Job, ...]
    """Oldest first."""
    after: Mapping[UUID, tuple[UUID, ...]]
    """For each job that follows others: which."""

    @property
    def counts(self) -> dict[str, int]:
        """How many are in each state."""
        found = Counter(job.state for job in self.jobs)
        return {state.value: found[state] for state in JobState}

    @property
    def progress(self) -> float:
        """From 0 to 1: a finished job counts whole, a running one as far as it said that it got."""
        return sum(1.0 if job.is_finished else job.progress for job in self.jobs) / len(self.jobs)

    @property
    def is_finished(self) -> bool:
        return all(job.state in FINISHED for job in self.jobs)

    @property
    def tree(self) -> tuple[Branch, ...]:
        """Those that follow nobody, each with those that follow it."""
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


# -- Making one ---------------------------------------------------------------------------------


class Plan:
    """The jobs of a new pipeline, in the order they were added, and who waits for whom."""

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
        """One more job; those that it waits for must be here already, so there are no circles."""
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

    def rows(self, prepared: Sequence[NewRow]) -> list[NewRow]:
        """The checked jobs as steps of this pipeline."""
        first = {child: parent for parent, child in reversed(self.edges)}
        return [_step(row, self.id, first.get(row[_ID])) for row in prepared]


def _several(after: Collection[NewJob | UUID | str]) -> Collection[NewJob | UUID | str]:
    if isinstance(after, NewJob | UUID | str):
        raise BadRequest("after= takes a list of jobs, even for one: after=[first]")
    if not isinstance(after, Iterable):
        raise BadRequest(f"after={after!r} is not a list of jobs: after=[first, second], or leave it out")
    return after


def _step(row: NewRow, pipeline: UUID, parent: UUID | None) -> NewRow:
    if row[_UNIQUE] is not None:
        raise BadRequest(
            f"job {row[_ID]} has the unique key {row[_UNIQUE]!r}, and whoever has it already is not of this "
            "pipeline: leave unique= out of jobs that others wait for"
        )
    if row[_POLICY] == "drop":
        raise BadRequest(
            f"job {row[_ID]} would be dropped while its slot is taken, and those after it with it: "
            "use another slot_policy= in a pipeline"
        )
    values = list(row)
    values[_PIPELINE], values[_PARENT] = pipeline, parent
    return tuple(values)


def enqueue(plan: Plan, rows: Sequence[NewRow], *, fresh: bool, ours: bool) -> Script[list[Job]]:
    """Store the whole pipeline or nothing; one that is known already stays as it is.

    `ours`: an earlier try of this very call may have stored it.
    """
    ids = [row[_ID] for row in rows]
    if fresh or not (yield from _has_no_plan(plan, ids)):
        about = (plan.id, plan.name, plan.on_failed)
        answers = yield Step("enqueue_pipeline", {"pipeline": about, "edges": plan.edges, "jobs": rows})
        if answers:
            return [new_job(row, answer) for row, answer in zip(rows, answers, strict=True)]
    found = yield Step("get", {"ids": ids})
    known = {row["id"]: job_from_row(row, is_new=ours) for row in found}
    return [known[id] for id in ids if id in known]


def _has_no_plan(plan: Plan, ids: Sequence[UUID]) -> Script[bool]:
    """Whether its jobs are here, but not who waits for whom: they had departed and were given back."""
    found = yield Step("get", {"ids": list(ids)})
    for row in found:
        if row["pipeline_id"] != plan.id:
            raise Refused(f"job {row['id']} was enqueued before: it can't wait for others any more")
    return bool(found) and not (yield Step("pipelines", {"ids": [plan.id]}))


# -- Looking and acting -------------------------------------------------------------------------


def look(id: UUID, filter: Mapping[str, object]) -> Script[Pipeline | None]:
    """The pipeline with all its jobs; None if there are none."""
    rows: list[Row] = []
    after: UUID | None = None
    while True:
        page = yield Step("find", {**filter, "limit": PAGE, "after": after})
        rows += page
        if len(page) < PAGE:
            break
        after = page[-1]["id"]
    if not rows:
        return None
    jobs = tuple(job_from_row(row) for row in reversed(rows))
    about = (yield Step("pipelines", {"ids": [id]})) if may_have_steps(id) else ()
    edges = (yield Step("parents", {"jobs": [job.id for job in jobs]})) if about else ()
    return Pipeline(
        id=id,
        name=about[0]["name"] if about else None,
        on_failed=about[0]["on_failed"] if about else None,
        jobs=jobs,
        after=_after(jobs, edges),
    )


def _after(jobs: Sequence[Job], edges: Sequence[Row]) -> dict[UUID, tuple[UUID, ...]]:
    found: dict[UUID, list[UUID]] = {}
    for edge in edges:
        found.setdefault(edge["child"], []).append(edge["parent"])
    chained = {job.id: [job.parent_id] for job in jobs if job.parent_id is not None and job.id not in found}
    return {id: tuple(parents) for id, parents in {**chained, **found}.items()}


def change(
    question: str,
    id: UUID,
    filter: Mapping[str, object],
    note: Callable[[Rows], object] = len,
    **extra: object,
) -> Script[int]:
    """Cancel or retry all jobs of a pipeline; how many were changed."""
    some = yield Step("find", {**filter, "states": None, "limit": 1, "after": None})
    if not some:
        raise NotFound(id, "pipeline")
    return (yield from change_all(question, filter, note, **extra))


def parents_of(job: Job) -> Script[list[Job]]:
    """The jobs that this one waited for, in the order given, or the one that chained it."""
    ids = [job.parent_id] if job.parent_id is not None else []
    if may_have_steps(job.pipeline_id):
        edges = yield Step("parents", {"jobs": [job.id]})
        ids = [edge["parent"] for edge in edges] or ids
    rows = (yield Step("get", {"ids": ids})) if ids else ()
    found = {row["id"]: job_from_row(row) for row in rows}
    return [found[id] for id in ids if id in found]


def refuse_open_pipelines() -> Script[None]:
    """Jobs are moved one by one, and who waits for whom stays behind: such pipelines must be done first."""
    rows = yield Step("pipelines", {"ids": None})
    if rows:
        first = rows[0]
        raise Refused(
            f"jobs of the pipeline {first['name']!r} ({first['id']}) may wait for each other, and can't be "
            "moved: let it finish, or cancel it, and move then"
        )
