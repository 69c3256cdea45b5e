"""Schedules: which there are, the job of each due tick, and what an operator changes about them.

The store keeps of a schedule its last tick, a text about it (a `Definition`), and a revision, another number
after each change. A tick and its jobs are stored by one question, and only while the schedule is as it was
read: so a tick is enqueued once, by no number of workers, whatever their clocks say, and never while it is
paused.

Workers record the schedules of `@app.every`, and serve only the ones that they have in their code. A schedule
that was put at run time is whole in the store, and every worker serves it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from dibs.clock import MILLISECOND, to_micros
from dibs.errors import BadRequest, NotFound, Refused
from dibs.jobs.ids import new_id
from dibs.jobs.job import NEW_JOB_COLUMNS, Job
from dibs.jobs.payload import decode, json_text
from dibs.jobs.schedules import Missed, Rule, TickBatch, due, rule
from dibs.operations.enqueue import ENOUGH_RACES, NewRow, distinct, enqueue, new_job
from dibs.operations.scripts import Script, Step

RECORDED_EVERY = timedelta(minutes=10)
SERVED_FOR = timedelta(hours=1)  # a schedule that no worker has recorded for this long may be deleted

Origin = Literal["code", "store"]
_TIMES = ("run_at", "delay")


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about a schedule but its last tick: what the store keeps as JSON text."""

    cron: str | None = None
    every: int | None = None
    """Microseconds, where it is an interval."""
    tz: str = "UTC"
    missed: Missed = "latest"
    origin: Origin = "code"
    """`code`: made by `@app.every`; `store`: put there at run time."""
    paused: bool = False
    began_at: datetime | None = None
    """From when its ticks count; its last tick until the first one."""
    recorded_at: datetime | None = None
    """When a worker last recorded it, of a schedule in the code."""
    job: dict[str, Any] = {}
    """The columns of a new job, without its id and its times."""

    @property
    def rule(self) -> Rule | None:
        """When it ticks; None if that is unknown here, as a time zone may be."""
        return _rule(self.cron, self.every, self.tz)

    @property
    def work(self) -> tuple[Any, ...]:
        """What it does and when, whatever its history."""
        return self.cron, self.every, self.tz, self.missed, self.origin, self.job

    def row(self, name: str, id: UUID, tick: datetime) -> NewRow:
        """Return the job of a tick. Its `meta` keeps the tick; `run_at` changes with a retry."""
        meta = json_text({**decode(self.job["meta"]), "schedule": name, "tick": tick.isoformat()})
        pipeline = self.job["pipeline_id"]
        own = {"id": id, "meta": meta, "pipeline_id": None if pipeline is None else UUID(pipeline)}
        values = {**self.job, **own, "run_at": tick, "delay": None}
        return tuple(values[column] for column in NEW_JOB_COLUMNS)


@lru_cache(maxsize=1024)
def _rule(cron: str | None, every: int | None, tz: str) -> Rule | None:
    try:
        return rule(timedelta(microseconds=every or 0) if cron is None else cron, tz)
    except BadRequest:
        return None


def definition(when: Rule, tz: str, missed: Missed, origin: Origin, row: NewRow) -> Definition:
    """Return the definition of a schedule that enqueues this prepared job."""
    job = dict(zip(NEW_JOB_COLUMNS, row, strict=True))
    kept = {name: value for name, value in job.items() if name not in ("id", *_TIMES)}
    kept["pipeline_id"] = None if job["pipeline_id"] is None else str(job["pipeline_id"])
    return Definition(**when.as_parts(), tz=tz, missed=missed, origin=origin, job=kept)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as it was read."""

    last_tick: datetime
    revision: int
    definition: Definition

    def is_served(self, now: datetime) -> bool:
        """Return whether a worker has it in its code."""
        at = self.definition.recorded_at
        return self.definition.origin == "code" and at is not None and now - at < SERVED_FOR


_read = msgspec.json.Decoder(Definition).decode
_write = msgspec.json.Encoder().encode
Definitions = Mapping[str, Definition]


def stored_schedules() -> Script[dict[str, StoredSchedule]]:
    rows = yield Step("schedules", {})
    return {
        row["name"]: StoredSchedule(row["last_tick"], row["revision"], _read(row["about"] or "{}"))
        for row in rows
    }


def write_schedule(
    name: str, found: StoredSchedule | None, tick: datetime, new: Definition, now: datetime
) -> Script[bool]:
    """Store it as it should be; False if it is no longer as it was found."""
    revision = 0 if found is None else found.revision
    to = {
        "schedule": name,
        "since": None if found is None else found.last_tick,
        "revision": revision,
        "tick": tick,
        "new_revision": max(revision + 1, to_micros(now) // MILLISECOND),
        "about": _write(new).decode(),
    }
    return bool((yield Step("set_schedule", to)))


def copy_schedule(name: str, found: StoredSchedule | None, new: StoredSchedule) -> Script[bool]:
    """Store a schedule of another store as it is there."""
    [clock] = yield Step("now", {})
    return (yield from write_schedule(name, found, new.last_tick, new.definition, clock["now"]))


# -- Ticks --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """The jobs that were enqueued for due ticks, and when each schedule ticks next."""

    jobs: Sequence[Job] = ()
    next_ticks: Mapping[str, datetime | None] = field(default_factory=dict)


def enqueue_due(known: Definitions, now: datetime, *, is_first: bool = True) -> Script[Ticked]:
    """Enqueue a job for every tick that is due by the store's clock and was not enqueued before.

    `known` are the schedules of the code; `is_first` says that this process has recorded none of them yet.
    """
    stored = yield from _recorded(known, (yield from stored_schedules()), now, is_first=is_first)
    jobs: list[Job] = []
    next_ticks: dict[str, datetime | None] = {}
    for name, one in stored.items():
        about = known.get(name) or one.definition
        is_elsewhere = about.origin == "code" and name not in known  # in the code of other processes
        when = None if one.definition.paused or is_elsewhere else about.rule
        if when is None:
            continue
        last_tick = one.last_tick
        for batch in due(when, about.missed, last_tick, now):
            enqueued = yield from _enqueue_ticks(name, about, one.revision, batch)
            if enqueued is None:
                break  # another worker was first; as far as we know it is still due, so we will ask again
            jobs += enqueued
            last_tick = batch.tick
        next_ticks[name] = next(when.after(last_tick), None)
    return Ticked(jobs=jobs, next_ticks=next_ticks)


def _enqueue_ticks(name: str, about: Definition, revision: int, batch: TickBatch) -> Script[list[Job] | None]:
    """Return the new jobs; None, and store nothing, when the schedule is no longer as it was read."""
    made = [about.row(name, new_id(), tick) for tick in batch.ticks]
    rows, _ = distinct(made, fresh=True)
    move = {"schedule": name, "since": batch.since, "revision": revision, "tick": batch.tick}
    answer = yield Step("enqueue_tick", {**move, "jobs": list(rows)})
    if not answer:
        return None
    stored = zip(rows, answer[1:], strict=True)
    return [new_job(row, stored_as) for row, stored_as in stored if stored_as["is_new"]]


def _recorded(
    known: Definitions, stored: dict[str, StoredSchedule], now: datetime, *, is_first: bool
) -> Script[dict[str, StoredSchedule]]:
    """Record the schedules of the code that the store lacks, has otherwise, or has from long ago.

    Two versions of an app may differ in a schedule: each worker records its own once, and then only when no
    other has for a while.
    """
    changed = False
    for name, one in known.items():
        found = stored.get(name)
        if found is not None and not _is_stale(found.definition, one, now, is_first=is_first):
            continue
        changed = True
        began = {"began_at": _second(now)} if found is None else _history(found.definition)
        tick = _second(now) if found is None else found.last_tick
        yield from write_schedule(name, found, tick, replace(one, **began, recorded_at=now), now)
    return (yield from stored_schedules()) if changed else stored


def _is_stale(found: Definition, known: Definition, now: datetime, *, is_first: bool) -> bool:
    if found.recorded_at is None or abs(now - found.recorded_at) > RECORDED_EVERY:
        return True
    return is_first and found.work != known.work


def _history(found: Definition) -> dict[str, Any]:
    return {"paused": found.paused, "began_at": found.began_at}


def _second(now: datetime) -> datetime:
    return now.replace(microsecond=0)


# -- Read ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule: its rule, its job, and how far it got.

    What is None is unknown here: only a worker of an earlier version has recorded it.
    Example: `[schedule.next_tick for schedule in await app.schedules.list()]`"""

    name: str
    kind: str | None
    queue: str | None
    args: dict[str, Any] | None
    rule: str | None
    """A cron expression, or how far its ticks are apart."""
    tz: str
    missed: Missed
    origin: Origin
    """`code`: made by `@app.every`; `store`: put there at run time."""
    paused: bool
    last_tick: datetime | None
    """The newest tick that was dealt with; None before the first."""
    next_tick: datetime | None
    """None while it is paused, and before a worker has seen it."""


def find_schedules(known: Definitions) -> Script[list[ScheduleInfo]]:
    """Return all schedules that the store or this app knows, by name."""
    stored = yield from stored_schedules()
    return [_info(name, stored.get(name), known.get(name)) for name in sorted(stored.keys() | known.keys())]


def find_schedule(name: str, known: Definitions) -> Script[ScheduleInfo | None]:
    found = (yield from stored_schedules()).get(name)
    return None if found is None and name not in known else _info(name, found, known.get(name))


def _info(name: str, found: StoredSchedule | None, known: Definition | None) -> ScheduleInfo:
    about = known if found is None or (known is not None and not found.definition.job) else found.definition
    assert about is not None
    when, job, last_tick = about.rule, about.job, None if found is None else found.last_tick
    goes_on = when is not None and last_tick is not None and not about.paused
    return ScheduleInfo(
        name=name,
        kind=job.get("kind"),
        queue=job.get("queue"),
        args=decode(job["args"]) if job else None,
        rule=None if when is None and not job else str(when or about.cron),
        tz=about.tz,
        missed=about.missed,
        origin=about.origin,
        paused=about.paused,
        last_tick=None if last_tick == about.began_at else last_tick,
        next_tick=next(when.after(last_tick), None) if goes_on else None,  # type: ignore[union-attr,arg-type]
    )


# -- Act ----------------------------------------------------------------------------------------

Decide = Callable[[StoredSchedule | None, datetime], tuple[datetime, Definition]]


def put_schedule(name: str, new: Definition) -> Script[ScheduleInfo]:
    """Store a schedule, or change it: one with another rule ticks from now on, a paused one stays paused."""

    def decide(found: StoredSchedule | None, now: datetime) -> tuple[datetime, Definition]:
        if found is None:
            return _second(now), replace(new, began_at=_second(now))
        if found.is_served(now):
            raise _in_code(name, "changed")
        old = found.definition
        if (old.cron, old.every, old.tz) == (new.cron, new.every, new.tz):
            return found.last_tick, replace(new, **_history(old))
        return _second(now), replace(new, paused=old.paused, began_at=_second(now))

    return (yield from _changed(name, decide))


def pause_schedule(name: str, known: Definitions, *, paused: bool) -> Script[ScheduleInfo]:
    """Let it enqueue nothing, or go on with the next tick: the ticks in between are over."""

    def decide(found: StoredSchedule | None, now: datetime) -> tuple[datetime, Definition]:
        if found is None:
            if name not in known:
                raise NotFound(name, "schedule")
            return _second(now), replace(known[name], paused=paused, began_at=_second(now), recorded_at=now)
        old = found.definition
        if not old.job and name in known:
            old = replace(known[name], **_history(old))
        goes_on = old.paused and not paused and old.rule is not None
        missed = old.rule.newest(found.last_tick, now, 1) if goes_on and old.rule is not None else []
        return (missed or [found.last_tick])[-1], replace(old, paused=paused)

    return (yield from _changed(name, decide))


def _changed(name: str, decide: Decide) -> Script[ScheduleInfo]:
    for _ in range(ENOUGH_RACES):
        [clock] = yield Step("now", {})
        found = (yield from stored_schedules()).get(name)
        tick, new = decide(found, clock["now"])
        if found is not None and (found.last_tick, found.definition) == (tick, new):
            return _info(name, found, None)
        if (yield from write_schedule(name, found, tick, new, clock["now"])):
            return _info(name, StoredSchedule(tick, 0, new), None)
    raise AssertionError(f"the schedule {name!r} kept changing")


def run_schedule(
    name: str, known: Definitions, id: UUID, *, fresh: bool = True, ours: bool = False
) -> Script[Job]:
    """Enqueue its job now, as if this second were a tick; paused or not."""
    [clock] = yield Step("now", {})
    found = (yield from stored_schedules()).get(name)
    about = known.get(name) if found is None or not found.definition.job else found.definition
    if about is None and found is None:
        raise NotFound(name, "schedule")
    if about is None:
        raise Refused(
            f"nothing is known of the job of {name!r}: a worker of this version has not run yet, start one"
        )
    [job] = yield from enqueue(
        [about.row(name, id, _second(clock["now"]))], fresh=fresh, ours=[id] if ours else ()
    )
    return job


def delete_schedule(name: str, known: Definitions, *, unsure: bool = False) -> Script[None]:
    """Remove a schedule that was put; the jobs of its ticks stay."""
    [clock] = yield Step("now", {})
    found = (yield from stored_schedules()).get(name)
    if name in known or (found is not None and found.is_served(clock["now"])):
        raise _in_code(name, "deleted")
    if not (yield Step("delete_schedule", {"schedule": name})) and not unsure:
        raise NotFound(name, "schedule")


def _in_code(name: str, what: str) -> Refused:
    return Refused(
        f"the schedule {name!r} is made by @app.every and can't be {what} here: change the code, or pause it"
    )


def refuse_in_code(name: str, known: Definitions) -> None:
    """Refuse to put a schedule with the name of one in the code."""
    if name in known:
        raise _in_code(name, "changed")
