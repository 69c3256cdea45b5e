"""No queue at all: a durable insert that notifies, then a durable update by the listener.

The least that a pick-up costs on this machine if it stores the job and its holder.
"""

import asyncio
import time

import asyncpg
from protocol import Marks, main


class Side:
    def __init__(self, url: str) -> None:
        self.marks = Marks()
        self._url = url
        self._producer: asyncpg.Connection | None = None

    async def prepare(self) -> None:
        connection = await asyncpg.connect(self._url)
        await connection.execute("create table bare (n integer primary key, taken boolean)")
        await connection.close()

    async def work(self, until: asyncio.Event) -> None:
        connection = await asyncpg.connect(self._url)
        await connection.execute("truncate bare")
        heard: asyncio.Queue[int] = asyncio.Queue()
        await connection.add_listener("bare", lambda *message: heard.put_nowait(int(message[-1])))
        working = asyncio.create_task(self._take(heard, connection))
        await until.wait()
        working.cancel()

    async def _take(self, heard: asyncio.Queue[int], connection: asyncpg.Connection) -> None:
        while True:
            n = await heard.get()
            self.marks.add(
                await connection.fetchval("update bare set taken = true where n = $1 returning n", n)
            )

    async def produce(self, n: int) -> None:
        if self._producer is None:
            self._producer = await asyncpg.connect(self._url)
        before = time.monotonic_ns()
        await self._producer.fetchval(
            "insert into bare values ($1, false) returning pg_notify('bare', $1::text)", n
        )
        self.marks.at[n] = before

    async def close(self) -> None: ...


if __name__ == "__main__":
    main(Side)
