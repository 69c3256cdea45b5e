"""taskiq with its list on Redis, as the comparison runs it: a hundred async tasks at a time."""

import asyncio

from protocol import Marks, main
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._count, self._done = 0, asyncio.Event()
        self._broker = ListQueueBroker(url)

        async def noop(n: int) -> None:
            self._note(n)

        self._noop = self._broker.task(task_name="noop")(noop)

    def _note(self, n: int) -> None:
        self.marks.add(n)
        if len(self.marks.at) == self._count:
            self._done.set()

    async def prepare(self) -> None: ...

    async def load(self, count: int) -> None:
        await self._broker.startup()
        for n in range(count):
            await self._noop.kiq(n)

    async def drain(self, count: int) -> None:
        self._count = count
        running = asyncio.create_task(
            run_receiver_task(self._broker, max_async_tasks=100, max_prefetch=100, run_startup=True)
        )
        await self._done.wait()
        running.cancel()
        await asyncio.wait([running])

    async def close(self) -> None:
        await self._broker.shutdown()


if __name__ == "__main__":
    main(Side)
