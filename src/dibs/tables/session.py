"""The session of a claim, on a connection or a session that has no transaction open; and when to try again.

With a Session of the caller the claimed instances are attached to it; with a connection they are detached,
loaded and free to use.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from dibs.errors import ClaimInTransaction
from dibs.tables.model import UserTable

AUTOCOMMIT = "AUTOCOMMIT"

PAUSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0)  # seconds between tries

# A deadlock, a lock wait that timed out, a changed record: MySQL and MariaDB undo at least the statement.
MYSQL_AGAIN = {1213, 1205, 1020}
SQLITE_AGAIN = {5, 6}  # busy, locked; the low byte of the extended codes


class ClaimSession:
    """A session for the length of one claim, and the transactions in it."""

    def __init__(self, session: Session, target: UserTable, options: dict[str, Any]) -> None:
        self.session = session
        self.target = target
        self._bind: dict[str, Any] = {"clause": target.table}
        if target.mapper is not None:
            self._bind["mapper"] = target.mapper
        self._options = options

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Begin a transaction: committed on leaving, rolled back on an exception."""
        with self.session.begin():
            yield self.session.connection(bind_arguments=self._bind, execution_options=self._options)

    @property
    def engine(self) -> Engine:
        return self.session.get_bind(**self._bind).engine


def dialect_of(given: Connection | Session, target: UserTable) -> Dialect:
    """Return the dialect of a connection, or of the engine that a session has for this table."""
    if isinstance(given, Connection):
        return given.dialect
    return given.get_bind(mapper=target.mapper, clause=target.table).engine.dialect


@contextmanager
def claim_session(
    given: Connection | Session, target: UserTable, *, autocommit: bool
) -> Iterator[ClaimSession]:
    """Open a session for a claim; refuse it if a transaction is open."""
    if isinstance(given, Connection):
        _refuse_transaction(given)
        with (
            _autocommit(given) if autocommit else nullcontext(),
            Session(bind=given, expire_on_commit=False) as session,
        ):
            yield ClaimSession(session, target, {})
            session.expunge_all()
        return
    if given.in_transaction():
        raise _in_transaction("session", "session.commit()")
    bind = given.get_bind(mapper=target.mapper, clause=target.table)
    if isinstance(bind, Connection):
        _refuse_transaction(bind)
        with _autocommit(bind) if autocommit else nullcontext(), _kept_fresh(given):
            yield ClaimSession(given, target, {})
    else:
        if bind.dialect.server_version_info is None:  # an engine learns it with its first connection
            bind.connect().close()
        with _kept_fresh(given):
            yield ClaimSession(given, target, {"isolation_level": AUTOCOMMIT} if autocommit else {})


def _refuse_transaction(connection: Connection) -> None:
    if connection.in_transaction():
        raise _in_transaction("connection", "connection.commit()")
    # An engine may have one connection for all its users, as in-memory SQLite does.
    driver: Any = connection.connection.driver_connection if connection.dialect.name == "sqlite" else None
    if driver is not None and driver.in_transaction:
        raise _in_transaction("connection that this engine shares", "the commit of its other user")


def _in_transaction(what: str, remedy: str) -> ClaimInTransaction:
    return ClaimInTransaction(
        f"a transaction is open on this {what}, and a claim must be durable when it returns: "
        f"claim after {remedy}, or pass the engine"
    )


@contextmanager
def _kept_fresh(session: Session) -> Iterator[None]:
    """Keep loaded instances through the commit: an expired one costs another query."""
    expires, session.expire_on_commit = session.expire_on_commit, False
    try:
        yield
    finally:
        session.expire_on_commit = expires


@contextmanager
def _autocommit(connection: Connection) -> Iterator[None]:
    """Let each statement commit itself, and leave the connection as it was."""
    asked = connection.get_execution_options().get("isolation_level")
    made: Any = getattr(connection.dialect, "_on_connect_isolation_level", None)
    before = asked or made or connection.default_isolation_level
    connection.execution_options(isolation_level=AUTOCOMMIT)
    try:
        yield
    finally:
        if not (connection.closed or connection.invalidated or connection.in_transaction()):
            connection.execution_options(isolation_level=before)


# -- trying again ---------------------------------------------------------------------------------


def may_try_again(error: DBAPIError) -> bool:
    """Recognise that the database undid a statement because of another transaction."""
    origin: Any = error.orig
    if error.connection_invalidated:
        return False
    state = getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None) or ""
    if str(state).startswith("40"):  # serialization failure, deadlock
        return True
    if (code := getattr(origin, "sqlite_errorcode", None)) is not None:
        return code & 0xFF in SQLITE_AGAIN
    return origin is not None and origin.args[:1] != () and origin.args[0] in MYSQL_AGAIN


class RetryPauses:
    """The pauses between the tries of one call."""

    def __init__(self) -> None:
        self._pauses = iter(PAUSES)

    def after(self, error: DBAPIError) -> float:
        """Return the seconds to wait; raise the error if another try is useless, or there were enough."""
        pause = next(self._pauses, None) if may_try_again(error) else None
        if pause is None:
            raise error
        return pause * (0.5 + random.random())  # noqa: S311


def pause_after_lost_race() -> float:
    """Return the seconds to wait after other callers were faster with every row."""
    return 0.02 * random.random()  # noqa: S311
