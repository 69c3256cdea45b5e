"""Connections to PostgreSQL that dibs owns, a few in each colour.

A pool executes one step at a time: it takes a connection, opens a transaction where the answer
needs one, drives the plan, commits. What an error means is said in [trouble.py](trouble.py). No session
state is kept on a connection between two steps, so a pooler may stand in between
([poolers.py](poolers.py)).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import uuid4

from dibs.clock import monotonic
from dibs.engines.pools import AsyncPool, SyncPool
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.errors import is_ending, is_hopeless, judge, refused, store_name
from dibs.engines.postgresql.poolers import BEGIN, Manners
from dibs.engines.sql.engine import Copy, Query, placeholders
from dibs.engines.sql.migrations import (
    LOCK_SECONDS,
    MIGRATION_LOCK,
    MIGRATION_TIMEOUT,
    Holder,
    pending,
    schema_table,
    table_names,
)
from dibs.engines.sql.schema_check import look_at_postgresql
from dibs.engines.sql.schema_problems import SchemaProblem
from dibs.engines.trouble import TryAgain
from dibs.errors import UnknownEngine
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step, run, run_async

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 30  # seconds without an answer to a statement; the connection is then given up
BULK_TIMEOUT = 600

# While we wait for a table to ourselves, everybody else waits behind us.
SHORT_LOCKS = f"set local lock_timeout = '{LOCK_SECONDS}s'"
HOLDER = """
select
    other.pid as connection,
    other.usename as who,
    other.application_name as program,
    extract(epoch from clock_timestamp() - other.xact_start)::float8 as seconds
from pg_locks held
join pg_stat_activity other on other.pid = held.pid
where held.granted
  and held.relation in (select to_regclass(name) from unnest(:tables::text[]) name)
  and other.pid <> pg_backend_pid()
order by other.xact_start
limit 1
"""

# The types whose arrays we send or get.
ARRAYS = ("uuid", "text", "smallint", "integer", "bigint", "boolean", "timestamptz")


def _driver_url(url: str) -> str:
    """`postgresql+asyncpg://…` as SQLAlchemy spells it, without the driver."""
    return f"postgresql://{url.split('://', 1)[1]}"


def _missing(package: str, extra: str) -> UnknownEngine:
    return UnknownEngine(f"{package} is not installed; run: pip install 'dibs[{extra}]'")


# -- PostgreSQL, awaited ------------------------------------------------------------------------


class AsyncPostgres(AsyncPool):
    """Connections of asyncpg, one set per event loop."""

    def __init__(self, engine: PostgreSQL, url: str, size: int, pooled: bool | None = None) -> None:
        super().__init__(size)
        self._engine = engine
        self._url = url
        self._manners = Manners(pooled)

    async def execute(self, step: Step) -> Rows:
        async with self._connection() as connection:
            query = _asyncpg_query(connection, self._engine)
            if not (self._manners.pooled or self._engine.needs_transaction(step)):
                return await run_async(self._engine.answer(step), query)
            await connection.execute(self._manners.begin)
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
        lock = "select pg_advisory_xact_lock($1)"
        async with self._transaction() as connection:
            await connection.fetchval(lock, MIGRATION_LOCK, timeout=MIGRATION_TIMEOUT)
            await connection.execute(SHORT_LOCKS)
            create, versions = schema_table(self._engine.dialect)
            await connection.execute(create)
            applied = {row["version"] for row in await connection.fetch(versions)}
            steps = pending(self._engine.dialect, applied)
            for _, statement in steps:
                await connection.execute(statement, timeout=MIGRATION_TIMEOUT)
            return sorted({version for version, _ in steps})

    async def holder(self) -> Holder | None:
        """Who has had one of our tables for the longest time."""
        async with self._connection() as connection:
            names = table_names(self._engine.dialect)
            row = await connection.fetchrow(placeholders(HOLDER, "numeric")[0], names)
            return None if row is None else Holder(**row)

    async def check_schema(self) -> list[SchemaProblem]:
        version = await self.schema_version()
        async with self._connection() as connection:
            query = _asyncpg_query(connection, self._engine)

            async def look(at: str | Query) -> Any:
                return await (connection.execute(at) if isinstance(at, str) else query(at))

            await connection.execute(self._manners.begin)
            problems = await run_async(look_at_postgresql(self._engine.dialect, version), look)
            await connection.execute("rollback")
            return problems

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Hear every hint until the connection ends, then raise; whoever listens begins again."""
        connection = await self._dial()
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            channel = self._engine.dialect.rename("dibs_wake")
            await connection.add_listener(channel, lambda *hint: hear(hint[3]))
            hear("")  # whatever was announced before we listened,
            hear(STOP_HINT)  # or asked to stop
            await ended.wait()
        except Exception as error:
            raise self._sorted(error) from error
        finally:
            _terminate(connection)
        raise TryAgain(ConnectionError("the listening connection ended"), store_name(self._url))

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        async with self._connection() as connection:
            await connection.execute(self._manners.begin)
            yield connection
            await connection.execute("commit")

    async def _connect(self) -> Any:
        """A new connection, once we know how to speak on it."""
        connection = await self._dial()
        if self._manners.pooled is None:
            try:
                own = f"select 1 where pg_backend_pid() = {connection.get_server_pid()}"
                is_own = await connection.execute(own) == "SELECT 1"
            except BaseException as error:
                _terminate(connection)
                raise self._sorted(error) from error
            if self._manners.learn_from_pid(is_own):
                _terminate(connection)
                connection = await self._dial()
        if self._manners.pooled:
            await self._teach_types(connection)
        return connection

    async def _teach_types(self, connection: Any) -> None:
        """asyncpg looks types up at their first use and sets `jit` meanwhile, on the session, as it stood.

        In one of our steps, where JIT is off, that would be off for whoever is given the session next.
        """
        try:
            await connection.execute(BEGIN)
            await connection.prepare(f"select {', '.join(f'null::{one}[]' for one in ARRAYS)}", name="")
            await connection.execute("commit")
        except BaseException as error:
            _terminate(connection)
            raise self._sorted(error) from error

    async def _dial(self) -> Any:
        try:
            import asyncpg
        except ImportError:
            raise _missing("asyncpg", "postgres") from None
        try:
            return await asyncpg.connect(
                _driver_url(self._url),
                timeout=CONNECT_TIMEOUT,
                command_timeout=ANSWER_TIMEOUT,
                server_settings=self._manners.session,
                connection_class=_naming(asyncpg.Connection),
                **({"statement_cache_size": 0} if self._manners.pooled else {}),
            )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            if self._manners.learn_from_refusal(error):
                return await self._dial()
            raise self._sorted(error) from error

    async def _after(self, connection: Any, error: BaseException) -> None:
        import asyncpg

        if (
            not isinstance(error, asyncpg.PostgresError)
            or connection.is_closed()
            or is_ending(error.sqlstate)
            or self._manners.learn_from_error(error.sqlstate)
        ):
            _terminate(connection)
            self._drop_idle()
            return
        if connection.is_in_transaction():
            await connection.execute("rollback")
        self._idle.append(connection)

    async def _end(self, connection: Any) -> None:
        with suppress(Exception):  # it is asked to end, and then ended
            await connection.close(timeout=2)
        _terminate(connection)

    def _drop(self, connection: Any) -> None:
        _terminate(connection)

    def _sorted(self, error: BaseException) -> BaseException:
        import asyncpg

        if isinstance(error, asyncpg.PostgresError):
            return judge(error, error.sqlstate, self._url)
        if isinstance(error, OSError) and is_hopeless(error):
            return refused(error, self._url)
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


@cache
def _naming(connection: Any) -> Any:
    """asyncpg numbers the statements that it prepares from 1 in every process.

    Behind a pooler that we don't recognise, `stmt_1` of somebody else would answer for ours. A name that
    nobody else has is not there, and that is an error we can learn from.
    """

    class Naming(connection):  # type: ignore[misc]
        def _get_unique_id(self, prefix: str) -> str:
            return f"dibs_{prefix}_{uuid4().hex}"

    return Naming


def _terminate(connection: Any) -> None:
    with suppress(RuntimeError):  # its event loop may be closed, and with it the socket
        connection.terminate()


# -- PostgreSQL, blocking -----------------------------------------------------------------------


class SyncPostgres(SyncPool):
    """Connections of psycopg, shared by the threads of one process."""

    def __init__(self, engine: PostgreSQL, url: str, size: int, pooled: bool | None = None) -> None:
        super().__init__(size)
        self._engine = engine
        self._url = url
        self._manners = Manners(pooled)

    def execute(self, step: Step) -> Rows:
        with self._connection() as connection:
            query = _psycopg_query(connection, self._engine)
            if not (self._manners.pooled or self._engine.needs_transaction(step)):
                return run(self._engine.answer(step), query)
            connection.execute(self._manners.begin)
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
        with self._transaction() as connection, connection.patient():
            connection.execute("select pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
            connection.execute(SHORT_LOCKS)
            create, versions = schema_table(self._engine.dialect)
            connection.execute(create)
            applied = {row["version"] for row in connection.execute(versions)}
            steps = pending(self._engine.dialect, applied)
            for _, statement in steps:
                connection.execute(statement)
            return sorted({version for version, _ in steps})

    def holder(self) -> Holder | None:
        """Who has had one of our tables for the longest time."""
        with self._connection() as connection:
            names = {"tables": table_names(self._engine.dialect)}
            row = connection.execute(placeholders(HOLDER, "pyformat")[0], names).fetchone()
            return None if row is None else Holder(**row)

    def check_schema(self) -> list[SchemaProblem]:
        version = self.schema_version()
        with self._connection() as connection:
            query = _psycopg_query(connection, self._engine)

            def look(at: str | Query) -> Any:
                return connection.execute(at) if isinstance(at, str) else query(at)

            connection.execute(self._manners.begin)
            problems = run(look_at_postgresql(self._engine.dialect, version), look)
            connection.execute("rollback")
            return problems

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._connection() as connection:
            connection.execute(self._manners.begin)
            yield connection
            connection.execute("commit")

    def _connect(self) -> Any:
        """A new connection, once we know how to speak on it."""
        connection = self._dial()
        if self._manners.pooled is None:
            try:
                row = connection.execute("select pg_backend_pid() as pid").fetchone()
            except BaseException as error:
                connection.close()
                raise self._sorted(error) from error
            if self._manners.learn_from_pid(row["pid"] == connection.info.backend_pid):
                connection.close()
                return self._dial()
        return connection

    def _dial(self) -> Any:
        try:
            import psycopg
            from psycopg.rows import dict_row
        except ImportError:
            raise _missing("psycopg", "postgres") from None
        try:
            connection = _patient(psycopg.Connection).connect(
                _driver_url(self._url),
                autocommit=True,
                row_factory=dict_row,
                connect_timeout=CONNECT_TIMEOUT,
                prepare_threshold=None if self._manners.pooled else 2,
                application_name=self._manners.session["application_name"],
                options=self._manners.options,
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=ANSWER_TIMEOUT * 1000,
            )
        except psycopg.Error as error:
            if self._manners.learn_from_refusal(error):
                return self._dial()
            raise self._sorted(error) from error
        if self._manners.bare:
            connection.adapters.register_loader("timestamptz", _utc_loader())
        # Names that nobody else has, as above for asyncpg.
        connection._prepared._prepared_idx = random.getrandbits(60)
        return connection

    def _after(self, connection: Any, error: BaseException) -> None:
        import psycopg

        sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else None
        lost = sqlstate is None or connection.closed or connection.broken or is_ending(sqlstate)
        if lost or self._manners.learn_from_error(sqlstate):
            connection.close()
            self._drop_idle()
            return
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.execute("rollback")
        self._idle.append(connection)

    def _end(self, connection: Any) -> None:
        connection.close()

    def _sorted(self, error: BaseException) -> BaseException:
        import psycopg

        if isinstance(error, psycopg.Error) and error.sqlstate is not None:
            return judge(error, error.sqlstate, self._url)
        if isinstance(error, psycopg.Error) and is_hopeless(error):
            return refused(error, self._url)
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
            return TryAgain(error, store_name(self._url), unsure=True)
        return error


@cache
def _utc_loader() -> Any:
    """psycopg gives times in the session's time zone, which behind a pooler is not ours to choose."""
    from psycopg.adapt import Loader

    class UtcLoader(Loader):  # type: ignore[misc]
        def load(self, data: Any) -> datetime:
            return datetime.fromisoformat(bytes(data).decode()).astimezone(UTC)

    return UtcLoader


@cache
def _patient(connection: Any) -> Any:
    """psycopg waits for ever on a server that neither answers nor hangs up; this one gives up in time."""

    class Patient(connection):  # type: ignore[misc]
        patience = ANSWER_TIMEOUT

        def wait(self, gen: Any, interval: float = 1.0) -> Any:
            return super().wait(_limited(gen, self.patience), interval=1.0)

        @contextmanager
        def patient(self) -> Iterator[None]:
            self.patience = MIGRATION_TIMEOUT
            try:
                yield
            finally:
                self.patience = ANSWER_TIMEOUT

    return Patient


def _limited(waiting: Any, patience: float) -> Any:
    """The same generator, until nothing was ready for too long."""
    deadline = monotonic() + patience
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if not ready and monotonic() >= deadline:
                raise ConnectionError(f"no answer within {patience} s")
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
