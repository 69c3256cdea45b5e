"""dibs' own statements, prepared, on one bare connection a process: the lowest possible cost of a pick-up."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
from protocol import Marks, main

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.bare import WISH, row
from dibs import Dibs
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.session import SESSION
from dibs.engines.sql.blocks import placeholders
from dibs.jobs.ids import new_id
from dibs.operations.scripts import Step


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._url = url
        self._enqueue: Statement | None = None

    async def prepare(self) -> None:
        app = Dibs(self._url)
        await app.migrate()
        await app.close()

    async def work(self, until: asyncio.Event) -> None:
        """Listen, claim, begin; the claimed jobs are never settled."""
        connection = await asyncpg.connect(self._url, server_settings=SESSION)
        claim = await Statement.of(connection, "claim", **{**WISH, "look": False, "limit": 10})
        heard = asyncio.Event()
        await connection.add_listener("dibs_wake", lambda *_: heard.set())
        working = asyncio.create_task(self._take(claim, heard))
        await until.wait()
        working.cancel()

    async def _take(self, claim: "Statement", heard: asyncio.Event) -> None:
        while True:
            await heard.wait()
            heard.clear()
            for job in await claim.run():
                self.marks.add(json.loads(job["args"])["n"])

    async def produce(self, n: int) -> None:
        if self._enqueue is None:
            connection = await asyncpg.connect(self._url, server_settings=SESSION)
            self._enqueue = await Statement.of(connection, "enqueue", jobs=[row(n)], fresh=True)
        before = time.monotonic_ns()
        await self._enqueue.run(id=new_id(), args=f'{{"n":{n}}}')
        self.marks.at[n] = before

    async def close(self) -> None: ...


class Statement:
    """Return the one statement that answers a question of dibs, with its parameters."""

    def __init__(self, prepared: Any, order: tuple[str, ...], params: dict[str, Any]) -> None:
        self._prepared, self._order, self._params = prepared, order, params

    @classmethod
    async def of(cls, connection: Any, question: str, **params: Any) -> "Statement":
        engine = PostgreSQL()
        query: Any = next(engine.answer(Step(question, params)))
        sql, order = placeholders(engine.dialect.blocks[query.name], "numeric")
        return cls(await connection.prepare(sql), order, query.params)

    async def run(self, **changed: Any) -> Any:
        params = {**self._params, **changed}
        return await self._prepared.fetch(*[params[name] for name in self._order])


if __name__ == "__main__":
    main(Side)
