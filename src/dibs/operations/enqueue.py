"""Store new jobs: all of one call or none.

A job is not stored again if its id or unique key is in the store already; the job that has it is returned.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import structs

from dibs.jobs.job import NEW_JOB_COLUMNS, STATES, Job, job_from_row
from dibs.jobs.payload import decode
from dibs.operations.queries import current_ids, rows_by_id
from dibs.operations.scripts import Row, Rows, Script, Step

ENOUGH_RACES = 20  # a guarded question that keeps losing this often points at a bug, not at luck

# A checked job as the store will get it, in the order of `NEW_JOB_COLUMNS`.
NewRow = tuple[Any, ...]

_ID, _UNIQUE, _REPLACES = (NEW_JOB_COLUMNS.index(name) for name in ("id", "unique_key", "replaces"))
_REPLACED = [NEW_JOB_COLUMNS.index(name) for name in ("args", "run_at", "delay", "replaces")]


def enqueue(
    rows: Sequence[NewRow], *, fresh: bool, ours: Collection[UUID] = (), races: int = ENOUGH_RACES
) -> Script[list[Job]]:
    """Store all of these or none.

    `fresh` says that these ids can't have been stored before; `ours` are ids that an earlier try of this
    very call may have stored, before its reply was lost: finding them is finding its own work.
    """
    known = {} if fresh else (yield from rows_by_id([row[_ID] for row in rows]))
    batch, twins = distinct([row for row in rows if row[_ID] not in known] if known else rows, fresh)
    answers = (yield Step("enqueue", {"jobs": batch, "fresh": fresh})) if batch else ()
    holders = {answer["holder"] for answer in answers if not answer["is_new"]}
    if holders:
        known |= yield from rows_by_id(holders)
    current = (yield from current_ids(known.values())) if known else set()
    if not holders <= known.keys():
        return (yield from _enqueue_again(rows, ours, batch, answers, races))
    stored = {
        row[_ID]: _stored_job(row, answer, known, current, ours)
        for row, answer in zip(batch, answers, strict=True)
    }
    if len(stored) == len(rows):
        return list(stored.values())
    stored |= {
        id: job_from_row(row, is_new=id in ours, is_current=id in current)
        for id, row in known.items()
        if id not in stored
    }
    return _with_twins(rows, stored, twins)


def _enqueue_again(
    rows: Sequence[NewRow], ours: Collection[UUID], batch: Sequence[NewRow], answers: Rows, races: int
) -> Script[list[Job]]:
    """Try again after the job that had a key was deleted; remember what this call has stored already."""
    if races <= 0:
        raise AssertionError(f"enqueue kept losing races for {[row[_ID] for row in rows]}")
    new = {row[_ID] for row, answer in zip(batch, answers, strict=True) if answer["is_new"]}
    return (yield from enqueue(rows, fresh=False, ours={*ours, *new}, races=races - 1))


def _stored_job(
    row: NewRow, answer: Row, known: Mapping[UUID, Row], current: Collection[UUID], ours: Collection[UUID]
) -> Job:
    if answer["is_new"]:
        return new_job(row, answer)
    holder = answer["holder"]
    is_new = holder == row[_ID] and holder in ours
    return job_from_row(known[holder], is_new=is_new, is_current=holder in current)


def distinct(rows: Sequence[NewRow], fresh: bool) -> tuple[Sequence[NewRow], dict[UUID, UUID]]:
    """Return the rows without repetitions of an id or unique key, and the first job for each repetition.

    A job that replaces the waiting job with its key does so here.
    """
    if fresh and not any(row[_UNIQUE] for row in rows):
        return rows, {}
    first_of: dict[Any, UUID] = {}
    batch: dict[UUID, NewRow] = {}
    twins: dict[UUID, UUID] = {}
    for row in rows:
        id, key = row[_ID], row[_ID] if row[_UNIQUE] is None else row[_UNIQUE]
        if key in first_of or id in first_of:
            first = twins[id] = first_of.get(id) or first_of[key]
            if row[_REPLACES]:
                batch[first] = _replaced(batch[first], row)
        else:
            first_of[key] = first_of[id] = id
            batch[id] = row
    return list(batch.values()), twins


def _replaced(first: NewRow, row: NewRow) -> NewRow:
    """Return the first row with the arguments and the time of this one, which also replaces in the store."""
    return tuple(row[at] if at in _REPLACED else value for at, value in enumerate(first))


def _with_twins(rows: Sequence[NewRow], stored: Mapping[UUID, Job], twins: Mapping[UUID, UUID]) -> list[Job]:
    """Return one job per row again: for a repetition the job that was stored for the first."""
    seen: set[UUID] = set()
    return [_once(stored[twins.get(row[_ID], row[_ID])], row[_ID], seen) for row in rows]


def _once(job: Job, asked: UUID, seen: set[UUID]) -> Job:
    """Return the job as new only the first time."""
    first = job.id not in seen
    seen.add(job.id)
    return job if first and job.id == asked else structs.replace(job, is_new=False)


def new_job(values: tuple[Any, ...], answer: Row) -> Job:
    """Return the Job of what was just written: nothing is read back but its state and the store's times."""
    (id, kind, queue, args, priority, _, _, max_attempts, unique, _, _, pipeline, parent, *rest) = values
    tags, meta, train, slot, *_ = rest
    return Job(
        id=id,
        kind=kind,
        queue=queue,
        args=decode(args),
        priority=priority,
        state=STATES[answer["state"]],
        attempts=0,
        max_attempts=max_attempts,
        run_at=answer["run_at"],
        enqueued_at=answer["enqueued_at"],
        train=train,
        slot=slot,
        unique=unique,
        pipeline_id=pipeline,
        parent_id=parent,
        tags=[] if tags == "[]" else decode(tags),
        meta={} if meta == "{}" else decode(meta),
        is_new=True,
    )
