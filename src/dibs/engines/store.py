"""What every store is: run an operation, in either colour, again where that may help."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from dibs.engines.sql.schema_problems import SchemaProblem
from dibs.engines.trouble import Tries, TryAgain
from dibs.operations.questions import Traits
from dibs.operations.scripts import Script

T = TypeVar("T")

# An operation is started anew for every try, so it is given as a way to make its script.
Operation = Callable[[Tries], Script[T]]


class Store(Protocol):
    """One place where jobs live."""

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
    def check_schema(self) -> list[SchemaProblem]: ...
    async def check_schema_async(self) -> list[SchemaProblem]: ...
    async def leave_loop(self) -> None:
        """Give back what belongs to the running event loop, which is about to end."""

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` whenever there may be something new; never returns, may raise `TryAgain`."""


class Pooled:
    """A store that has a pool of connections in each colour."""

    _sync: Any
    _async: Any

    def close(self) -> None:
        self._sync.close()

    async def close_async(self) -> None:
        await self._async.close()
        self._sync.close()

    async def leave_loop(self) -> None:
        await self._async.leave_loop()


def again(work: Callable[[Tries], T], *, even_if_locked: bool = True) -> T:
    """Run the whole of it again on a deadlock, a lost race or a lost connection."""
    tries = Tries()
    while True:
        try:
            return work(tries)
        except TryAgain as trouble:
            if trouble.locked and not even_if_locked:
                raise
            time.sleep(tries.pause(trouble))


async def again_async(work: Callable[[Tries], Awaitable[T]], *, even_if_locked: bool = True) -> T:
    tries = Tries()
    while True:
        try:
            return await work(tries)
        except TryAgain as trouble:
            if trouble.locked and not even_if_locked:
                raise
            await asyncio.sleep(tries.pause(trouble))
