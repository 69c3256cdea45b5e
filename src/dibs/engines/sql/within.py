"""Connections of the caller: dibs queries through them and leaves their transaction alone.

`within=` takes any of the classes below, found by their qualified name so that no driver has to be
installed for the others. Nothing here begins, commits or rolls back.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

from dibs.engines.mysql.engine import MySQL
from dibs.engines.mysql.pools import asyncmy_query, pymysql_query
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.pools import asyncpg_query
from dibs.engines.sql.blocks import placeholders
from dibs.engines.sql.engine import Copy, Plan, Query
from dibs.engines.sqlite.engine import SQLite
from dibs.engines.sqlite.file import sqlite_query
from dibs.errors import UnsupportedConnection
from dibs.operations.scripts import Rows, Step, run, run_async

Face = Literal["sync", "async"]
Engine = PostgreSQL | SQLite | MySQL

NO_TABLES = {"42P01", 1146}
AGAIN = {"40001", "40P01", 1213, 1205, 1020}  # serialization, deadlock, lock wait, record changed
UNDONE = (
    "the database undid this in favour of another transaction, and dibs repeats nothing within= yours: "
    "roll it back, then run the whole of it again"
)


class NoTables(UnsupportedConnection):
    """The caller's connection leads to a database without our tables."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One class of connections, and how to use it."""

    label: str
    faces: tuple[Face, ...]
    store: Callable[[Any], str]
    query: Callable[[Any, Any], Any]
    in_transaction: Callable[[Any], bool]
    is_async: bool = False
    has_begun: Callable[[Any], bool] = lambda _: False  # as far as one can tell before the first statement


def bind(within: object, engine: Engine, own: str | None, face: Face) -> Callable[[Step], Any]:
    """Return a function that executes steps on the caller's connection, which on the async face may be sync.

    `own` is the app's own file, or the name of its database, where the connection may lead elsewhere.
    """
    return _bound_to(within, engine, face, lambda step: _plan(engine, step, own))


def bind_queries(within: object, words: Any, face: Face) -> Callable[[Query], Any]:
    """Return a function that runs single queries, with the blocks of `words`, on the caller's connection."""
    return _bound_to(within, words, face, _alone)


def _bound_to(within: object, words: Any, face: Face, plan: Callable[[Any], Plan]) -> Callable[[Any], Any]:
    adapter = _adapter(within, words, face)
    query = adapter.query(within, words)

    def execute(asked: Any) -> Rows:
        with _explained(adapter, within):
            return run(plan(asked), query)

    async def execute_async(asked: Any) -> Rows:
        if not adapter.is_async:
            return execute(asked)
        with _explained(adapter, within):
            return await run_async(plan(asked), query)

    return execute if face == "sync" else execute_async


def _alone(query: Query) -> Plan:
    return (yield query)


def _plan(engine: Engine, step: Step, own: str | None) -> Plan:
    """Return the engine's answer, after a check that the connection leads to the app's own store."""
    if own is not None and isinstance(engine, SQLite):
        check_same_file((yield Query("files", {})), own)
    elif own is not None:
        check_same_database((yield Query("database", {})), own)
    return (yield from engine.answer(step, own=False))


def check_same_file(files: Rows, path: str) -> None:
    """Refuse a connection that is open on another file."""
    for row in files:
        other = row["file"]
        if row["name"] == "main" and other and Path(path).exists() and not Path(other).samefile(path):
            raise UnsupportedConnection(
                f"this connection is open on {other} and the store is {path}: "
                "what is written can only live and die with a transaction of its own store"
            )


def check_same_database(found: Rows, name: str) -> None:
    """Refuse another database of the same server, which may have dibs' tables as well."""
    other = found[0]["name"]
    if other is not None and other.casefold() != name.casefold():
        raise UnsupportedConnection(
            f"this connection leads to the database {other!r} and the app's store is {name!r}: "
            "what is written can only live and die with a transaction of its own store"
        )


def _adapter(within: object, engine: Engine, face: Face) -> Adapter:
    adapter = known_adapter(within)
    if adapter is None or face not in adapter.faces or adapter.store(within) != engine.dialect.name:
        raise UnsupportedConnection(_refusal(within, adapter, engine, face))
    return adapter


def known_adapter(within: object) -> Adapter | None:
    """Return the adapter of this connection; None if dibs does not know its class."""
    for cls in type(within).__mro__:
        if (adapter := ADAPTERS.get(f"{cls.__module__}.{cls.__qualname__}")) is not None:
            return adapter
    return None


def has_begun(within: object) -> bool:
    """Return whether a transaction is open that keeps other connections from writing to the file."""
    adapter = known_adapter(within)
    return adapter is not None and adapter.has_begun(within)


def _refusal(within: object, adapter: Adapter | None, engine: Engine, face: Face) -> str:
    name = f"{type(within).__module__}.{type(within).__qualname__}"
    fitting = [one.label for one in _fitting(engine, face)]
    if adapter is not None and face not in adapter.faces:
        other = "app.sync" if face == "async" else "the async app"
        hint = f"it belongs to {other}"
    elif adapter is not None:
        hint = f"it speaks to {adapter.store(within)} and this app's store is {engine.dialect.name}"
    else:
        hint = "it is not a connection that dibs knows"
    return f"can't work within {name}: {hint}; pass one of: {', '.join(dict.fromkeys(fitting))}"


def _fitting(engine: Engine, face: Face) -> list[Adapter]:
    drivers = {"postgresql": ("asyncpg", "psycopg"), "sqlite": ("sqlite3",), "mysql": ("asyncmy", "PyMySQL")}
    fitting = ("SQLAlchemy", "Django", *drivers[engine.dialect.name])
    return [one for one in ADAPTERS.values() if face in one.faces and one.label.startswith(fitting)]


@contextmanager
def _explained(adapter: Adapter, within: object) -> Iterator[None]:
    """Refuse a connection without a transaction; explain a missing table. Other errors pass unchanged.

    An undone transaction stays the driver's own error: code that repeats transactions expects that.
    """
    if not adapter.in_transaction(within):
        raise UnsupportedConnection(
            f"no transaction is open on this {adapter.label}: begin one, or leave within= out"
        )
    try:
        yield
    except Exception as error:
        if not AGAIN.isdisjoint(_codes(error)):
            error.add_note(UNDONE)
        if "no such table" in str(error) or not NO_TABLES.isdisjoint(_codes(error)):
            raise NoTables(
                f"there are no dibs tables where this {adapter.label} leads: is it another database, or "
                "another schema, than the app's?"
            ) from error
        raise


def _codes(error: BaseException) -> set[object]:
    """Return the SQLSTATE or number of an error, also of one that wraps it."""
    causes = (error, error.__cause__, getattr(error, "orig", None))  # the last is what SQLAlchemy wraps
    first = (argument for cause in causes for argument in getattr(cause, "args", ())[:1])
    return {getattr(cause, "sqlstate", None) for cause in causes} | {
        one for one in first if isinstance(one, int)
    }


# -- Drivers ------------------------------------------------------------------------------------


def _psycopg(connection: Any, engine: Engine) -> Any:
    from psycopg.rows import dict_row

    def query(query: Query | Copy) -> Rows:
        assert isinstance(query, Query)
        sql, _ = placeholders(engine.dialect.blocks[query.name], "pyformat")
        with connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(sql, query.params)
            rows: Rows = cursor.fetchall() if cursor.description else []
            return rows

    return query


def _psycopg_async(connection: Any, engine: Engine) -> Any:
    from psycopg.rows import dict_row

    async def query(query: Query | Copy) -> Rows:
        assert isinstance(query, Query)
        sql, _ = placeholders(engine.dialect.blocks[query.name], "pyformat")
        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(sql, query.params)
            rows: Rows = await cursor.fetchall() if cursor.description else []
            return rows

    return query


def _sqlite3(connection: sqlite3.Connection, engine: Any) -> Any:
    if not isinstance(connection.text_factory(b""), str):
        raise UnsupportedConnection(
            f"this sqlite3.Connection returns text as {connection.text_factory!r}: leave its text_factory "
            "str, as it is by itself, or pass another connection"
        )
    return sqlite_query(connection, engine)


def _sqlalchemy(connection: Any, engine: Engine) -> Any:
    """Query through a Connection or a Session; both execute text in their open transaction."""
    from sqlalchemy import text

    def query(query: Query | Copy) -> Rows:
        assert isinstance(query, Query)
        result = connection.execute(text(engine.dialect.blocks[query.name]), _bound(query, engine))
        return engine.read(list(result.keys()), result.fetchall()) if result.returns_rows else []

    return query


def _sqlalchemy_async(connection: Any, engine: Engine) -> Any:
    async def query(query: Query | Copy) -> Rows:
        rows: Rows = await connection.run_sync(lambda sync: _sqlalchemy(sync, engine)(query))
        return rows

    return query


def _django(connection: Any, engine: Any) -> Any:
    """Query through Django's cursor, which checks for broken `atomic` blocks and feeds its debug tools."""

    def query(query: Query | Copy) -> Rows:
        assert isinstance(query, Query)
        block = engine.dialect.blocks[query.name]
        sql, order = placeholders(block, "pyformat")
        with connection.cursor() as cursor:
            if query.many:
                cursor.executemany(sql, query.params)
                return []
            if order:
                cursor.execute(sql, _bound(query, engine))
            else:
                cursor.execute(block)
            if cursor.description is None:
                return []
            rows = engine.read([column[0] for column in cursor.description], cursor.fetchall())
            return rows if connection.vendor != "postgresql" else _aware(rows, connection)

    return query


def _aware(rows: Rows, connection: Any) -> Rows:
    """Add the zone to times: with USE_TZ off Django's cursors return naive ones of the connection's zone."""
    if connection.timezone is not None:
        return rows
    local = ZoneInfo(connection.timezone_name)
    return [
        {
            name: value.replace(tzinfo=local) if isinstance(value, datetime) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _bound(query: Query, engine: Engine) -> Any:
    """Return exactly the parameters that the text names, as SQLAlchemy requires."""
    _, order = placeholders(engine.dialect.blocks[query.name], "named")
    params: Any = query.params
    if query.many:
        return [{name: row[name] for name in order} for row in params]
    return {name: params[name] for name in order}


def _psycopg_in_transaction(connection: Any) -> bool:
    return not connection.autocommit or connection.info.transaction_status.name != "IDLE"


def _sqlite_in_transaction(connection: sqlite3.Connection) -> bool:
    begins_itself = (
        connection.isolation_level is not None and getattr(connection, "autocommit", None) is not True
    )
    return connection.in_transaction or begins_itself


def _django_in_transaction(connection: Any) -> bool:
    return bool(connection.in_atomic_block or not connection.get_autocommit())


def _session_store(session: Any) -> str:
    return _dialect_of(session.get_bind().dialect)


def _dialect_of(dialect: Any) -> str:
    """Return our name of a dialect; SQLAlchemy has two for MySQL."""
    return "mysql" if dialect.name == "mariadb" else str(dialect.name)


def _connection_in_transaction(connection: Any) -> bool:
    """Return whether there will be a transaction: SQLAlchemy begins by itself, unless it is in autocommit."""
    sync = getattr(connection, "sync_connection", connection)
    return sync is not None and not sync._is_autocommit_isolation()


def _session_in_transaction(session: Any) -> bool:
    sync = getattr(session, "sync_session", session)
    return "AUTOCOMMIT" not in _isolation_levels(sync)


def _isolation_levels(session: Any) -> set[str | None]:
    """Return the isolation levels set on the session's engine, when made or by options."""
    bind = session.get_bind()
    options = bind.get_execution_options() if hasattr(bind, "get_execution_options") else {}
    return {options.get("isolation_level"), getattr(bind.dialect, "_on_connect_isolation_level", None)}


_POSTGRESQL: Any = {"store": lambda _: "postgresql"}
_MYSQL: Any = {"store": lambda _: "mysql"}
_ALCHEMY: Any = {
    "store": lambda connection: _dialect_of(connection.dialect),
    "in_transaction": _connection_in_transaction,
}
_ALCHEMY_SESSION: Any = {"store": _session_store, "in_transaction": _session_in_transaction}

ADAPTERS: dict[str, Adapter] = {
    "sqlite3.Connection": Adapter(
        "sqlite3.Connection", ("sync", "async"), lambda _: "sqlite", _sqlite3, _sqlite_in_transaction,
        has_begun=lambda connection: connection.in_transaction,
    ),
    "psycopg.Connection": Adapter(
        "psycopg.Connection", ("sync",), query=_psycopg, in_transaction=_psycopg_in_transaction, **_POSTGRESQL
    ),
    "psycopg.AsyncConnection": Adapter(
        "psycopg.AsyncConnection", ("async",), query=_psycopg_async,
        in_transaction=_psycopg_in_transaction, is_async=True, **_POSTGRESQL,
    ),
    "asyncpg.connection.Connection": Adapter(
        "asyncpg.Connection", ("async",), query=asyncpg_query,
        in_transaction=lambda connection: connection.is_in_transaction(), is_async=True, **_POSTGRESQL,
    ),
    "pymysql.connections.Connection": Adapter(
        "PyMySQL Connection", ("sync",), query=pymysql_query,  # 1 is SERVER_STATUS_IN_TRANS
        in_transaction=lambda one: not one.get_autocommit() or bool(one.server_status & 1), **_MYSQL,
    ),
    "asyncmy.connection.Connection": Adapter(
        "asyncmy Connection", ("async",), query=asyncmy_query,
        in_transaction=lambda one: not one.get_autocommit() or one.get_transaction_status(),
        is_async=True, **_MYSQL,
    ),
    "sqlalchemy.engine.base.Connection": Adapter(
        "SQLAlchemy Connection", ("sync",), query=_sqlalchemy, **_ALCHEMY
    ),
    "sqlalchemy.orm.session.Session": Adapter(
        "SQLAlchemy Session", ("sync",), query=_sqlalchemy, **_ALCHEMY_SESSION
    ),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": Adapter(
        "SQLAlchemy AsyncConnection", ("async",), query=_sqlalchemy_async, is_async=True, **_ALCHEMY
    ),
    "sqlalchemy.ext.asyncio.session.AsyncSession": Adapter(
        "SQLAlchemy AsyncSession", ("async",), query=_sqlalchemy_async, is_async=True, **_ALCHEMY_SESSION
    ),
    "django.db.backends.base.base.BaseDatabaseWrapper": Adapter(
        "Django connection", ("sync",), store=lambda connection: str(connection.vendor), query=_django,
        in_transaction=_django_in_transaction, has_begun=_django_in_transaction,
    ),
}  # fmt: skip
ADAPTERS["asyncpg.pool.PoolConnectionProxy"] = ADAPTERS["asyncpg.connection.Connection"]
ADAPTERS["sqlalchemy.orm.scoping.scoped_session"] = ADAPTERS["sqlalchemy.orm.session.Session"]
ADAPTERS["sqlalchemy.ext.asyncio.scoping.async_scoped_session"] = replace(
    ADAPTERS["sqlalchemy.ext.asyncio.session.AsyncSession"],
    store=lambda scoped: _session_store(scoped()),
    query=lambda scoped, engine: _sqlalchemy_async(scoped(), engine),
    in_transaction=lambda scoped: _session_in_transaction(scoped()),
)
ADAPTERS["django.utils.connection.ConnectionProxy"] = ADAPTERS[
    "django.db.backends.base.base.BaseDatabaseWrapper"
]
