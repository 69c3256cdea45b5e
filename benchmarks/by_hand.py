"""Enqueue, claim and settle by hand, on an app and with the bare driver beside it."""

import asyncio
import gc
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.bare import KIND, QUEUE, Bare, rate
from benchmarks.measure import Measured, Result, side_by_side
from dibs import Dibs, NewJob
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.pools import asyncpg_query
from dibs.engines.postgresql.session import SESSION
from dibs.engines.sqlite.engine import SQLite
from dibs.engines.sqlite.file import sqlite_query
from dibs.jobs.ids import new_id

BATCHES = (1, 10, 100)
BULK = 100_000
STOCK = 60_000


def jobs(count: int) -> list[NewJob]:
    return [NewJob(KIND, {"n": n}, queue=QUEUE) for n in range(count)]


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
    raw = bare_postgresql(bare)

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
    ours, bares = pair(0, lambda: enqueue_bulk(app), lambda: copied(bare))
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


def bare_postgresql(connection: Any) -> Bare:
    engine = PostgreSQL()
    return Bare(engine, asyncpg_query(connection, engine), connection.execute)


async def copied(connection: Any) -> float:
    """Insert in the fastest way that the driver has."""
    now = await connection.fetchval("select clock_timestamp()")
    names = ("id", "kind", "queue", "args", "priority", "max_attempts", "state", "run_at", "enqueued_at")
    records = [(new_id(), KIND, QUEUE, f'{{"n":{n}}}', 0, 3, "ready", now, now) for n in range(BULK)]
    gc.collect()
    start = time.perf_counter()
    await connection.copy_records_to_table("dibs_jobs", columns=names, records=records)
    return BULK / (time.perf_counter() - start)


# -- SQLite -------------------------------------------------------------------------------------


def on_sqlite(path: Path, rounds: int, seconds: float) -> list[Result]:
    return asyncio.run(_on_sqlite(path, rounds, seconds))


async def _on_sqlite(path: Path, rounds: int, seconds: float) -> list[Result]:
    app = Dibs(f"sqlite:///{path}")
    await app.open()
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("pragma synchronous = full")
    raw = bare_sqlite(connection)

    async def alone(count: int, measured: Callable[[], Awaitable[float]]) -> float:
        connection.execute("delete from dibs_jobs")
        connection.execute("delete from dibs_finished")
        if count:
            await app.enqueue(*jobs(count))
        return await measured()

    results = []
    for what, count, dibs, bare in (
        ("enqueue one by one", 0, lambda: enqueue_one(app, seconds), lambda: raw.enqueue_one(seconds)),
        ("enqueue 100,000 at once", 0, lambda: enqueue_bulk(app), lambda: raw.bulk(BULK, BULK)),
    ):
        ours: Measured = lambda count=count, dibs=dibs: alone(count, dibs)  # noqa: E731
        bares: Measured = lambda count=count, bare=bare: alone(count, bare)  # noqa: E731
        results.append(await side_by_side("SQLite", what, ours, bares, rounds))
    for batch in BATCHES:
        count = STOCK if batch < 100 else 4 * STOCK
        ours = lambda batch=batch, count=count: alone(count, lambda: claim_and_succeed(app, batch, seconds))  # noqa: E731
        bares = lambda batch=batch, count=count: alone(count, lambda: raw.claim_and_succeed(batch, seconds))  # noqa: E731
        results.append(await side_by_side("SQLite", f"claim + succeed, batch {batch}", ours, bares, rounds))
    connection.close()
    await app.close()
    return results


def bare_sqlite(connection: sqlite3.Connection) -> Bare:
    engine = SQLite()
    send = sqlite_query(connection, engine)

    async def query(query: Any) -> Any:
        return send(query)

    async def say(statement: str) -> None:
        connection.execute(statement)

    return Bare(engine, query, say, "begin immediate")
