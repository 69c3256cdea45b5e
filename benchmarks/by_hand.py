"""Enqueue, claim and settle by hand, on an app and with the bare driver beside it."""

import asyncio
import gc
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.measure import Measured, Result, side_by_side
from dibs import Dibs, NewJob
from dibs.engines.poolers import SESSION
from dibs.engines.postgresql import PostgreSQL, _columns, _settlements, _wish
from dibs.engines.sql import placeholders
from dibs.engines.sqlite import SQLite
from dibs.ids import new_id
from dibs.jobs import NEW_JOB_COLUMNS

BATCHES = (1, 10, 100)
BULK = 100_000
STOCK = 60_000
QUEUE, KIND = "bench", "noop"
WISH = {
    "queues": [QUEUE],
    "kinds": [KIND],
    "worker": "bench",
    "lease": 60_000_000,
    "leases": {},
    "job": None,
    "look": True,
}


def jobs(count: int) -> list[NewJob]:
    return [NewJob(KIND, {"n": n}, queue=QUEUE) for n in range(count)]


def row(id: Any, n: int) -> tuple[Any, ...]:
    """A job as it goes to the store, made without dibs' checks."""
    values = {
        **dict.fromkeys(NEW_JOB_COLUMNS),
        "id": id,
        "kind": KIND,
        "queue": QUEUE,
        "args": f'{{"n":{n}}}',
        "priority": 0,
        "max_attempts": 3,
        "on_cancelled": "advance",
        "on_failed": "advance",
        "tags": "[]",
        "meta": "{}",
    }
    return tuple(values.values())


async def rate(seconds: float, step: Callable[[], Awaitable[int]]) -> float:
    """Jobs per second of a step that answers how many it did, repeated for a while."""
    done, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        did = await step()
        if did == 0:
            raise RuntimeError("the benchmark ran out of jobs")
        done += did
    return done / passed


# -- dibs, the same on every engine -------------------------------------------------------------


async def enqueue_one(app: Dibs, seconds: float) -> float:
    async def step() -> int:
        return len(await app.enqueue(NewJob(KIND, {"n": 1}, queue=QUEUE)))

    return await rate(seconds, step)


async def enqueue_bulk(app: Dibs) -> float:
    new = jobs(BULK)
    gc.collect()
    start = time.perf_counter()
    await app.enqueue(*new)
    return BULK / (time.perf_counter() - start)


async def claim_and_succeed(app: Dibs, batch: int, seconds: float) -> float:
    async def step() -> int:
        claims = await app.claim(queues=[QUEUE], kinds=[KIND], limit=batch)
        await asyncio.gather(*(claim.succeed() for claim in claims))
        return len(claims)

    return await rate(seconds, step)


# -- PostgreSQL ---------------------------------------------------------------------------------


async def on_postgresql(url: str, rounds: int, seconds: float) -> list[Result]:
    app = Dibs(url)
    await app.migrate()
    bare = await asyncpg.connect(url, server_settings=SESSION)
    raw = RawPostgreSQL(bare)

    async def fresh(count: int) -> None:
        await bare.execute("truncate dibs_jobs, dibs_finished")
        if count:
            await app.enqueue(*jobs(count))
        await bare.execute("vacuum analyze dibs_jobs, dibs_finished")

    async def alone(count: int, measured: Callable[[], Awaitable[float]]) -> float:
        await fresh(count)
        return await measured()

    def pair(count: int, dibs: Measured, raw: Measured) -> tuple[Measured, Measured]:
        return lambda: alone(count, dibs), lambda: alone(count, raw)

    results = []
    ours, bares = pair(0, lambda: enqueue_one(app, seconds), lambda: raw.enqueue_one(seconds))
    results.append(await side_by_side("PostgreSQL", "enqueue one by one", ours, bares, rounds))
    ours, bares = pair(0, lambda: enqueue_bulk(app), raw.copy)
    results.append(
        await side_by_side("PostgreSQL", "enqueue 100,000 at once (raw: COPY)", ours, bares, rounds)
    )
    for batch in BATCHES:
        ours, bares = pair(
            STOCK if batch < 100 else 4 * STOCK,
            lambda batch=batch: claim_and_succeed(app, batch, seconds),
            lambda batch=batch: raw.claim_and_succeed(batch, seconds),
        )
        what = f"claim + succeed, batch {batch}"
        results.append(await side_by_side("PostgreSQL", what, ours, bares, rounds))
    await bare.close()
    await app.close()
    return results


class RawPostgreSQL:
    """dibs' own statements on a bare asyncpg connection: the limit of what it could reach."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._blocks = PostgreSQL().dialect.blocks

    async def fetch(self, name: str, params: dict[str, Any]) -> Any:
        sql, order = placeholders(self._blocks[name], "numeric")
        return await self._connection.fetch(sql, *[params[name] for name in order])

    async def enqueue_one(self, seconds: float) -> float:
        async def step() -> int:
            return len(await self.fetch("enqueue", {**_columns([row(new_id(), 1)]), "wake": []}))

        return await rate(seconds, step)

    async def copy(self) -> float:
        [now] = await self.fetch("now", {})
        names = ("id", "kind", "queue", "args", "priority", "max_attempts", "state", "run_at", "enqueued_at")
        records = [
            (new_id(), KIND, QUEUE, f'{{"n":{n}}}', 0, 3, "ready", now["now"], now["now"])
            for n in range(BULK)
        ]
        gc.collect()
        start = time.perf_counter()
        await self._connection.copy_records_to_table("dibs_jobs", columns=names, records=records)
        return BULK / (time.perf_counter() - start)

    async def claim_and_succeed(self, batch: int, seconds: float) -> float:
        wish = _wish({**WISH, "limit": batch})

        async def step() -> int:
            rows = await self.fetch("claim", wish)
            done = [
                (row["id"], row["token"], "succeeded", "succeeded", None, False, None, "[]", None, None)
                for row in rows
            ]
            await self.fetch("settle", _settlements(done))
            return len(rows)

        return await rate(seconds, step)


# -- SQLite -------------------------------------------------------------------------------------


def on_sqlite(path: Path, rounds: int, seconds: float) -> list[Result]:
    return asyncio.run(_on_sqlite(path, rounds, seconds))


async def _on_sqlite(path: Path, rounds: int, seconds: float) -> list[Result]:
    app = Dibs(f"sqlite:///{path}")
    await app.open()
    raw = RawSQLite(path)

    async def alone(count: int, measured: Callable[[], Awaitable[float]]) -> float:
        raw.clear()
        if count:
            await app.enqueue(*jobs(count))
        return await measured()

    results = []
    for what, count, dibs, bare in (
        ("enqueue one by one", 0, lambda: enqueue_one(app, seconds), lambda: raw.enqueue_one(seconds)),
        ("enqueue 100,000 at once", 0, lambda: enqueue_bulk(app), raw.bulk),
    ):
        ours: Measured = lambda count=count, dibs=dibs: alone(count, dibs)  # noqa: E731
        bares: Measured = lambda count=count, bare=bare: alone(count, bare)  # noqa: E731
        results.append(await side_by_side("SQLite", what, ours, bares, rounds))
    for batch in BATCHES:
        count = STOCK if batch < 100 else 4 * STOCK
        ours = lambda batch=batch, count=count: alone(count, lambda: claim_and_succeed(app, batch, seconds))  # noqa: E731
        bares = lambda batch=batch, count=count: alone(count, lambda: raw.claim_and_succeed(batch, seconds))  # noqa: E731
        results.append(await side_by_side("SQLite", f"claim + succeed, batch {batch}", ours, bares, rounds))
    raw.close()
    await app.close()
    return results


class RawSQLite:
    """dibs' own statements on a bare sqlite3 connection."""

    def __init__(self, path: Path) -> None:
        self._engine = SQLite()
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._connection.execute("pragma synchronous = full")

    def ask(self, name: str, params: Any) -> list[Any]:
        return self._connection.execute(self._engine.dialect.blocks[name], params).fetchall()

    def clear(self) -> None:
        self._connection.execute("delete from dibs_jobs")
        self._connection.execute("delete from dibs_finished")

    def close(self) -> None:
        self._connection.close()

    async def enqueue_one(self, seconds: float) -> float:
        async def step() -> int:
            self._insert(1)
            return 1

        return await rate(seconds, step)

    async def bulk(self) -> float:
        start = time.perf_counter()
        self._insert(BULK)
        return BULK / (time.perf_counter() - start)

    def _insert(self, count: int) -> None:
        self._connection.execute("begin immediate")
        [(now,)] = self.ask("now", {})
        new = {
            "kind": KIND,
            "queue": QUEUE,
            "args": '{"n":1}',
            "priority": 0,
            "state": "ready",
            "max_attempts": 3,
            "run_at": now,
            "enqueued_at": now,
            "unique_key": None,
            "on_cancelled": "advance",
            "on_failed": "advance",
            "pipeline_id": None,
            "parent_id": None,
            "tags": "[]",
            "meta": "{}",
        }
        rows = ({**new, "id": str(new_id())} for _ in range(count))
        self._connection.executemany(self._engine.dialect.blocks["enqueue"], rows)
        self._connection.execute("commit")

    async def claim_and_succeed(self, batch: int, seconds: float) -> float:
        async def step() -> int:
            claimed = self._claim(batch)
            self._succeed(claimed)
            return len(claimed)

        return await rate(seconds, step)

    def _claim(self, batch: int) -> list[Any]:
        self._connection.execute("begin immediate")
        self.ask("lines", self._engine.adapt({"queues": [QUEUE], "kinds": [KIND]}))
        near = self.ask("near", {"queue": QUEUE, "kind": KIND, "limit": batch})
        self.ask("overdue", {})
        [(last,)] = self.ask("tokens", {"taken": len(near)})
        lease = {"worker": "bench", "lease": 60_000_000, "leases": {}, "ids": [id for id, *_ in near]}
        rows = self.ask("lease", self._engine.adapt({**lease, "token": last - len(near) + 1}))
        self._connection.execute("commit")
        return rows

    def _succeed(self, claimed: list[Any]) -> None:
        self._connection.execute("begin immediate")
        for row in claimed:
            settled = {
                "id": row[0],
                "token": row[13],
                "state": "succeeded",
                "settled_as": "succeeded",
                "ends": True,
                "refund": False,
                "result": None,
                "errors": "[]",
                "message": None,
                "pipeline_id": None,
            }
            self.ask("settle_ended", settled)
            self.ask("forget", {"id": row[0]})
        self._connection.execute("commit")
