"""The interface of Django's tasks: part of Django since 6.0, else the package `django-tasks`.

A project that has installed the package as an app uses that, whatever its Django has.
"""

from importlib import import_module
from typing import Any

from django import VERSION
from django.conf import settings

HERE = "django.tasks" if VERSION >= (6,) and "django_tasks" not in settings.INSTALLED_APPS else "django_tasks"


def _named(module: str, *names: str) -> list[Any]:
    found = import_module(f"{HERE}{module}")
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
