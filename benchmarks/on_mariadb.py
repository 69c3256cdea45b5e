"""Enqueue, claim and settle by hand on MariaDB: on an app, and with its statements sent bare by asyncmy."""

from collections.abc import Awaitable, Callable

import asyncmy

from benchmarks.bare import Bare
from benchmarks.by_hand import BATCHES, BULK, STOCK, claim_and_succeed, enqueue_bulk, enqueue_one, jobs
from benchmarks.measure import Measured, Result, side_by_side
from dibs import Dibs
from dibs.engines.mysql.engine import MySQL
from dibs.engines.mysql.pools import SESSION, asyncmy_query, connect_options


async def on_mariadb(url: str, rounds: int, seconds: float) -> list[Result]:
    app = Dibs(url)
    await app.migrate()
    bare = await asyncmy.connect(**connect_options(url))
    for statement in SESSION:
        await bare.query(statement)
    engine = MySQL()
    raw = Bare(engine, asyncmy_query(bare, engine), bare.query, "start transaction")

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
    ours, bares = pair(0, lambda: enqueue_bulk(app), lambda: raw.bulk(BULK, BULK))
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
