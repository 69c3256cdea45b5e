"""A worker beside a forgotten open snapshot: does it stay as fast as it was?"""

import asyncio
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

from benchmarks.bare import KIND, QUEUE
from benchmarks.by_hand import jobs
from dibs import Dibs, Worker

COUNT = 40_000
SEE_ALL = "select count(*) from dibs_jobs"


def beside_a_snapshot(server: Any, name: str, count: int) -> str:
    """Return rows of jobs a second in the first, a middle and the last tenth of a drain, ten at a time."""
    lines = []
    for how, beside in (("alone", None), ("beside a held snapshot", held)):
        url = server.create_database(f"snapshots_{len(lines)}")
        rates = asyncio.run(_drained(url, count, beside))
        print(f"  {name}, {how}: {', '.join(f'{rate:,.0f}/s' for rate in rates)}", flush=True)
        lines.append(f"| {name}, {how} | {rates[0]:,.0f} | {rates[5]:,.0f} | {rates[-1]:,.0f} |")
    return "\n".join(lines)


def heading(count: int) -> str:
    return (
        f"{count:,} async jobs that do nothing, one worker with 10 places; jobs/s by tenths of the way.\n\n"
        "| where | first | sixth | last |\n|---|---:|---:|---:|"
    )


async def _drained(url: str, count: int, beside: Callable[[str], Any] | None) -> list[float]:
    app = Dibs(url)
    ended: list[float] = []

    @app.job(name=KIND, queue=QUEUE)
    async def noop(n: int) -> None:
        ended.append(time.perf_counter())

    await app.migrate()
    await app.enqueue(*jobs(count))
    if beside is None:
        await Worker(app).run(until_idle=True, handle_signals=False)
    else:
        with beside(url):
            await Worker(app).run(until_idle=True, handle_signals=False)
    await app.close()
    tenth = count // 10
    return [tenth / (ended[n + tenth - 1] - ended[n]) for n in range(0, count, tenth)]


@contextmanager
def held(url: str) -> Any:
    """Open a transaction that has read the jobs, and keep it open."""
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute(SEE_ALL)
            yield
        return
    parts = urlsplit(url)
    at = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": parts.password or "",
    }
    with pymysql.connect(database=parts.path.strip("/"), **at) as connection, connection.cursor() as cursor:
        cursor.execute("start transaction with consistent snapshot")
        cursor.execute(SEE_ALL)
        yield
