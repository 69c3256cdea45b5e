"""dibs' own statements on bare connections: the least that a durable pick-up costs on this machine."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
from protocol import Marks, main

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.by_hand import RawPostgreSQL, row

from dibs import Dibs
from dibs.engines.poolers import SESSION
from dibs.engines.postgresql import _one, _only_line
from dibs.ids import new_id

WISH = {"queues": ["bench"], "kinds": ["noop"], "look": False, "limit": 10, "worker": "raw", "leases": {}}


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._url = url
        self._raw: RawPostgreSQL | None = None

    async def prepare(self) -> None:
        app = Dibs(self._url)
        await app.migrate()
        await app.close()

    async def work(self, until: asyncio.Event) -> None:
        """Hear, claim, begin; what was claimed is settled by nobody."""
        listener, raw = await asyncpg.connect(self._url), await self._connect()
        heard = asyncio.Event()
        await listener.add_listener("dibs_wake", lambda *_: heard.set())
        line = _only_line({**WISH, "lease": 60_000_000})
        assert line is not None
        while not until.is_set():
            await _either(heard, until)
            heard.clear()
            for job in await raw.fetch("claim_line", line):
                self.marks.add(json.loads(job["args"])["n"])

    async def produce(self, n: int) -> None:
        self._raw = self._raw or await self._connect()
        before = time.monotonic_ns()
        job: Any = dict(_one(row(new_id(), n), ["bench"]), queue="bench", kind="noop")
        await self._raw.fetch("enqueue_one", job)
        self.marks.at[n] = before

    async def close(self) -> None: ...

    async def _connect(self) -> RawPostgreSQL:
        return RawPostgreSQL(await asyncpg.connect(self._url, server_settings=SESSION))


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


if __name__ == "__main__":
    main(Side)
