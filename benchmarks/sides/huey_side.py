"""Huey on SQLite, as the comparison runs it: one process, one thread, every commit on the disk."""

from huey import SqliteHuey
from protocol import Marks, main


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._huey = SqliteHuey("bench", filename=url.removeprefix("sqlite:///"), fsync=True)
        self._noop = self._huey.task(name="noop")(self._run)

    def _run(self, n: int) -> None:
        self.marks.add(n)

    async def prepare(self) -> None: ...

    async def load(self, count: int) -> None:
        for n in range(count):
            self._noop(n)

    async def drain(self, count: int) -> None:
        consumer = self._huey.create_consumer(workers=1, periodic=False, check_worker_health=False)
        consumer.start()
        await self.marks.reach(count)
        consumer.stop(graceful=True)

    async def close(self) -> None: ...


if __name__ == "__main__":
    main(Side)
