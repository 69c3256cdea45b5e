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
    """Anything dibs refuses or fails to do. Example: `except DibsError as error: print(error)`"""


class BadRequest(DibsError):
    """The call can't be served as it stands; nothing was written. Example: `await app.get("not an id")`"""

    def __init__(self, message: str) -> None:
        if len(message) > LONGEST_MESSAGE:  # it quotes what was given, which may be any size
            message = f"{message[: LONGEST_MESSAGE // 2]} … {message[-LONGEST_MESSAGE // 4 :]}"
        super().__init__(message)


class UnfitArguments(BadRequest):
    """The arguments of a stored job don't fit its handler. Example: `except UnfitArguments as e: print(e)`"""


class NotFound(DibsError):
    """No job, pipeline, message, train or schedule of this id or name. Example: `await app.why(uuid4())`"""

    def __init__(self, id: UUID | str, what: str = "job") -> None:
        if isinstance(id, UUID):
            put = "published" if what == "message" else "enqueued"
            super().__init__(f"no {what} {id}: it was never {put} here, or it was pruned or deleted")
        elif what == "schedule":
            super().__init__(f"no schedule {id!r}: `dibs schedules` lists the ones there are")
        else:
            super().__init__(f"no train {id!r}: no job is on it")


class Refused(DibsError):
    """The job's state does not allow this. Example: `await app.retry(done.id)`"""


class NotStale(Refused):
    """Its lease ended too recently to take it back by hand. Example: `await app.recover(claim.job.id)`"""


class JobFailed(DibsError):
    """The job waited for has failed. Example: `except JobFailed as error: print(error.job.errors)`"""

    def __init__(self, job: "Job") -> None:
        error = f"{job.errors[-1].type}: {job.errors[-1].message}" if job.errors else "no reason was given"
        tries = f"{job.attempts} of {job.max_attempts} attempts"
        super().__init__(f"job {job.id} ({job.kind}) failed after {tries}: {error}")
        self.job = job

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job,)


class JobCancelled(DibsError):
    """The job waited for was cancelled. Example: `except JobCancelled as error: print(error.job)`"""

    def __init__(self, job: "Job") -> None:
        super().__init__(f"job {job.id} ({job.kind}) was cancelled: {job.message or 'no reason was given'}")
        self.job = job

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job,)


class LeaseLost(DibsError):
    """The claim is held no longer; nothing changed. Example: `except LeaseLost: await session.rollback()`"""


class StoreUnavailable(DibsError):
    """The store can't be reached, or stopped answering. Example: `except StoreUnavailable: await sleep(1)`"""


class StoreRefused(StoreUnavailable):
    """The store refuses us: put its URL or its users right. Example: `except StoreRefused: exit(1)`"""


class StoreBusy(StoreUnavailable):
    """A lock or a time limit of the store was in the way. Example: `except StoreBusy: await sleep(1)`"""


class NotPermitted(DibsError):
    """The store refuses this user; trying again won't help. Example: `except NotPermitted: exit(1)`"""


class UnsafeStore(DibsError):
    """The store is set up so that it may lose jobs. Example: `except UnsafeStore as error: exit(error)`"""


class SchemaOutdated(DibsError):
    """The store's tables are missing or too old. Example: `except SchemaOutdated: await app.migrate()`"""

    def __init__(self, found: int, needed: int, store: str = "the store") -> None:
        missing = "has no dibs tables yet" if found == 0 else f"has schema version {found}"
        super().__init__(
            f"{store} {missing} and this dibs needs version {needed}; "
            "run `dibs migrate` (or `app.migrate()`; with Django `manage.py migrate`) and try again"
        )


class UnknownEngine(DibsError):
    """The URL names no store that dibs can use. Example: `Dibs("mongodb://localhost")`"""


class UnsupportedConnection(DibsError):
    """`within=` was given what dibs can't use. Example: `await send_receipt.using(within=1).enqueue(42)`"""


class ClaimInTransaction(DibsError):
    """A claim in an open transaction. Example: `except ClaimInTransaction: await session.commit()`"""
