"""How soon an idle worker starts what there is to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import aiosqlite
import pytest

from dibs import (
    Dibs,
    Fail,
    NewJob,
    StoreUnavailable,
    Worker,
)
from dibs.worker.exchange import Exchange
from tests.support.internals import store_of
from tests.support.workers import (
    SOON,
    Apps,
    finished,
    is_idle,
    is_in_state,
    state_of,
    wait_until,
    working,
)


async def test_a_job_is_back_in_time_when_its_holder_dies_while_all_others_rest(app: Dibs) -> None:
    app.job(lease=1)(_unused)
    async with working(app, queues=["here"]):
        await is_idle(app)
        [job] = await app.enqueue(NewJob("work", queue="elsewhere"))
        assert await app.claim_job(job.id, worker="dies", lease=1) is not None
        claimed_at = time.monotonic()

        await wait_until(lambda: is_in_state(app, job, "ready"))

        assert time.monotonic() - claimed_at <= 1 + SOON


async def _unused() -> None: ...


async def test_what_a_worker_claimed_while_it_was_stopped_is_released(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    app.job(lambda: ran.append("ran"), name="work")
    [job] = await app.enqueue(NewJob("work"))
    worker, exchange = Worker(app), Exchange.settle_and_claim

    async def late(*given: Any) -> Any:
        answer = await exchange(*given)
        worker.stop()
        return answer

    monkeypatch.setattr(Exchange, "settle_and_claim", late)
    await worker.run(handle_signals=False)

    back = await app.get(job.id)
    assert (ran, back.state, back.attempts) == ([], "ready", 0)


async def test_an_error_that_is_not_the_store_s_ends_the_worker_and_loses_nothing(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = asyncio.Event()

    @app.job
    async def work() -> str:
        ran.set()
        return "done"

    job = await work.enqueue()
    exchange, failures = Exchange.settle_and_claim, [AssertionError("a bug")]

    async def failing(own: Exchange, settlements: Any, *given: Any) -> Any:
        if settlements and failures:
            raise failures.pop()
        return await exchange(own, settlements, *given)

    monkeypatch.setattr(Exchange, "settle_and_claim", failing)
    with pytest.raises(AssertionError, match="a bug"):
        await Worker(app).run(until_idle=True)

    assert ran.is_set()
    assert (await app.get(job.id)).result == "done"


@pytest.mark.parametrize(
    "trouble", [StoreUnavailable("it is away"), AssertionError("a bug")], ids=["away", "bug"]
)
async def test_what_a_worker_could_not_settle_before_it_ended_is_free_when_its_lease_is_over(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    @app.job(lease=0.5)
    async def work() -> None:
        worker.stop()

    job = await work.enqueue()
    worker, exchange = Worker(app, grace=0.1), Exchange.settle_and_claim

    async def failing(own: Exchange, settlements: Any, *given: Any) -> Any:
        if settlements:
            raise trouble
        return await exchange(own, settlements, *given)

    async def is_free() -> bool:
        await app.sweep()
        return await state_of(app, job) == "ready"

    monkeypatch.setattr(Exchange, "settle_and_claim", failing)
    with suppress(AssertionError):
        await worker.run(handle_signals=False)

    await wait_until(is_free)


async def test_a_delayed_job_starts_at_its_time(app: Dibs) -> None:
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()

    async with working(app):
        await is_idle(app)
        asked = time.monotonic()
        await work.using(delay=0.6).enqueue()
        await asyncio.wait_for(started.wait(), 15)
        waited = time.monotonic() - asked

    assert 0.55 <= waited <= 0.6 + SOON


async def test_a_delayed_job_of_before_the_worker_came_starts_at_its_time(app: Dibs) -> None:
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()

    await work.using(delay=0.6).enqueue()
    asked = time.monotonic()
    async with working(app):
        await asyncio.wait_for(started.wait(), 15)
        waited = time.monotonic() - asked

    assert 0.5 <= waited <= 0.6 + SOON


async def test_a_job_for_an_idle_worker_starts_at_once(apps: Apps) -> None:
    app, elsewhere = apps(), apps()
    waits: list[float] = []
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()

    async with working(app):
        await is_idle(app)
        for _ in range(5):
            started.clear()
            asked = time.monotonic()
            await elsewhere.enqueue(NewJob("work"))
            await asyncio.wait_for(started.wait(), 15)
            waits.append(time.monotonic() - asked)

    assert sorted(waits)[2] < 1, waits
    assert max(waits) < SOON, waits


async def test_jobs_of_a_pipeline_start_without_a_poll(apps: Apps) -> None:
    """Start them when their pipeline is stored, and when another process ends what they wait for."""
    app, elsewhere = apps(poll=600), apps(poll=600)
    started = asyncio.Queue[str]()

    @app.job
    async def step(name: str) -> None:
        started.put_nowait(name)

    pipeline = elsewhere.pipeline("nightly")
    pipeline.add(NewJob("step", args={"name": "first"}))
    by_hand = pipeline.add(NewJob("by hand"))
    pipeline.add(NewJob("step", args={"name": "second"}), after=[by_hand])
    async with working(app):
        await is_idle(app)
        await pipeline.enqueue()
        assert await asyncio.wait_for(started.get(), 30) == "first"
        await is_idle(app)
        claim = await elsewhere.claim_job(by_hand.id)
        assert claim is not None
        await claim.succeed()
        assert await asyncio.wait_for(started.get(), 30) == "second"


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql", "redis"], indirect=True)
async def test_a_job_from_another_process_starts_at_once(app: Dibs, url: str) -> None:
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()

    script = f"from dibs import Dibs, NewJob; Dibs({url!r}).sync.enqueue(NewJob('work'))"
    async with working(app):
        await is_idle(app)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stderr=subprocess.PIPE)
        assert await process.wait() == 0
        await asyncio.wait_for(started.wait(), SOON)


async def test_a_job_of_a_resumed_queue_starts_at_once(app: Dibs) -> None:
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()

    await app.pause("default")
    await work.enqueue()
    async with working(app):
        await is_idle(app)
        assert not started.is_set()
        await app.resume("default")
        await asyncio.wait_for(started.wait(), SOON)


async def test_a_retried_job_starts_at_once(app: Dibs) -> None:
    runs = 0

    @app.job
    async def work() -> Fail | None:
        nonlocal runs
        runs += 1
        return Fail("once") if runs == 1 else None

    job = await work.enqueue()
    async with working(app):
        await finished(app, job)
        await asyncio.sleep(0.5)
        await app.retry(job.id)
        await wait_until(lambda: is_in_state(app, job, "succeeded"), seconds=SOON)

    assert runs == 2


async def test_a_lost_wake_up_is_found_by_the_poll(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    app = apps(poll=0.5)
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()

    async def hear_nothing(hear: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(store_of(app), "listen", hear_nothing, raising=False)
    async with working(app):
        await is_idle(app)
        await app.enqueue(NewJob("work"))
        await asyncio.wait_for(started.wait(), 0.5 + SOON)


async def test_a_listener_that_breaks_is_started_again(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.Event()
    listen, broke = store_of(app).listen, 0

    @app.job
    async def work() -> None:
        started.set()

    async def break_first(hear: Any) -> None:
        nonlocal broke
        broke += 1
        if broke <= 2:
            raise OSError("the listener broke")
        await listen(hear)

    monkeypatch.setattr(store_of(app), "listen", break_first, raising=False)
    async with working(app):
        await wait_until(lambda: broke == 3)
        await is_idle(app)
        await work.enqueue()
        await asyncio.wait_for(started.wait(), SOON)


async def test_a_worker_is_listed_while_it_runs(app: Dibs) -> None:
    @app.job
    async def work() -> None: ...

    async with working(app, queues=["default", "mail"], concurrency=7) as worker:
        await is_idle(app)
        [info] = await app.workers()

    assert (info.name, info.concurrency, info.kinds) == (worker.name, 7, ["work"])
    assert (info.queues, info.version) == (["default", "mail"], version("dibs"))
    assert await app.workers() == []


async def test_two_workers_of_one_process_have_different_names(apps: Apps) -> None:
    one = apps()

    @one.job
    async def work() -> None: ...

    async with working(one):
        async with working(one):
            await is_idle(one, workers=2)
        left = await one.workers()

    assert len(left) == 1
    assert await one.workers() == []


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_an_idle_worker_does_not_keep_writing_to_the_file(app: Dibs, url: str) -> None:
    @app.job
    async def work() -> None: ...

    async with working(app), aiosqlite.connect(url.removeprefix("sqlite:///")) as watch:
        await is_idle(app)
        before, changes = await _data_version(watch), 0
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            now = await _data_version(watch)
            changes, before = changes + (now != before), now

    assert changes <= 1


async def _data_version(watch: aiosqlite.Connection) -> int:
    async with watch.execute("pragma data_version") as cursor:
        [version] = await cursor.fetchone()
    return version
