"""Where a claim runs: on a connection from the caller's engine, or on their own between transactions.

Whatever was given, there is one `Session` to work with. With a Session of the caller's the claimed instances
are attached to it; otherwise they are detached, loaded and free to use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.orm import Session, scoped_session

from dibs.errors import ClaimInTransaction, UnsupportedConnection
from dibs.tables.model import Target

AUTOCOMMIT = "AUTOCOMMIT"
Given = Engine | Connection | Session | scoped_session[Any]


class Place:
    """A session for the length of one claim, and the transactions in it."""

    def __init__(self, session: Session, target: Target, options: dict[str, Any]) -> None:
        self.session = session
        self.target = target
        self._bind: dict[str, Any] = {"clause": target.table}
        if target.mapper is not None:
            self._bind["mapper"] = target.mapper
        self._options = options

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Durable when this is left; undone on an exception."""
        with self.session.begin():
            yield self.session.connection(bind_arguments=self._bind, execution_options=self._options)

    @property
    def engine(self) -> Engine:
        return self.session.get_bind(**self._bind).engine

    @property
    def dialect(self) -> Dialect:
        return self.engine.dialect


@contextmanager
def place_for(given: Given, target: Target, *, quick: bool) -> Iterator[Place]:
    """A place to claim in; refused where a transaction is open. `quick`: each statement commits itself."""
    given = given() if isinstance(given, scoped_session) else given
    if isinstance(given, Session):
        with _in_session(given, target, quick=quick) as place:
            yield place
    elif isinstance(given, Connection):
        with _on_connection(given, target, quick=quick) as place:
            yield place
    elif isinstance(given, Engine):
        with given.connect() as connection, _on_connection(connection, target, quick=quick) as place:
            yield place
    else:
        raise UnsupportedConnection(_refusal(given))


def engine_of(given: Given, target: Target) -> Engine:
    """The engine behind what was given."""
    given = given() if isinstance(given, scoped_session) else given
    if isinstance(given, Session):
        return given.get_bind(mapper=target.mapper, clause=target.table).engine
    if isinstance(given, Engine | Connection):
        return given.engine
    raise UnsupportedConnection(_refusal(given))


@contextmanager
def _in_session(session: Session, target: Target, *, quick: bool) -> Iterator[Place]:
    if session.in_transaction():
        raise _in_transaction("session", "session.commit()")
    bind = session.get_bind(mapper=target.mapper, clause=target.table)
    if isinstance(bind, Connection):
        _refuse_transaction(bind)
        with _quick(bind) if quick else _as_it_is(), _kept_fresh(session):
            yield Place(session, target, {})
    else:
        _know_the_server(bind)
        with _kept_fresh(session):
            yield Place(session, target, {"isolation_level": AUTOCOMMIT} if quick else {})


@contextmanager
def _on_connection(connection: Connection, target: Target, *, quick: bool) -> Iterator[Place]:
    _refuse_transaction(connection)
    with (
        _quick(connection) if quick else _as_it_is(),
        Session(bind=connection, expire_on_commit=False) as session,
    ):
        yield Place(session, target, {})
        session.expunge_all()


def _know_the_server(engine: Engine) -> None:
    """An engine learns which server it has with its first connection."""
    if engine.dialect.server_version_info is None:
        engine.connect().close()


def _refuse_transaction(connection: Connection) -> None:
    if connection.in_transaction():
        raise _in_transaction("connection", "connection.commit()")
    # An engine may have one connection for everybody, as in-memory SQLite does.
    if connection.dialect.name == "sqlite" and _driver_of(connection).in_transaction:
        raise _in_transaction("connection that this engine shares", "the commit of whoever uses it")


def _driver_of(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _in_transaction(what: str, remedy: str) -> ClaimInTransaction:
    return ClaimInTransaction(
        f"a transaction is open on this {what}, and a claim must be durable when it returns: "
        f"claim after {remedy}, or pass the engine"
    )


@contextmanager
def _kept_fresh(session: Session) -> Iterator[None]:
    """Our commit must not expire what we have just loaded: reading it would cost another query."""
    expires, session.expire_on_commit = session.expire_on_commit, False
    try:
        yield
    finally:
        session.expire_on_commit = expires


@contextmanager
def _quick(connection: Connection) -> Iterator[None]:
    """Let each statement commit itself, and leave the connection as it was."""
    before = _isolation_of(connection)
    connection.execution_options(isolation_level=AUTOCOMMIT)
    try:
        yield
    finally:
        if not (connection.closed or connection.invalidated or connection.in_transaction()):
            connection.execution_options(isolation_level=before)


def _isolation_of(connection: Connection) -> Any:
    """As it was asked for on the connection, on its engine, or when that was made; else the server's."""
    asked = connection.get_execution_options().get("isolation_level")
    made: Any = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return asked or made or connection.default_isolation_level


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


def _refusal(given: object) -> str:
    name = f"{type(given).__module__}.{type(given).__qualname__}"
    if name.startswith("sqlalchemy.ext.asyncio"):
        return f"{name} is awaited: import claim_rows and Claims from dibs.tables, not from dibs.tables.sync"
    return f"can't claim through {name}: pass SQLAlchemy's Engine, Connection or Session"


def check_engine(given: object, needed: type) -> None:
    """Leases are renewed and given up at any time, which takes connections of their own."""
    if not isinstance(given, needed):
        name = f"{type(given).__module__}.{type(given).__qualname__}"
        raise UnsupportedConnection(f"Claims need a {needed.__name__} of SQLAlchemy, not {name}")
