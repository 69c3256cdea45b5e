"""The page on a large store: how long each page takes, its slowest question, and what open browsers ask.

And how much the counts by the minute cost a worker.
"""

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import psycopg
import pymysql

from benchmarks.bare import KIND, QUEUE
from benchmarks.by_hand import jobs
from benchmarks.measure import rates_table
from dibs import Dibs, NewJob, Worker
from dibs.clock import id_millis
from dibs.dashboard import Dashboard
from dibs.worker.upkeep import MinuteCounters
from tests.support.servers import MariaDB, PostgreSQL

FINISHED, WAITING = 1_000_000, 100_000
PATTERN = 10_000  # jobs that really run; the others are copies of them
LOADS = 50
BROWSERS, FOLLOWED = 50, 60  # browsers, and for how many seconds
QUEUES = ("mail", "reports", "imports", "exports")
KINDS = ("send_receipt", "build_report", "import_part", "resize", "notify")
SEARCHES = {
    "jobs, failed": "jobs?q=state:failed",
    "jobs, ready of a queue": "jobs?q=state:ready+queue:mail",
    "jobs, kind like": "jobs?q=kind:send_*",
    "jobs, by argument": "jobs?q=args.order_id:4242",
    "jobs, by error": "jobs?q=error:Timeout",
    "jobs, words": "jobs?q=nowhere+to+be+found",
    "jobs, since": "jobs?q=since:2h",
}
PAGES = ("", "jobs", "queues", "trains", "slots", "pipelines", "schedules", "workers", "outbox", "health")


def on_large_stores(finished: int) -> str:
    """Measure the page on PostgreSQL and MariaDB; return tables."""
    said = []
    with PostgreSQL({"shared_buffers": "512MB", "max_wal_size": "4GB"}) as server:
        said.append(_measured(f"PostgreSQL {server.version}", server.create_database("page"), finished))
    with MariaDB({"innodb-buffer-pool-size": "1G", "innodb-log-file-size": "1G"}) as server:
        said.append(_measured(f"MariaDB {server.version}", server.create_database("page"), finished))
    return "\n\n".join(said)


def _measured(name: str, url: str, finished: int) -> str:
    heading = f"{name}, {finished:,} finished and {WAITING:,} waiting jobs; {LOADS} loads of each page."
    print(heading, flush=True)
    rows, browsers = asyncio.run(_on_store(url, finished))
    return "\n".join(
        [
            heading,
            "",
            "| page | p50 ms | p95 ms | slowest question | ms |",
            "|---|---:|---:|---|---:|",
            *rows,
            "",
            browsers,
        ]
    )


async def _on_store(url: str, finished: int) -> tuple[list[str], str]:
    app = Dibs(url)
    await app.migrate()
    began = time.perf_counter()
    failed, pipeline = await fill(app, url, finished)
    print(f"  filled in {time.perf_counter() - began:.0f} s", flush=True)
    page = Dashboard(app, insecure=True)
    paths = {name or "overview": name for name in PAGES}
    paths |= {"job": f"jobs/{failed}", "pipeline": f"pipelines/{pipeline}", **SEARCHES}
    rows = []
    with questions_of(app) as asked:
        for name, path in paths.items():
            rows.append(await _loads(page, name, path, asked))
            print(f"  {rows[-1]}", flush=True)
        browsers = await _followed(app, page, list(paths.values())[: len(PAGES) + 2], asked)
    print(f"  {browsers}", flush=True)
    await app.close()
    return rows, browsers


async def _loads(page: Dashboard, name: str, path: str, asked: list[tuple[str, float]]) -> str:
    await get(page, path)  # plans, caches, the first examination
    asked.clear()
    spent = []
    for _ in range(LOADS):
        began = time.perf_counter()
        status = await get(page, path)
        spent.append((time.perf_counter() - began) * 1000)
        assert status == 200, (path, status)
    by_question: defaultdict[str, list[float]] = defaultdict(list)
    for question, seconds in asked:
        by_question[question].append(seconds * 1000)
    slowest, worst = max(
        ((each, statistics.quantiles(all, n=20)[-1]) for each, all in by_question.items() if len(all) > 1),
        key=lambda one: one[1],
        default=("–", 0.0),
    )
    p95 = statistics.quantiles(spent, n=20)[-1]
    return f"| {name} | {statistics.median(spent):.0f} | {p95:.0f} | {slowest} | {worst:.0f} |"


async def _followed(app: Dibs, page: Dashboard, paths: list[str], asked: list[tuple[str, float]]) -> str:
    """Let browsers follow pages while jobs come and go; return how many questions a second that costs."""
    ended = asyncio.Event()
    tasks = [
        asyncio.create_task(_browser(page, paths[number % len(paths)], ended)) for number in range(BROWSERS)
    ]
    await asyncio.sleep(5)
    asked.clear()
    own, began = 0, time.perf_counter()
    while time.perf_counter() < began + FOLLOWED:
        await app.enqueue(_new(own))
        own += 1
        await asyncio.sleep(1)
    number = len(asked) - sum(question == "enqueue" for question, _ in asked)
    ended.set()
    loads = sum(await asyncio.gather(*tasks))
    rate = number / (time.perf_counter() - began)
    return (
        f"{BROWSERS} browsers follow {len(paths)} pages for {FOLLOWED} s while {own} jobs come: {rate:.2f} "
        f"questions a second; they loaded pages {loads:,} times."
    )


# -- a browser, without one -----------------------------------------------------------------------


def _scope(path: str) -> dict[str, Any]:
    where, _, query = path.partition("?")
    about = {"type": "http", "method": "GET", "scheme": "http", "http_version": "1.1"}
    where = "/" + where
    headers = [(b"host", b"localhost"), (b"x-dibs-live", b"1")]
    of = {"path": where, "raw_path": where.encode(), "query_string": query.encode(), "headers": headers}
    return {**about, **of, "client": ("127.0.0.1", 1), "server": ("localhost", 80), "root_path": ""}


async def get(page: Dashboard, path: str) -> int:
    status = 0

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    await page(_scope(path), _nothing, send)
    return status


async def _nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _browser(page: Dashboard, path: str, ended: asyncio.Event) -> int:
    """Load a page, and again whenever its stream says that it has changed; return how often."""
    loads, news = 1, asyncio.Event()
    await get(page, path)

    async def send(message: Any) -> None:
        if b"event: changed" in message.get("body", b""):
            news.set()

    async def receive() -> dict[str, Any]:
        await ended.wait()
        return {"type": "http.disconnect"}

    async def follow() -> None:
        of = "events?of=" + path.replace("?", "%3F").replace("&", "%26")
        while not ended.is_set():  # streams end every now and then
            await page(_scope(of), receive, send)

    following = asyncio.create_task(follow())
    while not ended.is_set():
        waits = [asyncio.create_task(each.wait()) for each in (news, ended)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if news.is_set() and not ended.is_set():
            news.clear()
            await get(page, path)
            loads += 1
    await following
    return loads


@contextmanager
def questions_of(app: Dibs) -> Iterator[list[tuple[str, float]]]:
    """Yield what the store is asked from now on, and how many seconds each answer takes."""
    store, asked = app._core.store, []
    ask: Callable[[Any], Awaitable[Any]] = store._ask_async or store._async.execute

    async def timed(step: Any) -> Any:
        began = time.perf_counter()
        try:
            return await ask(step)
        finally:
            asked.append((step.question, time.perf_counter() - began))

    with patch.object(store, "_ask_async", timed):
        yield asked


# -- a large store --------------------------------------------------------------------------------


async def fill(app: Dibs, url: str, finished: int) -> tuple[Any, Any]:
    """Run some jobs, copy them until so many are finished, enqueue the waiting ones.

    Return the id of a failed job and of a pipeline.
    """
    for kind in KINDS:
        app.job(name=kind, max_attempts=1)(_work)
    new = [_new(n, max_attempts=1) for n in range(PATTERN)]
    await app.enqueue(*new)
    await Worker(app, concurrency=100).run(until_idle=True, handle_signals=False)
    await asyncio.to_thread(_copy, url, finished // PATTERN)
    pipelines = []
    for number in range(100):
        pipeline = app.pipeline(f"import {number}")
        first = pipeline.add(_new(number))
        for part in range(4):
            pipeline.add(_new(part), after=[first])
        await pipeline.enqueue()
        pipelines.append(pipeline.id)
    waiting = [
        *(_new(n, queue="trains", train=f"customer_{n % 300}", on_failed="hold") for n in range(15_000)),
        *(_new(n, slot=("csv", n % 500)) for n in range(5_000)),
        *(_new(n, delay=3600 + n) for n in range(10_000)),
    ]
    waiting += [_new(n) for n in range(WAITING - len(waiting) - 500)]
    for begin in range(0, len(waiting), 10_000):
        await app.enqueue(*waiting[begin : begin + 10_000])
    heads = await app.claim(queues=["trains"], limit=20, worker="pod-a")
    for claim in heads:
        await claim.fail("Timeout: no answer", retry=False)
    await app.claim(queues=["reports"], limit=30, worker="pod-b", lease=3600)
    await app.pause("exports")
    for number in range(20):
        await app.schedules.put(f"nightly {number}", "0 3 * * *", _new(number))
    await asyncio.to_thread(_analyze, url)
    return heads[0].job.id, pipelines[-1]


async def _work(order_id: int, to: str) -> dict[str, str]:
    if order_id % 30 == 0:
        raise TimeoutError(f"Timeout: no answer about order {order_id}")
    return {"sent": to}


def _new(number: int, **options: Any) -> NewJob:
    args = {"order_id": number, "to": f"customer-{number}@example.org"}
    about = {"queue": QUEUES[number % 4], "tags": [f"tenant-{number % 20}"]}
    return NewJob(KINDS[number % 5], args=args, **{**about, **options})


def _copy(url: str, times: int) -> None:
    """Copy the finished jobs, each copy of them made a while before the last."""
    base, apart = id_millis(), 86_400_000 // max(times, 1)  # milliseconds: a day in all
    with _connected(url) as ask:
        if url.startswith("postgresql"):
            columns = _columns(ask, "table_schema = current_schema()")
            id = (
                "(overlay(overlay(job.id::text placing substr(new.time, 1, 8) from 1)"
                " placing substr(new.time, 9, 4) from 10))::uuid"
            )
            times_of = (
                f"select lpad(to_hex({base}::bigint - n * {apart}::bigint), 12, '0') as time "
                f"from generate_series(1, {times - 1}) n"
            )
        else:
            columns = _columns(ask, "table_schema = database() and generation_expression is null")
            id = "concat(unhex(new.time), substr(job.id, 7))"
            times_of = (
                "with recursive numbers as (select 1 as n union all "
                f"select n + 1 from numbers where n < {times - 1}) "
                f"select lpad(hex({base} - n * {apart}), 12, '0') as time from numbers"
            )
            ask(f"set max_recursive_iterations = {times + 1}")
        others = ", ".join(f"job.{name}" for name in columns)
        ask(
            f"insert into dibs_finished (id, {', '.join(columns)}) "
            f"select {id}, {others} from dibs_finished job cross join ({times_of}) new"
        )


def _columns(ask: Callable[[str], Any], where: str) -> list[str]:
    found = ask(
        "select column_name from information_schema.columns "
        f"where table_name = 'dibs_finished' and column_name <> 'id' and {where}"
    )
    return [name for (name,) in found]


def _analyze(url: str) -> None:
    how = "vacuum analyze {}" if url.startswith("postgresql") else "analyze table {}"
    with _connected(url) as ask:
        for table in ("dibs_jobs", "dibs_finished"):
            ask(how.format(table))


@contextmanager
def _connected(url: str) -> Iterator[Callable[[str], Any]]:
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:

            def ask(statement: str) -> Any:
                cursor = connection.execute(statement)  # type: ignore[arg-type]
                return cursor.fetchall() if cursor.description else []

            yield ask
        return
    parts = urlsplit(url)
    at: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    database = parts.path.strip("/")
    with (
        pymysql.connect(database=database, password=parts.password or "", autocommit=True, **at) as server,
        server.cursor() as cursor,
    ):

        def ask_server(statement: str) -> Any:
            cursor.execute(statement)
            return cursor.fetchall()

        yield ask_server


# -- what the counts by the minute cost -------------------------------------------------------------


def beside_no_counts(rounds: int, count: int) -> str:
    """Drain no-op jobs with and without the counts by the minute, in turns; return a table."""
    rates: dict[str, list[float]] = {"dibs": [], "without counts": []}
    with PostgreSQL({"shared_buffers": "512MB", "max_wal_size": "1GB"}) as server:
        for number in range(rounds):
            order = list(rates) if number % 2 else list(reversed(rates))  # neither is always the first
            for side in order:
                url = server.create_database(f"counts_{number}_{side.replace(' ', '_')}")
                rates[side].append(asyncio.run(_drained(url, count, counts=side == "dibs")))
            print("  " + ", ".join(f"{side} {all[-1]:,.0f}/s" for side, all in rates.items()), flush=True)
    return rates_table(
        rates, f"Drain of {count:,} async no-op jobs on PostgreSQL, one worker with 100 places:"
    )


async def _drained(url: str, count: int, *, counts: bool) -> float:
    app = Dibs(url)
    ended: list[float] = []

    @app.job(name=KIND, queue=QUEUE)
    async def noop(n: int) -> None:
        ended.append(time.perf_counter())

    await app.migrate()
    await app.enqueue(*jobs(count))
    worker = Worker(app, concurrency=100)
    if counts:
        await worker.run(until_idle=True, handle_signals=False)
    else:
        with patch.object(MinuteCounters, "count", lambda *_: None):
            await worker.run(until_idle=True, handle_signals=False)
    await app.close()
    assert len(ended) == count
    return count / (ended[-1] - ended[0])
