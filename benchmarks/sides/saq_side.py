"""SAQ, as the comparison runs it: twenty at a time, its best."""

import asyncio
from typing import Any

from protocol import Marks, main
from saq import Queue, Worker

MARKS, TOTAL, DONE = Marks(), [0], asyncio.Event()


async def noop(ctx: Any, *, n: int) -> None:
    MARKS.add(n)
    if len(MARKS.at) == TOTAL[0]:
        DONE.set()


class Side:
    def __init__(self, url: str) -> None:
        self.marks = MARKS
        self._queue = Queue.from_url(url)

    async def prepare(self) -> None: ...

    async def load(self, count: int) -> None:
        await self._queue.connect()
        for n in range(count):
            await self._queue.enqueue("noop", n=n)

    async def drain(self, count: int) -> None:
        TOTAL[0] = count
        worker: Worker[Any] = Worker(self._queue, [noop], concurrency=20)
        running = asyncio.create_task(worker.start())
        await DONE.wait()
        await worker.stop()
        running.cancel()
        await asyncio.wait([running])

    async def close(self) -> None:
        await self._queue.disconnect()


if __name__ == "__main__":
    main(Side)
