"""dibs' own statements on bare connections: the least that a durable pick-up costs on this machine."""

import asyncio
import json
import sys
import time
from pathlib import Path

import asyncpg
from protocol import Marks, main

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.bare import WISH, Bare, row
from benchmarks.by_hand import bare_postgresql

from dibs import Dibs
from dibs.engines.postgresql.poolers import SESSION


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._url = url
        self._raw: Bare | None = None

    async def prepare(self) -> None:
        app = Dibs(self._url)
        await app.migrate()
        await app.close()

    async def work(self, until: asyncio.Event) -> None:
        """Hear, claim, begin; what was claimed is settled by nobody."""
        listener, raw = await asyncpg.connect(self._url), await self._connect()
        heard = asyncio.Event()
        await listener.add_listener("dibs_wake", lambda *_: heard.set())
        wish = {**WISH, "look": False, "limit": 10}
        while not until.is_set():
            await _either(heard, until)
            heard.clear()
            for job in await raw.ask("claim", **wish):
                if job["id"] is not None:
                    self.marks.add(json.loads(job["args"])["n"])

    async def produce(self, n: int) -> None:
        self._raw = self._raw or await self._connect()
        before = time.monotonic_ns()
        await self._raw.ask("enqueue", jobs=[row(n)], fresh=True)
        self.marks.at[n] = before

    async def close(self) -> None: ...

    async def _connect(self) -> Bare:
        return bare_postgresql(await asyncpg.connect(self._url, server_settings=SESSION))


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


if __name__ == "__main__":
    main(Side)
