"""The bodies of requests and responses, as the OpenAPI document shows them.

Responses are encoded from dibs' own types; these models only describe them, and a test compares the two.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from dibs.jobs.states import JobState

Name = Annotated[str, Field(min_length=1, max_length=200)]
Whole = Annotated[int, Field(strict=True)]
OnEnd = Literal["advance", "hold"] | None
LONGEST_DELAY = 100 * 365 * 24 * 3600.0  # seconds
Span = Annotated[float, Field(ge=0, le=LONGEST_DELAY)]


class Problem(BaseModel):
    """The reason of an error."""

    detail: str


class InvalidPart(BaseModel):
    """One mistake in a request, and where it is."""

    loc: list[str | int]
    msg: str
    type: str


class Invalid(BaseModel):
    """The mistakes in a request."""

    detail: list[InvalidPart]


class JobError(BaseModel):
    """The error of one failed attempt."""

    attempt: int
    token: int
    at: datetime
    worker: str | None
    type: str
    message: str
    traceback: str | None = Field(None, description="Only if this service shows it.")


class JobSummary(BaseModel):
    """A job as the head of a train, or in `/events`: without its arguments, its result and its errors."""

    id: UUID
    kind: str
    queue: str
    priority: int
    state: JobState
    attempts: int
    max_attempts: int
    run_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    token: int | None
    lease_until: datetime | None
    train: str | None
    slot: str | None
    is_current: bool
    unique: str | None
    pipeline_id: UUID | None
    parent_id: UUID | None
    progress: float
    message: str | None
    tags: list[str]


class Job(JobSummary):
    """A job with the parts that this service shows: some of args, result, errors, meta."""

    args: dict[str, Any] = {}
    result: Any = None
    errors: list[JobError] = []
    meta: dict[str, Any] = {}
    is_new: bool


class JobPage(BaseModel):
    """Jobs that match, newest first."""

    jobs: list[Job]
    next: UUID | None = Field(description="`after=` this id gives the next page; null on the last one.")
    searched: int | None = Field(description="How many jobs were looked at for a text; null without one.")
    complete: bool = Field(description="False when older jobs may match that were not looked at.")


class NewJob(BaseModel):
    """A job to be enqueued. Fields left out are taken from the kind's registration, if there is one."""

    model_config = ConfigDict(extra="forbid")

    kind: Name
    args: dict[str, Any] = {}
    id: UUID | None = Field(None, description="Sent again with the same id, a job is stored once.")
    queue: Name | None = None
    priority: Whole | None = Field(None, ge=-32_767, le=32_767)
    run_at: AwareDatetime | None = None
    delay: float | None = Field(None, ge=0, le=LONGEST_DELAY, description="Seconds.")
    max_attempts: Whole | None = Field(None, ge=1, le=1_000_000)
    train: Name | None = None
    slot: Name | list[str | int | float | bool | None] | None = None
    slot_policy: Literal["wait", "replace", "preempt", "drop"] | None = None
    slot_limit: Whole | None = Field(None, ge=1, le=1_000_000)
    unique: Name | None = None
    on_cancelled: OnEnd = None
    on_failed: OnEnd = None
    pipeline_id: UUID | None = None
    tags: Annotated[list[Name], Field(max_length=100)] = []
    meta: dict[str, Any] = {}


class JobsToChange(BaseModel):
    """A filter of jobs, as `find` takes it, or a search, or both; and what is to be done first."""

    model_config = ConfigDict(extra="forbid")

    q: Annotated[str, Field(max_length=2_000)] | None = Field(None, description="A search.")
    state: JobState | Annotated[list[JobState], Field(min_length=1)] | None = None
    queue: Name | None = None
    kind: Name | None = None
    train: Name | None = None
    slot: Name | list[Any] | None = None
    pipeline_id: UUID | None = None
    tags: Name | Annotated[list[Name], Field(max_length=20)] | None = None
    worker: Name | None = None
    since: Annotated[str, Field(max_length=20)] | Span | None = Field(
        None, description="Only jobs enqueued in so many seconds, or in `30s`, `10m`, `2h`, `7d`."
    )
    preview: bool = Field(default=False, description="Only count; change nothing.")
    expect: Annotated[Whole, Field(ge=0)] | None = Field(
        None, description="Change nothing (409) unless exactly so many match."
    )
    reason: Annotated[str, Field(max_length=10_000)] | None = Field(None, description="Of a cancellation.")


class Acted(BaseModel):
    """How many jobs matched, and how many of them were changed."""

    matched: int
    changed: int


class JobChange(BaseModel):
    """What is to be another: the priority, or the time at which the job is due."""

    model_config = ConfigDict(extra="forbid")

    priority: Whole | None = Field(None, ge=-32_767, le=32_767)
    run_at: AwareDatetime | None = None
    delay: float | None = Field(None, ge=0, le=LONGEST_DELAY, description="Seconds from now.")


class CancelReason(BaseModel):
    """The reason of a cancellation, kept with the job."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=10_000)] | None = None


class Why(BaseModel):
    """Why a job is not running."""

    code: str
    text: str


class Pipeline(BaseModel):
    """The progress of the jobs of a pipeline."""

    id: UUID
    counts: dict[str, int]
    progress: float


class PipelineRow(Pipeline):
    """A pipeline in a list."""

    name: str | None = Field(description="Null of one that began by chaining.")


class PipelinePage(BaseModel):
    """Pipelines that have jobs, newest first."""

    pipelines: list[PipelineRow]
    next: UUID | None = Field(description="`after=` this id gives the next page; null on the last one.")


class Slot(BaseModel):
    """A key that jobs share, so that not all of them run at once."""

    key: str
    current: JobSummary | None = Field(description="The job that started last, running or not.")
    running: int
    waiting: int


class SlotPage(BaseModel):
    """Slots by key."""

    slots: list[Slot]
    next: str | None = Field(description="`after=` this key gives the next page; null on the last one.")


class Schedule(BaseModel):
    """A rule that enqueues a job at each of its ticks."""

    name: str
    kind: str | None
    queue: str | None
    args: dict[str, Any] | None
    rule: str | None = Field(description="A cron expression, or how far its ticks are apart.")
    tz: str
    missed: Literal["latest", "all", "skip"]
    origin: Literal["code", "store"] = Field(description="`code`: made by `@app.every`.")
    paused: bool
    last_tick: datetime | None
    next_tick: datetime | None


class Schedules(BaseModel):
    schedules: list[Schedule]


class QueueLimit(BaseModel):
    """How many jobs of a queue may run at a time."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[Whole, Field(ge=0, le=1_000_000)] | None


class Queue(BaseModel):
    """A queue that has live jobs or a setting."""

    name: str
    paused: bool
    limit: int | None
    counts: dict[str, int]


class Queues(BaseModel):
    queues: list[Queue]


class Train(BaseModel):
    """Jobs that run strictly one after another."""

    name: str
    head: JobSummary | None = Field(description="The first of its jobs.")
    length: int
    held: bool = Field(description="It waits for an operator: retry its head, or release it.")


class Trains(BaseModel):
    """Trains by name."""

    trains: list[Train]
    next: str | None = Field(description="`after=` this name gives the next page; null on the last one.")


class Worker(BaseModel):
    """A worker that was seen lately."""

    name: str
    queues: list[str] | None
    kinds: list[str]
    concurrency: int
    running: int
    started_at: datetime
    seen_at: datetime
    version: str | None = Field(description="Of dibs; null for a worker too old to say.")


class Workers(BaseModel):
    workers: list[Worker]


class Finding(BaseModel):
    """One result of a check of the store, and what to do."""

    level: Literal["ok", "note", "warning", "problem"]
    topic: str
    sentence: str
    advice: str | None


class Findings(BaseModel):
    findings: list[Finding]


class Event(BaseModel):
    """One server-sent event. `data` is JSON text: a job, `{"jobs": […]}` or `{"id": …}`."""

    event: Literal["snapshot", "change", "gone", "end", "resync"]
    id: str | None = None
    data: str


class Health(BaseModel):
    """Whether this process reaches its store, and its worker is healthy."""

    status: Literal["ok", "unhealthy"]
