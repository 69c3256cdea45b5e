"""Operations on pipelines: store a whole one, read it, cancel or retry its jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from dibs.errors import BadRequest, NotFound, Refused
from dibs.jobs.ids import may_have_steps
from dibs.jobs.job import NEW_JOB_COLUMNS, Job, job_from_row
from dibs.jobs.pipelines import Pipeline, PipelineDraft
from dibs.jobs.states import FINISHED, JobState
from dibs.operations.enqueue import NewRow, new_job
from dibs.operations.manage import Changed, change_all
from dibs.operations.queries import rows_by_id, with_current
from dibs.operations.scripts import Row, Script, Step

PAGE = 1000
LAST_ID = UUID(int=2**128 - 1)

_ID, _UNIQUE, _POLICY, _PIPELINE, _PARENT = (
    NEW_JOB_COLUMNS.index(name) for name in ("id", "unique_key", "slot_policy", "pipeline_id", "parent_id")
)


def rows_of(draft: PipelineDraft, prepared: Sequence[NewRow]) -> list[NewRow]:
    """Return the checked jobs as rows of this pipeline."""
    first = {child: parent for parent, child in reversed(draft.edges)}
    return [_row(row, draft.id, first.get(row[_ID])) for row in prepared]


def _row(row: NewRow, pipeline: UUID, parent: UUID | None) -> NewRow:
    if row[_UNIQUE] is not None:
        raise BadRequest(
            f"job {row[_ID]} has the unique key {row[_UNIQUE]!r}, and a job that has it already is not of "
            "this pipeline: leave unique= out of jobs that others wait for"
        )
    if row[_POLICY] == "drop":
        raise BadRequest(
            f"job {row[_ID]} would be dropped while its slot is taken, and the jobs after it with it: "
            "use another slot_policy= in a pipeline"
        )
    values = list(row)
    values[_PIPELINE], values[_PARENT] = pipeline, parent
    return tuple(values)


def enqueue(draft: PipelineDraft, rows: Sequence[NewRow], *, fresh: bool, ours: bool) -> Script[list[Job]]:
    """Store the whole pipeline or nothing; one that is known already stays as it is.

    `ours`: an earlier try of this very call may have stored it.
    """
    ids = [row[_ID] for row in rows]
    if fresh or not (yield from _was_given_back(draft, ids)):
        about = (draft.id, draft.name, draft.on_failed)
        answers = yield Step("enqueue_pipeline", {"pipeline": about, "edges": draft.edges, "jobs": rows})
        if answers:
            return [new_job(row, answer) for row, answer in zip(rows, answers, strict=True)]
    found = yield from rows_by_id(ids)
    return [job_from_row(found[id], is_new=ours) for id in ids if id in found]


def _was_given_back(draft: PipelineDraft, ids: Sequence[UUID]) -> Script[bool]:
    """Return whether its jobs are here, but not which waits for which: a move gave them back."""
    found = yield Step("get", {"ids": list(ids)})
    for row in found:
        if row["pipeline_id"] != draft.id:
            raise Refused(f"job {row['id']} was enqueued before: it can't wait for others any more")
    return bool(found) and not (yield Step("pipelines", {"ids": [draft.id]}))


def get(id: UUID, filter: Mapping[str, object]) -> Script[Pipeline | None]:
    """Return the pipeline with all its jobs; None if there are none."""
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
    jobs = tuple((yield from with_current(rows[::-1])))
    about = (yield Step("pipelines", {"ids": [id]})) if may_have_steps(id) else ()
    edges = (yield Step("parents", {"jobs": [job.id for job in jobs]})) if about else ()
    return Pipeline(
        id=id,
        name=about[0]["name"] if about else None,
        on_failed=about[0]["on_failed"] if about else None,
        jobs=jobs,
        after=_after(jobs, edges),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInfo:
    """A pipeline in a list: its counts without its jobs. Example: `await app.pipelines.list()`"""

    id: UUID
    name: str | None
    """None of one that began by chaining."""
    counts: dict[str, int]
    progress: float
    """From 0 to 1: a finished job counts whole, a running one by its progress."""


def newest(*, limit: int, after: UUID | None) -> Script[list[PipelineInfo]]:
    """Return the pipelines that have jobs, newest first."""
    page = yield Step("newest_pipelines", {"limit": limit, "after": LAST_ID if after is None else after})
    ids = [row["id"] for row in page]
    if not ids:
        return []
    rows = yield Step("pipeline_counts", {"ids": ids})
    named = {row["id"]: row["name"] for row in (yield Step("pipelines", {"ids": ids}))}
    found = ((id, [row for row in rows if row["pipeline_id"] == id]) for id in ids)
    return [_info(id, named.get(id), states) for id, states in found if states]


def _info(id: UUID, name: str | None, states: Sequence[Row]) -> PipelineInfo:
    counts = dict.fromkeys(map(str, JobState), 0) | {str(row["state"]): row["jobs"] for row in states}
    done = sum(row["jobs"] if row["state"] in FINISHED else row["progress"] for row in states)
    return PipelineInfo(id=id, name=name, counts=counts, progress=float(done) / sum(counts.values()))


def _after(jobs: Sequence[Job], edges: Sequence[Row]) -> dict[UUID, tuple[UUID, ...]]:
    found: dict[UUID, list[UUID]] = {}
    for edge in edges:
        found.setdefault(edge["child"], []).append(edge["parent"])
    chained = {job.id: [job.parent_id] for job in jobs if job.parent_id is not None and job.id not in found}
    return {id: tuple(parents) for id, parents in {**chained, **found}.items()}


def change(
    question: str, id: UUID, filter: Mapping[str, object], *, with_rows: bool = False, **extra: object
) -> Script[Changed]:
    """Cancel or retry all jobs of a pipeline."""
    some = yield Step("find", {**filter, "states": None, "limit": 1, "after": None})
    if not some:
        raise NotFound(id, "pipeline")
    return (yield from change_all(question, filter, with_rows=with_rows, **extra))


def parents_of(job: Job) -> Script[list[Job]]:
    """Return the jobs that this one waited for, in the order given, or the one that chained it."""
    ids = [job.parent_id] if job.parent_id is not None else []
    if may_have_steps(job.pipeline_id):
        edges = yield Step("parents", {"jobs": [job.id]})
        ids = [edge["parent"] for edge in edges] or ids
    found = yield from rows_by_id(ids)
    return [job_from_row(found[id]) for id in ids if id in found]


def refuse_open_pipelines() -> Script[None]:
    """Refuse to move jobs that may wait for each other: which waits for which is not moved."""
    rows = yield Step("pipelines", {"ids": None})
    if rows:
        first = rows[0]
        raise Refused(
            f"jobs of the pipeline {first['name']!r} ({first['id']}) may wait for each other, and can't be "
            "moved: let it finish, or cancel it, and move then"
        )
