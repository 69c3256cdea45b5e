"""Where an outbox lives: run its scripts on the database, in either colour, through our connections or yours.

Ours are SQLAlchemy's, from an engine that you gave or that a URL names. What goes wrong on them is sorted
here, as in every store: run the whole of it again, or say clearly what is the matter.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dibs.engines.mysql import errors as mysql
from dibs.engines.postgresql import errors as postgresql
from dibs.engines.retries import Tries, TryAgain
from dibs.engines.sql.engine import Query
from dibs.engines.sql.within import ADAPTERS, NoTables, bind_queries, check_same_file
from dibs.engines.sqlite import file as sqlite
from dibs.errors import BadRequest, SchemaOutdated, StoreUnavailable, UnknownEngine
from dibs.operations.scripts import Rows, run, run_async
from dibs.outbox.statements import QUOTES, Place, Statements

T = TypeVar("T")

Operation = Callable[[], Generator[Query, Rows, T]]  # a script is started anew for every try

SYNC_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}
ASYNC_DRIVERS = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}
DATABASES = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite"}
DATABASES |= {"mysql": "mysql", "mariadb": "mysql"}

SQLITE_PATIENCE = 30  # seconds for another writer to finish
NO_SUCH_TABLE = 1146  # as MySQL counts


class NoOutboxTable(SchemaOutdated):
    """The database has no table for messages."""

    def __init__(self, table: str) -> None:
        Exception.__init__(
            self,
            f"there is no table {table} here: run `dibs migrate` (or `app.migrate()`), or make it with your "
            "own migrations from `outbox.table(metadata)`, and try again",
        )


def home(engine_or_url: Any, place: Place) -> "Home":
    """The database that an engine or a URL leads to; nothing is opened yet."""
    try:
        import sqlalchemy
        from sqlalchemy.ext.asyncio import AsyncEngine
    except ImportError:
        raise UnknownEngine("SQLAlchemy is not installed; run: pip install 'dibs[outbox]'") from None
    if isinstance(engine_or_url, str):
        return Home(_database(engine_or_url.split("://", 1)[0]), place, url=_url(engine_or_url))
    if isinstance(engine_or_url, AsyncEngine):
        return Home(_database(engine_or_url.dialect.name), place, awaited=engine_or_url)
    if isinstance(engine_or_url, sqlalchemy.Engine):
        return Home(_database(engine_or_url.dialect.name), place, blocking=engine_or_url)
    raise BadRequest(
        f"an outbox is made from an SQLAlchemy engine, sync or async, or from a URL, not from a "
        f"{type(engine_or_url).__qualname__}"
    )


class Home:
    """One database with its tables for messages."""

    def __init__(
        self, database: str, place: Place, *, url: Any = None, blocking: Any = None, awaited: Any = None
    ) -> None:
        self.statements = Statements(database, place, _making(database, place))
        self.place = place
        self._url = url if url is not None else (awaited or blocking).url
        self._given = blocking, awaited
        self._blocking = None if blocking is None else _committed_reads(blocking, database)
        self._awaited = None if awaited is None else _committed_reads(awaited, database)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._made = database != "sqlite"

    @property
    def name(self) -> str:
        """The database for people, without a password."""
        return str(self._url.set(password=None)) if self._url.password else str(self._url)

    # -- running --------------------------------------------------------------------------------

    def run(self, script: Operation[T], within: Any = None) -> T:
        if within is not None:
            return self._run_within(script, within)
        tries = Tries()
        while True:
            try:
                return self._attempt(script)
            except TryAgain as trouble:
                time.sleep(tries.pause(trouble))

    async def run_async(self, script: Operation[T], within: Any = None) -> T:
        if within is not None:
            return await self._run_within_async(script, within)
        if self.lends_threads:
            return await asyncio.to_thread(self.run, script)
        tries = Tries()
        while True:
            try:
                return await self._attempt_async(script)
            except TryAgain as trouble:
                await asyncio.sleep(tries.pause(trouble))

    def _run_within(self, script: Operation[T], within: Any) -> T:
        try:
            return run(self._with_tables(script), bind_queries(within, self.statements, "sync"))
        except NoTables:
            self.run(_look)  # they may be nowhere, and not only where this connection leads
            raise

    async def _run_within_async(self, script: Operation[T], within: Any) -> T:
        try:
            return await run_async(self._with_tables(script), bind_queries(within, self.statements, "async"))
        except NoTables:
            await self.run_async(_look)
            raise

    def _with_tables(self, script: Operation[T]) -> Generator[Query, Rows, T]:
        """SQLite's are made in the transaction that needs them first: none could write beside it.

        If that is rolled back they are gone again, so every such transaction looks for them.
        """
        if self._sqlite:
            check_same_file((yield Query("files", {})), self._url.database or "")
            [tables] = yield Query("tables", {})
            for number in range(0 if tables["found"] == 2 else len(self.statements.making)):
                yield Query(f"make {number}", {})
        return (yield from script())

    def _attempt(self, script: Operation[T]) -> T:
        engine = self.blocking_engine()
        query = ADAPTERS["sqlalchemy.engine.base.Connection"].query
        try:
            self._make_tables(engine)
            with engine.begin() as connection:
                return run(script(), query(connection, self.statements))
        except Exception as error:
            raise self._sorted(error) from error

    async def _attempt_async(self, script: Operation[T]) -> T:
        engine = self.awaited_engine()
        query = ADAPTERS["sqlalchemy.ext.asyncio.engine.AsyncConnection"].query
        try:
            if not self._made:
                async with engine.begin() as connection:
                    await connection.run_sync(self._make_tables)
            async with engine.begin() as connection:
                return await run_async(script(), query(connection, self.statements))
        except Exception as error:
            raise self._sorted(error) from error

    def _make_tables(self, connection: Any) -> None:
        """SQLite's are made at first use, like those of the jobs."""
        if self._made:
            return
        from sqlalchemy import MetaData

        from dibs.outbox.tables import inbox_table, outbox_table

        metadata = MetaData()
        outbox_table(metadata, self.place)
        inbox_table(metadata, self.place)
        metadata.create_all(connection)
        self._made = True

    def make_nothing(self) -> None:
        """For those who only look: a table that isn't there stays so, on SQLite as well."""
        self._made = True

    # -- opening and closing --------------------------------------------------------------------

    async def open_async(self) -> None:
        await self.run_async(_look)

    def open(self) -> None:
        self.run(_look)

    def close(self) -> None:
        """End the connections of the engines that we made; yours are yours."""
        if self._blocking is not None and self._given[0] is None:
            self._blocking.dispose()
            self._blocking = None

    async def close_async(self) -> None:
        if self._awaited is not None and self._given[1] is None:
            if self._loop is asyncio.get_running_loop():
                await self._awaited.dispose()
            self._awaited = None
        await asyncio.to_thread(self.close)

    @property
    def lends_threads(self) -> bool:
        """Awaited calls block in a thread: on an engine that blocks, and on SQLite, which always does."""
        return self._given[1] is None and (self._given[0] is not None or self._sqlite)

    @property
    def _sqlite(self) -> bool:
        return self.statements.database == "sqlite"

    def blocking_engine(self) -> Any:
        if self._blocking is None:
            from sqlalchemy import create_engine

            self._blocking = create_engine(self._driven(SYNC_DRIVERS), **self._options())
        return self._blocking

    def awaited_engine(self) -> Any:
        """Connections belong to the event loop that made them, so another loop has another engine."""
        if self._given[1] is not None:
            return self._awaited
        loop = asyncio.get_running_loop()
        if self._awaited is None or self._loop is not loop:
            from sqlalchemy.ext.asyncio import create_async_engine

            if self._awaited is not None:
                self._awaited.sync_engine.dispose(close=False)
            self._awaited = create_async_engine(self._driven(ASYNC_DRIVERS), **self._options())
            self._loop = loop
        return self._awaited

    def _driven(self, drivers: dict[str, str]) -> Any:
        """The URL with a driver of the colour that is wanted."""
        wanted = drivers[self.statements.database]
        asked = self._url.drivername if self._url.drivername in drivers.values() else wanted
        query = dict(self._url.query)
        if asked.endswith("asyncpg") and "sslmode" in query:
            query["ssl"] = query.pop("sslmode")  # libpq's name for it, which is in most people's URLs
        return self._url.set(drivername=asked, query=query)

    def _options(self) -> dict[str, Any]:
        if self._sqlite:
            return {"connect_args": {"timeout": SQLITE_PATIENCE}}
        return {"isolation_level": "READ COMMITTED", "pool_pre_ping": True}

    # -- what can go wrong ----------------------------------------------------------------------

    def _sorted(self, error: Exception) -> BaseException:
        driver = getattr(error, "orig", None) or error
        origins = (error, driver, error.__cause__)
        states = {getattr(one, "sqlstate", None) for one in origins} - {None}
        codes = {one.args[0] for one in origins if one is not None and one.args}
        if "no such table" in str(error) or "42P01" in states or NO_SUCH_TABLE in codes:
            return NoOutboxTable(self.place.outbox)
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
        """Why the database does not let us in, if it is that."""
        match self.statements.database:
            case "sqlite":
                return sqlite.unusable(self._url.database, error)
            case "mysql":
                return mysql.refused(error, self.name) if codes & set(mysql.REFUSED) else None
        hopeless = type(error).__module__.startswith("psycopg") and postgresql.is_hopeless(error)
        if hopeless or any(str(state).startswith(postgresql.REFUSED) for state in states):
            return postgresql.refused(error, self.name)
        return None


def _making(database: str, place: Place) -> list[str]:
    if database != "sqlite":
        return []
    from dibs.outbox.tables import sqlite_tables

    return sqlite_tables(place)


def _look() -> Any:
    return (yield Query("oldest", {"broker": None}))


def _is_unreachable(error: Exception, states: set[Any]) -> bool:
    """psycopg has no SQLSTATE for a server that isn't there; PyMySQL has numbers of the client's."""
    from sqlalchemy.exc import InterfaceError, OperationalError

    origin = getattr(error, "orig", None)
    module = type(origin).__module__
    if module.startswith("psycopg"):
        return isinstance(error, OperationalError | InterfaceError) and not states
    if module.startswith(("pymysql", "asyncmy", "MySQLdb")):
        return bool(origin is not None and origin.args and origin.args[0] in mysql.BROKEN)
    return False


def _committed_reads(engine: Any, database: str) -> Any:
    """The engine as we use it: each statement sees what is committed, whatever the engine's own level is."""
    return engine if database == "sqlite" else engine.execution_options(isolation_level="READ COMMITTED")


def _database(scheme: str) -> str:
    name = scheme.split("+", 1)[0].lower()
    if (database := DATABASES.get(name)) is not None:
        return database
    raise UnknownEngine(
        f"an outbox lives in the database where your data is, and {name!r} has no transactions of yours to "
        f"write messages in; use one of: {', '.join(QUOTES)}"
    )


def _url(text: str) -> Any:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        _ = urlsplit(text).port
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise BadRequest(f"the URL of the outbox can't be read: {error}") from None
    name, _, driver = url.drivername.partition("+")
    database = _database(name)
    if database == "sqlite" and url.database in (None, "", ":memory:"):
        raise BadRequest("an outbox in memory would be gone with its connection; write sqlite:///file.db")
    return url.set(drivername=f"{database}+{driver}" if driver else database)
