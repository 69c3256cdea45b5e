"""A Redis or Valkey server as a store."""

from collections.abc import Callable
from typing import Any, TypeVar

from dibs.engines.redis.connection import Nodes
from dibs.engines.redis.engine import Redis
from dibs.engines.redis.pools import AsyncRedis, SyncRedis
from dibs.engines.redis.within import bind_pipeline
from dibs.engines.retries import Tries, again, again_async
from dibs.engines.store import Operation, Pooled, WithoutTables
from dibs.operations.scripts import run, run_async
from dibs.settings import Settings

T = TypeVar("T")


class RedisStore(Pooled, WithoutTables):
    """A Redis or Valkey server, or one slot of a cluster of them."""

    traits = Redis.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = Redis(settings.prefix)
        self._nodes = Nodes(settings.url)
        self._sync = SyncRedis(self._engine, self._nodes, settings.pool_size)
        self._async = AsyncRedis(self._engine, self._nodes, settings.pool_size)
        self._checked = False

    def run(self, operation: Operation[T], within: Any = None) -> T:
        self.open()
        if within is not None:
            return run(operation(Tries()), bind_pipeline(within, self._engine, self._nodes, "sync"))
        return again(lambda tries: run(operation(tries), self._sync.execute))

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            await self.open_async()
        if within is not None:
            return run(operation(Tries()), bind_pipeline(within, self._engine, self._nodes, "async"))
        return await again_async(lambda tries: run_async(operation(tries), self._async.execute))

    async def listen(self, hear: Callable[[str], None]) -> None:
        await self._async.listen(hear)

    def open(self) -> None:
        if not self._checked:
            again(lambda _: self._sync.open())
            self._checked = True

    async def open_async(self) -> None:
        if not self._checked:
            await again_async(lambda _: self._async.open())
            self._checked = True
