"""The bodies of requests and responses, as the OpenAPI document shows them.

Responses are encoded from dibs' own types; these models only describe them, and a test compares the two.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from dibs.jobs.states import JobState

Name = Annotated[str, Field(min_length=1, max_length=200)]
LONGEST_DELAY = 100 * 365 * 24 * 3600.0  # seconds


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
    traceback: str | None = None


class JobSummary(BaseModel):
    """A job in a list: without its arguments, its result and its errors."""

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
    """A job with all its fields."""

    args: dict[str, Any]
    result: Any
    errors: list[JobError]
    meta: dict[str, Any]
    is_new: bool


class JobPage(BaseModel):
    """Jobs that match, newest first."""

    jobs: list[JobSummary]
    next: UUID | None = Field(description="`after=` this id gives the next page; null on the last one.")


class NewJob(BaseModel):
    """A job to be enqueued. Fields left out are taken from the kind's registration, if there is one."""

    model_config = ConfigDict(extra="forbid")

    kind: Name
    args: dict[str, Any] = {}
    id: UUID | None = Field(None, description="Sent again with the same id, a job is stored once.")
    queue: Name | None = None
    priority: int | None = Field(None, ge=-32_767, le=32_767)
    run_at: AwareDatetime | None = None
    delay: float | None = Field(None, ge=0, le=LONGEST_DELAY, description="Seconds.")
    max_attempts: int | None = Field(None, ge=1, le=1_000_000)
    train: Name | None = None
    slot: Name | list[str | int | float | bool | None] | None = None
    slot_policy: Literal["wait", "replace", "preempt", "drop"] | None = None
    slot_limit: int | None = Field(None, ge=1, le=1_000_000)
    unique: Name | None = None
    pipeline_id: UUID | None = None
    tags: Annotated[list[Name], Field(max_length=100)] = []
    meta: dict[str, Any] = {}


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


class Workers(BaseModel):
    workers: list[Worker]


class Event(BaseModel):
    """One server-sent event. `data` is JSON text: a job, `{"jobs": […]}` or `{"id": …}`."""

    event: Literal["snapshot", "change", "gone", "end", "resync"]
    id: str | None = None
    data: str


class Health(BaseModel):
    """Whether this process reaches its store, and its worker is healthy."""

    status: Literal["ok", "unhealthy"]
