"""Upkeep: stage due jobs, take back jobs of dead workers, remove old jobs, record which workers live.

Every worker does this, and every caller that claims by hand; there is no leader. Each script asks guarded
questions in bounded batches, so it does no harm if many do it at once.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from dibs.clock import MILLISECOND, SECOND
from dibs.jobs.ids import first_id_at
from dibs.jobs.payload import decode, json_text
from dibs.jobs.states import FINISHED, JobState
from dibs.operations.scripts import Row, Rows, Script, Step

BATCH = 500  # rows per question
GATES = 100  # per question that locks each of them
CLOCKS_DIFFER = 60 * SECOND  # how far ahead of the store the clock of a caller may be
FORGET_WORKERS = 3600 * SECOND  # the row of a worker that died is removed after this


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one round of upkeep changed. Example: `(await app.sweep()).returned`"""

    staged: int
    """Scheduled jobs that were due and are ready now."""
    returned: int
    """Jobs that lost their lease and wait again."""
    failed: int
    """Jobs that lost their lease with no attempts left."""
    cancelled: int
    """Jobs that had been asked to cancel when their lease ran out."""
    taken_back: tuple[tuple[JobState, UUID, int], ...] = field(default=(), compare=False, repr=False)
    """(state, id, token) of each claim that was taken back."""


def sweep() -> Script[Swept]:
    """Do one round of upkeep: due jobs become ready, jobs of dead workers wait again or end."""
    staged = 0
    taken_back: list[tuple[JobState, UUID, int]] = []
    while due := len((yield Step("stage", {"limit": BATCH}))):
        staged += due
        if due < BATCH:
            break
    while rows := (yield Step("sweep", {"limit": BATCH})):
        taken_back += [(JobState(row["state"]), row["id"], row["token"]) for row in rows]
        if len(rows) < BATCH:
            break
    ends = Counter(state for state, *_ in taken_back)
    return Swept(
        staged=staged,
        returned=ends[JobState.ready],
        failed=ends[JobState.failed],
        cancelled=ends[JobState.cancelled],
        taken_back=tuple(taken_back),
    )


def sweep_and_mend() -> Script[Swept]:
    """Do the same and mend every gate, so that rows deleted by hand stop no train."""
    swept = yield from sweep()
    after: Row | None = None
    while rows := (yield from mend(after)):
        after = rows[-1]
    return swept


def mend(after: Row | None = None) -> Script[Rows]:
    """Mend a bounded number of gates after this one: the gates that don't fit their jobs."""
    sort, name = (None, None) if after is None else (after["sort"], after["name"])
    return (yield Step("mend", {"after_sort": sort, "after_name": name, "limit": GATES}))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker that has been heard of lately. Example: `[worker.name for worker in await app.workers()]`"""

    name: str
    queues: list[str] | None
    kinds: list[str]
    concurrency: int
    running: int
    started_at: datetime
    seen_at: datetime
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Upcoming:
    """What a worker learns from the store: is there upkeep, is a job ready, when is the next one due?"""

    overdue: bool
    ready: bool
    seconds: float | None
    schedules: int
    """Another number once a schedule was set or deleted."""
    now: datetime


def tick(worker: str, queues: Sequence[str] | None, kinds: Sequence[str], **more: object) -> Script[Upcoming]:
    """Record that this worker lives; return what is due."""
    about = {"queues": None if queues is None else json_text(queues), "kinds": json_text(kinds), **more}
    [row] = yield Step("tick", {"worker": worker, "version": None, **about, "forget_after": FORGET_WORKERS})
    return _upcoming(row)


def upcoming() -> Script[Upcoming]:
    """Return what is due."""
    [row] = yield Step("upcoming", {})
    return _upcoming(row)


def _upcoming(row: Row) -> Upcoming:
    times = [row[name] for name in ("next_due", "next_lease") if row[name] is not None]
    seconds = (min(times) - row["now"]).total_seconds() if times else None
    return Upcoming(bool(row["overdue"]), bool(row["ready"]), seconds, row["schedules"], row["now"])


def leave(worker: str) -> Script[None]:
    yield Step("leave", {"worker": worker})


def workers(silence: int) -> Script[list[WorkerInfo]]:
    """Return the workers heard of within this time."""
    rows = yield Step("workers", {"silence": silence})
    return [
        WorkerInfo(**{**row, "queues": decode(row["queues"] or "null"), "kinds": decode(row["kinds"])})
        for row in rows
    ]


def takes(worker: WorkerInfo, queue: str, kind: str) -> bool:
    """Return whether this worker claims such jobs."""
    return kind in worker.kinds and (worker.queues is None or queue in worker.queues)


def prune(older_than: int, states: Collection[JobState] = FINISHED) -> Script[int]:
    """Remove jobs that ended in these states longer ago than this, in bounded batches."""
    # Ids contain the time they were made at, so an old enough id bounds the scan: no index on finished_at.
    # That time is of the caller's clock, not the store's, and may be ahead.
    [clock] = yield Step("now", {})
    horizon = clock["now"].timestamp() * SECOND - older_than + CLOCKS_DIFFER
    before = first_id_at(int(horizon // MILLISECOND))
    pruned = 0
    which = {"older_than": older_than, "states": sorted(str(state) for state in states), "before": before}
    while rows := (yield Step("prune", {**which, "limit": BATCH})):
        pruned += len(rows)
    return pruned


def age(micros: int) -> Script[None]:
    """Make everything stored older: how tests let time pass."""
    yield Step("age", {"micros": micros})
