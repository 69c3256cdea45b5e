"""The kinds and schedules that a process knows, and the way from a new job to its row."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload
from uuid import UUID

from dibs.app.context import Context
from dibs.app.tasks import Task
from dibs.errors import BadRequest
from dibs.jobs import payload
from dibs.jobs.ids import is_version_7, parse_id
from dibs.jobs.job import Job, NewJob, not_a_new_job
from dibs.jobs.options import (
    DEFAULT_LEASE,
    DEFAULTS,
    NO_GATE,
    Options,
    check_attempts,
    check_policy,
    check_priority,
    gate_columns,
    unique_columns,
)
from dibs.jobs.payload import check_name
from dibs.jobs.schedules import Missed, Rule, check_missed
from dibs.operations.enqueue import NewRow
from dibs.operations.schedules import Definition, definition
from dibs.settings import Settings, lease_micros

if TYPE_CHECKING:
    from dibs.app.state import AppState


@dataclass(frozen=True, slots=True)
class Registry:
    """The kinds that this process knows."""

    settings: Settings
    tasks: dict[str, Task[..., Any]] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    """The leases of kinds that don't have the usual one, in microseconds."""
    finders: list[Callable[[str], None]] = field(default_factory=list)
    """Of a framework: each is asked once for a kind that is not known, and may register it."""
    asked: set[str] = field(default_factory=set)

    def add(self, task: Task[..., Any]) -> None:
        if task.kind in self.tasks:
            raise BadRequest(f"the kind {task.kind!r} is already registered; give one of them a name=")
        self.tasks[task.kind] = task
        if (lease := lease_micros(task.options.lease)) != lease_micros(DEFAULT_LEASE):
            self.leases[task.kind] = lease

    def remove(self, task: Task[..., Any]) -> None:
        del self.tasks[task.kind]
        self.leases.pop(task.kind, None)

    def knows(self, kind: str) -> bool:
        """Return whether the kind is registered, also if a finder does that now."""
        if kind not in self.tasks and self.finders and kind not in self.asked:
            self.asked.add(kind)
            for find in self.finders:
                find(kind)
        return kind in self.tasks

    def options(self, kind: str) -> Options:
        task = self.tasks.get(kind)
        return DEFAULTS if task is None else task.options

    def prepare(self, new: NewJob, parent: Job | None = None) -> NewRow:
        """Check a new job whole, and resolve what it leaves open. Nothing has been written yet."""
        if not isinstance(new, NewJob):
            raise not_a_new_job(new)
        task = self.tasks.get(new.kind) if isinstance(new.kind, str) else None
        options = DEFAULTS if task is None else task.options
        delay = run_at = None
        if new.delay is not None or new.run_at is not None:
            delay, run_at = payload.check_due(new.run_at, new.delay)
        gate, key = self._gate(new, task, options), _key(new, task)
        args = {} if new.args is None else _check_mapping(new.args, f"args of {new.kind!r}")
        kind = payload.check_name(new.kind, "kind") if task is None else task.kind
        text = payload.encode(args, f"args of {new.kind!r}", self.settings.max_payload)
        if task is not None:
            task.signature.check(text, args)
        return (
            new.id if new._fresh else _checked_id(new.id),
            kind,
            options.queue if new.queue is None else payload.check_name(new.queue, "queue"),
            text,
            options.priority if new.priority is None else check_priority(new.priority),
            run_at,
            delay,
            options.max_attempts if new.max_attempts is None else check_attempts(new.max_attempts),
            key,
            options.on_cancelled if new.on_cancelled is None else check_policy(new.on_cancelled),
            options.on_failed if new.on_failed is None else check_policy(new.on_failed),
            _pipeline(new, parent),
            None if parent is None else parent.id,
            _tags(new.tags),
            self._meta(new.meta),
            *gate,
            *_unique(key, new, options),
        )

    def _gate(self, new: NewJob, task: Task[..., Any] | None, options: Options) -> tuple[Any, ...]:
        """Return its train, or its slot with policy and limit: as the job says, else as its kind does."""
        train, slot, policy, limit = new.train, new.slot, new.slot_policy, new.slot_limit
        if task is not None and not new._own_gate:
            if train is None and slot is None and task.has_gate:
                given = task.gate(_check_mapping(new.args or {}, f"args of {new.kind!r}"))
                train, slot = given.get("train"), given.get("slot")
            elif (train is None) != (slot is None):
                task.refuse_silent_change({"slot": slot} if train is None else {"train": train})
        if slot is not None:
            policy = options.slot_policy if policy is None else policy
            limit = options.slot_limit if limit is None else limit
        columns = (train, slot, policy, limit)
        return NO_GATE if columns == NO_GATE else gate_columns(*columns)

    def _meta(self, meta: Mapping[str, Any] | None) -> str:
        if meta is None:
            return "{}"
        return payload.encode(_check_mapping(meta, "meta"), "meta", self.settings.max_payload)


def _checked_id(given: UUID | str) -> UUID:
    id = parse_id(given)
    if not is_version_7(id):
        raise BadRequest(f"id={id} is not a UUIDv7; leave it out and dibs makes one")
    return id


def _key(new: NewJob, task: Task[..., Any] | None) -> str | None:
    """Return its unique key: as the job says, else as its kind does."""
    key = new.unique
    if key is None and task is not None and task.options.unique is not None and not new._own_unique:
        key = task.unique(_check_mapping(new.args or {}, f"args of {new.kind!r}"))
    return None if key is None else payload.check_name(key, "unique")


def _unique(key: str | None, new: NewJob, options: Options) -> tuple[int | None, bool]:
    """Return the columns unique_for, replaces."""
    lasts = options.unique_for if new.unique_for is None else new.unique_for
    conflict = options.on_conflict if new.on_conflict is None else new.on_conflict
    if key is None:
        if (new.unique_for, new.on_conflict) != (None, None):
            raise BadRequest("unique_for= and on_conflict= need a unique= key")
        return None, False
    return unique_columns(lasts, conflict)


def _pipeline(new: NewJob, parent: Job | None) -> UUID | None:
    own = None if new.pipeline_id is None else parse_id(new.pipeline_id)
    if parent is None:
        return own
    shared = parent.pipeline_id or parent.id
    if own not in (None, shared):
        raise BadRequest(
            f"pipeline_id={own}: what follows job {parent.id} is of its pipeline, {shared}; leave it out, or "
            "enqueue that job by itself"
        )
    return shared


def _check_mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict | Mapping) or not all(isinstance(name, str) for name in value):
        raise BadRequest(f"{what} must be a mapping of names to values, not {value!r}")
    return value


def _tags(tags: Sequence[str]) -> str:
    if tags in ((), []):
        return "[]"
    if isinstance(tags, str) or not isinstance(tags, Collection) or len(tags) > payload.MOST_TAGS:
        raise BadRequest(f"tags must be a list of at most {payload.MOST_TAGS} strings, not {tags!r}")
    return payload.json_text([payload.check_name(tag, "tag") for tag in tags])


P = ParamSpec("P")
R = TypeVar("R")


# -- `@app.every`: the schedules that this process knows -----------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Jobs of one kind that are enqueued at the ticks of a rule."""

    task: Task[..., Any]
    rule: Rule
    tz: str = "UTC"
    missed: Missed = "latest"
    own_name: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        check_missed(self.missed)
        _check_mapping(self.args, "args")
        _check_mapping(self.options.get("meta") or {}, "meta")
        if taken := {"run_at", "delay", "within"} & self.options.keys():
            raise BadRequest(f"every(…, {min(taken)}=…): a job is enqueued at its tick, by a worker")

    @property
    def name(self) -> str:
        return self.kind if self.own_name is None else self.own_name

    @property
    def kind(self) -> str:
        return self.task.kind

    def new(self) -> NewJob:
        """Return the job that each tick gets a copy of."""
        return self.task.using(**self.options).new(**self.args)


class CodeSchedules:
    """The schedules that this process knows, by name."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._by_name: dict[str, Schedule] = {}
        self.definitions: dict[str, Definition] = {}
        self.implied: set[Task[..., Any]] = set()
        """Tasks made of plain functions by `@app.every`; an `@app.job` above it may still replace them."""

    def add(self, schedule: Schedule) -> None:
        if schedule.name in self._by_name:
            raise BadRequest(
                f"there is a schedule {schedule.name!r} already; give this one a name= of its own"
            )
        row = self._registry.prepare(schedule.new())  # its arguments fit, or this says what does not
        self._by_name[schedule.name] = schedule
        self.definitions[schedule.name] = definition(schedule.rule, schedule.tz, schedule.missed, "code", row)

    def hand_over(self, old: Task[..., Any], new: Task[..., Any]) -> None:
        """Give the schedules of one task to another."""
        for schedule in [one for one in self if one.task is old]:
            del self._by_name[schedule.name], self.definitions[schedule.name]
            self.add(replace(schedule, task=new))
        self.implied.discard(old)

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


class EveryDecorator:
    """The decorator for what `@app.job` made; it makes a job of a plain function."""

    def __init__(
        self, core: "AppState", job: Callable[[Any], Task[..., Any]], about: Mapping[str, Any]
    ) -> None:
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
