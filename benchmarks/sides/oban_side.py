"""Oban for Python, as the comparison runs it: ten at a time, a pool of ten, its defaults otherwise."""

import asyncio
import time
from typing import Any

from oban import Oban, worker
from oban.schema import install
from protocol import Marks, main
from psycopg_pool import AsyncConnectionPool

MARKS = Marks()


@worker(queue="bench")
class Noop:
    async def process(self, job: Any) -> None:
        MARKS.add(job.args["n"])


class Side:
    def __init__(self, url: str) -> None:
        self.marks = MARKS
        self._url = url
        self._pool: Any = None
        self._producer: Any = None

    async def _opened(self) -> Any:
        if self._pool is None:
            self._pool = AsyncConnectionPool(self._url, min_size=10, max_size=10, open=False)
            await self._pool.open(wait=True)
        return self._pool

    async def prepare(self) -> None:
        await install(await self._opened())

    async def load(self, count: int) -> None:
        oban = Oban(pool=await self._opened())
        for first in range(0, count, 1000):
            await oban.enqueue_many(Noop.new({"n": n}) for n in range(first, min(first + 1000, count)))

    async def drain(self, count: int) -> None:
        async with Oban(pool=await self._opened(), queues={"bench": 500}):
            await self.marks.reach(count)

    async def work(self, until: asyncio.Event) -> None:
        async with Oban(pool=await self._opened(), queues={"bench": 10}):
            await until.wait()

    async def produce(self, n: int) -> None:
        if self._producer is None:
            self._producer = Oban(pool=await self._opened())
        before = time.monotonic_ns()
        await self._producer.enqueue(Noop.new({"n": n}))
        self.marks.at[n] = before

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()


if __name__ == "__main__":
    main(Side)
