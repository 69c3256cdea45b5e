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

from dibs import Dibs, Job, NewJob, Retry, Worker
from dibs.engines.hints import Hint
from dibs.engines.sql.blocks import placeholders
from dibs.jobs.ids import new_id
from dibs.jobs.job import JOB_COLUMNS, job_from_row
from dibs.operations.questions import Cursor
from dibs.operations.scripts import Step
from dibs.worker import exchange
from dibs.worker.state import TakenHints
from tests.support.internals import engine_of, store_of
from tests.support.workers import Apps, drain, wait_until, working

on_postgresql = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
where_it_pays = pytest.mark.parametrize("engine", ["postgresql", "mariadb", "mysql"], indirect=True)


@pytest.fixture
def asked(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Return the claims that the worker asks for from now on."""
    steps: list[Step] = []
    pool = store_of(app)._async  # type: ignore[attr-defined]
    execute = pool.execute

    async def cursor(step: Step) -> Any:
        if step.question in ("claim", "exchange"):
            steps.append(step)
        return await execute(step)

    monkeypatch.setattr(pool, "execute", cursor)
    return steps


def cursors(asked: list[Step]) -> list[Any]:
    return [step.params["marks"] for step in asked if "marks" in step.params]


@where_it_pays
async def test_a_busy_worker_continues_where_its_last_claim_ended(
    app: Dibs, asked: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "DEAR", 60.0)  # however slow this machine is
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
        going_on = _read(look, app, "exchange_on", marks=json.dumps([_mark(claims[-1].job)]), ahead=[])

    assert going_on * 3 < plain, (going_on, plain)


@on_postgresql
async def test_a_job_that_a_hint_names_is_claimed_without_reading_what_an_old_snapshot_keeps(
    apps: Apps, app: Dibs
) -> None:
    await app.enqueue(*(NewJob("work") for _ in range(20_000)))
    with psycopg.connect(apps.url) as holder, psycopg.connect(apps.url, autocommit=True) as look:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from dibs_jobs")
        for _ in range(2):
            await app.claim(limit=10_000)
        [job] = await app.enqueue(NewJob("work"))
        named = _read(look, app, "claim_named", named=[job.id], kinds=["work"])
        by_pair = _read(look, app, "claim_line", queue="default", kind="work")

    assert named < 50 < by_pair, (named, by_pair)


@on_postgresql
async def test_an_idle_worker_claims_the_jobs_that_hints_name(app: Dibs, asked: list[Step]) -> None:
    ran: list[int] = []

    @app.job
    async def work(n: int) -> None:
        ran.append(n)

    async with working(app, concurrency=5) as worker:
        for n in range(5):
            await wait_until(lambda: _rests(worker))
            asked.clear()
            job = await work.enqueue(n)
            await wait_until(lambda n=n: n in ran)  # type: ignore[misc]
            named = [step.params.get("named") for step in asked if step.question == "claim"]
            assert [job.id] in named, "the job was found by a poll"


def _rests(worker: Worker) -> bool:
    """Return whether this worker expects no job: not even the second claim after a hint is left to do."""
    work = worker._state.work
    return not work.is_likely and work.claim_again_at == float("inf") and not worker._is_busy()


@on_postgresql
@pytest.mark.parametrize("why", ["paused", "limited"])
async def test_a_named_job_is_claimed_only_where_any_claim_may_have_it(app: Dibs, why: str) -> None:
    """The hint says that a job is there, not that it may run."""
    ran: list[int] = []

    @app.job
    async def work(n: int) -> None:
        ran.append(n)
        if why == "limited":
            await asyncio.sleep(0.3)

    async with working(app, concurrency=5):
        if why == "paused":
            await app.pause("default")
        if why == "limited":
            await app.limit("default", 1)
        for n in range(2):
            await work.enqueue(n)
        await asyncio.sleep(0.2)
        assert len(ran) <= {"paused": 0, "limited": 1}[why]
        await app.resume("default")
        await wait_until(lambda: ran == [0, 1])


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


def _get(cursor: exchange.ClaimCursor, **hints: Any) -> list[Cursor]:
    return cursor.get(TakenHints(**hints), is_settling=True)


def test_a_cursor_has_the_last_job_of_each_pair_and_is_dropped_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(exchange, "monotonic", lambda: now)
    cursor = exchange.ClaimCursor(pays=True)
    assert _get(cursor) == []

    red, blue, later = _job(3), _job(2, "other"), _job(1)
    cursor.advance([red, blue, later], is_full=True, used=False, seconds=0.01)
    assert {last.kind: last.id for last in _get(cursor)} == {"work": later.id, "other": blue.id}

    last = _job(0)
    now += 0.09
    cursor.advance([last], is_full=True, used=True, seconds=0.001)
    assert {last.kind: last.id for last in _get(cursor)} == {"work": last.id, "other": blue.id}
    now += 0.02
    assert _get(cursor) == []

    cursor.advance([red], is_full=True, used=False, seconds=5)
    assert [last.id for last in _get(cursor)] == [red.id]
    now += exchange.LONGEST
    assert _get(cursor) == []


def test_a_claim_that_finds_less_than_it_had_room_for_drops_the_cursor() -> None:
    cursor = exchange.ClaimCursor(pays=True)
    cursor.advance([_job(1)], is_full=True, used=False, seconds=1)
    cursor.advance([_job(1)], is_full=False, used=True, seconds=1)

    assert _get(cursor) == []


def test_where_it_does_not_pay_there_is_no_cursor() -> None:
    cursor = exchange.ClaimCursor(pays=False)
    cursor.advance([_job(1)], is_full=True, used=False, seconds=1)

    assert _get(cursor) == []


# -- Where to begin at the first job is dear ----------------------------------------------------


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> exchange.ClaimCursor:
    """A cursor after claims that each took long to begin at the first job, and found all there was."""
    monkeypatch.setattr(exchange, "monotonic", lambda: 100.0)
    cursor = exchange.ClaimCursor(pays=True)
    for _ in range(3):
        cursor.advance([_job(0), _job(3)], is_full=False, used=False, seconds=0.2)
    return cursor


def test_where_it_is_dear_to_begin_anew_a_short_claim_keeps_its_cursors(
    dear: exchange.ClaimCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear.advance([], is_full=False, used=True, seconds=0.001)

    assert {cursor.priority for cursor in dear.get(TakenHints(), is_settling=False)} == {0, 3}
    monkeypatch.setattr(exchange, "monotonic", lambda: 100.0 + exchange.SHARE * 0.2)
    assert _get(dear) == []


def test_a_kept_cursor_begins_a_little_earlier_for_late_commits_and_more_for_retries(
    dear: exchange.ClaimCursor,
) -> None:
    last = _job(0)
    dear.advance([last], is_full=False, used=True, seconds=0.001)

    def begins(**hints: Any) -> set[float]:
        marks = [mark for mark in _get(dear, **hints) if mark.priority == 0]
        return {round((last.run_at - mark.run_at).total_seconds(), 3) for mark in marks}

    assert begins() == {exchange.LATE.total_seconds()}
    assert begins(is_anywhere=True) == {exchange.VERY_LATE.total_seconds()}


def test_it_is_not_dear_where_all_claims_are_slow(dear: exchange.ClaimCursor) -> None:
    for _ in range(9):
        dear.note([], seconds=0.1)

    assert _get(dear) == []


def test_a_busy_moment_does_not_make_it_dear() -> None:
    cursor = exchange.ClaimCursor(pays=True)
    for seconds in (0.2, 0.001, 0.2, 0.2):
        cursor.advance([_job(0)], is_full=False, used=False, seconds=seconds)

    assert _get(cursor) == []


def test_in_a_backlog_only_more_urgent_jobs_are_claimed_ahead(dear: exchange.ClaimCursor) -> None:
    hints = [Hint("default", "work", priority, new_id()) for priority in (0, 9)]
    assert dear.ahead(hints) == [hint.id for hint in hints]

    dear.advance([_job(3), _job(3)], is_full=True, used=True, seconds=0.001)

    assert dear.ahead(hints) == [hints[1].id]


@where_it_pays
@pytest.mark.parametrize(
    "late", ["urgent", "of another kind", "committed late", "back from a retry", "released"]
)
async def test_nothing_is_missed_where_it_is_dear_to_begin_anew(
    apps: Apps, app: Dibs, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """Jobs come one by one, so claims are short; what lies before the cursors is found all the same."""
    monkeypatch.setattr(exchange, "DEAR", -1.0)
    monkeypatch.setattr(exchange, "TIMES_DEAR", 0)
    monkeypatch.setattr(exchange, "SHARE", 1e9)
    monkeypatch.setattr(exchange, "LONGEST_IF_DEAR", 2.0)
    began: list[str] = []

    @app.job(max_attempts=100, retry=Retry.fixed(0.1))
    async def work(name: str = "one of many") -> None:
        began.append(name)
        if name == "back from a retry" and began.count(name) < 3:
            raise ValueError

    app.job(name="other")(work.function)
    with _producer(apps.url) as producer:
        if late == "committed late":
            app.sync.enqueue(work.new(late), within=producer)
        async with working(app, concurrency=4):
            for n in range(40):
                await work.enqueue()
                if n == 30:
                    match late:
                        case "urgent":
                            await work.using(priority=9).enqueue(late)
                        case "of another kind":
                            await app.enqueue(NewJob("other", {"name": late}))
                        case "back from a retry":
                            await work.enqueue(late)
                        case "released":
                            await _release_one(app, late)
                    producer.commit()
                await asyncio.sleep(0.01)
            times = 3 if late == "back from a retry" else 1
            await wait_until(lambda: began.count(late) == times and began.count("one of many") == 40)


async def _release_one(app: Dibs, name: str) -> None:
    """Put a job back whose place is long before the others: no hint says so."""
    [job] = await app.enqueue(NewJob("work", {"name": name}, run_at=datetime(2020, 1, 1, tzinfo=UTC)))
    claim = await app.claim_job(job.id)
    if claim is not None:
        await claim.release()


@on_postgresql
async def test_an_urgent_job_is_claimed_at_once_where_it_is_dear_to_begin_anew(
    app: Dibs, asked: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("DEAR", -1.0), ("TIMES_DEAR", 0), ("SHARE", 1e9), ("LONGEST_IF_DEAR", 1e9)):
        monkeypatch.setattr(exchange, name, value)
    ran: list[str] = []

    @app.job
    async def work(name: str = "one of many") -> None:
        ran.append(name)
        await asyncio.sleep(0.005)

    async with working(app, concurrency=2):
        for _ in range(20):
            await work.enqueue()
        await wait_until(lambda: len(ran) == 20)
        await app.enqueue(*(work.new() for _ in range(1000)))
        await wait_until(lambda: len(ran) > 100)
        before = len(ran)
        await work.using(priority=9).enqueue("urgent")
        await wait_until(lambda: "urgent" in ran)

    assert ran.index("urgent") - before < 100  # of a thousand that wait
