"""What stores behind a database server have in common."""

import asyncio
import time
from contextlib import suppress
from typing import Any, TypeVar

from dibs.engines.sql.migrations import Holder, Patience
from dibs.engines.sql.schema_files import schema_version
from dibs.engines.sql.schema_problems import SchemaProblem
from dibs.engines.sql.within import Engine, bind_async, bind_sync
from dibs.engines.store import Operation, Pooled, again, again_async
from dibs.engines.trouble import Tries, TryAgain
from dibs.errors import DibsError, SchemaOutdated
from dibs.operations.scripts import Rows, Step, run, run_async

T = TypeVar("T")


class DatabaseStore(Pooled):
    """A database behind a server: a pool of connections in each colour, tables of a certain version."""

    _engine: Engine
    _name: str
    _checked = False

    def run(self, operation: Operation[T], within: Any = None) -> T:
        self.open()
        if within is not None:
            return run(operation(Tries()), bind_sync(within, self._engine, None))
        return again(lambda tries: run(operation(tries), self._execute))

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            await self.open_async()
        if within is not None:
            return await run_async(operation(Tries()), bind_async(within, self._engine, None))
        return await again_async(lambda tries: run_async(operation(tries), self._execute_async))

    def _execute(self, step: Step) -> Rows:
        rows: Rows = self._sync.execute(step)
        return rows

    async def _execute_async(self, step: Step) -> Rows:
        rows: Rows = await self._async.execute(step)
        return rows

    def open(self) -> None:
        if not self._checked:
            self._check(self.schema_version())

    async def open_async(self) -> None:
        if not self._checked:
            self._check(await self.schema_version_async())

    def migrate(self) -> list[int]:
        patience = Patience()
        while True:
            try:
                return again(lambda _: self._sync.migrate(), even_if_locked=False)
            except TryAgain as trouble:
                time.sleep(patience.pause(trouble, self._holder()))

    def _holder(self) -> Holder | None:
        """Only a hint: a server that does not tell everybody leaves it out."""
        with suppress(DibsError, TryAgain):
            holder: Holder | None = again(lambda _: self._sync.holder())
            return holder
        return None

    async def migrate_async(self) -> list[int]:
        patience = Patience()
        while True:
            try:
                return await again_async(lambda _: self._async.migrate(), even_if_locked=False)
            except TryAgain as trouble:
                await asyncio.sleep(patience.pause(trouble, await self._holder_async()))

    async def _holder_async(self) -> Holder | None:
        with suppress(DibsError, TryAgain):
            return await again_async(lambda _: self._async.holder())
        return None

    def schema_version(self) -> int:
        version: int = again(lambda _: self._sync.schema_version())
        return version

    async def schema_version_async(self) -> int:
        return await again_async(lambda _: self._async.schema_version())

    def check_schema(self) -> list[SchemaProblem]:
        return again(lambda _: self._sync.check_schema())

    async def check_schema_async(self) -> list[SchemaProblem]:
        return await again_async(lambda _: self._async.check_schema())

    def _check(self, found: int) -> None:
        needed = schema_version(self._engine.dialect.name)
        if found < needed:
            raise SchemaOutdated(found, needed, self._name)
        self._checked = True
