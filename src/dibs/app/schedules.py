"""`@app.every`: the schedules that this process knows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from dibs.app.context import Context
from dibs.app.registry import Registry
from dibs.app.tasks import Task
from dibs.errors import BadRequest
from dibs.jobs.job import NewJob
from dibs.jobs.payload import check_name
from dibs.jobs.schedules import Missed, Rule, check_missed
from dibs.operations.schedules import Definition, definition

if TYPE_CHECKING:
    from dibs.app.state import AppState

P = ParamSpec("P")
R = TypeVar("R")


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


def _check_mapping(value: object, what: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise BadRequest(f"{what} must be a mapping of names to values, not {value!r}")


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
