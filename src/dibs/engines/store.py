"""Stores: what each of them can do, on both faces, and what pools and stores without tables share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dibs.engines.retries import Tries
from dibs.engines.sql.blocks import schema_version
from dibs.operations.questions import Traits
from dibs.operations.scripts import Script

if TYPE_CHECKING:
    from dibs.engines.sql.schema_check import SchemaProblem

T = TypeVar("T")

# An operation starts anew at every try, so it is given as a function that makes its script.
Operation = Callable[[Tries], Script[T]]


class Store(Protocol):
    """One place where jobs are kept."""

    traits: Traits

    def run(self, operation: Operation[T], within: Any = None) -> T: ...
    async def run_async(self, operation: Operation[T], within: Any = None) -> T: ...
    def open(self) -> None: ...
    async def open_async(self) -> None: ...
    def close(self) -> None: ...
    async def close_async(self) -> None: ...
    def migrate(self) -> list[int]: ...
    async def migrate_async(self) -> list[int]: ...
    def schema_version(self) -> int: ...
    async def schema_version_async(self) -> int: ...
    def check_schema(self) -> "list[SchemaProblem]": ...
    async def check_schema_async(self) -> "list[SchemaProblem]": ...
    async def leave_loop(self) -> None:
        """Close what belongs to the running event loop, which is about to end."""

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` at every hint; never return, may raise `TryAgain`."""


class Pooled:
    """A store that has a pool of connections for each face."""

    _sync: Any
    _async: Any

    def close(self) -> None:
        self._sync.close()

    async def close_async(self) -> None:
        await self._async.close()
        self._sync.close()

    async def leave_loop(self) -> None:
        await self._async.leave_loop()


class WithoutTables:
    """A store with nothing to migrate and nothing to check."""

    def open(self) -> None: ...
    async def open_async(self) -> None: ...

    def migrate(self) -> list[int]:
        self.open()
        return []

    async def migrate_async(self) -> list[int]:
        await self.open_async()
        return []

    def schema_version(self) -> int:
        return schema_version("postgresql")  # always up to date

    async def schema_version_async(self) -> int:
        return self.schema_version()

    def check_schema(self) -> "list[SchemaProblem]":
        return []

    async def check_schema_async(self) -> "list[SchemaProblem]":
        return []
