"""What Django has open in this thread."""

from pathlib import Path
from typing import Any

from django.db import connections


def in_transaction(connection: Any) -> bool:
    """In an `atomic` block, or after somebody turned autocommit off on a connection that is in use."""
    return bool(connection.in_atomic_block or (connection.connection and not connection.autocommit))


def is_open_on(path: str) -> bool:
    """Whether one of Django's connections has a transaction open on this SQLite file."""
    return any(
        connection.vendor == "sqlite" and in_transaction(connection) and _leads_to(connection, path)
        for connection in connections.all(initialized_only=True)
    )


def _leads_to(connection: Any, path: str) -> bool:
    name = Path(str(connection.settings_dict["NAME"]))
    return name.exists() and Path(path).exists() and name.samefile(path)
