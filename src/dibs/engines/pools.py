"""Connections to PostgreSQL that dibs owns, a few in each colour.

A pool executes one step at a time: it takes a connection, opens a transaction where the answer
needs one, drives the plan, commits. What goes wrong is sorted here into `TryAgain`, a clear error,
or a bug. No session state is kept on a connection between two steps.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from dibs.clock import monotonic
from dibs.engines.inherited import inherited
from dibs.engines.migrations import pending, schema_table
from dibs.engines.postgresql import PostgreSQL
from dibs.engines.sql import Copy, Query, placeholders, schema_version
from dibs.engines.trouble import TryAgain
from dibs.errors import SchemaOutdated, StoreUnavailable, UnknownEngine
from dibs.scripts import Rows, Step, run, run_async

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 30  # seconds without an answer to a statement; the connection is then given up
BULK_TIMEOUT = 600
MIGRATION_LOCK = 0x64696273  # "dibs"

BEGIN = "begin isolation level read committed"

# Sent with the connection request. JIT is off because the planner can't know how few rows a claim
# takes, thinks it dear, and then compiles for 50 ms what runs in one.
SESSION = {
    "application_name": "dibs",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    "timezone": "UTC",
}

# SQLSTATEs after which the same operation may succeed: serialization, deadlock, a key taken at the
# same moment, a server that starts, stops or has no place left, a plan that the schema outgrew.
AGAIN = ("40001", "40P01", "23505", "53300", "57P01", "57P02", "57P03", "0A000")
NO_TABLES = ("42P01", "42703", "3F000")


def store_name(url: str) -> str:
    """A URL for people: host and database, never a password."""
    parts = urlsplit(url)
    host = f"{parts.hostname or 'local socket'}{f':{parts.port}' if parts.port else ''}"
    return f"PostgreSQL at {host}, database {parts.path.lstrip('/') or '(default)'}"


def _driver_url(url: str) -> str:
    """`postgresql+asyncpg://…` as SQLAlchemy spells it, without the driver."""
    return f"postgresql://{url.split('://', 1)[1]}"


def _options() -> str:
    settings = (f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SESSION.items())
    return " ".join(settings)


def _missing(package: str, extra: str) -> UnknownEngine:
    return UnknownEngine(f"{package} is not installed; run: pip install 'dibs[{extra}]'")


# -- PostgreSQL, awaited ------------------------------------------------------------------------


class AsyncPostgres:
    """Connections of asyncpg, one set per event loop."""

    def __init__(self, engine: PostgreSQL, url: str, size: int) -> None:
        self._engine = engine
        self._url = url
        self._size = size
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._idle: deque[Any] = deque()
        self._age = 0
        self._places = asyncio.Semaphore(size)

    async def execute(self, step: Step) -> Rows:
        async with self._connection() as connection:
            query = _asyncpg_query(connection, self._engine)
            if not self._engine.needs_transaction(step):
                return await run_async(self._engine.answer(step), query)
            await connection.execute(BEGIN)
            rows = await run_async(self._engine.answer(step), query)
            await connection.execute("commit")
            return rows

    async def schema_version(self) -> int:
        async with self._connection() as connection:
            table = self._engine.dialect.rename("dibs_schema")
            if await connection.fetchval("select to_regclass($1)", table) is None:
                return 0
            found: int = await connection.fetchval(f"select max(version) from {table}")  # noqa: S608
            return found

    async def migrate(self) -> list[int]:
        async with self._connection() as connection:
            await connection.execute(BEGIN)
            await connection.fetchval("select pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            create, versions = schema_table(self._engine.dialect)
            await connection.execute(create)
            applied = {row["version"] for row in await connection.fetch(versions)}
            steps = pending(self._engine.dialect, applied)
            for _, statement in steps:
                await connection.execute(statement)
            await connection.execute("commit")
            return sorted({version for version, _ in steps})

    async def close(self) -> None:
        self._age += 1
        while self._idle:
            await self._idle.pop().close(timeout=2)

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Hear every hint until the connection ends, then raise; whoever listens begins again."""
        connection = await self._connect()
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            channel = self._engine.dialect.rename("dibs_wake")
            await connection.add_listener(channel, lambda *hint: hear(hint[3]))
            hear("")  # whatever was announced before we listened
            await ended.wait()
        except Exception as error:
            raise self._sorted(error) from error
        finally:
            _terminate(connection)
        raise TryAgain(ConnectionError("the listening connection ended"), store_name(self._url))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        self._follow_loop()
        async with self._places:
            age = self._age
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                yield connection
            except BaseException as error:
                await self._after(connection, error)
                raise self._sorted(error) from error
            else:
                self._idle.append(connection)
            if age != self._age:  # closed while this call was under way
                await self.close()

    def _follow_loop(self) -> None:
        """Connections belong to the loop (and the process) that made them."""
        loop = asyncio.get_running_loop()
        if loop is self._loop and os.getpid() == self._pid:
            return
        if os.getpid() != self._pid:
            inherited.extend(self._idle)
        else:
            for connection in self._idle:
                _terminate(connection)
        self._loop, self._pid = loop, os.getpid()
        self._idle, self._places = deque(), asyncio.Semaphore(self._size)

    async def _connect(self) -> Any:
        try:
            import asyncpg
        except ImportError:
            raise _missing("asyncpg", "postgres") from None
        try:
            return await asyncpg.connect(
                _driver_url(self._url),
                timeout=CONNECT_TIMEOUT,
                command_timeout=ANSWER_TIMEOUT,
                server_settings=SESSION,
            )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise self._sorted(error) from error

    async def _after(self, connection: Any, error: BaseException) -> None:
        """Keep a connection that is in a known state; after anything else start afresh."""
        import asyncpg

        if (
            not isinstance(error, asyncpg.PostgresError)
            or connection.is_closed()
            or _is_ending(error.sqlstate)
        ):
            _terminate(connection)
            for other in self._idle:
                _terminate(other)
            self._idle.clear()
            return
        if connection.is_in_transaction():
            await connection.execute("rollback")
        self._idle.append(connection)

    def _sorted(self, error: BaseException) -> BaseException:
        import asyncpg

        if isinstance(error, asyncpg.PostgresError):
            return _judge(error, error.sqlstate, self._url)
        if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError | TimeoutError):
            return TryAgain(error, store_name(self._url), unsure=True)
        return error


def _asyncpg_query(connection: Any, engine: PostgreSQL) -> Any:
    async def query(query: Query | Copy) -> Rows:
        if isinstance(query, Copy):
            table = engine.dialect.rename(query.table)
            await connection.copy_records_to_table(
                table, columns=query.columns, records=query.records, timeout=BULK_TIMEOUT
            )
            return []
        sql, order = placeholders(engine.dialect.blocks[query.name], "numeric")
        params: Any = query.params
        rows: Rows = await connection.fetch(sql, *[params[name] for name in order])
        return rows

    return query


def _terminate(connection: Any) -> None:
    with suppress(RuntimeError):  # its event loop may be closed, and with it the socket
        connection.terminate()


# -- PostgreSQL, blocking -----------------------------------------------------------------------


class SyncPostgres:
    """Connections of psycopg, shared by the threads of one process."""

    def __init__(self, engine: PostgreSQL, url: str, size: int) -> None:
        self._engine = engine
        self._url = url
        self._size = size
        self._pid = os.getpid()
        self._idle: deque[Any] = deque()
        self._age = 0
        self._places = threading.Semaphore(size)

    def execute(self, step: Step) -> Rows:
        with self._connection() as connection:
            query = _psycopg_query(connection, self._engine)
            if not self._engine.needs_transaction(step):
                return run(self._engine.answer(step), query)
            connection.execute(BEGIN)
            rows = run(self._engine.answer(step), query)
            connection.execute("commit")
            return rows

    def schema_version(self) -> int:
        with self._connection() as connection:
            table = self._engine.dialect.rename("dibs_schema")
            found = connection.execute("select to_regclass(%s) as found", [table]).fetchone()
            if found["found"] is None:
                return 0
            row = connection.execute(f"select max(version) as version from {table}").fetchone()  # noqa: S608
            version: int = row["version"]
            return version

    def migrate(self) -> list[int]:
        with self._connection() as connection:
            connection.execute(BEGIN)
            connection.execute("select pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
            create, versions = schema_table(self._engine.dialect)
            connection.execute(create)
            applied = {row["version"] for row in connection.execute(versions)}
            steps = pending(self._engine.dialect, applied)
            for _, statement in steps:
                connection.execute(statement)
            connection.execute("commit")
            return sorted({version for version, _ in steps})

    def close(self) -> None:
        self._age += 1
        while (connection := self._take_idle()) is not None:
            connection.close()

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        self._mind_fork()
        with self._places:
            age = self._age
            connection = self._take_idle() or self._connect()
            try:
                yield connection
            except BaseException as error:
                self._after(connection, error)
                raise self._sorted(error) from error
            else:
                self._idle.append(connection)
            if age != self._age:  # closed while this call was under way
                self.close()

    def _mind_fork(self) -> None:
        if os.getpid() != self._pid:
            inherited.extend(self._idle)
            self._pid, self._idle = os.getpid(), deque()
            self._places = threading.Semaphore(self._size)

    def _take_idle(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self) -> Any:
        try:
            import psycopg
            from psycopg.rows import dict_row
        except ImportError:
            raise _missing("psycopg", "postgres") from None
        try:
            return _patient(psycopg.Connection).connect(
                _driver_url(self._url),
                autocommit=True,
                row_factory=dict_row,
                connect_timeout=CONNECT_TIMEOUT,
                prepare_threshold=2,
                application_name=SESSION["application_name"],
                options=_options(),
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=ANSWER_TIMEOUT * 1000,
            )
        except psycopg.Error as error:
            raise self._sorted(error) from error

    def _after(self, connection: Any, error: BaseException) -> None:
        import psycopg

        sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else None
        if sqlstate is None or connection.closed or connection.broken or _is_ending(sqlstate):
            connection.close()
            while (other := self._take_idle()) is not None:
                other.close()
            return
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.execute("rollback")
        self._idle.append(connection)

    def _sorted(self, error: BaseException) -> BaseException:
        import psycopg

        if isinstance(error, psycopg.Error) and error.sqlstate is not None:
            return _judge(error, error.sqlstate, self._url)
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
            return TryAgain(error, store_name(self._url), unsure=True)
        return error


@cache
def _patient(connection: Any) -> Any:
    """psycopg waits for ever on a server that neither answers nor hangs up; this one gives up in time."""

    class Patient(connection):  # type: ignore[misc]
        def wait(self, gen: Any, interval: float = 1.0) -> Any:
            return super().wait(_limited(gen), interval=1.0)

    return Patient


def _limited(waiting: Any) -> Any:
    """The same generator, until nothing was ready for too long."""
    deadline = monotonic() + ANSWER_TIMEOUT
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if not ready and monotonic() >= deadline:
                raise ConnectionError(f"no answer within {ANSWER_TIMEOUT} s")
            wanted = waiting.send(ready)
    except StopIteration as end:
        return end.value


def _psycopg_query(connection: Any, engine: PostgreSQL) -> Any:
    def query(query: Query | Copy) -> Rows:
        if isinstance(query, Copy):
            return _psycopg_copy(connection, engine, query)
        sql, _ = placeholders(engine.dialect.blocks[query.name], "pyformat")
        cursor = connection.execute(sql, query.params)
        rows: Rows = cursor.fetchall() if cursor.description else []
        return rows

    return query


def _psycopg_copy(connection: Any, engine: PostgreSQL, copy: Copy) -> Rows:
    table, columns = engine.dialect.rename(copy.table), ", ".join(copy.columns)
    with connection.cursor() as cursor, cursor.copy(f"copy {table} ({columns}) from stdin") as out:
        for record in copy.records:
            out.write_row(record)
    return []


def _is_ending(sqlstate: str | None) -> bool:
    """The server is about to close this connection, though it may still look open."""
    return sqlstate is not None and sqlstate.startswith(("08", "57P"))


def _judge(error: BaseException, sqlstate: str | None, url: str) -> BaseException:
    if sqlstate in NO_TABLES:
        return SchemaOutdated(0, schema_version("postgresql"))
    if sqlstate is not None and (sqlstate in AGAIN or sqlstate.startswith("08")):
        return TryAgain(error, store_name(url), unsure=sqlstate.startswith(("08", "57")))
    if sqlstate is not None and sqlstate.startswith(("28", "3D")):  # credentials, no such database
        return StoreUnavailable(f"{store_name(url)} refused us: {error}")
    return error
