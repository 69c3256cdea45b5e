"""The move itself: batch by batch, pass by pass, until nothing is left that can be moved."""

from collections.abc import Sequence
from uuid import UUID

from dibs.clock import monotonic
from dibs.jobs.job import read_stored
from dibs.jobs.states import JobState
from dibs.moving.checks import compare, copy_settings, copy_ticks, introduce
from dibs.moving.report import KeyTaken, Log, Moved, Way
from dibs.moving.steps import MOST_AT_ONCE, Moving, Rest, ask, counts, departed, question
from dibs.operations import upkeep
from dibs.operations.scripts import Rows

TEXT_AT_ONCE = 4 * 1024 * 1024  # characters; a batch is cut to about this much
GLANCE = 0.2  # seconds between two looks at what is still running


def moving(way: Way) -> Moving[Moved]:
    source, target = yield from introduce()
    before = yield from counts("target")
    left = yield from counts("source")
    log = Log(source, target, sum(left.values()), way.told)
    queues = yield from copy_settings()
    yield from copy_ticks()
    yield from carry(log, way)
    schedules = yield from copy_ticks()
    return (yield from compare(log, way, before, queues, schedules))


def carry(log: Log, way: Way) -> Moving[None]:
    """Until nothing is left that can be moved, and nothing runs that should be waited for."""
    deadline = way.deadline()
    yield from _deliver_departed(log)
    yield from question("target", "landed", way="in", store=log.source, ids=None)
    while True:
        if (yield from _pass(log)):
            continue
        running = (yield from counts("source"))[JobState.running]
        if not running or way.running == "leave" or monotonic() >= deadline:
            return
        yield Rest(GLANCE)
        yield from ask("source", upkeep.sweep)  # a holder that died will not end its job


def _pass(log: Log) -> Moving[int]:
    """Once through all ids; how many were moved. What came in behind is for the next pass."""
    done, after = log.done, None
    while rows := (yield from question("source", "depart", store=log.target, after=after, limit=log.limit)):
        after = rows[-1]["id"]
        yield from _deliver(log, rows)
    yield from _deliver_departed(log)
    return log.done - done


def _deliver_departed(log: Log) -> Moving[None]:
    """What an earlier run left on the way, or departed without our hearing of it: the answer got lost."""
    seen: set[UUID] = set()
    while rows := [row for row in (yield from departed("source")) if row["id"] not in seen]:
        seen |= {row["id"] for row in rows}
        yield from _deliver(log, rows)


def _deliver(log: Log, rows: Rows) -> Moving[None]:
    if not rows:
        return
    texts = [row["job"] for row in rows]
    answers = yield from question("target", "arrive", store=log.source, jobs=texts)
    here = [row["id"] for row in answers if row["holder"] == row["id"]]
    kept = [row["id"] for row in answers if row["holder"] != row["id"]]
    if kept:
        yield from question("source", "give_back", store=log.target, ids=kept)
    yield from question("source", "landed", way="out", store=log.target, ids=here)
    yield from question("target", "landed", way="in", store=log.source, ids=here)
    _note(log, texts, answers)


def _note(log: Log, texts: Sequence[str], answers: Rows) -> None:
    jobs = {job.id: job for job in map(read_stored, texts)}
    for row in answers:
        job = jobs[row["id"]]
        log.refused.pop(job.id, None)
        if row["is_new"]:
            log.jobs[job.state] += 1
        elif row["holder"] == job.id:
            log.known += 1
        else:
            log.refused[job.id] = KeyTaken(id=job.id, unique=job.unique_key or "", holder=row["holder"])
    log.limit = _next_batch(texts)
    log.tell()


def _next_batch(texts: Sequence[str]) -> int:
    """As many as make about the same amount of text, whatever the size of the jobs."""
    average = sum(map(len, texts)) / len(texts)
    return max(1, min(MOST_AT_ONCE, int(TEXT_AT_ONCE / average)))
