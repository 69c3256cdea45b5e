"""streaQ, as the comparison runs it: 64 at a time, as many prefetched, in bursts."""

from protocol import Marks, main
from streaq import Worker


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._worker = Worker(redis_url=url, concurrency=64, prefetch=64, handle_signals=False)
        self._noop = self._worker.task()(self._run)

    async def _run(self, n: int) -> None:
        self.marks.add(n)

    async def prepare(self) -> None: ...

    async def load(self, count: int) -> None:
        async with self._worker:
            for first in range(0, count, 1000):
                numbers = range(first, min(first + 1000, count))
                await self._worker.enqueue_many([self._noop.enqueue(n) for n in numbers])

    async def drain(self, count: int) -> None:
        self._worker.burst = True
        await self._worker.run_async()
        assert len(self.marks.at) == count

    async def close(self) -> None: ...


if __name__ == "__main__":
    main(Side)
