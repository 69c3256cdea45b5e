"""dibs, as the comparison runs it: prepare, load, drain, work, produce."""

import asyncio
import time

from protocol import Marks, main

from dibs import Dibs, Worker
from dibs.cli.commands.work import spare_the_collector


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self.app = Dibs(url)
        self.noop = self.app.job(queue="bench", name="noop")(self._noop)

    async def _noop(self, n: int) -> None:
        self.marks.add(n)

    async def prepare(self) -> None:
        await self.app.migrate()

    async def load(self, count: int) -> None:
        await self.app.enqueue(*(self.noop.new(n) for n in range(count)))

    async def drain(self, count: int) -> None:
        spare_the_collector()  # as `dibs work` does
        # Two turns are under way at a time, so this asks for batches of 500.
        await Worker(self.app, concurrency=1000).run(until_idle=True)
        assert len(self.marks.at) == count

    async def work(self, until: asyncio.Event) -> None:
        worker = Worker(self.app, concurrency=10)
        running = asyncio.create_task(worker.run())
        await until.wait()
        worker.stop()
        await running

    async def produce(self, n: int) -> None:
        before = time.monotonic_ns()
        await self.noop.enqueue(n)
        self.marks.at[n] = before

    async def close(self) -> None:
        await self.app.close()


if __name__ == "__main__":
    main(Side)
