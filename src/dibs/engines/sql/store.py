"""Stores behind a database server: run operations on pooled connections, check and migrate the tables."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from dibs.clock import monotonic
from dibs.engines.hints import Listeners
from dibs.engines.mysql import session as mysql
from dibs.engines.mysql.engine import MySQL
from dibs.engines.mysql.pools import AsyncMySQL, SyncMySQL
from dibs.engines.postgresql import session as postgresql
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.pools import AsyncPostgres, SyncPostgres
from dibs.engines.retries import Tries, TryAgain, again, again_async
from dibs.engines.sql.blocks import schema_version
from dibs.engines.sql.engine import Query
from dibs.engines.sql.migrations import Blocker, MigrationWait
from dibs.engines.sql.pools import Conversation, in_transaction
from dibs.engines.sql.schema_check import check_mysql, check_postgresql
from dibs.engines.sql.within import Engine, bind
from dibs.engines.store import Operation, Pooled, SchemaProblem, Tables
from dibs.errors import BadRequest, DibsError, SchemaOutdated
from dibs.faces import Call, Calls, make
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step, run, run_async
from dibs.settings import Settings

T = TypeVar("T")


class DatabaseStore(Pooled, Tables):
    """A database behind a server: a pool of connections for each face, tables of a certain version."""

    _engine: Engine
    _name: str
    _checked = False
    _ask: Callable[[Step], Rows] | None = None
    _ask_async: Callable[[Step], Awaitable[Rows]] | None = None
    """What executes a step, if it is not the pool alone."""
    _own_database: str | None = None
    """The name of the database, where a caller's connection may lead to another one that has our tables."""

    # -- what each server is asked besides questions ------------------------------------------------

    def _version_script(self) -> Conversation[int]:
        """Read the schema version; without tables 0, or `SchemaOutdated`."""
        raise NotImplementedError

    def _migration_script(self) -> Conversation[list[int]]:
        """Apply the pending migrations, one process at a time; return their versions."""
        raise NotImplementedError

    def _blocker_script(self) -> Conversation[Blocker | None]:
        """Find the transaction that has kept our tables for the longest time."""
        raise NotImplementedError

    def _check_script(self, version: int) -> Conversation[list[SchemaProblem]]:
        raise NotImplementedError

    # -- both faces -------------------------------------------------------------------------------

    def run(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            self.open()
        if within is not None:
            return run(operation(Tries()), bind(within, self._engine, self._own_database, "sync"))
        tries, ask = Tries(), self._ask or self._sync.execute
        try:
            return run(operation(tries), ask)
        except TryAgain as failure:
            return again(lambda tries: run(operation(tries), ask), tries=tries, failure=failure)

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            await self.open_async()
        if within is not None:
            return await run_async(
                operation(Tries()), bind(within, self._engine, self._own_database, "async")
            )
        tries, ask = Tries(), self._ask_async or self._async.execute
        try:
            return await run_async(operation(tries), ask)
        except TryAgain as failure:
            return await again_async(
                lambda tries: run_async(operation(tries), ask), tries=tries, failure=failure
            )

    def _asked(self, script: Callable[[], Conversation[T]]) -> Call[T]:
        return Call(
            lambda: again(lambda _: self._sync.ask(script())),
            lambda: again_async(lambda _: self._async.ask(script())),
        )

    def _opening(self) -> Calls[None]:
        if self._checked:
            return
        found, needed = (yield from self._reading_version()), schema_version(self._engine.dialect.name)
        if found < needed:
            raise SchemaOutdated(found, needed, self._name)
        self._checked = True

    def _migrating(self) -> Calls[list[int]]:
        script = self._migration_script
        attempt: Call[list[int]] = Call(
            lambda: again(lambda _: self._sync.ask_alone(script()), even_if_locked=False),
            lambda: again_async(lambda _: self._async.ask_alone(script()), even_if_locked=False),
        )
        wait = MigrationWait()
        while True:
            try:
                return (yield from make(attempt))
            except TryAgain as failure:
                pause = wait.pause(failure, (yield from self._blocker()))
            yield Call(time.sleep, asyncio.sleep, (pause,))

    def _blocker(self) -> Calls[Blocker | None]:
        """Return a hint for the log; a server that does not show it to this user leaves it out."""
        try:
            return (yield from make(self._asked(self._blocker_script)))
        except (DibsError, TryAgain):
            return None

    def _reading_version(self) -> Calls[int]:
        try:
            return (yield from make(self._asked(self._version_script)))
        except SchemaOutdated:
            return 0

    def _checking(self) -> Calls[list[SchemaProblem]]:
        version = yield from self._reading_version()
        return (yield from make(self._asked(lambda: self._check_script(version))))


class PostgresStore(DatabaseStore):
    """A PostgreSQL database: asyncpg for the async face, psycopg for the sync one."""

    traits = PostgreSQL.traits

    def __init__(self, settings: Settings) -> None:
        self._engine: PostgreSQL = PostgreSQL(settings.prefix)
        self._name = postgresql.store_name(settings.url)
        self._sync = SyncPostgres(self._engine, settings.url, settings.pool_size, settings.pooled)
        self._async = AsyncPostgres(self._engine, settings.url, settings.pool_size, settings.pooled)
        # It says nothing but LISTEN, so it needs no session of its own kind.
        self._listener = AsyncPostgres(self._engine, _listen_url(settings), 1, pooled=True)

    async def listen(self, hear: Callable[[str], None]) -> None:
        await self._listener.listen(hear)

    def _version_script(self) -> Conversation[int]:
        return postgresql.schema_version_script(self._engine)

    def _migration_script(self) -> Conversation[list[int]]:
        return in_transaction(postgresql.migration_script(self._engine), postgresql.BEGIN)

    def _blocker_script(self) -> Conversation[Blocker | None]:
        return postgresql.blocker_script(self._engine)

    def _check_script(self, version: int) -> Conversation[list[SchemaProblem]]:
        return in_transaction(check_postgresql(self._engine.dialect, version), postgresql.BEGIN, "rollback")


def _listen_url(settings: Settings) -> str:
    """Return the address to LISTEN at, which a pooler in transaction mode can't do."""
    if settings.listen_url is None:
        return settings.url
    if not settings.listen_url.lower().startswith("postgres"):
        raise BadRequest(
            f"listen_url is a {settings.listen_url.partition(':')[0]!r} URL and the store is PostgreSQL: "
            "give the server's own address of the same database"
        )
    return settings.listen_url


# Seconds between two polls for jobs that were asked to stop, which this server does not announce. A poll
# reads all running jobs: the longer it takes, the longer the pause, but a cancel never takes a second.
STOP_POLL, LONGEST_STOP_POLL = 0.25, 0.75


class MysqlStore(DatabaseStore):
    """A MySQL or MariaDB database: asyncmy for the async face, PyMySQL for the sync one."""

    traits = MySQL.traits

    def __init__(self, settings: Settings) -> None:
        self._engine: MySQL = MySQL(settings.prefix)
        self._url = settings.url
        self._name = mysql.store_name(settings.url)
        self._own_database = unquote(urlsplit(settings.url).path.lstrip("/")) or None
        self._sync = SyncMySQL(self._engine, settings.url, settings.pool_size)
        self._async = AsyncMySQL(self._engine, settings.url, settings.pool_size)
        self._listeners = Listeners()
        self._ask, self._ask_async = self._ask_and_announce, self._ask_and_announce_async

    def _ask_and_announce(self, step: Step) -> Rows:
        rows: Rows = self._sync.execute(step)
        self._listeners.announce(step, rows)
        return rows

    async def _ask_and_announce_async(self, step: Step) -> Rows:
        rows: Rows = await self._async.execute(step)
        self._listeners.announce(step, rows)
        return rows

    def _opening(self) -> Calls[None]:
        if not self._checked:
            yield self._asked(mysql.probe_script)
        yield from super()._opening()

    def _version_script(self) -> Conversation[int]:
        return mysql.schema_version_script(self._engine)

    def _migration_script(self) -> Conversation[list[int]]:
        yield from mysql.probe_script()
        return (yield from mysql.migration_script(self._engine, self._url))

    def _blocker_script(self) -> Conversation[Blocker | None]:
        return mysql.blocker_script()

    def _check_script(self, version: int) -> Conversation[list[SchemaProblem]]:
        return check_mysql(self._engine.dialect, version)

    def _asked_to_stop(self) -> Conversation[Rows]:
        rows: Rows = yield Query("asked_to_stop", {})
        return rows

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Poll for jobs that were asked to stop; workers poll for new jobs themselves."""
        with self._listeners.listening(hear):
            pause = STOP_POLL
            reported: set[tuple[Any, int, str]] = set()
            while True:
                await asyncio.sleep(pause)
                begun = monotonic()
                rows = await self._async.ask(self._asked_to_stop())
                pause = min(max(50 * (monotonic() - begun), STOP_POLL), LONGEST_STOP_POLL)
                asked = {(row["id"], row["token"], row["worker"]) for row in rows}
                for worker in {worker for _, _, worker in asked - reported}:
                    hear(STOP_HINT + worker)
                reported = asked
