"""`DibsBackend`: Django's tasks, kept and run by dibs.

A task is a kind of its own: the path of its function, with `@` and the backend if that is not the default.
A worker that meets one it does not know imports it. A task that raises is failed, as Django's tasks have
it, unless OPTIONS["retry"] says otherwise. After a worker died its tasks run again, up to
OPTIONS["max_attempts"] times.
"""

import logging
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from importlib import import_module
from threading import Lock
from traceback import format_exception
from typing import Any

from django import VERSION
from django.conf import settings
from django.core import checks
from django.db import close_old_connections, connections
from django.utils import timezone
from django.utils.module_loading import import_string

from dibs.app.context import Context
from dibs.errors import BadRequest
from dibs.integrations.django import store
from dibs.jobs.job import Job, JobError, NewJob
from dibs.jobs.payload import LONGEST_NAME
from dibs.jobs.states import WORKER_DIED, JobState, Retry

# Django has tasks since 6.0. A project with the package `django-tasks` among its apps uses that instead.
HAS_PACKAGE = "django_tasks" in settings.INSTALLED_APPS
TASKS_MODULE = "django.tasks" if VERSION >= (6,) and not HAS_PACKAGE else "django_tasks"


def _named(module: str, *names: str) -> list[Any]:
    found = import_module(f"{TASKS_MODULE}{module}")
    return [getattr(found, name) for name in names]


[task_backends] = _named("", "task_backends")
[BaseTaskBackend] = _named(".backends.base", "BaseTaskBackend")
[Task, TaskContext, TaskError, TaskResult, TaskResultStatus] = _named(
    ".base", "Task", "TaskContext", "TaskError", "TaskResult", "TaskResultStatus"
)
[TaskResultDoesNotExist] = _named(".exceptions", "TaskResultDoesNotExist")
[task_enqueued, task_finished, task_started] = _named(
    ".signals", "task_enqueued", "task_finished", "task_started"
)

STATUS = {
    JobState.running: TaskResultStatus.RUNNING,
    JobState.succeeded: TaskResultStatus.SUCCESSFUL,
    JobState.failed: TaskResultStatus.FAILED,
    JobState.cancelled: TaskResultStatus.FAILED,
}
OPTIONS = ("max_attempts", "retry", "timeout", "lease")
_registering = Lock()
log = logging.getLogger("dibs")


class DibsBackend(BaseTaskBackend):  # type: ignore[misc, valid-type]
    """The task backend: tasks are jobs, stored in the open transaction, and never run twice at once."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    app = store.app

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := set(self.options) - set(OPTIONS):
            raise BadRequest(
                f"OPTIONS of TASKS[{alias!r}]: no {min(unknown)!r}; there are {', '.join(OPTIONS)}"
            )
        self._register(self.shared_kind)

    @property
    def shared_kind(self) -> str:
        """The kind of tasks with a path too long for a name, and of tasks stored by earlier versions."""
        return "django_task" if self.alias == "default" else f"django_task.{self.alias}"

    def kind_of(self, path: str) -> str:
        """Return the kind of a task of this backend."""
        kind = path if self.alias == "default" else f"{path}@{self.alias}"
        return kind if len(kind) <= LONGEST_NAME else self.shared_kind

    def validate_task(self, task: Any) -> None:
        """Check a task when it is declared, and register its kind."""
        super().validate_task(task)
        self._register(self.kind_of(task.module_path))

    def _register(self, kind: str) -> None:
        with _registering:  # there is a backend per thread
            if kind not in store.app._core.registry.tasks:
                options = {"retry": Retry.never(), **self.options}
                store.app.job(name=kind, **options)(partial(run_task, self.alias))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a task; inside `atomic` it is stored with the commit, or never."""
        self.validate_task(task)
        new = NewJob(
            self.kind_of(task.module_path),
            {"task": task.module_path, "args": list(args), "kwargs": dict(kwargs)},
            queue=task.queue_name,
            priority=task.priority,
            run_at=_aware(task.run_after),
            meta=None if task.run_after is None else {"run_after": task.run_after.isoformat()},
            tags=[task.module_path] if len(task.module_path) <= LONGEST_NAME else (),
        )
        result = self._result(task, new)
        job = store.enqueue(new)
        object.__setattr__(result, "enqueued_at", None if job is None else job.enqueued_at)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the task as it is now; inside `atomic`, as that transaction sees it."""
        try:
            job = store.get(result_id)
        except BadRequest:
            job = None
        if job is None or job.kind not in (self.kind_of(job.args.get("task", "")), self.shared_kind):
            raise TaskResultDoesNotExist(result_id)
        return self.result_of(job)

    def result_of(self, job: Job) -> Any:
        """Return a job as a result of Django's tasks."""
        after = job.meta.get("run_after")
        about = {"priority": job.priority, "queue_name": job.queue, "backend": self.alias}
        result = self._result(
            _task_of(job).using(run_after=None if after is None else datetime.fromisoformat(after), **about),
            job,
            status=STATUS.get(job.state, TaskResultStatus.READY),
            enqueued_at=job.enqueued_at,
            started_at=job.claimed_at,
            last_attempted_at=job.claimed_at,
            finished_at=job.finished_at,
            errors=[_error_of(error) for error in job.errors],
            worker_ids=_workers_of(job),
        )
        object.__setattr__(result, "_return_value", job.result)
        return result

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        if not store.in_database():
            return
        connection = connections[store.alias()]
        if connection.vendor == "sqlite" and store.url() == "sqlite://":
            yield checks.Warning(
                "jobs are kept in a database in memory, which no worker can reach",
                hint="name a file in DATABASES, or a store of its own in DIBS['URL']",
                id="dibs.W001",
            )

    def _result(self, task: Any, job: Job | NewJob, **known: Any) -> Any:
        """Return the result of a task that nothing but this is known of."""
        args: Any = job.args
        times = dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
        unknown = {"status": TaskResultStatus.READY, **times, "errors": [], "worker_ids": []}
        given = {"task": task, "id": str(job.id), "backend": self.alias}
        return TaskResult(**given, args=args["args"], kwargs=args["kwargs"], **{**unknown, **known})


def run_task(alias: str, ctx: Context, task: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Import a task and call it, in a worker's thread with connections of its own."""
    backend = task_backends[alias]
    result = backend.result_of(ctx.job)
    first = [TaskContext(task_result=result)] if result.task.takes_context else []
    task_started.send(type(backend), task_result=result)
    close_old_connections()
    try:
        returned = result.task.call(*first, *args, **kwargs)
    except BaseException as error:
        result.errors.append(_error_from(error))
        _end(result, status=TaskResultStatus.FAILED)
        raise
    else:
        _end(result, status=TaskResultStatus.SUCCESSFUL, _return_value=returned)
        return returned
    finally:
        task_finished.send(type(backend), task_result=result)
        close_old_connections()


def _end(result: Any, **outcome: Any) -> None:
    """Complete the result for receivers of the signal; `get_result` later has the store's own times."""
    for name, value in {"finished_at": timezone.now(), **outcome}.items():
        object.__setattr__(result, name, value)


def dibs_backends() -> list[DibsBackend]:
    """Return the backends of dibs in TASKS; making one lets its tasks be found."""
    return [one for alias in task_backends if isinstance(one := task_backends[alias], DibsBackend)]


def find(kind: str) -> None:
    """Import the task that a kind is the path of; its declaration registers it."""
    path, _, _ = kind.partition("@")
    try:
        found = import_string(path)
    except ImportError:
        return
    except Exception:
        log.exception("the module of the task %s can't be imported", path)
        return
    for backend in dibs_backends():
        if isinstance(found, Task) and kind == backend.kind_of(path):
            backend._register(kind)


store.app._core.registry.finders.append(find)


def _task_of(job: Job) -> Any:
    task = import_string(job.args["task"])
    if not isinstance(task, Task):
        raise BadRequest(
            f"{job.args['task']} of job {job.id} is not a task: it is no longer decorated with @task"
        )
    return task


def _aware(time: datetime | None) -> datetime | None:
    """Add the project's time zone to a naive time, as Django uses them with USE_TZ off."""
    return timezone.make_aware(time) if time is not None and timezone.is_naive(time) else time


def _error_of(error: JobError) -> Any:
    if error.message == WORKER_DIED:
        return TaskError(exception_class_path="dibs.errors.LeaseLost", traceback=f"{WORKER_DIED}\n")
    kind = error.type if "." in error.type else f"builtins.{error.type}"
    frames = f"Traceback (most recent call last):\n{error.traceback}" if error.traceback else ""
    return TaskError(exception_class_path=kind, traceback=f"{frames}{error.type}: {error.message}\n")


def _error_from(error: BaseException) -> Any:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return TaskError(exception_class_path=kind, traceback="".join(format_exception(error)))


def _workers_of(job: Job) -> list[str]:
    """Return the worker of each attempt."""
    failed = [error.worker or "" for error in job.errors]
    is_running = job.attempts > len(failed) and job.worker is not None
    return [*failed, job.worker or ""] if is_running else failed
