"""Pools of connections to a database server.

What dibs says on a connection is a script that yields statements or named queries and is sent their rows, so
that it is written once for both faces. Each face has a pool that drives such scripts.
"""

from abc import abstractmethod
from collections.abc import Generator
from typing import Any, TypeVar

from dibs.engines.pools import AsyncPool, SyncPool
from dibs.engines.sql.engine import Copy, Query
from dibs.engines.sql.migrations import MIGRATION_TIMEOUT
from dibs.operations.scripts import Rows, Step, run, run_async

T = TypeVar("T")

Conversation = Generator[str | Query | Copy, Any, T]

# Seconds after which the server ends a session that is idle within a transaction of ours: a process that was
# stopped there would keep its row locks (DESIGN §7). Never set on a caller's connection.
IDLE_LIMIT = 2


def in_transaction(script: Conversation[T], begin: str, end: str = "commit") -> Conversation[T]:
    yield begin
    result = yield from script
    yield end
    return result


class AsyncDatabasePool(AsyncPool):
    """Connections of an async driver that execute steps, one at a time."""

    def __init__(self, engine: Any, url: str, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._url = url

    async def execute(self, step: Step) -> Rows:
        async with self._connection() as connection:
            return await run_async(self._script(step, connection), self._speaker(connection))

    async def ask(self, script: Conversation[T]) -> T:
        async with self._connection() as connection:
            return await run_async(script, self._speaker(connection))

    async def ask_alone(self, script: Conversation[T]) -> T:
        """Ask on a new connection that is closed afterwards, and with it all that the session holds."""
        connection = await self._connect()
        try:
            return await run_async(script, self._speaker(connection, MIGRATION_TIMEOUT))
        except BaseException as error:
            raise self._sorted(error) from error
        finally:
            await self._end(connection)

    @abstractmethod
    def _script(self, step: Step, connection: Any) -> Conversation[Rows]:
        """Return the engine's answer, within a transaction where it needs one."""

    @abstractmethod
    def _speaker(self, connection: Any, timeout: float | None = None) -> Any:
        """Return a function that executes one statement, or named query, and returns its rows."""


class SyncDatabasePool(SyncPool):
    """Connections of a sync driver that execute steps, one at a time each."""

    def __init__(self, engine: Any, url: str, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._url = url

    def execute(self, step: Step) -> Rows:
        with self._connection() as connection:
            return run(self._script(step, connection), self._speaker(connection))

    def ask(self, script: Conversation[T]) -> T:
        with self._connection() as connection:
            return run(script, self._speaker(connection))

    def ask_alone(self, script: Conversation[T]) -> T:
        """Ask on a new connection that is closed afterwards, and with it all that the session holds."""
        connection = self._connect()
        try:
            return run(script, self._speaker(connection, MIGRATION_TIMEOUT))
        except BaseException as error:
            raise self._sorted(error) from error
        finally:
            self._end(connection)

    @abstractmethod
    def _script(self, step: Step, connection: Any) -> Conversation[Rows]:
        """Return the engine's answer, within a transaction where it needs one."""

    @abstractmethod
    def _speaker(self, connection: Any, timeout: float | None = None) -> Any:
        """Return a function that executes one statement, or named query, and returns its rows."""
