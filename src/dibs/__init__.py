"""dibs: many workers share one store of work; no job is done twice at once, and none is lost."""

from dibs.app import Dibs
from dibs.claims import Claim, SyncClaim
from dibs.context import Context
from dibs.contract import Traits
from dibs.errors import (
    BadRequest,
    ClaimInTransaction,
    DibsError,
    LeaseLost,
    NotFound,
    NotStale,
    Refused,
    SchemaOutdated,
    StoreUnavailable,
    UnknownEngine,
    UnsupportedConnection,
)
from dibs.jobs import Job, JobError, NewJob
from dibs.operations import Queue
from dibs.running import Cancel, Fail, Snooze
from dibs.states import JobState, Retry
from dibs.sync import SyncDibs
from dibs.tasks import SyncTask, Task
from dibs.upkeep import Swept, WorkerInfo
from dibs.why import Why
from dibs.worker import Worker

__all__ = [
    "BadRequest",
    "Cancel",
    "Claim",
    "ClaimInTransaction",
    "Context",
    "Dibs",
    "DibsError",
    "Fail",
    "Job",
    "JobError",
    "JobState",
    "LeaseLost",
    "NewJob",
    "NotFound",
    "NotStale",
    "Queue",
    "Refused",
    "Retry",
    "SchemaOutdated",
    "Snooze",
    "StoreUnavailable",
    "Swept",
    "SyncClaim",
    "SyncDibs",
    "SyncTask",
    "Task",
    "Traits",
    "UnknownEngine",
    "UnsupportedConnection",
    "Why",
    "Worker",
    "WorkerInfo",
]
