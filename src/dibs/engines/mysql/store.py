"""A MySQL or MariaDB database as a store."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from dibs.clock import monotonic
from dibs.engines.hints import Listeners
from dibs.engines.mysql.engine import MySQL
from dibs.engines.mysql.errors import store_name
from dibs.engines.mysql.pools import AsyncMySQL, SyncMySQL
from dibs.engines.mysql.session import (
    asked_to_stop_script,
    blocker_script,
    migration_script,
    probe_script,
    schema_version_script,
)
from dibs.engines.retries import again, again_async
from dibs.engines.sql.migrations import Blocker
from dibs.engines.sql.pools import Conversation
from dibs.engines.sql.schema_check import SchemaProblem, check_mysql
from dibs.engines.sql.store import DatabaseStore
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step
from dibs.settings import Settings

# Seconds between two polls for jobs that were asked to stop, which this server does not announce. A poll
# reads all running jobs: the longer it takes, the longer the pause, but a cancel never takes a second.
STOP_POLL, LONGEST_STOP_POLL = 0.25, 0.75


class MysqlStore(DatabaseStore):
    """A MySQL or MariaDB database: asyncmy for the async face, PyMySQL for the sync one."""

    traits = MySQL.traits

    def __init__(self, settings: Settings) -> None:
        self._engine: MySQL = MySQL(settings.prefix)
        self._url = settings.url
        self._name = store_name(settings.url)
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

    def open(self) -> None:
        if not self._checked:
            again(lambda _: self._sync.ask(probe_script()))
        super().open()

    async def open_async(self) -> None:
        if not self._checked:
            await again_async(lambda _: self._async.ask(probe_script()))
        await super().open_async()

    def _version_script(self) -> Conversation[int]:
        return schema_version_script(self._engine)

    def _migration_script(self) -> Conversation[list[int]]:
        yield from probe_script()
        return (yield from migration_script(self._engine, self._url))

    def _blocker_script(self) -> Conversation[Blocker | None]:
        return blocker_script()

    def _check_script(self, version: int) -> Conversation[list[SchemaProblem]]:
        return check_mysql(self._engine.dialect, version)

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Poll for jobs that were asked to stop; workers poll for new jobs themselves."""
        with self._listeners.listening(hear):
            pause = STOP_POLL
            reported: set[tuple[Any, int, str]] = set()
            while True:
                await asyncio.sleep(pause)
                begun = monotonic()
                rows = await self._async.ask(asked_to_stop_script())
                pause = min(max(50 * (monotonic() - begun), STOP_POLL), LONGEST_STOP_POLL)
                asked = {(row["id"], row["token"], row["worker"]) for row in rows}
                for worker in {worker for _, _, worker in asked - reported}:
                    hear(STOP_HINT + worker)
                reported = asked
