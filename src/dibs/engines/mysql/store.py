"""A MySQL or MariaDB database as a store."""

import asyncio
from collections.abc import Callable
from typing import Any

from dibs.clock import monotonic
from dibs.engines.hints import Listeners
from dibs.engines.mysql.errors import store_name
from dibs.engines.mysql.pools import AsyncMySQL, SyncMySQL
from dibs.engines.sql.stepped import SteppedMySQL
from dibs.engines.sql.store import DatabaseStore
from dibs.engines.store import again, again_async
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step
from dibs.settings import Settings

# Seconds between two looks at who was asked to stop, where nobody announces it: the longer the more a look
# costs, which reads whatever is running, and never so long that a cancel takes a second.
STOP_GLANCE, LONGEST_STOP_GLANCE = 0.25, 0.75


class MysqlStore(DatabaseStore):
    """A MySQL or MariaDB database: asyncmy for awaited calls, PyMySQL for blocking ones."""

    traits = SteppedMySQL.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = engine = SteppedMySQL(settings.prefix)
        self._name = store_name(settings.url)
        self._sync = SyncMySQL(engine, settings.url, settings.pool_size)
        self._async = AsyncMySQL(engine, settings.url, settings.pool_size)
        self._listeners = Listeners()

    def _execute(self, step: Step) -> Rows:
        rows = super()._execute(step)
        self._listeners.announce(step, rows)
        return rows

    async def _execute_async(self, step: Step) -> Rows:
        rows = await super()._execute_async(step)
        self._listeners.announce(step, rows)
        return rows

    def open(self) -> None:
        if not self._checked:
            again(lambda _: self._sync.check())
        super().open()

    async def open_async(self) -> None:
        if not self._checked:
            await again_async(lambda _: self._async.check())
        await super().open_async()

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Nothing is announced here: workers look for new jobs by themselves, we for who should stop."""
        with self._listeners.listening(hear):
            pause = STOP_GLANCE
            told: set[tuple[Any, int, str]] = set()
            while True:
                await asyncio.sleep(pause)
                begun = monotonic()
                rows = await self._async.asked_to_stop()
                pause = min(max(50 * (monotonic() - begun), STOP_GLANCE), LONGEST_STOP_GLANCE)
                asked = {(row["id"], row["token"], row["worker"]) for row in rows}
                for worker in {worker for _, _, worker in asked - told}:
                    hear(STOP_HINT + worker)
                told = asked
