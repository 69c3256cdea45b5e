"""Pools of connections to a database server.

What dibs says on a connection is a script that yields statements or named queries and is sent their rows, so
that it is written once for both faces. Each face has a pool that drives such scripts.
"""

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from dibs.engines.pools import AsyncPool, Pool, SyncPool
from dibs.engines.retries import TryAgain
from dibs.engines.sql.engine import Copy, Query
from dibs.engines.sql.migrations import MIGRATION_TIMEOUT
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.operations.questions import SETTLEMENT_COLUMNS
from dibs.operations.scripts import Rows, Step, run, run_async

T = TypeVar("T")

Conversation = Generator[str | Query | Copy, Any, T]

# Seconds after which the server ends a session that is idle within a transaction of ours: a process that was
# stopped there would keep its row locks. Never set on a caller's connection.
IDLE_LIMIT = 2


def in_transaction(script: Conversation[T], begin: str, end: str = "commit") -> Conversation[T]:
    yield begin
    result = yield from script
    yield end
    return result


def _name(failure: TryAgain, step: Step) -> None:
    """Note for the caller what was asked, and what it may have waited for."""
    failure.question = step.question
    failure.about = locks_of(step.params) if failure.locked else ()


class DatabasePool(Pool):
    """What the pools of both faces know of their database."""

    def __init__(self, engine: Any, url: str, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._url = url

    @abstractmethod
    def _script(self, step: Step, connection: Any) -> Conversation[Rows]:
        """Return the engine's answer, within a transaction where it needs one."""

    @abstractmethod
    def _speaker(self, connection: Any, timeout: float | None = None) -> Any:
        """Return a function that executes one statement, or named query, and returns its rows."""


class AsyncDatabasePool(DatabasePool, AsyncPool):
    """Connections of an async driver that execute steps, one at a time."""

    async def execute(self, step: Step) -> Rows:
        try:
            async with self._connection() as connection:
                return await run_async(self._script(step, connection), self._speaker(connection))
        except TryAgain as failure:
            _name(failure, step)
            raise

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


class SyncDatabasePool(DatabasePool, SyncPool):
    """Connections of a sync driver that execute steps, one at a time each."""

    def execute(self, step: Step) -> Rows:
        try:
            with self._connection() as connection:
                return run(self._script(step, connection), self._speaker(connection))
        except TryAgain as failure:
            _name(failure, step)
            raise

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


# -- What a question locks, named for the error that says that a lock was not free -------------------

# Words for the columns, in the order in which they are locked.
_NAMED = {"train": "the train {!r}", "slot": "the slot {!r}", "unique_key": "the unique key {!r}"}


def locks_of(params: Mapping[str, Any]) -> list[str]:
    """Return trains, slots and unique keys that a question names; the jobs themselves if it names none."""
    named = [
        *_columns(params.get("jobs", ()), NEW_JOB_COLUMNS),
        *_columns(params.get("settlements", ()), SETTLEMENT_COLUMNS),
        *_columns(params.get("children", ()), NEW_JOB_COLUMNS),
        *(_NAMED["unique_key"].format(key) for key in (params.get("keys") or {}).values()),
        *([_NAMED["train"].format(params["name"])] if "name" in params else []),  # of `release_train`
    ]
    return list(dict.fromkeys(named)) or [f"job {id}" for id in _ids(params)]


def _columns(rows: Sequence[Any], columns: Sequence[str]) -> Iterator[str]:
    for row in rows:
        if isinstance(row, tuple):
            named = dict(zip(columns, row, strict=True))
            yield from (
                words.format(named[name]) for name, words in _NAMED.items() if named.get(name) is not None
            )


def _ids(params: Mapping[str, Any]) -> list[Any]:
    one = [params["job"]] if params.get("job") is not None else []
    return [*one, *params.get("ids", ()), *(row[0] for row in params.get("settlements", ()))]
