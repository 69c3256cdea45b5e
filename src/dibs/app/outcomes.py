"""What an attempt came to, by what its handler returned or raised."""

import asyncio
from typing import TYPE_CHECKING, Any

from dibs.errors import BadRequest
from dibs.events import log
from dibs.faces import Calls, ask
from dibs.jobs.outcomes import (
    LONGEST_MESSAGE,
    Cancel,
    Fail,
    Snooze,
    frames_of,
    is_worth_retrying,
    safe_text,
    said_by,
)
from dibs.jobs.states import CancelledBy, JobState, Outcome, Released, Succeeded
from dibs.operations.queries import get

if TYPE_CHECKING:
    from dibs.app.claims import ClaimState
    from dibs.app.context import Context
    from dibs.jobs.job import Job
    from dibs.operations.settle import SettleRequest

SUCCEEDED = Succeeded(None)
CANCELLED_WITHIN = "the handler was cancelled by something that it waited for"
CANCELLED_ITSELF = "the handler's own asyncio task was cancelled, and not by its worker"
NOT_COMMITTED = "the job was completed within a transaction that was not committed"


def outcome_of(held: "ClaimState", value: Any) -> Outcome:
    """Return what a returned value leads to."""
    match value:
        case None:
            return SUCCEEDED
        case Snooze(seconds):
            return held.snoozed(seconds)
        case Cancel(str() as reason):  # whatever its text is like, it is no failure to be tried again
            return CancelledBy(safe_text(reason, LONGEST_MESSAGE))
        case Cancel(reason):
            return held.cancelled(reason)
        case Fail(reason):
            return held.raised(reason, retry=False, trace=frames_of(value))
        case _:
            return held.succeeded(value)


def outcome_of_error(held: "ClaimState", error: BaseException) -> Outcome:
    """Return what a raised exception leads to: an outcome, or an attempt that failed."""
    said = said_by(error)
    if isinstance(said, Snooze | Cancel | Fail):
        try:
            return outcome_of(held, said)
        except BadRequest as wrong:
            return held.raised(wrong)
    options = held.core.registry.options(held.job.kind)
    return held.raised(error, retry=is_worth_retrying(error, options.retry_on, options.give_up_on))


def outcome_of_block(held: "ClaimState", error: BaseException | None) -> Outcome:
    """Return what leaving a `with claim:` block makes of the attempt."""
    match error:
        case None:
            return SUCCEEDED
        case asyncio.CancelledError() | KeyboardInterrupt() | GeneratorExit():
            return Released()
        case _:
            return outcome_of_error(held, error)


def settle_attempt(held: "ClaimState", outcome: Outcome, context: "Context") -> Calls[None]:
    """Settle by the outcome; what was completed within a transaction only if that was not committed."""
    if not held.settled:
        yield from held.send(settlement(held, outcome, context))
    elif still_ours((yield from ask(held.core.store, lambda _: get(held.job.id))), held):
        yield from held.settle(not_committed(held, outcome))


def settlement(held: "ClaimState", outcome: Outcome, context: "Context | None") -> "SettleRequest":
    """Return the settlement; follow-up jobs that can't be stored make it a failed attempt."""
    held.check()
    children = () if context is None or not isinstance(outcome, Succeeded) else context.children
    try:
        return held.settled_by(outcome, children)
    except Exception as error:
        return held.settled_by(held.raised(error))


def not_committed(held: "ClaimState", outcome: Outcome) -> Outcome:
    """Return the outcome of a job that was completed within a transaction that was rolled back.

    It can't be a success. What the handler raised or returned otherwise stands: it is why the transaction was
    rolled back.
    """
    return held.raised(NOT_COMMITTED) if isinstance(outcome, Succeeded) else outcome


def broken_off(held: "ClaimState", error: Exception) -> "SettleRequest":
    """Return a settlement as failed, if need be for good: the attempt must end although dibs itself broke."""
    log.error("job %s could not be settled as it should be: its attempt failed", held.job.id, exc_info=error)
    try:
        return held.settled_by(held.raised(error))
    except Exception:
        return held.settled_by(held.raised(error, retry=False))


def still_ours(job: "Job | None", held: "ClaimState") -> bool:
    return job is not None and (job.state, job.token) == (JobState.running, held.token)
