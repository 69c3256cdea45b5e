"""A cancel reaches the holder of a running job at once, not at its next heartbeat."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from dibs import Context, Dibs
from tests.support.internals import core_of, store_of
from tests.support.workers import Apps, finished, is_idle, wait_until, working

QUICKLY = 8.0  # seconds; the next heartbeat of a lease of 60 is 20 away


async def test_a_cancel_from_before_the_worker_listened_reaches_the_holder_too(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, listen = asyncio.Event(), store_of(app).listen

    async def late(hear: Any) -> None:
        await asyncio.sleep(0.5)
        await listen(hear)

    @app.job(lease=60)
    async def work() -> None:
        started.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(store_of(app), "listen", late)
    job = await work.enqueue()
    async with working(app):
        await started.wait()
        await app.cancel(job.id)
        asked = time.monotonic()
        done = await finished(app, job)

    assert done.state == "cancelled"
    assert time.monotonic() - asked <= 0.5 + 2 * QUICKLY


@pytest.mark.parametrize("colour", ["awaited", "plain"])
@pytest.mark.parametrize("caller", ["the same app", "another app"])
async def test_a_cancel_reaches_the_holder_at_once(apps: Apps, colour: str, caller: str) -> None:
    app, other = apps(), apps()
    started = threading.Event()

    async def awaited() -> None:
        started.set()
        await asyncio.sleep(60)

    def plain(ctx: Context) -> None:
        started.set()
        while True:
            ctx.check()
            time.sleep(0.01)

    work = app.job(name="work", lease=60)(awaited if colour == "awaited" else plain)
    job = await work.enqueue()
    async with working(app):
        await wait_until(started.is_set)
        await is_idle(app)
        asked = time.monotonic()
        await (app if caller == "the same app" else other).cancel(job.id, "not needed")
        done = await finished(app, job)
        took = time.monotonic() - asked

    assert (done.state, done.message) == ("cancelled", "not needed")
    assert took < QUICKLY


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql", "redis"], indirect=True)
async def test_a_cancel_from_another_process_reaches_the_holder_at_once(app: Dibs, url: str) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @app.job(lease=60)
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    job = await work.enqueue()
    script = f"from dibs import Dibs; Dibs({url!r}).sync.cancel({str(job.id)!r})"
    async with working(app):
        await started.wait()
        await is_idle(app)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stderr=subprocess.PIPE)
        assert await process.wait() == 0
        await asyncio.wait_for(ended.wait(), QUICKLY)
        assert (await finished(app, job)).state == "cancelled"


async def test_many_cancelled_at_once_reach_their_holder_at_once(app: Dibs) -> None:
    @app.job(lease=60)
    async def work() -> None:
        await asyncio.sleep(60)

    await app.enqueue(*(work.new() for _ in range(20)))
    async with working(app, concurrency=20):
        await wait_until(lambda: _running(app, 20))
        await is_idle(app)
        asked = time.monotonic()
        assert await app.cancel_many(kind="work") == 20
        await wait_until(lambda: _running(app, 0))
        took = time.monotonic() - asked

    assert (await app.counts())["cancelled"] == 20
    assert took < QUICKLY


async def test_a_hint_that_comes_while_a_heartbeat_is_under_way_is_not_lost(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, beating, go_on = asyncio.Event(), threading.Event(), threading.Event()
    ended = asyncio.Event()
    keeper = core_of(app).keeper
    renew = keeper._store.run

    def slow(operation: Any, within: Any = None) -> Any:
        answer = renew(operation, within)
        if threading.current_thread().name == "dibs-beat" and not beating.is_set():
            beating.set()
            go_on.wait(10)
        return answer

    @app.job(lease=60)
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    monkeypatch.setattr(keeper._store, "run", slow)
    job = await work.enqueue()
    async with working(app):
        await started.wait()
        await is_idle(app)
        [kept] = keeper._kept.values()
        keeper.look([kept.held])
        await wait_until(beating.is_set)  # its result says nothing of the cancel yet
        before = kept.look_since
        await app.cancel(job.id)
        await wait_until(lambda: kept.look_since > before)
        go_on.set()
        await asyncio.wait_for(ended.wait(), QUICKLY)


async def test_a_cancel_for_another_worker_causes_no_renewal(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = apps()
    looks: list[Any] = []

    @app.job
    async def work() -> None: ...

    claim = await app.claim_job((await work.enqueue()).id, worker="another")
    monkeypatch.setattr(core_of(app).keeper, "look", looks.append)
    async with working(app):
        await is_idle(app)
        await asyncio.sleep(0.2)
        looks.clear()  # one is for cancels from before it listened
        await app.cancel(claim.job.id)
        await asyncio.sleep(0.2)

    assert looks == []


async def _running(app: Dibs, many: int) -> bool:
    return (await app.counts())["running"] == many
