"""Tasks of a Django project, as its author writes them."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django_tasks import task

ran: list[Any] = []


@task()
def note(*args: Any, **kwargs: Any) -> list[Any]:
    ran.append((args, kwargs))
    return [list(args), kwargs]


@task(queue_name="slow", priority=7)
async def note_later(word: str = "") -> str:
    ran.append(word)
    return word


@task(takes_context=True)
def attempt(context: Any) -> int:
    return int(context.attempt)


@task(backend="again")
def of_another_backend() -> None: ...


@task()
def broken() -> None:
    raise ValueError("this does not work")


@task()
def ask_the_database() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("select 7")
        [number] = cursor.fetchone()
        return int(number)


def not_a_task() -> None: ...
