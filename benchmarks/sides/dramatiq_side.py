"""Dramatiq, as the comparison runs it: one process, eight threads."""

import asyncio
import threading

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from protocol import Marks, main


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._count, self._done = 0, threading.Event()
        self._broker = RedisBroker(url=url)
        self._noop = dramatiq.actor(self._run, actor_name="noop", queue_name="bench", broker=self._broker)

    def _run(self, n: int) -> None:
        self.marks.add(n)
        if len(self.marks.at) == self._count:
            self._done.set()

    async def prepare(self) -> None: ...

    async def load(self, count: int) -> None:
        for n in range(count):
            self._noop.send(n)

    async def drain(self, count: int) -> None:
        self._count = count
        worker = dramatiq.Worker(self._broker, worker_threads=8)
        worker.start()
        await asyncio.to_thread(self._done.wait)
        worker.stop()

    async def close(self) -> None:
        self._broker.close()


if __name__ == "__main__":
    main(Side)
