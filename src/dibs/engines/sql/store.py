"""Stores behind a database server: run operations on pooled connections, check and migrate the tables."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from dibs.engines.retries import Tries, TryAgain, again, again_async
from dibs.engines.sql.blocks import schema_version
from dibs.engines.sql.migrations import Blocker, MigrationWait
from dibs.engines.sql.pools import Conversation
from dibs.engines.sql.schema_check import SchemaProblem
from dibs.engines.sql.within import Engine, bind_async, bind_sync
from dibs.engines.store import Operation, Pooled
from dibs.errors import DibsError, SchemaOutdated
from dibs.operations.scripts import Rows, Step, run, run_async

T = TypeVar("T")


class DatabaseStore(Pooled):
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
        self.open()
        if within is not None:
            return run(operation(Tries()), bind_sync(within, self._engine, self._own_database))
        tries, ask = Tries(), self._ask or self._sync.execute
        try:
            return run(operation(tries), ask)
        except TryAgain as failure:
            return again(lambda tries: run(operation(tries), ask), tries=tries, failure=failure)

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            await self.open_async()
        if within is not None:
            return await run_async(operation(Tries()), bind_async(within, self._engine, self._own_database))
        tries, ask = Tries(), self._ask_async or self._async.execute
        try:
            return await run_async(operation(tries), ask)
        except TryAgain as failure:
            return await again_async(
                lambda tries: run_async(operation(tries), ask), tries=tries, failure=failure
            )

    def open(self) -> None:
        if not self._checked:
            self._check(self.schema_version())

    async def open_async(self) -> None:
        if not self._checked:
            self._check(await self.schema_version_async())

    def migrate(self) -> list[int]:
        wait = MigrationWait()
        while True:
            try:
                return again(lambda _: self._sync.ask_alone(self._migration_script()), even_if_locked=False)
            except TryAgain as failure:
                time.sleep(wait.pause(failure, self._blocker()))

    async def migrate_async(self) -> list[int]:
        wait = MigrationWait()
        while True:
            try:
                return await again_async(
                    lambda _: self._async.ask_alone(self._migration_script()), even_if_locked=False
                )
            except TryAgain as failure:
                await asyncio.sleep(wait.pause(failure, await self._blocker_async()))

    def _blocker(self) -> Blocker | None:
        """Return a hint for the log; a server that does not show it to this user leaves it out."""
        with suppress(DibsError, TryAgain):
            blocker: Blocker | None = again(lambda _: self._sync.ask(self._blocker_script()))
            return blocker
        return None

    async def _blocker_async(self) -> Blocker | None:
        with suppress(DibsError, TryAgain):
            return await again_async(lambda _: self._async.ask(self._blocker_script()))
        return None

    def schema_version(self) -> int:
        try:
            version: int = again(lambda _: self._sync.ask(self._version_script()))
        except SchemaOutdated:
            return 0
        return version

    async def schema_version_async(self) -> int:
        try:
            return await again_async(lambda _: self._async.ask(self._version_script()))
        except SchemaOutdated:
            return 0

    def check_schema(self) -> list[SchemaProblem]:
        version = self.schema_version()
        return again(lambda _: self._sync.ask(self._check_script(version)))

    async def check_schema_async(self) -> list[SchemaProblem]:
        version = await self.schema_version_async()
        return await again_async(lambda _: self._async.ask(self._check_script(version)))

    def _check(self, found: int) -> None:
        needed = schema_version(self._engine.dialect.name)
        if found < needed:
            raise SchemaOutdated(found, needed, self._name)
        self._checked = True
