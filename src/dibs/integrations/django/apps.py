"""The app that Django loads, and what it tells dibs about open transactions."""

from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate

from dibs.engines.sqlite.file import OWN_TRANSACTIONS


class DibsConfig(AppConfig):  # type: ignore[misc]
    """dibs as an app of Django, with the label `dibs`: `manage.py migrate dibs`."""

    name = "dibs.integrations.django"
    label = "dibs"
    verbose_name = "dibs"

    def ready(self) -> None:
        post_migrate.connect(_follow, dispatch_uid="dibs")
        OWN_TRANSACTIONS.append(has_open_transaction)


def _follow(**_: Any) -> None:
    """Use the database that was migrated: a test run makes one of its own."""
    from dibs.integrations.django.store import follow

    follow()


def in_transaction(connection: Any) -> bool:
    """Return whether it is in an `atomic` block, or in use with autocommit turned off."""
    return bool(connection.in_atomic_block or (connection.connection and not connection.autocommit))


def has_open_transaction(path: str) -> bool:
    """Return whether one of Django's connections has a transaction open on this SQLite file."""
    return any(
        connection.vendor == "sqlite" and in_transaction(connection) and _is_file(connection, path)
        for connection in connections.all(initialized_only=True)
    )


def _is_file(connection: Any, path: str) -> bool:
    name = Path(str(connection.settings_dict["NAME"]))
    return name.exists() and Path(path).exists() and name.samefile(path)
