"""Connections to PostgreSQL that dibs owns, a few for each face.

What an error means is decided in [session.py](session.py). No session state is kept on a connection
between two steps, so a pooler may stand in between.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import uuid4

from dibs.clock import monotonic
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.session import (
    ANSWER_TIMEOUT,
    BEGIN,
    BULK_TIMEOUT,
    CONNECT_TIMEOUT,
    SessionMode,
    is_ending,
    is_hopeless,
    judge,
    refused,
    store_name,
    unanswered,
)
from dibs.engines.retries import TryAgain
from dibs.engines.sql.blocks import placeholders
from dibs.engines.sql.engine import Copy, Query
from dibs.engines.sql.pools import (
    AsyncDatabasePool,
    Conversation,
    DatabasePool,
    SyncDatabasePool,
    in_transaction,
)
from dibs.engines.store import hosts_of
from dibs.errors import UnknownEngine
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step

# The types of arrays that dibs sends or receives.
ARRAYS = ("uuid", "text", "smallint", "integer", "bigint", "boolean", "timestamptz")


def _driver_url(url: str) -> str:
    """Return the URL without the driver that SQLAlchemy names in it: `postgresql+asyncpg://…`.

    Of several hosts the one that takes changes is meant; unless the URL says so, drivers take any.
    """
    driver_url = f"postgresql://{url.split('://', 1)[1]}"
    if len(hosts_of(url)) == 1 or "target_session_attrs=" in url:
        return driver_url
    return f"{driver_url}{'&' if '?' in url else '?'}target_session_attrs=read-write"


def _missing(package: str) -> UnknownEngine:
    return UnknownEngine(f"{package} is not installed; run: pip install 'dibs[postgres]'")


class PostgresPool(DatabasePool):
    """What the pools of both faces have in common."""

    def __init__(self, engine: PostgreSQL, url: str, size: int, pooled: bool | None = None) -> None:
        super().__init__(engine, url, size)
        self.mode = SessionMode(pooled)

    def _script(self, step: Step, connection: Any) -> Conversation[Rows]:
        plain: Conversation[Rows] | None = self._engine.plain_answer(step)
        answer = self._engine.answer(step) if plain is None else plain
        if self.mode.pooled or (plain is None and self._engine.needs_transaction(step)):
            return in_transaction(answer, self.mode.begin)
        return answer


# -- Async --------------------------------------------------------------------------------------


class AsyncPostgres(PostgresPool, AsyncDatabasePool):
    """Connections of asyncpg, one set per event loop."""

    def _speaker(self, connection: Any, timeout: float | None = None) -> Any:
        query = asyncpg_query(connection, self._engine, timeout)

        async def speak(what: str | Query | Copy) -> Any:
            if not isinstance(what, str):
                return await query(what)
            if what.startswith("select"):
                return await connection.fetch(what, timeout=timeout)
            return await connection.execute(what, timeout=timeout)

        return speak

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Receive every hint until the connection ends, then raise."""
        connection = await self._dial()
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            channel = self._engine.dialect.rename("dibs_wake")
            await connection.add_listener(channel, lambda *hint: hear(hint[3]))
            hear("")  # there may be new jobs from before we listened,
            hear(STOP_HINT)  # or requests to stop
            await ended.wait()
        except Exception as error:
            raise self._sorted(error) from error
        finally:
            self._drop(connection)
        raise TryAgain(ConnectionError("the listening connection ended"), store_name(self._url))

    async def _connect(self) -> Any:
        """Connect, and test for a pooler unless the mode is known."""
        connection = await self._dial()
        if self.mode.pooled is None:
            try:
                own = f"select 1 where pg_backend_pid() = {connection.get_server_pid()}"
                is_own = await connection.execute(own) == "SELECT 1"
            except BaseException as error:
                self._drop(connection)
                raise self._sorted(error) from error
            if self.mode.learn_from_pid(is_own):
                self._drop(connection)
                connection = await self._dial()
        if self.mode.pooled:
            await self._teach_types(connection)
        return connection

    async def _teach_types(self, connection: Any) -> None:
        """Let asyncpg look up the types before the first step.

        It does so at their first use, and resets `jit` on the session to what it was: within one of our
        steps, where JIT is off, that would switch it off for the next client of the session.
        """
        try:
            await connection.execute(BEGIN)
            await connection.prepare(f"select {', '.join(f'null::{one}[]' for one in ARRAYS)}", name="")
            await connection.execute("commit")
        except BaseException as error:
            self._drop(connection)
            raise self._sorted(error) from error

    async def _dial(self) -> Any:
        try:
            import asyncpg
        except ImportError:
            raise _missing("asyncpg") from None
        try:
            return await asyncpg.connect(
                _driver_url(self._url),
                timeout=CONNECT_TIMEOUT,
                command_timeout=ANSWER_TIMEOUT,
                server_settings=self.mode.session,
                connection_class=_naming(asyncpg.Connection),
                **({"statement_cache_size": 0} if self.mode.pooled else {}),
            )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            if self.mode.learn_from_refusal(error):
                return await self._dial()
            raise self._sorted(error) from error

    async def _after(self, connection: Any, error: BaseException) -> None:
        import asyncpg

        if (
            not isinstance(error, asyncpg.PostgresError)
            or connection.is_closed()
            or is_ending(error.sqlstate)
            or self.mode.learn_from_error(error.sqlstate)
        ):
            self._drop(connection)
            self._drop_idle()
            return
        if connection.is_in_transaction():
            await connection.execute("rollback")
        self._idle.append(connection)

    async def _end(self, connection: Any) -> None:
        with suppress(Exception):  # it is asked to end, and then ended
            await connection.close(timeout=2)
        self._drop(connection)

    def _drop(self, connection: Any) -> None:
        with suppress(RuntimeError):  # its event loop may be closed, and with it the socket
            connection.terminate()

    def _sorted(self, error: BaseException) -> BaseException:
        import asyncpg

        if isinstance(error, asyncpg.PostgresError):
            return judge(error, error.sqlstate, self._url)
        if isinstance(error, OSError) and is_hopeless(error):
            return refused(error, self._url)
        if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError | TimeoutError):
            return unanswered(error, self._url)
        return error


def asyncpg_query(connection: Any, engine: PostgreSQL, timeout: float | None = None) -> Any:
    async def query(query: Query | Copy) -> Rows:
        if isinstance(query, Copy):
            table = engine.dialect.rename(query.table)
            await connection.copy_records_to_table(
                table, columns=query.columns, records=query.records, timeout=BULK_TIMEOUT
            )
            return []
        sql, order = placeholders(engine.dialect.blocks[query.name], "numeric")
        params: Any = query.params
        rows: Rows = await connection.fetch(sql, *[params[name] for name in order], timeout=timeout)
        return rows

    return query


@cache
def _naming(connection: Any) -> Any:
    """Return a class of connections that prepares statements under unique names.

    asyncpg numbers them from 1 in every process. Behind a pooler that was not recognised, another client's
    `stmt_1` would be executed in place of ours. A unique name is missing there, an error to learn from.
    """

    class Naming(connection):  # type: ignore[misc]
        def _get_unique_id(self, prefix: str) -> str:
            return f"dibs_{prefix}_{uuid4().hex}"

    return Naming


# -- Sync ---------------------------------------------------------------------------------------


class SyncPostgres(PostgresPool, SyncDatabasePool):
    """Connections of psycopg, shared by the threads of one process."""

    def _speaker(self, connection: Any, timeout: float | None = None) -> Any:
        connection.answer_timeout = timeout or ANSWER_TIMEOUT
        query = _psycopg_query(connection, self._engine)

        def speak(what: str | Query | Copy) -> Any:
            if not isinstance(what, str):
                return query(what)
            cursor = connection.execute(what, prepare=False)  # it may be two statements, for one round trip
            return cursor.fetchall() if cursor.description else []

        return speak

    def _connect(self) -> Any:
        """Connect, and test for a pooler unless the mode is known."""
        connection = self._dial()
        if self.mode.pooled is None:
            try:
                row = connection.execute("select pg_backend_pid() as pid").fetchone()
            except BaseException as error:
                connection.close()
                raise self._sorted(error) from error
            if self.mode.learn_from_pid(row["pid"] == connection.info.backend_pid):
                connection.close()
                return self._dial()
        return connection

    def _dial(self) -> Any:
        try:
            import psycopg
            from psycopg.rows import dict_row
        except ImportError:
            raise _missing("psycopg") from None
        try:
            connection = _with_timeout(psycopg.Connection).connect(
                _driver_url(self._url),
                autocommit=True,
                row_factory=dict_row,
                connect_timeout=CONNECT_TIMEOUT,
                prepare_threshold=None if self.mode.pooled else 2,
                application_name=self.mode.session["application_name"],
                options=self.mode.options,
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=ANSWER_TIMEOUT * 1000,
            )
        except psycopg.Error as error:
            if self.mode.learn_from_refusal(error):
                return self._dial()
            raise self._sorted(error) from error
        if self.mode.bare:
            connection.adapters.register_loader("timestamptz", _utc_loader())
        # Unique names of prepared statements, as for asyncpg above.
        connection._prepared._prepared_idx = random.getrandbits(60)
        return connection

    def _after(self, connection: Any, error: BaseException) -> None:
        import psycopg

        sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else None
        lost = sqlstate is None or connection.closed or connection.broken or is_ending(sqlstate)
        if lost or self.mode.learn_from_error(sqlstate):
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
            return unanswered(error, self._url)
        return error


@cache
def _utc_loader() -> Any:
    """Return a loader of times in UTC; psycopg's are in the session's time zone, which a pooler chooses."""
    from psycopg.adapt import Loader

    class UtcLoader(Loader):  # type: ignore[misc]
        def load(self, data: Any) -> datetime:
            return datetime.fromisoformat(bytes(data).decode()).astimezone(UTC)

    return UtcLoader


@cache
def _with_timeout(connection: Any) -> Any:
    """Return a class of connections with a read timeout; psycopg waits for ever on a silent server."""

    class TimedConnection(connection):  # type: ignore[misc]
        answer_timeout: float = ANSWER_TIMEOUT

        def wait(self, gen: Any, interval: float = 1.0) -> Any:
            return super().wait(_limited(gen, self.answer_timeout), interval=1.0)

    return TimedConnection


def _limited(waiting: Any, seconds: float) -> Any:
    """Return the same generator, with an error once nothing was ready for that long."""
    deadline = monotonic() + seconds
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if not ready and monotonic() >= deadline:
                raise ConnectionError(f"no answer within {seconds} s")
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
