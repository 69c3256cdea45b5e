"""PGQueuer, as the comparison runs it: batch 500 for the drain, its defaults for the pick-up."""

import asyncio
import time
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from protocol import Marks, main


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._url = url

    async def _driver(self) -> AsyncpgDriver:
        return AsyncpgDriver(await asyncpg.connect(self._url))

    async def _queuer(self) -> PgQueuer:
        queuer = PgQueuer(await self._driver())

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            assert job.payload is not None
            self.marks.add(int(job.payload))

        return queuer

    async def prepare(self) -> None:
        await Queries(await self._driver()).install()

    async def load(self, count: int) -> None:
        queries = Queries(await self._driver())
        for first in range(0, count, 10_000):
            numbers = range(first, min(first + 10_000, count))
            await queries.enqueue(["noop"] * len(numbers), [b"%d" % n for n in numbers], [0] * len(numbers))

    async def drain(self, count: int) -> None:
        queuer = await self._queuer()
        await queuer.qm.run(batch_size=500, mode=QueueExecutionMode.drain)
        assert len(self.marks.at) == count

    async def work(self, until: asyncio.Event) -> None:
        queuer = await self._queuer()
        running = asyncio.create_task(queuer.qm.run(dequeue_timeout=timedelta(seconds=30)))
        await until.wait()
        queuer.qm.shutdown.set()
        await running

    async def produce(self, n: int) -> None:
        if not hasattr(self, "_queries"):
            self._queries = Queries(await self._driver())
        before = time.monotonic_ns()
        await self._queries.enqueue("noop", b"%d" % n)
        self.marks.at[n] = before

    async def close(self) -> None: ...


if __name__ == "__main__":
    main(Side)
