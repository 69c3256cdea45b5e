"""The script that enqueues a job for each due tick of a schedule, once; and what is known of schedules.

The store keeps one time per schedule, its last tick. Changing it and storing the jobs is one question, and
only the worker that changes it from the value it read enqueues: so a tick is never enqueued again, not even
when its job has long finished, by no number of workers, whatever their clocks say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dibs.jobs.job import Job, NewJob
from dibs.jobs.schedules import Missed, Rule, TickBatch, due
from dibs.operations.enqueue import NewRow, distinct, new_job
from dibs.operations.scripts import Script, Step


class ScheduleLike(Protocol):
    """What is asked of a schedule: its name, its rule, and the job of a tick."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def missed(self) -> Missed: ...
    def new(self, tick: datetime) -> NewJob: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """The jobs that were enqueued for due ticks, and when each schedule ticks next."""

    jobs: Sequence[Job]
    next_ticks: Mapping[str, datetime | None]


Prepare = Callable[[NewJob], NewRow]


def enqueue_due(schedules: Sequence[ScheduleLike], prepare: Prepare, now: datetime) -> Script[Ticked]:
    """Enqueue a job for every tick that is due by the store's clock and was not enqueued before."""
    stored = yield from last_ticks()
    jobs: list[Job] = []
    next_ticks: dict[str, datetime | None] = {}
    for schedule in schedules:
        last_tick = stored.get(schedule.name)
        for batch in due(schedule.rule, schedule.missed, last_tick, now):
            enqueued = yield from _enqueue_ticks(schedule, prepare, batch)
            if enqueued is None:
                break  # another worker was first; as far as we know it is still due, so we will ask again
            jobs += enqueued
            last_tick = batch.tick
        next_ticks[schedule.name] = now if last_tick is None else next(schedule.rule.after(last_tick), None)
    return Ticked(jobs=jobs, next_ticks=next_ticks)


def _enqueue_ticks(schedule: ScheduleLike, prepare: Prepare, batch: TickBatch) -> Script[list[Job] | None]:
    """Return the new jobs; None, and store nothing, when the last tick is no longer what was read."""
    rows, _ = distinct([prepare(schedule.new(tick)) for tick in batch.ticks], fresh=True)
    answer = yield Step(
        "enqueue_tick",
        {"schedule": schedule.name, "since": batch.since, "tick": batch.tick, "jobs": list(rows)},
    )
    if not answer:
        return None
    stored = zip(rows, answer[1:], strict=True)
    return [new_job(row, stored_as) for row, stored_as in stored if stored_as["is_new"]]


def last_ticks() -> Script[dict[str, datetime]]:
    rows = yield Step("schedules", {})
    return {row["name"]: row["last_tick"] for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule as the store and this app know it; one that this app does not know has no kind."""

    name: str
    kind: str | None
    expression: str | None
    last_tick: datetime | None
    """The newest tick that was dealt with, or when the schedule was first seen; None before that."""
    next_tick: datetime | None


def find_schedules(schedules: Sequence[ScheduleLike]) -> Script[list[ScheduleInfo]]:
    """Return all schedules that the store or this app knows, by name."""
    stored = yield from last_ticks()
    known = {schedule.name: schedule for schedule in schedules}
    return [_info(name, known.get(name), stored.get(name)) for name in sorted(stored.keys() | known.keys())]


def _info(name: str, schedule: ScheduleLike | None, last_tick: datetime | None) -> ScheduleInfo:
    if schedule is None:
        return ScheduleInfo(name=name, kind=None, expression=None, last_tick=last_tick, next_tick=None)
    return ScheduleInfo(
        name=name,
        kind=schedule.kind,
        expression=str(schedule.rule),
        last_tick=last_tick,
        next_tick=None if last_tick is None else next(schedule.rule.after(last_tick), None),
    )
