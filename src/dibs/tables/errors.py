"""What a database may answer instead of rows, and what that means for a claim."""

import random
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from dibs.errors import BadRequest
from dibs.tables.model import Target

PAUSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0)  # seconds between tries

# A deadlock, a lock that took too long, a record that changed: MySQL and MariaDB undo at least the
# statement, sometimes the transaction, and say so in three ways.
MYSQL_AGAIN = {1213, 1205, 1020}
SQLITE_AGAIN = {5, 6}  # busy, locked; the low byte of the extended codes


def may_try_again(error: DBAPIError) -> bool:
    """The database undid what we asked, because of somebody else who asked at the same time."""
    origin: Any = error.orig
    if error.connection_invalidated:
        return False
    state = getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None) or ""
    if str(state).startswith("40"):  # serialization failure, deadlock
        return True
    if (code := getattr(origin, "sqlite_errorcode", None)) is not None:
        return code & 0xFF in SQLITE_AGAIN
    return origin is not None and origin.args[:1] != () and origin.args[0] in MYSQL_AGAIN


class Tries:
    """How often one call was tried, and how long to wait before the next time."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._pauses = iter(PAUSES)
        self._chance = chance

    def pause(self, error: DBAPIError) -> float:
        """Seconds to wait; raises the error when another try is of no use, or was too often."""
        pause = next(self._pauses, None) if may_try_again(error) else None
        if pause is None:
            raise error
        return float(pause * (0.5 + self._chance()))


def breath() -> float:
    """Seconds to let the others finish, after every race was lost."""
    return 0.02 * random.random()  # noqa: S311


# -- views ----------------------------------------------------------------------------------------


def refuse_view(connection: Connection, target: Target) -> None:
    """A view has no rows of its own that could be locked; some databases would pretend that it has."""
    found = inspect(connection)
    schema, name = target.table.schema, target.table.name
    views = found.get_view_names(schema)
    if found.dialect.name == "postgresql":
        views = [*views, *found.get_materialized_view_names(schema)]
    if name in views:
        raise BadRequest(
            f"can't claim rows of {target.name}: {name} is a view; claim the rows of the table that it shows"
        )
