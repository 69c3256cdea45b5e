"""arq, as the comparison runs it: a thousand jobs at a time, and as many per poll."""

from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker
from protocol import Marks, main

MARKS = Marks()


async def noop(ctx: dict[Any, Any], n: int) -> None:
    MARKS.add(n)


class Side:
    def __init__(self, url: str) -> None:
        self.marks = MARKS
        self._settings = RedisSettings.from_dsn(url)

    async def prepare(self) -> None: ...

    async def load(self, count: int) -> None:
        pool = await create_pool(self._settings)
        for n in range(count):
            await pool.enqueue_job("noop", n)
        await pool.aclose()

    async def drain(self, count: int) -> None:
        worker = Worker(
            [noop],
            redis_settings=self._settings,
            burst=True,
            max_jobs=1000,
            queue_read_limit=1000,
            poll_delay=0.01,
            handle_signals=False,
        )
        await worker.async_run()
        await worker.close()
        assert len(self.marks.at) == count

    async def close(self) -> None: ...


if __name__ == "__main__":
    main(Side)
