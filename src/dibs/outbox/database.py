"""The database of an outbox: run operations on it, sync or async, on its own or the caller's connection.

Its own connections are SQLAlchemy's, from an engine that the caller passed or that a URL names. Errors on
them are sorted as in every store: run the whole operation again, or say clearly what is wrong.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from dibs import faces
from dibs.engines.mysql import session as mysql
from dibs.engines.postgresql import session as postgresql
from dibs.engines.retries import Tries, TryAgain
from dibs.engines.sql.engine import Query
from dibs.engines.sql.within import ADAPTERS, NoTables, bind_queries, check_same_file
from dibs.engines.sqlite import file as sqlite
from dibs.errors import BadRequest, SchemaOutdated, StoreUnavailable, UnknownEngine
from dibs.faces import Call, Calls, make, sleep
from dibs.operations.scripts import Rows, run, run_async
from dibs.outbox.operations import oldest
from dibs.outbox.statements import QUOTES, Statements, TableNames
from dibs.text import split_url, without_password

T = TypeVar("T")

Operation = Callable[[], Generator[Query, Rows, T]]  # each try starts it anew

SYNC_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}
ASYNC_DRIVERS = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}
DATABASES = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite"}
DATABASES |= {"mysql": "mysql", "mariadb": "mysql"}

SQLITE_TIMEOUT = 30  # seconds for another writer to finish
LIBPQ = frozenset(
    f"ssl{name}" for name in ("rootcert", "cert", "key", "password", "crl", "_min_protocol_version")
)
NO_SUCH_TABLE = 1146  # as MySQL counts


class NoOutboxTable(SchemaOutdated):
    """The error of a database without a table for messages."""

    def __init__(self, table: str) -> None:
        Exception.__init__(
            self,
            f"there is no table {table} here: run `dibs migrate` (or `app.migrate()`), or create it with "
            "your own migrations from `outbox.table(metadata)`, and try again",
        )


def find_database(engine_or_url: Any, names: TableNames) -> "OutboxDatabase":
    """Return the database of an engine or a URL; nothing is opened yet."""
    try:
        import sqlalchemy
        from sqlalchemy.ext.asyncio import AsyncEngine
    except ImportError:
        raise UnknownEngine("SQLAlchemy is not installed; run: pip install 'dibs[outbox]'") from None
    if isinstance(engine_or_url, str):
        return OutboxDatabase(_database(engine_or_url.split("://", 1)[0]), names, url=_url(engine_or_url))
    if isinstance(engine_or_url, AsyncEngine):
        return OutboxDatabase(_database(engine_or_url.dialect.name), names, async_engine=engine_or_url)
    if isinstance(engine_or_url, sqlalchemy.Engine):
        return OutboxDatabase(_database(engine_or_url.dialect.name), names, sync_engine=engine_or_url)
    raise BadRequest(
        f"an outbox is made from an SQLAlchemy engine, sync or async, or from a URL, not from a "
        f"{type(engine_or_url).__qualname__}"
    )


class OutboxDatabase:
    """One database with an outbox and an inbox."""

    def __init__(
        self,
        database: str,
        names: TableNames,
        *,
        url: Any = None,
        sync_engine: Any = None,
        async_engine: Any = None,
    ) -> None:
        creation: list[str] = []
        if database == "sqlite":
            from dibs.outbox.tables import sqlite_tables

            creation = sqlite_tables(names)
        self.statements = Statements(database, names, creation)
        self.names = names
        self._url = url if url is not None else (async_engine or sync_engine).url
        self._given = sync_engine, async_engine
        self._sync = None if sync_engine is None else _read_committed(sync_engine, database)
        self._async = None if async_engine is None else _read_committed(async_engine, database)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._created = database != "sqlite"

    @property
    def name(self) -> str:
        """The URL of the database, without a password."""
        return str(self._url.set(password=None)) if self._url.password else str(self._url)

    # -- running --------------------------------------------------------------------------------

    def call(self, operation: Operation[T], within: Any = None) -> Calls[T]:
        """Run an operation in a transaction of its own, or `within` the caller's; return its result."""
        return self._call_within(operation, within) if within is not None else self._call(operation)

    async def run_async(self, operation: Operation[T]) -> T:
        return await faces.run_async(self._call(operation))

    def repeat(self, operation: Operation[int], *, least: int) -> Calls[int]:
        """Run an operation until it changes fewer rows than `least`; return how many it changed in all."""
        total = changed = yield from self._call(operation)
        while changed >= least:
            total += (changed := (yield from self._call(operation)))
        return total

    def open(self) -> Calls[None]:
        """Check that the tables can be read; on SQLite they are created."""
        yield from self._call(lambda: oldest(None))

    def _call(self, operation: Operation[T]) -> Calls[T]:
        attempt = Call(lambda: self._attempt(operation), lambda: self._attempt_async(operation))
        tries = Tries()
        while True:
            try:
                return (yield from make(attempt))
            except TryAgain as failure:
                pause = tries.pause(failure)
            yield from sleep(pause)

    def _call_within(self, operation: Operation[T], within: Any) -> Calls[T]:
        ask = Call(
            lambda: run(self._with_tables(operation), bind_queries(within, self.statements, "sync")),
            lambda: run_async(self._with_tables(operation), bind_queries(within, self.statements, "async")),
        )
        try:
            return (yield from make(ask))
        except NoTables:
            yield from self.open()  # raises if our own connections find no tables either
            raise

    def _with_tables(self, operation: Operation[T]) -> Generator[Query, Rows, T]:
        """Create SQLite's tables in the caller's transaction: no other connection could write beside it.

        A rollback removes them again, so every such transaction checks for them.
        """
        if self._sqlite:
            check_same_file((yield Query("files", {})), self._url.database or "")
            [tables] = yield Query("tables", {})
            for number in range(0 if tables["found"] == 2 else len(self.statements.creation)):
                yield Query(f"create {number}", {})
        return (yield from operation())

    def _attempt(self, operation: Operation[T]) -> T:
        engine = self.sync_engine()
        query = ADAPTERS["sqlalchemy.engine.base.Connection"].query
        try:
            self._create_tables(engine)
            with engine.begin() as connection:
                return run(operation(), query(connection, self.statements))
        except Exception as error:
            raise self._explained(error) from error

    async def _attempt_async(self, operation: Operation[T]) -> T:
        if self.uses_threads:
            return await asyncio.to_thread(self._attempt, operation)
        engine = self.async_engine()
        query = ADAPTERS["sqlalchemy.ext.asyncio.engine.AsyncConnection"].query
        try:
            if not self._created:
                async with engine.begin() as connection:
                    await connection.run_sync(self._create_tables)
            async with engine.begin() as connection:
                return await run_async(operation(), query(connection, self.statements))
        except Exception as error:
            raise self._explained(error) from error

    def _create_tables(self, connection: Any) -> None:
        """Create SQLite's tables at first use, as the tables of the jobs are."""
        if self._created:
            return
        from sqlalchemy import MetaData

        from dibs.outbox.tables import inbox_table, outbox_table

        metadata = MetaData()
        outbox_table(metadata, self.names)
        inbox_table(metadata, self.names)
        metadata.create_all(connection)
        self._created = True

    def create_nothing(self) -> None:
        """Leave missing tables missing, on SQLite as well; for callers that only read."""
        self._created = True

    # -- opening and closing --------------------------------------------------------------------

    def close(self) -> Calls[None]:
        """Close the connections of the engines that were made here; the caller's engine stays open."""
        yield from make(Call(self._close, self._close_async))

    def _close(self) -> None:
        if self._sync is not None and self._given[0] is None:
            self._sync.dispose()
            self._sync = None

    async def _close_async(self) -> None:
        if self._async is not None and self._given[1] is None:
            if self._loop is asyncio.get_running_loop():
                await self._async.dispose()
            self._async = None
        await asyncio.to_thread(self._close)

    @property
    def uses_threads(self) -> bool:
        """Whether async calls block in a thread: on a sync engine, and on SQLite, which has no other."""
        return self._given[1] is None and (self._given[0] is not None or self._sqlite)

    @property
    def _sqlite(self) -> bool:
        return self.statements.database == "sqlite"

    def sync_engine(self) -> Any:
        if self._sync is None:
            from sqlalchemy import create_engine

            self._sync = create_engine(self._url_for(SYNC_DRIVERS), **self._options())
        return self._sync

    def async_engine(self) -> Any:
        """Return an engine of this event loop: connections can't be used in another."""
        if self._given[1] is not None:
            return self._async
        loop = asyncio.get_running_loop()
        if self._async is None or self._loop is not loop:
            from sqlalchemy.ext.asyncio import create_async_engine

            if self._async is not None:
                self._async.sync_engine.dispose(close=False)
            self._async = create_async_engine(
                self._url_for(ASYNC_DRIVERS), **self._options(), **self._creator()
            )
            self._loop = loop
        return self._async

    def _url_for(self, drivers: dict[str, str]) -> Any:
        """Return the URL with one of these drivers."""
        wanted = drivers[self.statements.database]
        asked = self._url.drivername if self._url.drivername in drivers.values() else wanted
        query = dict(self._url.query)
        if asked.endswith("asyncpg") and "sslmode" in query:
            query["ssl"] = query.pop("sslmode")  # libpq's name for it, common in URLs
        if self.statements.database == "mysql":
            query = {name: value for name, value in query.items() if name not in mysql.TLS}
        return self._url.set(drivername=asked, query=query)

    def _options(self) -> dict[str, Any]:
        if self._sqlite:
            return {"connect_args": {"timeout": SQLITE_TIMEOUT}}
        options: dict[str, Any] = {"isolation_level": "READ COMMITTED", "pool_pre_ping": True}
        if self.statements.database == "mysql" and (asked := self._url.query.keys() & mysql.TLS):
            options["connect_args"] = {"ssl": mysql.tls_of({name: self._url.query[name] for name in asked})}
        return options

    def _creator(self) -> dict[str, Any]:
        """Return how asyncpg reads TLS from a URL: certificates are no parameters of its `connect`."""
        if self._url.drivername.partition("+")[0] != "postgresql" or not self._url.query.keys() & LIBPQ:
            return {}

        async def connect() -> Any:
            import asyncpg

            url = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
            return await asyncpg.connect(url)

        return {"async_creator": connect}

    # -- errors ---------------------------------------------------------------------------------

    def _explained(self, error: Exception) -> BaseException:
        """Return what to raise for an error of the driver: `TryAgain`, one of our own errors, or itself."""
        driver = getattr(error, "orig", None) or error
        origins = (error, driver, error.__cause__)
        states = {getattr(one, "sqlstate", None) for one in origins} - {None}
        codes = {one.args[0] for one in origins if one is not None and one.args}
        if "no such table" in str(error) or "42P01" in states or NO_SUCH_TABLE in codes:
            return NoOutboxTable(self.names.outbox)
        if postgresql.NOT_PERMITTED in states:
            return postgresql.forbidden(driver, self.name)
        if codes & set(mysql.NOT_PERMITTED):
            return mysql.forbidden(driver, self.name)
        if (refused := self._refused(driver, states, codes)) is not None:
            return refused
        lost = isinstance(error, OSError) or bool(getattr(error, "connection_invalidated", False))
        if lost or _is_unreachable(error, states):
            return TryAgain(driver, self.name, unsure=True)
        locked = self._sqlite and "database is locked" in str(error)
        if locked or states & postgresql.AGAIN or codes & set(mysql.UNDONE):
            return TryAgain(driver, self.name)
        return error

    def _refused(self, error: BaseException, states: set[Any], codes: set[Any]) -> StoreUnavailable | None:
        """Return why the database refuses the connection, if it is that."""
        match self.statements.database:
            case "sqlite":
                return sqlite.unusable(self._url.database, error)
            case "mysql":
                return mysql.refused(error, self.name) if codes & set(mysql.REFUSED) else None
        hopeless = type(error).__module__.startswith("psycopg") and postgresql.is_hopeless(error)
        if hopeless or any(str(state).startswith(postgresql.REFUSED) for state in states):
            return postgresql.refused(error, self.name)
        return None


def _is_unreachable(error: Exception, states: set[Any]) -> bool:
    """Recognise a server that is away: psycopg has no SQLSTATE for it, PyMySQL has client error numbers."""
    from sqlalchemy.exc import InterfaceError, OperationalError

    origin = getattr(error, "orig", None)
    module = type(origin).__module__
    if module.startswith("psycopg"):
        return isinstance(error, OperationalError | InterfaceError) and not states
    if module.startswith(("pymysql", "asyncmy", "MySQLdb")):
        return bool(origin is not None and origin.args and origin.args[0] in mysql.BROKEN)
    return False


def _read_committed(engine: Any, database: str) -> Any:
    """Return the engine with READ COMMITTED, whatever its own isolation level is."""
    return engine if database == "sqlite" else engine.execution_options(isolation_level="READ COMMITTED")


def _database(scheme: str) -> str:
    name = scheme.split("+", 1)[0].lower()
    if (database := DATABASES.get(name)) is not None:
        return database
    shown = repr(name) if name.isalnum() else "a URL that does not begin with NAME://"  # maybe a password
    raise UnknownEngine(
        f"an outbox belongs into the database of your data, and {shown} has no transactions of yours to "
        f"write messages in; use one of: {', '.join(QUOTES)}"
    )


def _url(text: str) -> Any:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    parts = split_url(text, "the outbox")
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise BadRequest(f"the URL of the outbox can't be read: {error}") from None
    name, _, driver = url.drivername.partition("+")
    database = _database(name)
    if database == "sqlite" and parts.netloc:
        raise BadRequest(f"{without_password(text)} is not a SQLite URL; write sqlite:///file.db")
    if database == "sqlite" and url.database in (None, "", ":memory:"):
        raise BadRequest("an outbox in memory would be gone with its connection; write sqlite:///file.db")
    return url.set(drivername=f"{database}+{driver}" if driver else database)
