"""dibs: many workers share one store of work; no job is done twice at once, and none is lost."""

from dibs.app.callbacks import JobEvent
from dibs.app.claims import Claim, SyncClaim
from dibs.app.collections import NewPipeline, SyncNewPipeline
from dibs.app.context import Context, SyncContext
from dibs.app.dibs import Dibs
from dibs.app.running import Cancel, Fail, Snooze
from dibs.app.sync import SyncDibs
from dibs.app.tasks import SyncTask, Task
from dibs.doctor import Finding, Level
from dibs.engines.sql.schema_check import SchemaProblem
from dibs.errors import (
    BadRequest,
    ClaimInTransaction,
    DibsError,
    LeaseLost,
    NotFound,
    NotPermitted,
    NotStale,
    Refused,
    SchemaOutdated,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
    UnknownEngine,
    UnsafeStore,
    UnsupportedConnection,
)
from dibs.jobs.job import Job, JobError, NewJob
from dibs.jobs.pipelines import Branch, Pipeline
from dibs.jobs.states import JobState, Retry
from dibs.operations.queries import Queue, Train
from dibs.operations.questions import Traits
from dibs.operations.schedules import ScheduleInfo
from dibs.operations.upkeep import Swept, WorkerInfo
from dibs.operations.watch import Change
from dibs.operations.why import Why
from dibs.worker import Worker

__all__ = [
    "BadRequest",
    "Branch",
    "Cancel",
    "Change",
    "Claim",
    "ClaimInTransaction",
    "Context",
    "Dibs",
    "DibsError",
    "Fail",
    "Finding",
    "Job",
    "JobError",
    "JobEvent",
    "JobState",
    "LeaseLost",
    "Level",
    "NewJob",
    "NewPipeline",
    "NotFound",
    "NotPermitted",
    "NotStale",
    "Pipeline",
    "Queue",
    "Refused",
    "Retry",
    "ScheduleInfo",
    "SchemaOutdated",
    "SchemaProblem",
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
    "UnknownEngine",
    "UnsafeStore",
    "UnsupportedConnection",
    "Why",
    "Worker",
    "WorkerInfo",
]
