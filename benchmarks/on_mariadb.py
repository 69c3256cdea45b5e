"""The same by hand on MariaDB: on an app, and with its statements sent bare by asyncmy."""

import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncmy

from benchmarks.by_hand import (
    BATCHES,
    BULK,
    KIND,
    QUEUE,
    STOCK,
    claim_and_succeed,
    enqueue_bulk,
    enqueue_one,
    jobs,
    rate,
)
from benchmarks.measure import Measured, Result, side_by_side
from dibs import Dibs
from dibs.engines.mysql import CHUNK_ROWS, MySQL, _json, _moment
from dibs.engines.mysql_pools import SESSION, connect_options
from dibs.engines.sql import placeholders
from dibs.ids import new_id


async def on_mariadb(url: str, rounds: int, seconds: float) -> list[Result]:
    app = Dibs(url)
    await app.migrate()
    bare = await asyncmy.connect(**connect_options(url))
    for statement in SESSION:
        await bare.query(statement)
    raw = RawMariaDB(bare)

    async def alone(count: int, measured: Callable[[], Awaitable[float]]) -> float:
        for table in ("dibs_jobs", "dibs_finished"):
            await bare.query(f"truncate {table}")
        if count:
            await app.enqueue(*jobs(count))
        await bare.query("analyze table dibs_jobs")
        return await measured()

    def pair(count: int, dibs: Measured, raw: Measured) -> tuple[Measured, Measured]:
        return lambda: alone(count, dibs), lambda: alone(count, raw)

    results = []
    ours, bares = pair(0, lambda: enqueue_one(app, seconds), lambda: raw.enqueue_one(seconds))
    results.append(await side_by_side("MariaDB", "enqueue one by one", ours, bares, rounds))
    ours, bares = pair(0, lambda: enqueue_bulk(app), raw.bulk)
    results.append(await side_by_side("MariaDB", "enqueue 100,000 at once", ours, bares, rounds))
    for batch in BATCHES:
        ours, bares = pair(
            STOCK,
            lambda batch=batch: claim_and_succeed(app, batch, seconds),
            lambda batch=batch: raw.claim_and_succeed(batch, seconds),
        )
        what = f"claim + succeed, batch {batch}"
        results.append(await side_by_side("MariaDB", what, ours, bares, rounds))
    await bare.ensure_closed()
    await app.close()
    return results


class RawMariaDB:
    """dibs' own statements on a bare asyncmy connection: the limit of what it could reach."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._blocks = MySQL().dialect.blocks

    async def ask(self, name: str, params: dict[str, Any]) -> Any:
        sql, _ = placeholders(self._blocks[name], "pyformat")
        async with self._connection.cursor() as cursor:
            await cursor.execute(sql, params or None)
            return await cursor.fetchall()

    async def enqueue_one(self, seconds: float) -> float:
        async def step() -> int:
            await self._insert(1)
            return 1

        return await rate(seconds, step)

    async def bulk(self) -> float:
        gc.collect()
        start = time.perf_counter()
        await self._connection.query("start transaction")
        for _ in range(0, BULK, CHUNK_ROWS):
            await self._insert(CHUNK_ROWS)
        await self._connection.query("commit")
        return BULK / (time.perf_counter() - start)

    async def _insert(self, count: int) -> None:
        [(now,)] = await self.ask("now", {})
        now = now.isoformat(" ", "microseconds")
        rest = [KIND, QUEUE, '{"n":1}', 0, "ready", 3, now, now, None, "advance", "advance"]
        new = [[new_id().hex, *rest, None, None, "[]", "{}"] for _ in range(count)]
        await self.ask("enqueue", {"jobs": _json(new), "stored_by": None})

    async def claim_and_succeed(self, batch: int, seconds: float) -> float:
        async def step() -> int:
            return await self._succeed(await self._claim(batch))

        return await rate(seconds, step)

    async def _claim(self, batch: int) -> list[tuple[str, int]]:
        await self._connection.query("start transaction")
        await self.ask("opening", {"look": 1})
        rows = await self.ask("lock_first", {"queue": QUEUE, "kind": KIND, "limit": batch})
        now, until = rows[0][-2], _moment(rows[0][-2])
        taken = [(UUID(bytes=row[0]).hex, row[-1]) for row in rows]
        leases = [[id, token, until] for id, token in taken]
        await self.ask("lease", {"taken": _json(leases), "worker": "bench", "now": _moment(now)})
        await self._connection.query("commit")
        return taken

    async def _succeed(self, taken: list[tuple[str, int]]) -> int:
        await self._connection.query("start transaction")
        await self.ask("held", {"claims": _json(taken)})
        rest = ["succeeded", "succeeded", None, 0, None, "[]", None, None]
        await self.ask("end_settled", {"settlements": _json([[*one, *rest] for one in taken])})
        await self.ask("forget", {"ids": _json([id for id, _ in taken])})
        await self._connection.query("commit")
        return len(taken)
