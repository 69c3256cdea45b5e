"""What must happen without anybody asking: due jobs, dead holders, old jobs, and who is here to see to it.

Everybody who claims by hand and every worker does this; there is no leader. Each script asks guarded
questions in bounded batches, so it does no harm if many do it at once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from dibs.clock import MILLISECOND, SECOND
from dibs.ids import first_id_at
from dibs.payload import decode
from dibs.scripts import Row, Script, Step
from dibs.states import FINISHED, JobState

BATCH = 500  # rows per question
FORGET_WORKERS = 3600 * SECOND  # the row of a worker that died without a word goes after this


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one round of upkeep moved."""

    staged: int
    """Scheduled jobs that were due and are ready now."""
    returned: int
    """Jobs whose lease ran out and that wait again."""
    failed: int
    """Jobs whose lease ran out with no attempts left."""
    cancelled: int
    """Jobs that had been asked to cancel when their lease ran out."""


def sweep() -> Script[Swept]:
    """One round of upkeep: due jobs become ready, jobs of dead holders come back or end."""
    staged = 0
    ends = {JobState.ready: 0, JobState.failed: 0, JobState.cancelled: 0}
    while moved := len((yield Step("stage", {"limit": BATCH}))):
        staged += moved
        if moved < BATCH:
            break
    while rows := (yield Step("sweep", {"limit": BATCH})):
        for row in rows:
            ends[JobState(row["state"])] += 1
        if len(rows) < BATCH:
            break
    return Swept(
        staged=staged,
        returned=ends[JobState.ready],
        failed=ends[JobState.failed],
        cancelled=ends[JobState.cancelled],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker that has been heard of lately."""

    name: str
    queues: list[str] | None
    kinds: list[str]
    concurrency: int
    running: int
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class Upcoming:
    """What a worker hears at a tick: is there upkeep, is anything ready, and when is the next thing due?"""

    overdue: bool
    ready: bool
    seconds: float | None


def tick(worker: str, queues: Sequence[str] | None, kinds: Sequence[str], **busy: int) -> Script[Upcoming]:
    """Say that this worker is here; hear what is due."""
    about = {"queues": None if queues is None else _json(queues), "kinds": _json(kinds)}
    [row] = yield Step("tick", {"worker": worker, **about, **busy, "forget_after": FORGET_WORKERS})
    return _upcoming(row)


def upcoming() -> Script[Upcoming]:
    """The same without a word: only what is due."""
    [row] = yield Step("upcoming", {})
    return _upcoming(row)


def _upcoming(row: Row) -> Upcoming:
    moments = [row[name] for name in ("next_due", "next_lease") if row[name] is not None]
    seconds = (min(moments) - row["now"]).total_seconds() if moments else None
    return Upcoming(bool(row["overdue"]), bool(row["ready"]), seconds)


def leave(worker: str) -> Script[None]:
    yield Step("leave", {"worker": worker})


def workers(silence: int) -> Script[list[WorkerInfo]]:
    """Those heard of within this time."""
    rows = yield Step("workers", {"silence": silence})
    return [
        WorkerInfo(**{**row, "queues": _texts(row["queues"]), "kinds": _texts(row["kinds"])}) for row in rows
    ]


def _texts(text: str | None) -> Any:
    return None if text is None else decode(text)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def prune(older_than: int, states: Collection[JobState] = FINISHED) -> Script[int]:
    """Remove jobs that ended so, longer ago than this, in bounded batches."""
    # Ids carry their making time, so an old enough id bounds the scan: no index on finished_at.
    [clock] = yield Step("now", {})
    horizon = clock["now"].timestamp() * SECOND - older_than
    before = first_id_at(int(horizon // MILLISECOND) + 1)
    pruned = 0
    which = {"older_than": older_than, "states": sorted(str(state) for state in states), "before": before}
    while rows := (yield Step("prune", {**which, "limit": BATCH})):
        pruned += len(rows)
    return pruned


def age(micros: int) -> Script[None]:
    """Make everything stored older; how tests let time pass."""
    yield Step("age", {"micros": micros})
