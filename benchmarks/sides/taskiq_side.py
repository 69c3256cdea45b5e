"""taskiq with its list on Redis, as the comparison runs it: a hundred async tasks at a time."""

import asyncio

from protocol import Marks, main
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._broker = ListQueueBroker(url)

        async def noop(n: int) -> None:
            self.marks.add(n)

        self._noop = self._broker.task(task_name="noop")(noop)

    async def prepare(self) -> None: ...

    async def load(self, count: int) -> None:
        await self._broker.startup()
        for n in range(count):
            await self._noop.kiq(n)

    async def drain(self, count: int) -> None:
        running = asyncio.create_task(
            run_receiver_task(self._broker, max_async_tasks=100, max_prefetch=100, run_startup=True)
        )
        await self.marks.reach(count)
        running.cancel()
        await asyncio.wait([running])

    async def close(self) -> None:
        await self._broker.shutdown()


if __name__ == "__main__":
    main(Side)
