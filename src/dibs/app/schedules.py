"""`@app.every`: which ticks of a schedule are due, and the script that enqueues a job for each, once.

The store keeps one moment per schedule, its last tick. Moving it and storing the jobs is one question, and
only who moves it from where it was seen enqueues: so a tick is never enqueued again, not even when its job
has long finished, by no number of workers, whatever their clocks say.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from dibs.app.context import Context
from dibs.app.registry import Registry
from dibs.app.tasks import Task
from dibs.errors import BadRequest
from dibs.jobs.job import Job, NewJob
from dibs.jobs.payload import check_name
from dibs.jobs.schedules import Rule
from dibs.operations.enqueue import distinct, new_job
from dibs.operations.scripts import Script, Step

if TYPE_CHECKING:
    from dibs.app.verbs import Core

Missed = Literal["latest", "all", "skip"]

MOST_CAUGHT_UP = 1000  # ticks that missed="all" makes up for; older ones are gone
BATCH = 100  # jobs per question
LATE = timedelta(minutes=1)  # a tick up to this old is late, not missed: a restart costs no tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Jobs of one kind that are enqueued at the ticks of a rule."""

    task: Task[..., Any]
    rule: Rule
    missed: Missed = "latest"
    own_name: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if self.missed not in ("latest", "all", "skip"):
            raise BadRequest(f"missed={self.missed!r} is unknown: use 'latest', 'all' or 'skip'")
        _check_mapping(self.args, "args")
        _check_mapping(self.options.get("meta") or {}, "meta")
        if taken := {"run_at", "delay", "within"} & self.options.keys():
            raise BadRequest(f"every(…, {min(taken)}=…): a job is enqueued at its tick, by a worker")

    @property
    def name(self) -> str:
        return self.task.kind if self.own_name is None else self.own_name

    def new(self, tick: datetime) -> NewJob:
        """The job of one tick. Its `meta` tells the tick for good; `run_at` moves when it is retried."""
        meta = {**(self.options.get("meta") or {}), "schedule": self.name, "tick": tick.isoformat()}
        return self.task.using(**{**self.options, "meta": meta, "run_at": tick}).new(**self.args)


class Schedules:
    """The schedules that this process knows, by name."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._by_name: dict[str, Schedule] = {}
        self.implied: set[Task[..., Any]] = set()
        """Tasks made of plain functions by `@app.every`; an `@app.job` above it may still replace them."""

    def add(self, schedule: Schedule) -> None:
        if schedule.name in self._by_name:
            raise BadRequest(
                f"there is a schedule {schedule.name!r} already; give this one a name= of its own"
            )
        self._registry.prepare(schedule.new(_SOME_TICK))  # its arguments fit, or this says what does not
        self._by_name[schedule.name] = schedule

    def hand_over(self, old: Task[..., Any], new: Task[..., Any]) -> None:
        """What was scheduled for one task is from now on for another."""
        for schedule in [one for one in self if one.task is old]:
            del self._by_name[schedule.name]
            self.add(replace(schedule, task=new))
        self.implied.discard(old)

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


def _check_mapping(value: object, what: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise BadRequest(f"{what} must be a mapping of names to values, not {value!r}")


_SOME_TICK = datetime(2024, 1, 1, tzinfo=UTC)


# -- Decide -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    """A step of a schedule's last tick, from where it was seen, and the ticks that get a job with it."""

    since: datetime | None
    tick: datetime
    ticks: Sequence[datetime] = ()


def due(rule: Rule, missed: Missed, last_tick: datetime | None, now: datetime) -> list[Move]:
    """What is to be done about the ticks since the last one.

    A schedule that was never seen starts now. A clock that was set back finds its last tick in the future,
    and nothing to do until it has caught up. Ticks that are merely late all get their job; `missed` is for
    those that nobody was there for.
    """
    if last_tick is None:
        return [Move(None, now.replace(microsecond=0))]
    first = next(rule.after(last_tick), None)
    if first is None or first > now:
        return []
    if missed == "all" or now - first <= LATE:
        return _in_batches(last_tick, rule.newest(last_tick, now, MOST_CAUGHT_UP))
    [newest] = rule.newest(last_tick, now, 1)
    dropped = missed == "skip" and now - newest > LATE
    return [Move(last_tick, newest, [] if dropped else [newest])]


def _in_batches(since: datetime, ticks: Sequence[datetime]) -> list[Move]:
    moves: list[Move] = []
    for start in range(0, len(ticks), BATCH):
        batch = ticks[start : start + BATCH]
        moves.append(Move(since, batch[-1], batch))
        since = batch[-1]
    return moves


# -- Ask ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """What a look at the schedules came to: jobs that we enqueued, and when each schedule ticks next."""

    jobs: Sequence[Job]
    next_ticks: Mapping[str, datetime | None]


def enqueue_due(schedules: Sequence[Schedule], registry: Registry, now: datetime) -> Script[Ticked]:
    """Enqueue a job for every tick that is due by the store's clock and that nobody enqueued before."""
    stored = yield from last_ticks()
    jobs: list[Job] = []
    next_ticks: dict[str, datetime | None] = {}
    for schedule in schedules:
        last_tick = stored.get(schedule.name)
        for move in due(schedule.rule, schedule.missed, last_tick, now):
            enqueued = yield from _enqueue_tick(schedule, registry, move)
            if enqueued is None:
                break  # somebody else moved it; as far as we know it is still due, so we will look again
            jobs += enqueued
            last_tick = move.tick
        next_ticks[schedule.name] = now if last_tick is None else next(schedule.rule.after(last_tick), None)
    return Ticked(jobs=jobs, next_ticks=next_ticks)


def _enqueue_tick(schedule: Schedule, registry: Registry, move: Move) -> Script[list[Job] | None]:
    """The new jobs; None, and nothing stored, when the schedule is no longer where it was seen."""
    rows = [registry.prepare(schedule.new(tick)) for tick in move.ticks]
    batch, _ = distinct(rows, fresh=True)
    answer = yield Step(
        "enqueue_tick",
        {"schedule": schedule.name, "since": move.since, "tick": move.tick, "jobs": list(batch)},
    )
    if not answer:
        return None
    stored = zip(batch, answer[1:], strict=True)
    return [new_job(row, stored_as) for row, stored_as in stored if stored_as["is_new"]]


def last_ticks() -> Script[dict[str, datetime]]:
    rows = yield Step("schedules", {})
    return {row["name"]: row["last_tick"] for row in rows}


# -- Look ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule as the store and this app know it; one that this app does not know has no kind."""

    name: str
    kind: str | None
    expression: str | None
    last_tick: datetime | None
    """The newest tick that was dealt with, or when the schedule was first seen; None before that."""
    next_tick: datetime | None


def look(schedules: Sequence[Schedule]) -> Script[list[ScheduleInfo]]:
    """All schedules that the store or this app knows, by name."""
    stored = yield from last_ticks()
    known = {schedule.name: schedule for schedule in schedules}
    return [_info(name, known.get(name), stored.get(name)) for name in sorted(stored.keys() | known.keys())]


def _info(name: str, schedule: Schedule | None, last_tick: datetime | None) -> ScheduleInfo:
    if schedule is None:
        return ScheduleInfo(name=name, kind=None, expression=None, last_tick=last_tick, next_tick=None)
    return ScheduleInfo(
        name=name,
        kind=schedule.task.kind,
        expression=str(schedule.rule),
        last_tick=last_tick,
        next_tick=None if last_tick is None else next(schedule.rule.after(last_tick), None),
    )


P = ParamSpec("P")
R = TypeVar("R")


class EveryDecorator:
    """Goes on what `@app.job` made; a plain function becomes a job by it."""

    def __init__(self, core: "Core", job: Callable[[Any], Task[..., Any]], about: Mapping[str, Any]) -> None:
        self._core = core
        self._job = job
        self._about = about

    @overload
    def __call__(self, function: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...

    def __call__(self, function: Any, /) -> Any:
        task = function if isinstance(function, Task) else self._implied(function)
        if self._core.registry.tasks.get(task.kind) is not task:
            raise BadRequest(f"{task.kind!r} is not a job of this app; put @app.every on what @app.job made")
        self._core.schedules.add(Schedule(task=task, **self._about))
        return task

    def _implied(self, function: Any) -> Task[..., Any]:
        task = self._job(function)
        self._core.schedules.implied.add(task)
        return task
