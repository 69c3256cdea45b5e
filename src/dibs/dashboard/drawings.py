"""Pictures as values: where boxes, lines and bars go. Templates draw them as SVG, without a script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from dibs.jobs.job import Job, JobError
from dibs.jobs.pipelines import Pipeline
from dibs.jobs.states import JobState
from dibs.operations.settle import Refusal

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 168, 40, 56, 14
MOST_BOXES = 400
CHART_WIDTH = 1000
LANE_HEIGHT = 38
BAR_HEIGHT = 18
TRIED = {
    "succeeded": "a success",
    "failed": "a failure",
    "retried": "a failure, to be tried again,",
    "snoozed": "a snooze",
    "released": "a release",
    "cancelled": "a cancellation",
    "renew": "a heartbeat",
    "progress": "a report of progress",
}


@dataclass(frozen=True, slots=True)
class GraphBox:
    """A job as a box of the graph."""

    job: Job
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class PipelineGraph:
    """The jobs of a pipeline, those that wait to the right of what they wait for."""

    boxes: Sequence[GraphBox]
    lines: Sequence[str]
    """Paths of SVG, from a job to one that follows it."""
    width: int
    height: int
    left_out: int


def graph(pipeline: Pipeline) -> PipelineGraph:
    """Return where the jobs go: a column per step, in the order of their parents."""
    drawn = pipeline.jobs[:MOST_BOXES]
    columns = _columns(drawn, pipeline.after)
    places: dict[UUID, tuple[int, int]] = {}
    for column, jobs in enumerate(columns):
        ordered = sorted(jobs, key=lambda job: (_middle(job, pipeline.after, places), job.id))
        for row, job in enumerate(ordered):
            places[job.id] = column * (BOX_WIDTH + GAP_X), row * (BOX_HEIGHT + GAP_Y)
    return PipelineGraph(
        [GraphBox(job, *places[job.id]) for job in drawn],
        [
            _line(places[parent], places[job.id])
            for job in drawn
            for parent in pipeline.after.get(job.id, ())
            if parent in places
        ],
        len(columns) * (BOX_WIDTH + GAP_X) - GAP_X,
        max(map(len, columns), default=1) * (BOX_HEIGHT + GAP_Y) - GAP_Y,
        len(pipeline.jobs) - len(drawn),
    )


def _columns(jobs: Sequence[Job], after: Mapping[UUID, Sequence[UUID]]) -> list[list[Job]]:
    known, depth = {job.id for job in jobs}, dict.fromkeys((job.id for job in jobs), 0)
    for _ in range(len(jobs)):
        deeper = {
            job.id: max((depth[one] + 1 for one in after.get(job.id, ()) if one in known), default=0)
            for job in jobs
        }
        if deeper == depth:
            break
        depth = deeper
    columns: list[list[Job]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for job in jobs:
        columns[depth[job.id]].append(job)
    return columns


def _middle(job: Job, after: Mapping[UUID, Sequence[UUID]], places: Mapping[UUID, tuple[int, int]]) -> float:
    above = [places[one][1] for one in after.get(job.id, ()) if one in places]
    return sum(above) / len(above) if above else 0.0


def _line(begin: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = begin[0] + BOX_WIDTH, begin[1] + BOX_HEIGHT // 2
    x2, y2 = end[0], end[1] + BOX_HEIGHT // 2
    half = (x2 - x1) // 2
    return f"M{x1} {y1}C{x1 + half} {y1} {x2 - half} {y2} {x2} {y2}"


# -- bars over time -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobBar:
    """When a job waited and ran, as parts of the width."""

    job: Job
    y: int
    waits: tuple[float, float] | None
    runs: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class TimeBars:
    """The jobs of a pipeline over time."""

    bars: Sequence[JobBar]
    begins: datetime
    ends: datetime
    height: int


def bars(pipeline: Pipeline, now: datetime) -> TimeBars:
    drawn = pipeline.jobs[:MOST_BOXES]
    begins = min(job.enqueued_at for job in drawn)
    ends = max((job.finished_at or now for job in drawn), default=now)
    length = max((ends - begins).total_seconds(), 0.001)

    def part(begin: datetime, end: datetime) -> tuple[float, float]:
        first = (begin - begins).total_seconds() / length * CHART_WIDTH
        width = max((end - begin).total_seconds() / length * CHART_WIDTH, 2.0)
        return round(min(max(first, 0.0), CHART_WIDTH - 2), 1), round(min(width, CHART_WIDTH), 1)

    found = []
    for number, job in enumerate(drawn):
        end = job.finished_at or ends
        runs = None if job.claimed_at is None else part(job.claimed_at, end)
        waits = part(job.enqueued_at, job.claimed_at or end)
        found.append(JobBar(job, number * (BAR_HEIGHT + 4), waits, runs))
    return TimeBars(found, begins, ends, len(found) * (BAR_HEIGHT + 4))


# -- lanes per worker ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaneBar:
    """One attempt on the lane of its worker."""

    sort: str
    """`failed`, `lost`, `running`, `succeeded` or `cancelled`."""
    x: float
    width: float
    token: int | None
    says: str
    vague: bool = False
    """It is not known when it began: the bar is as long as it may have been at most."""


@dataclass(frozen=True, slots=True)
class LaneMark:
    """One moment on a lane: the end of a lease, or a write that was refused."""

    sort: str
    x: float
    says: str


@dataclass(frozen=True, slots=True)
class WorkerLane:
    """What one worker did with a job."""

    worker: str
    y: int
    bars: Sequence[LaneBar]
    marks: Sequence[LaneMark]


@dataclass(frozen=True, slots=True)
class AttemptLanes:
    """The attempts of a job over time, a lane per worker."""

    lanes: Sequence[WorkerLane]
    begins: datetime
    ends: datetime
    height: int


class _Scale:
    """Places of times between the first and the last one that is drawn."""

    def __init__(self, times: Sequence[datetime]) -> None:
        self.begins, self.ends = min(times), max(times)
        self._length = max((self.ends - self.begins).total_seconds(), 0.001)

    def x(self, at: datetime) -> float:
        part = (at - self.begins).total_seconds() / self._length
        return round(min(max(part, 0.0), 1.0) * (CHART_WIDTH - 4), 1)


def lanes(job: Job, refused: Sequence[Refusal], now: datetime) -> AttemptLanes | None:
    """Return a lane for each worker that had the job; None for a job that was never claimed.

    The store keeps when an attempt ended, and of the last one also when it began.
    """
    if job.claimed_at is None and not job.errors and not refused:
        return None
    end = job.finished_at or now
    known = [job.enqueued_at, end, *(error.at for error in job.errors), *filter(None, [job.claimed_at])]
    scale = _Scale([*known, *(one.at for one in refused)])
    bars: dict[str, list[LaneBar]] = {}
    marks: dict[str, list[LaneMark]] = {}
    earliest = job.enqueued_at
    for error in job.errors:
        begun = job.claimed_at if error.token == job.token else None
        bars.setdefault(error.worker or "?", []).append(_failed(error, begun, earliest, scale))
        earliest = error.at
    if (
        job.claimed_at is not None
        and job.worker is not None
        and job.token not in {one.token for one in job.errors}
    ):
        sort = str(job.state) if job.is_finished or job.state == JobState.running else "ended"
        x = scale.x(job.claimed_at)
        bar = LaneBar(sort, x, max(scale.x(end) - x, 3.0), job.token, f"attempt {job.attempts}, {sort}")
        bars.setdefault(job.worker, []).append(bar)
        if job.state == JobState.running and job.lease_until is not None and job.lease_until <= now:
            marks.setdefault(job.worker, []).append(
                LaneMark("lease", scale.x(job.lease_until), "its lease ran out")
            )
    for late in refused:
        mark = LaneMark("refused", scale.x(late.at), says_refused(late))
        marks.setdefault(late.worker or "?", []).append(mark)
    drawn = [
        WorkerLane(name, number * LANE_HEIGHT, bars.get(name, ()), marks.get(name, ()))
        for number, name in enumerate(dict.fromkeys([*bars, *marks]))
    ]
    return AttemptLanes(drawn, scale.begins, scale.ends, len(drawn) * LANE_HEIGHT)


def says_refused(late: Refusal) -> str:
    """Return what a claim tried too late, and that it changed nothing."""
    return f"{TRIED.get(late.tried, late.tried)} with token {late.token} was refused"


def _failed(error: JobError, begun: datetime | None, earliest: datetime, scale: _Scale) -> LaneBar:
    end = scale.x(error.at)
    x = scale.x(earliest if begun is None else begun)
    sort = "lost" if error.message == "worker died" else "failed"
    says = f"attempt {error.attempt}, {sort}"
    if begun is None:
        says += f"; it began after {earliest:%H:%M:%S} UTC"
    return LaneBar(sort, x, max(end - x, 3.0), error.token, says, begun is None)
