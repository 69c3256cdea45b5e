"""RQ, as the comparison runs it: SimpleWorker, which does not fork for each job, without results."""

import sys
from pathlib import Path

from protocol import Marks, main
from redis import Redis
from rq import Queue, SimpleWorker

MARKS = Marks()
sys.path.insert(0, str(Path(__file__).parent))  # where a worker finds `rq_side.noop`


def noop(n: int) -> None:
    import __main__  # the worker imports this file a second time; the times are kept in the first

    __main__.MARKS.add(n)


class Side:
    def __init__(self, url: str) -> None:
        self.marks = MARKS
        self._queue = Queue("bench", connection=Redis.from_url(url))

    async def prepare(self) -> None: ...

    async def load(self, count: int) -> None:
        for first in range(0, count, 1000):
            numbers = range(first, min(first + 1000, count))
            jobs = [Queue.prepare_data("rq_side.noop", args=(n,), result_ttl=0) for n in numbers]
            self._queue.enqueue_many(jobs)

    async def drain(self, count: int) -> None:
        SimpleWorker([self._queue], connection=self._queue.connection).work(burst=True, logging_level="ERROR")
        assert len(self.marks.at) == count

    async def close(self) -> None:
        self._queue.connection.close()


if __name__ == "__main__":
    main(Side)
