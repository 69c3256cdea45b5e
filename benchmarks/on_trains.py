"""A long train of jobs that do nothing, and plain jobs beside many jobs that wait."""

import asyncio
import json
import statistics
import time
from typing import Any
from uuid import uuid4

import asyncpg

from benchmarks.bare import KIND, QUEUE, WISH
from benchmarks.by_hand import jobs
from dibs import Dibs, NewJob, Worker
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.session import SESSION
from dibs.engines.sql.blocks import placeholders
from dibs.operations.scripts import Step

LENGTH = 2_000
CROWD, PLAIN = 100_000, 20_000
CLAIMS = 9


def drain(url: str, rounds: int, length: int) -> str:
    """Measure how long one worker takes for the train; return a table."""
    spent = asyncio.run(_spent(url, rounds, length))
    for one in spent:
        print(f"  a train of {length:,}: {one:.2f} s", flush=True)
    median = statistics.median(spent)
    heading = f"One train of {length:,} async jobs that do nothing, one worker with 10 places."
    row = f"| {median:.2f} | {length / median:,.0f} |"
    return "\n".join([heading, "", "| s | jobs/s |", "|---:|---:|", row])


async def _spent(url: str, rounds: int, length: int) -> list[float]:
    app = Dibs(url)
    await app.migrate()
    async with app:
        await _timed(app, length // 10)  # opens connections and makes query plans
        return [await _timed(app, length) for _ in range(rounds)]


async def _timed(app: Dibs, length: int) -> float:
    ran: list[int] = []
    kind = f"nothing-{uuid4()}"

    @app.job(name=kind)
    async def nothing(number: int) -> None:
        ran.append(number)

    await app.enqueue(*(NewJob(kind, args={"number": n}, train="bench") for n in range(length)))
    worker = Worker(app)
    began = time.perf_counter()
    await worker.run(until_idle=True, handle_signals=False)
    spent = time.perf_counter() - began
    assert ran == list(range(length)), "not in order, or not once each"
    return spent


# -- Plain jobs beside jobs that wait for their turn ----------------------------------------------


def beside_a_crowd(alone: str, crowded: str, rounds: int) -> str:
    """Measure plain jobs beside jobs at gates: what a plain claim reads, and how fast they drain."""
    rates, read = asyncio.run(_beside_a_crowd((alone, crowded), rounds))
    for turn in zip(*rates, strict=True):
        print(f"  {PLAIN:,} plain jobs: {', '.join(f'{rate:,.0f}/s' for rate in turn)}", flush=True)
    lines = [
        f"| {where} | {statistics.median(rate):,.0f} | {seen['buffers']} | {seen['rows']} |"
        for where, rate, seen in zip(("alone", f"beside {CROWD:,} blocked"), rates, read, strict=True)
    ]
    heading = f"{PLAIN:,} plain jobs, one worker with 100 places; {CLAIMS} claims of 10: what one reads."
    return "\n".join([heading, "", "| where | jobs/s | buffers | rows |", "|---|---:|---:|---:|", *lines])


async def _beside_a_crowd(
    urls: tuple[str, str], rounds: int
) -> tuple[list[list[float]], list[dict[str, int]]]:
    apps = [Dibs(url) for url in urls]
    for app in apps:
        await app.migrate()
    for first in range(0, CROWD, 1000):
        await apps[1].enqueue(*(NewJob("waits", train=f"t{n % 10}") for n in range(first, first + 1000)))
    rates: list[list[float]] = [[], []]
    for _ in range(rounds):
        for app, url, rate in zip(apps, urls, rates, strict=True):
            rate.append(await _drained(app, url))
    read = [await _read_by_a_claim(app, url) for app, url in zip(apps, urls, strict=True)]
    for app in apps:
        await app.close()
    return rates, read


async def _drained(app: Dibs, url: str) -> float:
    if KIND not in app._core.registry.tasks:

        @app.job(name=KIND, queue=QUEUE)
        async def noop(n: int) -> None: ...

    await app.enqueue(*jobs(PLAIN))
    connection = await asyncpg.connect(url)
    await connection.execute("vacuum analyze dibs_jobs, dibs_finished")
    await connection.close()
    began = time.perf_counter()
    await Worker(app, concurrency=100).run(until_idle=True, handle_signals=False)
    return PLAIN / (time.perf_counter() - began)


async def _read_by_a_claim(app: Dibs, url: str) -> dict[str, int]:
    await app.enqueue(*jobs(1000))
    connection = await asyncpg.connect(url, server_settings=SESSION)
    await connection.execute("vacuum analyze dibs_jobs, dibs_finished")
    engine = PostgreSQL()
    query: Any = next(engine.answer(Step("claim", {**WISH, "kinds": [KIND], "look": False, "limit": 10})))
    sql, order = placeholders(engine.dialect.blocks[query.name], "numeric")
    asked, given = f"explain (analyze, buffers, format json) {sql}", [query.params[name] for name in order]
    plans = [json.loads(await connection.fetchval(asked, *given))[0]["Plan"] for _ in range(CLAIMS)]
    await connection.close()
    return {
        "buffers": int(statistics.median(map(_buffers, plans))),
        "rows": int(statistics.median(map(_rows, plans))),
    }


def _buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _rows(plan: dict[str, Any]) -> int:
    """Sum the rows of all scans."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if "Scan" in plan["Node Type"] else 0
    return int(own + sum(map(_rows, plan.get("Plans", []))))
