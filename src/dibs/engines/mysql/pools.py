"""Connections to MySQL and MariaDB that dibs owns, a few for each face.

What an error means and what is said on a session is in [session.py](session.py).
"""

import asyncio
import ssl
from collections.abc import Awaitable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from dibs.engines.mysql.engine import MySQL
from dibs.engines.mysql.session import (
    ANSWER_TIMEOUT,
    CONNECT_TIMEOUT,
    PROBE,
    ROLLBACK,
    SESSION,
    begin_on,
    check_method,
    connect_options,
    end_on,
    error_number,
    is_known_state,
    judge,
    lacks,
)
from dibs.engines.sql.blocks import placeholders
from dibs.engines.sql.engine import Copy, Query
from dibs.engines.sql.pools import (
    AsyncDatabasePool,
    Conversation,
    DatabasePool,
    SyncDatabasePool,
    in_transaction,
)
from dibs.errors import UnknownEngine
from dibs.operations.scripts import Rows, Step


class MysqlPool(DatabasePool):
    """What the pools of both faces have in common."""

    def _script(self, step: Step, connection: Any) -> Conversation[Rows]:
        answer: Conversation[Rows] = self._engine.answer(step)
        if not self._engine.needs_transaction(step):
            return answer
        return in_transaction(answer, begin_on(connection), end_on(connection, "commit"))

    def _sorted(self, error: BaseException) -> BaseException:
        return judge(error, self._url)

    def _leave(self, connection: Any, error: BaseException) -> None:
        """Close this connection, and the others where the server may have ended them as well."""
        self._drop(connection)
        if error_number(error) is not None or isinstance(error, OSError):
            self._drop_idle()


def _missing(package: str) -> UnknownEngine:
    return UnknownEngine(f"{package} is not installed; run: pip install 'dibs[mysql]'")


# -- Async --------------------------------------------------------------------------------------


class AsyncMySQL(MysqlPool, AsyncDatabasePool):
    """Connections of asyncmy, one set per event loop."""

    def _speaker(self, connection: Any, timeout: float | None = None) -> Any:
        query = asyncmy_query(connection, self._engine)

        async def speak(what: str | Query | Copy) -> Any:
            # Not the driver's own read timeout, a wait_for(), which on 3.11 may swallow a cancellation.
            async with asyncio.timeout(timeout or ANSWER_TIMEOUT):
                return await (_fetch(connection, what) if isinstance(what, str) else query(what))

        return speak

    async def _connect(self) -> Any:
        try:
            import asyncmy
            from asyncmy.constants.CLIENT import FOUND_ROWS
        except ImportError:
            raise _missing("asyncmy") from None
        options = {**connect_options(self._url), "read_timeout": None}
        connection = _careful(asyncmy.connection.Connection)(**options, client_flag=FOUND_ROWS)
        connection.options = options
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):  # also for the greeting, which theirs leaves out
                await _unswallowed(connection.connect())
                for statement in SESSION:
                    await connection.query(statement)
        except BaseException as error:
            self._drop(connection)
            raise judge(error, self._url) from error
        return connection

    async def _after(self, connection: Any, error: BaseException) -> None:
        if is_known_state(error):
            try:
                await _fetch(connection, end_on(connection, ROLLBACK))
            except Exception:
                self._drop(connection)
            else:
                self._idle.append(connection)
            return
        self._leave(connection, error)

    async def _end(self, connection: Any) -> None:
        try:
            async with asyncio.timeout(2):
                await connection.ensure_closed()
        except Exception:  # it is closed one way or the other
            self._drop(connection)

    def _drop(self, connection: Any) -> None:
        with suppress(Exception):  # its event loop may be closed, and with it the socket
            connection.close()


@lru_cache
def _careful(driver: Any) -> Any:
    """Return asyncmy's class of connections, without the methods that give the password away."""

    class CarefulConnection(driver):  # type: ignore[misc]
        async def _process_auth(self, method: bytes, *rest: Any) -> Any:
            check_method(method, self.options)
            return await super()._process_auth(method, *rest)

    return CarefulConnection


async def _unswallowed(connecting: Awaitable[None]) -> None:
    """Raise a cancellation that came together with the connection.

    asyncmy connects in a wait_for(), which on 3.11 loses such a one: a cancelled listener ran for ever.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    await connecting
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


async def _fetch(connection: Any, statement: str) -> Any:
    try:
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
            return await cursor.fetchall()
    except Exception as error:
        if statement is PROBE and lacks(error):
            return None
        raise


def asyncmy_query(connection: Any, engine: MySQL) -> Any:
    from asyncmy.cursors import Cursor

    async def query(query: Query | Copy) -> Rows:
        assert isinstance(query, Query)
        sql, order = placeholders(engine.dialect.blocks[query.name], "pyformat")
        params: Any = query.params
        async with connection.cursor(Cursor) as cursor:
            await cursor.execute(sql, {name: params[name] for name in order} or None)
            if cursor.description is None:
                return []
            return engine.read([column[0] for column in cursor.description], await cursor.fetchall())

    return query


# -- Sync ---------------------------------------------------------------------------------------


class SyncMySQL(MysqlPool, SyncDatabasePool):
    """Connections of PyMySQL, shared by the threads of one process."""

    def _speaker(self, connection: Any, timeout: float | None = None) -> Any:
        connection._read_timeout = timeout or ANSWER_TIMEOUT
        query = pymysql_query(connection, self._engine)

        def speak(what: str | Query | Copy) -> Any:
            return _fetched(connection, what) if isinstance(what, str) else query(what)

        return speak

    def _connect(self) -> Any:
        try:
            from pymysql.constants.CLIENT import FOUND_ROWS, MULTI_STATEMENTS
        except ImportError:
            raise _missing("PyMySQL") from None
        options = connect_options(self._url)
        connection = _quick_connection()(
            **options,
            client_flag=FOUND_ROWS | MULTI_STATEMENTS,  # as asyncmy has it; see `begin_on`
            write_timeout=ANSWER_TIMEOUT,
            defer_connect=True,
        )
        connection.options = options
        try:
            connection.connect()
            for statement in SESSION:
                connection.query(statement)
        except BaseException as error:
            self._drop(connection)
            raise judge(error, self._url) from error
        return connection

    def _after(self, connection: Any, error: BaseException) -> None:
        if is_known_state(error):
            try:
                _fetched(connection, end_on(connection, ROLLBACK))
            except Exception:
                self._drop(connection)
            else:
                self._idle.append(connection)
            return
        self._leave(connection, error)

    def _end(self, connection: Any) -> None:
        with suppress(Exception):  # it is closed one way or the other
            connection.close()

    def _drop(self, connection: Any) -> None:
        connection._force_close()


def _fetched(connection: Any, statement: str) -> Any:
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()
    except Exception as error:
        if statement is PROBE and lacks(error):
            return None
        raise


def pymysql_query(connection: Any, engine: MySQL) -> Any:
    from pymysql.cursors import Cursor

    def query(query: Query | Copy) -> Rows:
        assert isinstance(query, Query)
        sql, order = placeholders(engine.dialect.blocks[query.name], "pyformat")
        params: Any = query.params
        with connection.cursor(Cursor) as cursor:
            cursor.execute(sql, {name: params[name] for name in order} or None)
            if cursor.description is None:
                return []
            return engine.read([column[0] for column in cursor.description], cursor.fetchall())

    return query


@lru_cache
def _quick_connection() -> Any:
    """Return PyMySQL's class of connections, careful with passwords and without its cost for TLS.

    It offers TLS to every server and for each connection reads all certificate authorities, of which it then
    asks none: 20 ms that the first heartbeat of a short lease may not have.
    """
    import pymysql

    class Connection(pymysql.Connection):  # type: ignore[misc]
        def _create_ssl_ctx(self, given: Any) -> ssl.SSLContext:
            context: ssl.SSLContext = super()._create_ssl_ctx(given) if given else _unverified()
            return context

        def _process_auth(self, method: bytes, *rest: Any) -> Any:
            check_method(method, self.options)
            return super()._process_auth(method, *rest)

    return Connection


@lru_cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
