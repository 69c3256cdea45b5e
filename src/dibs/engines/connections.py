"""Connections that the caller owns: dibs speaks through them and leaves their transaction alone.

`within=` takes any of the classes below, found by their qualified name so that no driver has to be
installed for the others. Nothing here begins, commits or rolls back.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dibs.engines.pools import sqlite_query
from dibs.engines.postgresql import PostgreSQL
from dibs.engines.sql import Copy, Query, placeholders
from dibs.engines.sqlite import SQLite
from dibs.errors import UnsupportedConnection
from dibs.scripts import Rows, Step, run, run_async

Colour = Literal["sync", "async"]
Engine = PostgreSQL | SQLite

Execute = Callable[[Step], Rows]
ExecuteAsync = Callable[[Step], Awaitable[Rows]]


@dataclass(frozen=True, slots=True)
class Adapter:
    """How to speak through one class of connection."""

    label: str
    colours: tuple[Colour, ...]
    store: Callable[[Any], str]
    query: Callable[[Any, Any], Any]
    in_transaction: Callable[[Any], bool]
    awaited: bool = False


def bind_sync(within: object, engine: Engine, path: str | None) -> Execute:
    """Answer steps through the caller's blocking connection."""
    adapter = _adapter(within, engine, "sync", path)
    query = adapter.query(within, engine)

    def execute(step: Step) -> Rows:
        _check_transaction(adapter, within, engine, step)
        return run(engine.answer(step, own=False), query)

    return execute


def bind_async(within: object, engine: Engine, path: str | None) -> ExecuteAsync:
    """Answer steps through the caller's connection, awaited where it can be."""
    adapter = _adapter(within, engine, "async", path)
    query = adapter.query(within, engine)

    async def execute(step: Step) -> Rows:
        _check_transaction(adapter, within, engine, step)
        if adapter.awaited:
            return await run_async(engine.answer(step, own=False), query)
        return run(engine.answer(step, own=False), query)

    return execute


def _adapter(within: object, engine: Engine, colour: Colour, path: str | None) -> Adapter:
    adapter = _known(within)
    if adapter is None or colour not in adapter.colours or adapter.store(within) != engine.dialect.name:
        raise UnsupportedConnection(_refusal(within, adapter, engine, colour))
    if isinstance(within, sqlite3.Connection) and path is not None:
        _check_same_file(within, path)
    return adapter


def _known(within: object) -> Adapter | None:
    for cls in type(within).__mro__:
        if (adapter := ADAPTERS.get(f"{cls.__module__}.{cls.__qualname__}")) is not None:
            return adapter
    return None


def _refusal(within: object, adapter: Adapter | None, engine: Engine, colour: Colour) -> str:
    name = f"{type(within).__module__}.{type(within).__qualname__}"
    fitting = [one.label for one in _fitting(engine, colour)]
    if adapter is not None and colour not in adapter.colours:
        other = "app.sync" if colour == "async" else "the async app"
        hint = f"it belongs to {other}"
    elif adapter is not None:
        hint = f"it speaks to {adapter.store(within)} and this app's store is {engine.dialect.name}"
    else:
        hint = "it is not a connection that dibs knows"
    return f"can't work within {name}: {hint}; pass one of: {', '.join(dict.fromkeys(fitting))}"


def _fitting(engine: Engine, colour: Colour) -> list[Adapter]:
    stores = {"postgresql": ("asyncpg", "psycopg"), "sqlite": ("sqlite3",)}[engine.dialect.name]
    return [
        one
        for one in ADAPTERS.values()
        if colour in one.colours and (one.label.startswith("SQLAlchemy") or one.label.startswith(stores))
    ]


def _check_same_file(connection: sqlite3.Connection, path: str) -> None:
    for _, name, file in connection.execute("pragma database_list"):
        if name == "main" and file and Path(path).exists() and not Path(file).samefile(path):
            raise UnsupportedConnection(
                f"this connection is open on {file} and the app's store is {path}: "
                "a job can only live and die with a transaction of its own store"
            )


def _check_transaction(adapter: Adapter, within: object, engine: Engine, step: Step) -> None:
    if engine.needs_transaction(step) and not adapter.in_transaction(within):
        raise UnsupportedConnection(
            f"no transaction is open on this {adapter.label}: begin one, or leave within= out"
        )


# -- How each driver is spoken to ---------------------------------------------------------------


def _asyncpg(connection: Any, engine: Engine) -> Any:
    async def query(query: Query | Copy) -> Rows:
        assert isinstance(query, Query)
        params: Any = query.params
        sql, order = placeholders(engine.dialect.blocks[query.name], "numeric")
        rows: Rows = await connection.fetch(sql, *[params[name] for name in order])
        return rows

    return query


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


def _sqlalchemy(connection: Any, engine: Engine) -> Any:
    """A Connection or a Session: both execute text in the transaction that they have open."""
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


def _bound(query: Query, engine: Engine) -> Any:
    """SQLAlchemy wants exactly the parameters that the text names."""
    _, order = placeholders(engine.dialect.blocks[query.name], "named")
    params: Any = query.params
    if query.many:
        return [{name: row[name] for name in order} for row in params]
    return {name: params[name] for name in order}


def _psycopg_in_transaction(connection: Any) -> bool:
    return not connection.autocommit or connection.info.transaction_status.name != "IDLE"


def _sqlite_in_transaction(connection: sqlite3.Connection) -> bool:
    return connection.in_transaction or connection.isolation_level is not None


def _connection_store(connection: Any) -> str:
    return str(connection.dialect.name)


def _session_store(session: Any) -> str:
    return str(session.get_bind().dialect.name)


def _always(_: object) -> bool:
    return True


_POSTGRESQL: Any = {"store": lambda _: "postgresql"}
_ALCHEMY: Any = {"store": _connection_store, "in_transaction": _always}
_ALCHEMY_SESSION: Any = {"store": _session_store, "in_transaction": _always}

ADAPTERS: dict[str, Adapter] = {
    "sqlite3.Connection": Adapter(
        "sqlite3.Connection", ("sync", "async"), lambda _: "sqlite", sqlite_query, _sqlite_in_transaction
    ),
    "psycopg.Connection": Adapter(
        "psycopg.Connection", ("sync",), query=_psycopg, in_transaction=_psycopg_in_transaction, **_POSTGRESQL
    ),
    "psycopg.AsyncConnection": Adapter(
        "psycopg.AsyncConnection", ("async",), query=_psycopg_async,
        in_transaction=_psycopg_in_transaction, awaited=True, **_POSTGRESQL,
    ),
    "asyncpg.connection.Connection": Adapter(
        "asyncpg.Connection", ("async",), query=_asyncpg,
        in_transaction=lambda connection: connection.is_in_transaction(), awaited=True, **_POSTGRESQL,
    ),
    "sqlalchemy.engine.base.Connection": Adapter(
        "SQLAlchemy Connection", ("sync",), query=_sqlalchemy, **_ALCHEMY
    ),
    "sqlalchemy.orm.session.Session": Adapter(
        "SQLAlchemy Session", ("sync",), query=_sqlalchemy, **_ALCHEMY_SESSION
    ),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": Adapter(
        "SQLAlchemy AsyncConnection", ("async",), query=_sqlalchemy_async, awaited=True, **_ALCHEMY
    ),
    "sqlalchemy.ext.asyncio.session.AsyncSession": Adapter(
        "SQLAlchemy AsyncSession", ("async",), query=_sqlalchemy_async, awaited=True, **_ALCHEMY_SESSION
    ),
}  # fmt: skip
ADAPTERS["asyncpg.pool.PoolConnectionProxy"] = ADAPTERS["asyncpg.connection.Connection"]
ADAPTERS["sqlalchemy.orm.scoping.scoped_session"] = ADAPTERS["sqlalchemy.orm.session.Session"]
