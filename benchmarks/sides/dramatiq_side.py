"""Dramatiq, as the comparison runs it: one process, eight threads."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from protocol import Marks, main


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._broker = RedisBroker(url=url)
        self._noop = dramatiq.actor(self._run, actor_name="noop", queue_name="bench", broker=self._broker)

    def _run(self, n: int) -> None:
        self.marks.add(n)

    async def prepare(self) -> None: ...

    async def load(self, count: int) -> None:
        for n in range(count):
            self._noop.send(n)

    async def drain(self, count: int) -> None:
        worker = dramatiq.Worker(self._broker, worker_threads=8)
        worker.start()
        await self.marks.reach(count)
        worker.stop()

    async def close(self) -> None:
        self._broker.close()


if __name__ == "__main__":
    main(Side)
