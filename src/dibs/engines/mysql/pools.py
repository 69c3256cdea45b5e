"""Connections to MySQL and MariaDB that dibs owns, a few in each colour.

A pool executes one step at a time: it takes a connection, opens a transaction where the answer needs
one, drives the plan, commits. What an error means is said in [trouble.py](trouble.py).
"""

import asyncio
import ssl
from collections.abc import Awaitable, Generator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from dibs.engines.mysql.engine import OLDEST, MySQL
from dibs.engines.mysql.errors import error_number, is_known_state, judge, lacks, store_name
from dibs.engines.pools import AsyncPool, SyncPool
from dibs.engines.sql.engine import Copy, Query, placeholders
from dibs.engines.sql.migrations import LOCK_SECONDS, MIGRATION_TIMEOUT, Holder, pending, schema_table
from dibs.engines.sql.schema_check import look_at_mysql
from dibs.engines.sql.schema_problems import SchemaProblem
from dibs.engines.trouble import TryAgain
from dibs.errors import (
    BadRequest,
    UnknownEngine,
)
from dibs.operations.scripts import Rows, Step, run, run_async

T = TypeVar("T")

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 30  # seconds without an answer to a statement; the connection is then given up
LOCK_TIMEOUT = 10  # seconds that a statement waits for a row before its transaction starts over
TURN_TIMEOUT = 25  # seconds that one who migrates waits for another

# Whatever the server's defaults are: at REPEATABLE READ an idle claim would block those who enqueue.
SESSION = (
    "set session transaction isolation level read committed",
    f"set session innodb_lock_wait_timeout = {LOCK_TIMEOUT}, "
    "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
)

# What an old server does not understand: locks that are skipped, JSON as rows, names that end in spaces.
PROBE = """
select 'a' collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
from json_table('[1]', '$[*]' columns (n integer path '$')) given
for update skip locked
"""
SETUP = "select version(), @@log_bin, @@binlog_format"

HOLDER = """
select other.id, other.user, other.host, timestampdiff(second, open.trx_started, now())
from information_schema.innodb_trx open
join information_schema.processlist other on other.id = open.trx_mysql_thread_id
where other.id <> connection_id()
order by open.trx_started
limit 1
"""

_TLS = {"ssl_ca": "ca", "ssl_cert": "cert", "ssl_key": "key"}
_IGNORED = ("charset",)  # SQLAlchemy's URLs say it; ours is always utf8mb4


def connect_options(url: str) -> dict[str, Any]:
    """A URL in the words that both drivers know; `mysql+asyncmy://…` as SQLAlchemy spells it is fine."""
    parts = urlsplit(url)
    database = unquote(parts.path.lstrip("/"))
    if not database:
        raise BadRequest("the URL of the store names no database; write mysql://user:password@host/database")
    return {
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password or ""),
        "database": database,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": ANSWER_TIMEOUT,
        **_extras(dict(parse_qsl(parts.query))),
    }


def _extras(given: Mapping[str, str]) -> dict[str, Any]:
    known = {"unix_socket", *_TLS, *_IGNORED}
    if unknown := given.keys() - known:
        raise BadRequest(f"{', '.join(sorted(unknown))}: unknown in a MySQL URL; known: {', '.join(known)}")
    extras: dict[str, Any] = {name: given[name] for name in ("unix_socket",) if name in given}
    return extras | ({"ssl": _tls(given)} if given.keys() & _TLS.keys() else {})


def _tls(given: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=given.get("ssl_ca"))
    if "ssl_cert" in given:
        context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    return context


# -- What both colours ask besides questions ----------------------------------------------------

Asking = Generator[str, Any, T]  # yields statements, is sent their rows


def schema_look(engine: MySQL) -> Asking[int]:
    table = engine.dialect.rename("dibs_schema")
    if not (yield f"show tables like '{table}'"):
        return 0
    [(found,)] = yield f"select max(version) from {table}"  # noqa: S608
    return int(found or 0)


def probing() -> Asking[None]:
    """Refuse a server that can't do what dibs relies on, with the reason. Asked by deed, not by version."""
    [(version, log_bin, binlog_format)] = yield SETUP
    if (yield PROBE) is None:
        oldest = " or ".join(f"{name} {number}" for name, number in OLDEST.items())
        raise UnknownEngine(f"the server is {version}, which is too old; dibs needs {oldest} or later")
    if log_bin and str(binlog_format).upper() == "STATEMENT":
        raise UnknownEngine(
            f"the server ({version}) replicates by statement, which can't repeat what `skip locked` chose; "
            "set binlog_format to ROW or MIXED"
        )


def migrating(engine: MySQL, url: str) -> Asking[list[int]]:
    """One at a time. Making a table ends a transaction here, so every statement may be repeated."""
    lock = f"concat(database(), '.{engine.dialect.rename('dibs_migrate')}')"  # locks are the whole server's
    [(got,)] = yield f"select get_lock({lock}, {TURN_TIMEOUT})"
    if got != 1:
        raise TryAgain(TimeoutError("somebody else has been migrating it for long"), store_name(url))
    # While we wait for a table to ourselves, everybody else waits behind us; by default for a day.
    yield f"set session lock_wait_timeout = {LOCK_SECONDS}"
    create, versions = schema_table(engine.dialect)
    exactly = engine.dialect.rename("dibs_schema").replace("_", r"\_")
    if not (yield f"show tables like '{exactly}'"):  # else the server warns, and asyncmy logs it
        yield create
    applied = {version for (version,) in (yield versions)}
    steps = pending(engine.dialect, applied)
    for _, statement in steps:
        yield statement
    yield "set session lock_wait_timeout = default"
    yield f"select release_lock({lock})"
    return sorted({version for version, _ in steps})


def holding() -> Asking[Holder | None]:
    """Who has had a transaction open for the longest time: which tables it is at is not told by default."""
    rows = yield HOLDER
    return Holder(*rows[0]) if rows else None


def _missing(package: str) -> UnknownEngine:
    return UnknownEngine(f"{package} is not installed; run: pip install 'dibs[mysql]'")


# -- Awaited ------------------------------------------------------------------------------------


class AsyncMySQL(AsyncPool):
    """Connections of asyncmy, one set per event loop."""

    def __init__(self, engine: MySQL, url: str, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._url = url

    async def execute(self, step: Step) -> Rows:
        async with self._connection() as connection:
            query = _answered(asyncmy_query(connection, self._engine))
            if not self._engine.needs_transaction(step):
                return await run_async(self._engine.answer(step), query)
            await _answered(connection.query)("start transaction")
            rows = await run_async(self._engine.answer(step), query)
            await _answered(connection.query)("commit")
            return rows

    async def asked_to_stop(self) -> Rows:
        """The claims whose holders have yet to hear that somebody cancelled their job."""
        async with self._connection() as connection:
            rows: Rows = await _answered(asyncmy_query(connection, self._engine))(Query("asked_to_stop", {}))
            return rows

    async def schema_version(self) -> int:
        async with self._connection() as connection:
            return await run_async(schema_look(self._engine), partial(_fetch, connection))

    async def check(self) -> None:
        """Raise when the server can't do what dibs relies on."""
        async with self._connection() as connection:
            await run_async(probing(), partial(_probe, connection))

    async def migrate(self) -> list[int]:
        await self.check()
        async with self._connection() as connection:
            try:
                return await run_async(migrating(self._engine, self._url), partial(_fetch, connection))
            except BaseException:
                _drop(connection)  # and with it the lock
                raise

    async def holder(self) -> Holder | None:
        async with self._connection() as connection:
            return await run_async(holding(), partial(_fetch, connection))

    async def check_schema(self) -> list[SchemaProblem]:
        version = await self.schema_version()
        async with self._connection() as connection:
            return await run_async(look_at_mysql(self._engine.dialect, version), partial(_fetch, connection))

    async def _connect(self) -> Any:
        try:
            import asyncmy
            from asyncmy.constants.CLIENT import FOUND_ROWS
        except ImportError:
            raise _missing("asyncmy") from None
        # Its own read timeout is a wait_for(), which on 3.11 may swallow a cancellation; see `_answered`.
        options = {**connect_options(self._url), "read_timeout": None}
        connection = asyncmy.connection.Connection(**options, client_flag=FOUND_ROWS)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):  # also for the greeting, which theirs leaves out
                await _unswallowed(connection.connect())
                for statement in SESSION:
                    await connection.query(statement)
        except BaseException as error:
            _drop(connection)
            raise judge(error, self._url) from error
        return connection

    async def _after(self, connection: Any, error: BaseException) -> None:
        if is_known_state(error):
            try:
                await connection.query("rollback")
            except Exception:
                _drop(connection)
            else:
                self._idle.append(connection)
            return
        _drop(connection)
        if error_number(error) is not None or isinstance(error, OSError):
            self._drop_idle()

    def _sorted(self, error: BaseException) -> BaseException:
        return judge(error, self._url)

    async def _end(self, connection: Any) -> None:
        try:
            async with asyncio.timeout(2):
                await connection.ensure_closed()
        except Exception:  # it is closed one way or the other
            _drop(connection)

    def _drop(self, connection: Any) -> None:
        _drop(connection)


async def _unswallowed(connecting: Awaitable[None]) -> None:
    """asyncmy connects in a wait_for(), which on 3.11 loses a cancellation that comes together with the
    connection: a listener that was told to end then went on for ever."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    await connecting
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


def _answered(ask: Any) -> Any:
    """The same, given up when the server neither answers nor hangs up."""

    async def asked(what: Any) -> Any:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            return await ask(what)

    return asked


async def _fetch(connection: Any, statement: str) -> Any:
    async with connection.cursor() as cursor:
        await cursor.execute(statement)
        return await cursor.fetchall()


async def _probe(connection: Any, statement: str) -> Any:
    try:
        return await _fetch(connection, statement)
    except Exception as error:
        if lacks(error):
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


def _drop(connection: Any) -> None:
    with suppress(Exception):  # its event loop may be closed, and with it the socket
        connection.close()


# -- Blocking -----------------------------------------------------------------------------------


class SyncMySQL(SyncPool):
    """Connections of PyMySQL, shared by the threads of one process."""

    def __init__(self, engine: MySQL, url: str, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._url = url

    def execute(self, step: Step) -> Rows:
        with self._connection() as connection:
            query = pymysql_query(connection, self._engine)
            if not self._engine.needs_transaction(step):
                return run(self._engine.answer(step), query)
            connection.query("start transaction")
            rows = run(self._engine.answer(step), query)
            connection.query("commit")
            return rows

    def schema_version(self) -> int:
        with self._connection() as connection:
            return run(schema_look(self._engine), partial(_fetched, connection))

    def check(self) -> None:
        """Raise when the server can't do what dibs relies on."""
        with self._connection() as connection:
            run(probing(), partial(_probed, connection))

    def migrate(self) -> list[int]:
        self.check()
        with self._connection() as connection:
            connection._read_timeout = MIGRATION_TIMEOUT
            try:
                return run(migrating(self._engine, self._url), partial(_fetched, connection))
            except BaseException:
                connection._force_close()  # and with it the lock
                raise
            finally:
                connection._read_timeout = ANSWER_TIMEOUT

    def holder(self) -> Holder | None:
        with self._connection() as connection:
            return run(holding(), partial(_fetched, connection))

    def check_schema(self) -> list[SchemaProblem]:
        version = self.schema_version()
        with self._connection() as connection:
            return run(look_at_mysql(self._engine.dialect, version), partial(_fetched, connection))

    def _connect(self) -> Any:
        try:
            from pymysql.constants.CLIENT import FOUND_ROWS
        except ImportError:
            raise _missing("PyMySQL") from None
        connection = _quick_connection()(
            **connect_options(self._url),
            client_flag=FOUND_ROWS,
            write_timeout=ANSWER_TIMEOUT,
            defer_connect=True,
        )
        try:
            connection.connect()
            for statement in SESSION:
                connection.query(statement)
        except BaseException as error:
            connection._force_close()
            raise judge(error, self._url) from error
        return connection

    def _after(self, connection: Any, error: BaseException) -> None:
        if is_known_state(error):
            try:
                connection.query("rollback")
            except Exception:
                connection._force_close()
            else:
                self._idle.append(connection)
            return
        connection._force_close()
        if error_number(error) is not None or isinstance(error, OSError):
            self._drop_idle()

    def _sorted(self, error: BaseException) -> BaseException:
        return judge(error, self._url)

    def _end(self, connection: Any) -> None:
        with suppress(Exception):  # it is closed one way or the other
            connection.close()

    def _drop(self, connection: Any) -> None:
        connection._force_close()


def _fetched(connection: Any, statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def _probed(connection: Any, statement: str) -> Any:
    try:
        return _fetched(connection, statement)
    except Exception as error:
        if lacks(error):
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
    """PyMySQL's, which offers TLS to every server: for each connection it reads all authorities there are,
    20 ms that the first heartbeat of a short lease may not have, and then asks none of them."""
    import pymysql

    class Connection(pymysql.Connection):  # type: ignore[misc]
        def _create_ssl_ctx(self, given: Any) -> ssl.SSLContext:
            context: ssl.SSLContext = super()._create_ssl_ctx(given) if given else _unverified()
            return context

    return Connection


@lru_cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
