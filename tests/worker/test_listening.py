"""A worker without hints: behind a pooler, on a dead socket, or with connections that see nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import Dibs, NewJob, Worker
from dibs.worker import listening, state
from dibs.worker.state import StaleConnectionCheck
from tests.support.internals import store_of
from tests.support.proxy import FaultProxy
from tests.support.servers import PgBouncer, PostgreSQL
from tests.support.workers import Apps, finished, is_idle, wait_until, working

SECONDS = 1.0  # between two polls of an idle worker without hints
SLACK = 1.0  # for a machine that does other things, too

on_postgresql = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "ECHO_WITHIN", 0.3)
    monkeypatch.setattr(listening, "LOG_AFTER", 0.5)


@pytest.fixture
def heard_logs(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="dibs")
    return caplog


@pytest.fixture
def behind(pgbouncer: PgBouncer, url: str) -> str:
    """Return the address of the test's database through the pooler."""
    return pgbouncer.url(url.rpartition("/")[2])


@pytest.fixture
def direct(postgresql: PostgreSQL, url: str) -> str:
    return postgresql.url(url.rpartition("/")[2])


@pytest.fixture
def proxy(postgresql: PostgreSQL) -> Iterator[FaultProxy]:
    with FaultProxy(postgresql.port) as proxy:
        yield proxy


@asynccontextmanager
async def listener(app: Dibs, **options: Any) -> AsyncIterator[tuple[Worker, asyncio.Queue[float]]]:
    """Run a worker on this app; yield it with the times at which its jobs started."""
    starts: asyncio.Queue[float] = asyncio.Queue()

    @app.job
    async def work() -> None:
        starts.put_nowait(time.monotonic())

    async with working(app, **options) as worker:
        yield worker, starts
    await app.close()


async def pick_up(elsewhere: Dibs, starts: asyncio.Queue[float]) -> float:
    """Return the seconds from the enqueue of a job to its start."""
    asked = time.monotonic()
    await elsewhere.enqueue(NewJob("work"))
    return await asyncio.wait_for(starts.get(), 15) - asked


def hears(worker: Worker) -> bool:
    return worker._listener.is_proved


def warnings(logs: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in logs.records if record.levelno >= logging.WARNING]


# -- Behind a pooler ----------------------------------------------------------------------------


@on_postgresql
async def test_a_worker_behind_a_pooler_polls_every_second_and_logs_it_once(
    apps: Apps, behind: str, heard_logs: pytest.LogCaptureFixture, short_limits: None
) -> None:
    elsewhere = apps()
    async with listener(Dibs(behind, listen_url=behind)) as (worker, starts):
        await wait_until(lambda: warnings(heard_logs))
        waits = [await pick_up(elsewhere, starts)]
        await asyncio.sleep(2 * SECONDS)  # it has long slowed down
        waits.append(await pick_up(elsewhere, starts))

        assert not hears(worker)

    assert max(waits) < SECONDS + SLACK, waits
    [said] = warnings(heard_logs)
    assert "hears no wake-ups" in said
    assert "listen_url=" in said


@on_postgresql
async def test_a_worker_with_a_listen_url_receives_hints_at_once(
    apps: Apps, behind: str, direct: str, heard_logs: pytest.LogCaptureFixture, short_limits: None
) -> None:
    elsewhere = apps()
    async with listener(Dibs(behind, listen_url=direct)) as (worker, starts):
        await wait_until(lambda: hears(worker))
        await asyncio.sleep(2 * SECONDS)
        waits = sorted([await pick_up(elsewhere, starts) for _ in range(5)])

        assert hears(worker)

    assert waits[2] < SECONDS, waits  # the poll is 10 away
    assert warnings(heard_logs) == []


@on_postgresql
async def test_jobs_that_come_one_after_the_other_do_not_wait_a_second_each(apps: Apps, behind: str) -> None:
    elsewhere = apps()
    waits = []
    async with listener(Dibs(behind, listen_url=behind)) as (_, starts):
        await is_idle(elsewhere)
        await asyncio.sleep(2 * SECONDS)
        await pick_up(elsewhere, starts)
        for _ in range(10):
            await asyncio.sleep(0.1)
            waits.append(await pick_up(elsewhere, starts))

    assert sorted(waits)[5] < 0.25, waits


@on_postgresql
async def test_a_delayed_job_is_on_time_for_a_worker_without_hints(apps: Apps, behind: str) -> None:
    elsewhere = apps()
    async with listener(Dibs(behind, listen_url=behind)) as (_, starts):
        await is_idle(elsewhere)
        asked = time.monotonic()
        await elsewhere.enqueue(NewJob("work", delay=1.5))
        waited = await asyncio.wait_for(starts.get(), 15) - asked

    assert 1.4 <= waited < 1.5 + SECONDS + SLACK


# -- Dead sockets -------------------------------------------------------------------------------


@on_postgresql
async def test_a_half_open_listener_is_noticed_and_opened_anew(
    apps: Apps, direct: str, proxy: FaultProxy, heard_logs: pytest.LogCaptureFixture, short_limits: None
) -> None:
    elsewhere = apps()
    through = direct.replace(direct.rpartition(":")[2].partition("/")[0], str(proxy.port))
    async with listener(Dibs(direct, listen_url=through, poll=1)) as (worker, starts):
        await wait_until(lambda: hears(worker))
        proxy.silence()  # the socket stays, and nothing comes through it any more
        await wait_until(lambda: not hears(worker))
        await wait_until(lambda: hears(worker))
        waits = sorted([await pick_up(elsewhere, starts) for _ in range(5)])

    assert waits[2] < 0.2, waits
    assert warnings(heard_logs) == []


@on_postgresql
async def test_a_worker_that_receives_hints_again_logs_it_and_polls_no_more(
    apps: Apps, direct: str, proxy: FaultProxy, heard_logs: pytest.LogCaptureFixture, short_limits: None
) -> None:
    through = direct.replace(direct.rpartition(":")[2].partition("/")[0], str(proxy.port))
    proxy.refuse()
    async with listener(Dibs(direct, listen_url=through)) as (worker, _):
        await wait_until(lambda: warnings(heard_logs))
        proxy.heal()
        await wait_until(lambda: hears(worker))

        assert worker._listener.poll(10) == 10

    messages = [record.getMessage() for record in heard_logs.records]
    assert messages[-1] == "this worker hears wake-ups again"
    assert len(warnings(heard_logs)) == 1


@on_postgresql
async def test_an_idle_worker_with_hints_asks_once_per_poll(
    apps: Apps, direct: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Dibs(direct, listen_url=direct)
    async with listener(app) as (worker, _):
        await wait_until(lambda: hears(worker))
        await asyncio.sleep(0.5)
        asked = 0
        execute = store_of(app)._async.execute  # type: ignore[attr-defined]

        async def counted(step: Any) -> Any:
            nonlocal asked
            asked += 1
            return await execute(step)

        monkeypatch.setattr(store_of(app)._async, "execute", counted)  # type: ignore[attr-defined]
        await asyncio.sleep(3)

    assert asked <= 2  # a tick may be due; leaving is one


async def test_a_worker_polls_where_a_store_sends_no_hints(apps: Apps) -> None:
    app = apps()
    store: Any = store_of(app)
    store.traits = dataclasses.replace(store.traits, wakes=False, echoes=False)

    async def hear_nothing(hear: Any) -> None:
        await asyncio.Event().wait()

    store.listen = hear_nothing
    async with listener(app) as (_, starts):
        await is_idle(app)
        waits = [await pick_up(app, starts)]
        await asyncio.sleep(2 * SECONDS)
        waits.append(await pick_up(app, starts))

    assert max(waits) < SECONDS + SLACK, waits


# -- Connections that see nothing ---------------------------------------------------------------


@on_postgresql
async def test_a_worker_that_claims_none_of_what_is_ready_opens_new_connections(
    app: Dibs, apps: Apps, heard_logs: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = apps(poll=0.2)
    pool: Any = store_of(quick)._async  # type: ignore[attr-defined]
    execute, blind = pool.execute, pool._age

    async def see_nothing(step: Any) -> Any:
        if step.question == "claim" and pool._age == blind:
            step = dataclasses.replace(step, params={**step.params, "queues": ["elsewhere"]})
        return await execute(step)

    monkeypatch.setattr(pool, "execute", see_nothing)

    @quick.job
    async def work() -> None: ...

    async with working(quick):
        job = await app.enqueue(NewJob("work"))
        await finished(app, job[0])

    [said] = warnings(heard_logs)
    assert "with new connections it does" in said


@on_postgresql
async def test_jobs_of_other_kinds_are_not_logged_as_stale_connections(
    app: Dibs, apps: Apps, heard_logs: pytest.LogCaptureFixture
) -> None:
    quick = apps(poll=0.1)
    await app.enqueue(NewJob("unknown"))

    @quick.job
    async def work() -> None: ...

    async with working(quick):
        await asyncio.sleep(1.5)
        await finished(app, (await app.enqueue(NewJob("work")))[0])

    assert [said for said in warnings(heard_logs) if "no handler here" not in said] == []


def test_connections_are_replaced_ever_more_rarely_while_it_does_not_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(state, "monotonic", lambda: now)
    check, at = StaleConnectionCheck(poll=10), datetime.now(UTC)
    starts = []

    for now in range(0, 4000, 10):
        check.ready(at)
        if check.is_stale_after([]):
            starts.append(now)

    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert starts[0] == 20
    assert gaps == sorted(gaps)
    assert gaps[-1] >= StaleConnectionCheck.LONGEST
    assert len(starts) < 12


def test_connections_are_kept_while_nothing_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=10)
    monkeypatch.setattr(state, "monotonic", lambda: next(clock))
    check = StaleConnectionCheck(poll=10)
    check.ready(None)

    assert not any(check.is_stale_after([]) for _ in range(20))


@pytest.mark.parametrize(("late", "words"), [(False, 1), (True, 0)], ids=["missed", "came later"])
def test_only_jobs_ready_before_the_replacement_are_logged_as_missed(
    monkeypatch: pytest.MonkeyPatch, heard_logs: pytest.LogCaptureFixture, late: bool, words: int
) -> None:
    clock = itertools.count(step=10)
    monkeypatch.setattr(state, "monotonic", lambda: next(clock))
    check, at = StaleConnectionCheck(poll=10), datetime.now(UTC)
    [job] = Dibs("memory://").sync.enqueue(NewJob("work", run_at=at + timedelta(seconds=1 if late else -1)))
    check.ready(at)
    while not check.is_stale_after([]):
        pass

    check.ready(at + timedelta(seconds=2))
    assert not check.is_stale_after([job])

    assert len(warnings(heard_logs)) == words
