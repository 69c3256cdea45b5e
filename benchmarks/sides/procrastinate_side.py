"""Procrastinate, as the comparison runs it: twenty at a time, a pool of twenty, its defaults otherwise."""

from procrastinate import App, PsycopgConnector
from protocol import Marks, main


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._app = App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=20))
        self._noop = self._app.task(queue="bench", name="noop")(self._run)

    async def _run(self, n: int) -> None:
        self.marks.add(n)

    async def prepare(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def load(self, count: int) -> None:
        async with self._app.open_async():
            await self._noop.batch_defer_async(*({"n": n} for n in range(count)))

    async def drain(self, count: int) -> None:
        async with self._app.open_async():
            await self._app.run_worker_async(
                queues=["bench"], concurrency=20, wait=False, install_signal_handlers=False
            )
        assert len(self.marks.at) == count

    async def close(self) -> None: ...


if __name__ == "__main__":
    main(Side)
