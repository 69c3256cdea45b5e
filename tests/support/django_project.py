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
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django.contrib.sessions",
            "django_tasks",
            "dibs.integrations.django",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        ROOT_URLCONF="tests.support.django_project",
        ALLOWED_HOSTS=["testserver"],
        STATIC_URL="/static/",
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


def __getattr__(name: str) -> Any:
    """The addresses of the project: this module is its ROOT_URLCONF, too, and has them once it is set up."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.contrib import admin
    from django.urls import path

    return [path("admin/", admin.site.urls)]


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


def point_django_at(url: str) -> None:
    """Use this database from now on."""
    connections = _connections()
    connections.settings.update(connections.configure_settings({"default": database(url)}))
    if hasattr(connections._connections, "default"):
        connections["default"].close()
        del connections["default"]


@contextmanager
def pointed_at(url: str) -> Iterator[None]:
    """Use this database, in Django and in the project's app, for a while."""
    from dibs.integrations.django import app, store

    point_django_at(url)
    store.follow()
    yield
    app.sync.close()
    _connections().close_all()
    point_django_at("sqlite:///:memory:")


def _connections() -> Any:
    from django.db import connections

    return connections


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
