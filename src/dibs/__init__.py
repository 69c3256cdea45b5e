"""dibs: many workers share one store of work; no job is done twice at once, and none is lost."""

from dibs.app.callbacks import JobEvent
from dibs.app.claims import Claim, SyncClaim
from dibs.app.collections import NewPipeline, SyncNewPipeline
from dibs.app.context import Context, SyncContext
from dibs.app.dibs import Dibs, SyncDibs
from dibs.app.tasks import SyncTask, Task
from dibs.doctor import Finding, Level
from dibs.engines.store import SchemaProblem
from dibs.errors import (
    BadRequest,
    ClaimInTransaction,
    DibsError,
    JobCancelled,
    JobFailed,
    LeaseLost,
    NotFound,
    NotPermitted,
    NotStale,
    Refused,
    SchemaOutdated,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
    UnfitArguments,
    UnknownEngine,
    UnsafeStore,
    UnsupportedConnection,
)
from dibs.jobs.job import Job, JobError, NewJob
from dibs.jobs.outcomes import Cancel, Fail, Snooze
from dibs.jobs.pipelines import Branch, Pipeline
from dibs.jobs.states import JobState, Retry
from dibs.operations.manage import Acted
from dibs.operations.minutes import Histogram, MinuteStats
from dibs.operations.pipelines import PipelineInfo
from dibs.operations.queries import Queue, Slot, Train
from dibs.operations.questions import Traits
from dibs.operations.schedules import ScheduleInfo
from dibs.operations.search import Count, Found
from dibs.operations.settle import Refusal
from dibs.operations.upkeep import Swept, WorkerInfo
from dibs.operations.watch import Change
from dibs.operations.why import Why
from dibs.worker import Worker

__all__ = [
    "Acted",
    "BadRequest",
    "Branch",
    "Cancel",
    "Change",
    "Claim",
    "ClaimInTransaction",
    "Context",
    "Count",
    "Dibs",
    "DibsError",
    "Fail",
    "Finding",
    "Found",
    "Histogram",
    "Job",
    "JobCancelled",
    "JobError",
    "JobEvent",
    "JobFailed",
    "JobState",
    "LeaseLost",
    "Level",
    "MinuteStats",
    "NewJob",
    "NewPipeline",
    "NotFound",
    "NotPermitted",
    "NotStale",
    "Pipeline",
    "PipelineInfo",
    "Queue",
    "Refusal",
    "Refused",
    "Retry",
    "ScheduleInfo",
    "SchemaOutdated",
    "SchemaProblem",
    "Slot",
    "Snooze",
    "StoreBusy",
    "StoreRefused",
    "StoreUnavailable",
    "Swept",
    "SyncClaim",
    "SyncContext",
    "SyncDibs",
    "SyncNewPipeline",
    "SyncTask",
    "Task",
    "Train",
    "Traits",
    "UnfitArguments",
    "UnknownEngine",
    "UnsafeStore",
    "UnsupportedConnection",
    "Why",
    "Worker",
    "WorkerInfo",
]
