"""`@app.every(...)`: a decorator that puts a schedule on a job."""

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from dibs.context import Context
from dibs.core import Core
from dibs.errors import BadRequest
from dibs.schedules import Schedule
from dibs.tasks import Task

P = ParamSpec("P")
R = TypeVar("R")


class EveryDecorator:
    """Goes on what `@app.job` made; a plain function becomes a job by it."""

    def __init__(self, core: Core, job: Callable[[Any], Task[..., Any]], about: Mapping[str, Any]) -> None:
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
