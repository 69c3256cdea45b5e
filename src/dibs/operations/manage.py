"""The acts of an operator on a job or a queue: cancel, retry, recover, delete, pause, limit.

Each is asked first and explained afterwards: when nothing changed, the job is read to say why.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from dibs.clock import SECOND
from dibs.errors import NotFound, NotStale, Refused
from dibs.jobs.job import Job
from dibs.jobs.outcomes import error_entry, errors_text
from dibs.jobs.states import WAITING, WORKER_DIED, JobState
from dibs.operations.enqueue import ENOUGH_RACES
from dibs.operations.queries import get
from dibs.operations.scripts import Row, Script, Step
from dibs.operations.search import JobSearch, all_ids
from dibs.operations.upkeep import BATCH
from dibs.text import spoken

FIRST_ID = UUID(int=0)  # before all others


def cancel(id: UUID, reason: str | None, *, unsure: bool = False) -> Script[Job]:
    """End a waiting job, ask a running one to stop.

    `unsure`: an earlier try of this call may have done it, so finding it done is success.
    """
    done = JobState.cancelled if unsure else None
    return (yield from _guarded("cancel", id, {"ids": [id], "reason": reason}, _why_not_cancel, done))


def _why_not_cancel(job: Job) -> Refused | None:
    if job.is_finished:
        ended = "been cancelled" if job.state == JobState.cancelled else job.state
        return Refused(f"job {job.id} has already {ended}; there is nothing left to cancel")
    return None


def update(id: UUID, priority: int | None, run_at: datetime | None, delay: int | None) -> Script[Job]:
    """Change the priority of a waiting job, or when it is due; `delay` counts from the store's time."""
    if delay is not None:
        [clock] = yield Step("now", {})
        run_at = clock["now"] + timedelta(microseconds=delay)
    change = {"job": id, "priority": priority, "run_at": run_at}
    return (yield from _guarded("update", id, change, _why_not_update))


def _why_not_update(job: Job) -> Refused | None:
    if job.state in WAITING:
        return None
    return Refused(f"job {job.id} is {job.state}: only a waiting job gets another priority or time")


def retry(id: UUID) -> Script[Job]:
    """Let a failed or cancelled job wait again with all its attempts; a scheduled one is due now."""
    return (yield from _guarded("retry", id, {"ids": [id]}, _why_not_retry))


def _why_not_retry(job: Job) -> Refused | None:
    if job.state in (JobState.running, JobState.succeeded):
        return Refused(
            f"job {job.id} is {job.state}: only failed, cancelled or scheduled jobs can be retried"
        )
    if job.is_finished and job.unique is not None:
        return Refused(
            f"job {job.id} can't be retried: another job has its unique key {job.unique!r}; wait for "
            "that one, cancel it if it waits or runs, delete it if it has ended and keeps the key for a time"
        )
    return None


def recover(id: UUID, stale_after: int, *, unsure: bool = False) -> Script[Job]:
    """Put back a running job that has a lease long over, with all its attempts."""
    for _ in range(ENOUGH_RACES):
        job = yield from _must_get(id)
        if job.state == JobState.failed and job.errors and job.errors[-1].message == WORKER_DIED:
            return (yield from retry(id))
        if job.state == JobState.ready and unsure:
            return job
        if job.state != JobState.running:
            raise _why_not_recover(job, stale_after)
        [row] = yield Step("now", {})
        errors = errors_text(job.errors, error_entry(job, row["now"], type="LeaseLost", message=WORKER_DIED))
        claim = {"job": id, "token": job.token, "stale_after": stale_after, "errors": errors}
        changed = yield Step("recover", claim)
        after = yield from _must_get(id)
        if changed:
            return after
        if (after.state, after.token) == (job.state, job.token):
            raise _why_not_recover(after, stale_after)
    raise AssertionError(f"recover kept losing races for {id}")


def _why_not_recover(job: Job, stale_after: int) -> Refused:
    if job.state != JobState.running or job.lease_until is None:
        return Refused(f"job {job.id} is {job.state}, not running: there is nothing to recover")
    stale_at = job.lease_until + timedelta(microseconds=stale_after)
    return NotStale(
        f"job {job.id} may still be running at {job.worker}: its lease was last good until "
        f"{job.lease_until:%Y-%m-%d %H:%M:%S} UTC, and it can be recovered after "
        f"{stale_at:%Y-%m-%d %H:%M:%S} UTC, {spoken(stale_after / SECOND)} later; give another "
        "stale_after if you know that its worker is dead"
    )


def delete(id: UUID, *, unsure: bool = False) -> Script[bool]:
    """Remove a job that is not running, for good; False when there is none."""
    for _ in range(ENOUGH_RACES):
        rows = yield Step("delete", {"ids": [id]})
        if rows:
            return True
        job = yield from get(id)
        if job is None:
            return unsure
        if job.state == JobState.running:
            raise Refused(f"job {id} is running at {job.worker}: cancel it and wait, then delete it")
    raise AssertionError(f"delete kept losing races for {id}")


def _guarded(
    question: str,
    id: UUID,
    params: dict[str, Any],
    refusal: Callable[[Job], Refused | None],
    done: JobState | None = None,
) -> Script[Job]:
    """Ask; when nothing changed, look why: a refusal is raised, a lost race is run again."""
    for _ in range(ENOUGH_RACES):
        changed = yield Step(question, params)
        job = yield from _must_get(id)
        if changed or job.state == done:
            return job
        if (refused := refusal(job)) is not None:
            raise refused
        if question == "retry" and job.state in (JobState.ready, JobState.blocked):
            return job
    raise AssertionError(f"{question} kept losing races for {id}")


def _must_get(id: UUID) -> Script[Job]:
    job = yield from get(id)
    if job is None:
        raise NotFound(id)
    return job


class Acted(msgspec.Struct, frozen=True, kw_only=True):
    """What an act on matching jobs found and changed. Example: `await app.change_matching("retry")`"""

    matched: int
    changed: int


class Changed(NamedTuple):
    """How many jobs were changed, and the rows of the jobs that were changed directly, where asked for."""

    number: int
    rows: list[Row]


def change_many(
    question: str, wanted: JobSearch, *, with_rows: bool = False, **extra: Any
) -> Script[Changed]:
    """Cancel, retry or delete every job that matches, a bounded page at a time.

    Retried oldest first: on a train each goes behind the jobs of the pages before it. Cancelled and deleted
    newest first: the head of a train goes after the jobs behind it, so that none of them becomes ready in
    between.
    """
    if wanted.text or wanted.up_to is not None:
        return (yield from _change(question, (yield from affected(question, wanted)), with_rows, extra))
    changed, kept = 0, list[Row]()
    after = _START[question]
    while page := (yield from _page(question, wanted.filter, after)):
        after = page[-1]
        some = yield from _change(question, page, with_rows, extra)
        kept += some.rows
        changed += some.number
    return Changed(changed, kept)


def change_expected(
    question: str, wanted: JobSearch, expect: int | None, *, with_rows: bool = False, **extra: Any
) -> Script[tuple[int, Changed]]:
    """Do the same for the jobs that match now, and only if they are as many as expected."""
    ids = yield from affected(question, wanted)
    if expect is not None and expect != len(ids):
        raise Refused(
            f"{len(ids)} jobs match now, not {expect}: nothing was changed; look again, and repeat it with "
            f"expect={len(ids)}"
        )
    return len(ids), (yield from _change(question, ids, with_rows, extra))


def affected(question: str, wanted: JobSearch) -> Script[list[UUID]]:
    """Return the ids of the jobs that match and that the act can change, in the order of changing them."""
    if not (states := _states(question, wanted.filter)):
        return []
    one = wanted._replace(filter={**wanted.filter, "states": states})
    ids = yield from all_ids(one, BATCH)
    return ids[::-1] if question == "retry" else ids


def _change(question: str, ids: Sequence[UUID], with_rows: bool, extra: Mapping[str, Any]) -> Script[Changed]:
    changed, kept = 0, list[Row]()
    for first in range(0, len(ids), BATCH):
        rows = yield Step(question, {"ids": sorted(ids[first : first + BATCH]), **extra})
        kept += rows if with_rows else ()
        changed += len(rows)
    return Changed(changed, kept)


def change_all(
    question: str, filter: Mapping[str, Any], *, with_rows: bool = False, **extra: Any
) -> Script[Changed]:
    """Do the same for jobs that may wait for each other, and count the jobs changed along with others."""
    pages: list[list[UUID]] = []
    while page := (yield from _page(question, filter, pages[-1][-1] if pages else _START[question])):
        pages.append(page)
    changed, kept = 0, list[Row]()
    for page in pages:
        rows = yield Step(question, {"ids": sorted(page), **extra})
        kept += rows if with_rows else ()
        others = set(page) - {row["id"] for row in rows}
        found = (yield Step("settled", {"ids": sorted(others)})) if others else ()
        changed += len(rows) + sum(row["state"] in _TAKEN_ALONG[question] for row in found)
    return Changed(changed, kept)


def _page(question: str, filter: Mapping[str, Any], after: UUID | None) -> Script[list[UUID]]:
    if not (wanted := _states(question, filter)):
        return []
    look = "find_oldest" if question == "retry" else "find"
    rows = yield Step(look, {**filter, "states": wanted, "limit": BATCH, "after": after})
    return [row["id"] for row in rows]


def _states(question: str, filter: Mapping[str, Any]) -> list[JobState]:
    """Return the states of the jobs that match and that the act can change."""
    given = _AFFECTED[question] if filter["states"] is None else filter["states"]
    return [state for state in given if state in _AFFECTED[question]]


_START = {"retry": FIRST_ID, "cancel": None, "delete": None}

_AFFECTED: dict[str, list[JobState]] = {
    "cancel": [*sorted(WAITING), JobState.running],
    "retry": [JobState.failed, JobState.cancelled, JobState.scheduled],
    "delete": [state for state in JobState if state != JobState.running],
}

_TAKEN_ALONG = {"cancel": {JobState.cancelled}, "retry": {JobState.blocked, JobState.ready, JobState.running}}


def set_queue(name: str, **setting: Any) -> Script[None]:
    """Pause, resume or limit one queue: `paused=` or `max_running=`."""
    unchanged = {"paused": None, "max_running": None, "set_limit": False}
    yield Step("set_queue", {"queue": name, **unchanged, **setting})
