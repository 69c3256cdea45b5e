"""Everything dibs raises.

DibsError
├── BadRequest              the call itself is wrong; nothing was written
│   └── UnfitArguments      a stored job has arguments that its handler does not take
├── NotFound                no job with this id, no train or schedule of this name
├── Refused                 the job is not in a state that allows this
│   └── NotStale            too early to recover: its lease may still be held
├── JobFailed               the job that was waited for has failed; `.job` has its errors
├── JobCancelled            the job that was waited for was cancelled
├── LeaseLost               this claim no longer holds its job; nothing was changed
├── StoreUnavailable        the store can't be reached or does not answer
│   ├── StoreRefused        it does not let us in: wrong credentials, no such database
│   └── StoreBusy           it answers, but what was asked waited for too long, mostly for a lock
├── NotPermitted            the store does not let this user do it
├── UnsafeStore             the store is set up so that it may lose jobs
├── SchemaOutdated          the store's tables are missing or too old
├── UnknownEngine           no engine for this URL
├── UnsupportedConnection   `within=` was given something dibs can't speak through
└── ClaimInTransaction      a claim was asked for inside an open transaction

A message says what, which, and what to do. Losing a race is not an error: it is `None` or `[]`.
"""

from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from dibs.jobs.job import Job


LONGEST_MESSAGE = 2_000


class DibsError(Exception):
    """Anything dibs refuses or fails to do."""


class BadRequest(DibsError):
    """The call can't be served as it stands; nothing was written."""

    def __init__(self, message: str) -> None:
        if len(message) > LONGEST_MESSAGE:  # it quotes what was given, which may be any size
            message = f"{message[: LONGEST_MESSAGE // 2]} … {message[-LONGEST_MESSAGE // 4 :]}"
        super().__init__(message)


class UnfitArguments(BadRequest):
    """The arguments of a stored job don't fit its handler: no attempt would."""


class NotFound(DibsError):
    """No job, pipeline or message of this id is live or kept, or no train or schedule of this name."""

    def __init__(self, id: UUID | str, what: str = "job") -> None:
        if isinstance(id, UUID):
            put = "published" if what == "message" else "enqueued"
            super().__init__(f"no {what} {id}: it was never {put} here, or it was pruned or deleted")
        elif what == "schedule":
            super().__init__(f"no schedule {id!r}: `dibs schedules` lists the ones there are")
        else:
            super().__init__(f"no train {id!r}: no job is on it")


class Refused(DibsError):
    """The job's state does not allow this."""


class NotStale(Refused):
    """The job's lease has not been over for long enough to take it from its holder by hand."""


class JobFailed(DibsError):
    """The job that was waited for has failed; its errors say why."""

    def __init__(self, job: "Job") -> None:
        error = f"{job.errors[-1].type}: {job.errors[-1].message}" if job.errors else "no reason was given"
        tries = f"{job.attempts} of {job.max_attempts} attempts"
        super().__init__(f"job {job.id} ({job.kind}) failed after {tries}: {error}")
        self.job = job

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job,)


class JobCancelled(DibsError):
    """The job that was waited for was cancelled."""

    def __init__(self, job: "Job") -> None:
        super().__init__(f"job {job.id} ({job.kind}) was cancelled: {job.message or 'no reason was given'}")
        self.job = job

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job,)


class LeaseLost(DibsError):
    """The claim is no longer held: the job was swept, settled or claimed by another worker."""


class StoreUnavailable(DibsError):
    """The store could not be reached, or stopped answering."""


class StoreRefused(StoreUnavailable):
    """The store does not let us in, and will not until its URL or its users are put right."""


class StoreBusy(StoreUnavailable):
    """The store answers, but a lock or a time limit of its own kept it from doing this. Try again."""


class NotPermitted(DibsError):
    """The store does not let this user do what was asked. Trying again will not help."""


class UnsafeStore(DibsError):
    """The store is set up so that it may lose what it acknowledged."""


class SchemaOutdated(DibsError):
    """The store lacks tables or columns that this version of dibs needs."""

    def __init__(self, found: int, needed: int, store: str = "the store") -> None:
        missing = "has no dibs tables yet" if found == 0 else f"has schema version {found}"
        super().__init__(
            f"{store} {missing} and this dibs needs version {needed}; "
            "run `dibs migrate` (or `app.migrate()`; with Django `manage.py migrate`) and try again"
        )


class UnknownEngine(DibsError):
    """The URL names no store that dibs can use."""


class UnsupportedConnection(DibsError):
    """`within=` was given something that dibs can't speak through here."""


class ClaimInTransaction(DibsError):
    """A claim must be durable when it returns, so it can't be part of an open transaction."""
