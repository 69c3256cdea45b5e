"""A busy worker continues its claims behind a cursor, and misses nothing by it."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from dibs import Dibs, Job, NewJob, Retry
from dibs.engines.sql.blocks import placeholders
from dibs.jobs.ids import new_id
from dibs.jobs.job import JOB_COLUMNS, job_from_row
from dibs.operations.scripts import Step
from dibs.worker import exchange
from tests.support.internals import engine_of, store_of
from tests.support.workers import Apps, drain, wait_until, working

on_postgresql = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
where_it_pays = pytest.mark.parametrize("engine", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def asked(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Return the claims that the worker asks for from now on."""
    steps: list[Step] = []
    execute = store_of(app)._execute_async  # type: ignore[attr-defined]

    async def cursor(step: Step) -> Any:
        if step.question in ("claim", "exchange"):
            steps.append(step)
        return await execute(step)

    monkeypatch.setattr(store_of(app), "_execute_async", cursor)
    return steps


def cursors(asked: list[Step]) -> list[Any]:
    return [step.params["marks"] for step in asked if "marks" in step.params]


@where_it_pays
async def test_a_busy_worker_continues_where_its_last_claim_ended(app: Dibs, asked: list[Step]) -> None:
    ran: list[int] = []

    @app.job
    async def work(n: int) -> None:
        ran.append(n)

    await app.enqueue(*(work.new(n) for n in range(200)))
    await drain(app, concurrency=5)

    assert ran == list(range(200))
    assert len(cursors(asked)) > 10
    assert "marks" not in asked[-1].params  # a claim that finds less is followed by one without


@where_it_pays
async def test_a_drain_leaves_nothing_behind_its_cursor(
    app: Dibs, asked: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use several priorities and kinds, and try some of the jobs more than once."""
    monkeypatch.setattr(exchange, "SHARE", 1e9)
    ran: set[int] = set()

    async def work(n: int) -> None:
        if n % 7 == 0 and n not in ran:
            ran.add(n)
            raise ValueError
        ran.add(n)

    tasks = [app.job(name=f"work-{kind}", retry=Retry.fixed(0), max_attempts=2)(work) for kind in range(3)]
    jobs = [random.choice(tasks).using(priority=random.randint(0, 3)).new(n) for n in range(300)]
    await app.enqueue(*jobs)
    await drain(app, concurrency=4)

    assert await app.counts() == {**dict.fromkeys(await app.counts(), 0), "succeeded": 300}
    assert cursors(asked)


@where_it_pays
@pytest.mark.parametrize("late", ["urgent", "of another kind", "committed late", "back from a retry"])
async def test_a_job_in_front_of_the_cursor_is_found_while_the_worker_is_busy(
    apps: Apps, app: Dibs, asked: list[Step], late: str
) -> None:
    began: list[str] = []

    @app.job(max_attempts=100, retry=Retry.fixed(0))
    async def work(name: str = "one of many") -> None:
        await asyncio.sleep(0.002)
        began.append(name)
        if name == "back from a retry" and began.count(name) < 3:
            raise ValueError

    app.job(name="other")(work.function)
    with _producer(apps.url) as producer:
        if late == "committed late":
            app.sync.enqueue(work.new(late), within=producer)
        await app.enqueue(*(work.new() for _ in range(3000)))
        async with working(app, concurrency=4):
            await wait_until(lambda: len(cursors(asked)) > 20)
            match late:
                case "urgent":
                    await app.enqueue(work.using(priority=1).new(late))
                case "of another kind":
                    await app.enqueue(NewJob("other", {"name": late}, priority=1))
                case "back from a retry":
                    await app.enqueue(work.using(priority=1).new(late))
            producer.commit()
            before = len(began)
            await wait_until(lambda: began.count(late) == (3 if late == "back from a retry" else 1))
            assert len(began) - before < 2500  # not only when all others were done


def _producer(url: str) -> Any:
    if url.startswith("postgresql"):
        return psycopg.connect(url)
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname, port=parts.port, user=parts.username, password=parts.password or "",
        database=parts.path.strip("/"),
    )  # fmt: skip


@on_postgresql
async def test_a_claim_with_a_cursor_does_not_read_what_an_old_snapshot_keeps(apps: Apps, app: Dibs) -> None:
    """Count the pages that a claim reads when 20,000 jobs have been claimed before."""
    await app.enqueue(*(NewJob("work") for _ in range(20_100)))
    with psycopg.connect(apps.url) as holder, psycopg.connect(apps.url, autocommit=True) as look:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from dibs_jobs")
        for _ in range(2):
            claims = await app.claim(limit=10_000)
        plain = _read(look, app, "exchange")
        going_on = _read(look, app, "exchange_on", marks=json.dumps([_mark(claims[-1].job)]))

    assert going_on * 3 < plain, (going_on, plain)


def _mark(job: Job) -> dict[str, Any]:
    return {name: str(getattr(job, name)) for name in ("queue", "kind", "priority", "run_at", "id")}


def _read(connection: Any, app: Dibs, block: str, **given: Any) -> int:
    """Return how many buffers an exchange for ten jobs reads; roll it back."""
    wish = {
        "worker": "w",
        "lease": 1,
        "leases": "{}",
        "limit": 10,
        "look": False,
        "job": None,
        "queues": None,
        "kinds": None,
        "walk": True,
        "succeeded": [],
        "tokens": [],
        "settlements": "[]",
        **given,
    }
    text, _ = placeholders(engine_of(app).dialect.blocks[block], "pyformat")  # type: ignore[attr-defined]
    with connection.transaction(force_rollback=True):
        connection.execute("set local enable_seqscan = off")
        [(plan,)] = connection.execute(f"explain (analyze, buffers, format json) {text}", wish).fetchall()
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])


# -- The rule, without a store ------------------------------------------------------------------


def _job(n: int, kind: str = "work") -> Job:
    now = datetime.now(UTC)
    row = dict.fromkeys(JOB_COLUMNS) | {
        "id": new_id(),
        "kind": kind,
        "queue": "default",
        "args": "{}",
        "priority": n,
        "state": "running",
        "attempts": 1,
        "max_attempts": 3,
        "run_at": now,
        "enqueued_at": now,
        "progress": 0.0,
        "errors": "[]",
        "tags": "[]",
        "meta": "{}",
    }
    return job_from_row(row)


def test_a_cursor_has_the_last_job_of_each_pair_and_is_dropped_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(exchange, "monotonic", lambda: now)
    cursor = exchange.ClaimCursor(pays=True)
    assert cursor.get() == []

    red, blue, later = _job(3), _job(2, "other"), _job(1)
    cursor.advance([red, blue, later], is_full=True, used=False, seconds=0.01)
    assert {last.kind: last.id for last in cursor.get()} == {"work": later.id, "other": blue.id}

    last = _job(0)
    now += 0.09
    cursor.advance([last], is_full=True, used=True, seconds=0.001)
    assert {last.kind: last.id for last in cursor.get()} == {"work": last.id, "other": blue.id}
    now += 0.02
    assert cursor.get() == []

    cursor.advance([red], is_full=True, used=False, seconds=5)
    assert [last.id for last in cursor.get()] == [red.id]
    now += exchange.LONGEST
    assert cursor.get() == []


def test_a_claim_that_finds_less_than_it_had_room_for_drops_the_cursor() -> None:
    cursor = exchange.ClaimCursor(pays=True)
    cursor.advance([_job(1)], is_full=True, used=False, seconds=1)
    cursor.advance([_job(1)], is_full=False, used=True, seconds=1)

    assert cursor.get() == []


def test_where_it_does_not_pay_there_is_no_cursor() -> None:
    cursor = exchange.ClaimCursor(pays=False)
    cursor.advance([_job(1)], is_full=True, used=False, seconds=1)

    assert cursor.get() == []
