"""Django in this process: set up once, with a database for each test that wants one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import django
import pymysql
from django.conf import settings


def set_up() -> None:
    """Settings can be given only once per process."""
    if settings.configured:
        return
    pymysql.install_as_MySQLdb()
    settings.configure(
        SECRET_KEY="x",
        USE_TZ=True,
        INSTALLED_APPS=["django_tasks", "dibs.integrations.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        TASKS={
            "default": {
                "BACKEND": "dibs.integrations.django.DibsBackend",
                "QUEUES": ["default", "slow"],
            },
            "again": {
                "BACKEND": "dibs.integrations.django.DibsBackend",
                "OPTIONS": {"max_attempts": 2},
            },
        },
    )
    django.setup()


def database(url: str) -> dict[str, Any]:
    """An entry of DATABASES that leads there."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    place = urlsplit(url)
    return {
        "ENGINE": f"django.db.backends.{place.scheme}",
        "NAME": place.path.removeprefix("/"),
        "HOST": place.hostname,
        "PORT": place.port,
        "USER": place.username,
    }


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """A connection of Django's, as a request would have one."""
    set_up()
    from django.db.utils import ConnectionHandler

    connection = ConnectionHandler({"default": database(url)})["default"]
    try:
        yield connection
    finally:
        connection.close()
