"""A worker with a small backlog and with a million ready jobs: is it as fast?"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bare import KIND, QUEUE
from benchmarks.by_hand import jobs
from dibs import Dibs, Worker
from tests.support.servers import MariaDB, PostgreSQL, Redis

DONE = 20_000
SMALL, LARGE = 25_000, 1_000_000
CHUNK = 10_000


def before_a_heap(large: int) -> str:
    """Measure jobs a second of one worker with concurrency 100, for the first jobs of each backlog."""
    lines = [
        f"The first {DONE:,} async jobs that do nothing, one worker with 100 places; jobs/s by ready jobs.",
        "",
        f"| where | {SMALL:,} | {large:,} | share |",
        "|---|---:|---:|---:|",
    ]
    for name, urls in _stores():
        small, big = (asyncio.run(_rate(url, heap)) for url, heap in zip(urls, (SMALL, large), strict=True))
        print(f"  {name}: {small:,.0f}/s, {big:,.0f}/s", flush=True)
        lines.append(f"| {name} | {small:,.0f} | {big:,.0f} | {big / small:.0%} |")
    return "\n".join(lines)


def _stores() -> Iterator[tuple[str, list[str]]]:
    """Yield the addresses of two empty stores of each engine, on the disk where there is one."""
    with PostgreSQL({"shared_buffers": "512MB", "max_wal_size": "4GB"}) as server:
        yield f"PostgreSQL {server.version}", [server.create_database(name) for name in ("small", "large")]
    with MariaDB({"innodb-buffer-pool-size": "1G", "innodb-log-file-size": "1G"}) as server:
        yield f"MariaDB {server.version}", [server.create_database(name) for name in ("small", "large")]
    with Redis({"appendonly": "no", "save": ""}) as server:
        yield f"Redis {server.version}", [server.url(0), server.url(1)]
    with _files() as urls:
        yield "SQLite", urls


@contextmanager
def _files() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield [f"sqlite:///{Path(folder) / name}.db" for name in ("small", "large")]


async def _rate(url: str, heap: int) -> float:
    app = Dibs(url)
    began: list[float] = []

    @app.job(name=KIND, queue=QUEUE)
    async def noop(n: int) -> None:
        began.append(time.perf_counter())
        if len(began) == DONE:
            worker.stop()

    await app.migrate()
    for stored in range(0, heap, CHUNK):
        await app.enqueue(*jobs(min(CHUNK, heap - stored)))
    worker = Worker(app, concurrency=100)
    await worker.run(handle_signals=False)
    await app.close()
    return DONE / (began[DONE - 1] - began[0])
