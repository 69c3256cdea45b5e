"""A worker renews the leases of what it runs, and stops what it has lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from dibs import Context, Dibs, Job
from tests.support.workers import Apps, drain, finished, look, take_back, wait_until, working

LEASE = 2.0  # seconds


async def test_a_handler_that_blocks_the_event_loop_keeps_its_job(apps: Apps) -> None:
    app, other = apps(), apps()
    runs = 0

    @app.job(lease=LEASE)
    async def work(ctx: Context) -> str:
        nonlocal runs
        runs += 1
        _block_past_the_lease(other, ctx.job)
        return "kept"

    job = await work.enqueue()
    stop, moved = threading.Event(), []
    sweeping = threading.Thread(target=_sweep_until, args=(other, stop, moved))
    sweeping.start()

    await drain(app)
    stop.set()
    sweeping.join()

    done = await app.get(job.id)
    assert (done.state, done.result, done.attempts, runs) == ("succeeded", "kept", 1, 1)
    assert len(moved) > 10
    assert done.errors == []


async def test_jobs_claimed_beside_one_that_blocks_the_event_loop_are_kept(apps: Apps) -> None:
    app, other = apps(), apps()
    runs: list[int] = []

    @app.job(lease=LEASE)
    async def work(ctx: Context, n: int) -> None:
        runs.append(n)
        if n == 0:
            _block_past_the_lease(other, ctx.job)

    jobs = await app.enqueue(*(work.new(n) for n in range(5)))
    stop, moved = threading.Event(), []
    sweeping = threading.Thread(target=_sweep_until, args=(other, stop, moved))
    sweeping.start()

    await drain(app)
    stop.set()
    sweeping.join()

    assert sorted(runs) == [0, 1, 2, 3, 4]
    assert [(await app.get(job.id)).errors for job in jobs] == [[]] * 5
    assert (await app.counts())["succeeded"] == 5


async def test_a_success_is_kept_while_another_handler_blocks_the_event_loop(apps: Apps) -> None:
    app, other = apps(), apps()
    runs: list[str] = []
    quick_ends = asyncio.Event()

    @app.job(lease=LEASE)
    async def slow(ctx: Context) -> None:
        runs.append("slow")
        await quick_ends.wait()
        _block_past_the_lease(other, ctx.job)

    @app.job(lease=LEASE)
    async def quick() -> None:
        runs.append("quick")
        await asyncio.sleep(0.05)
        quick_ends.set()

    jobs = await app.enqueue(slow.new(), quick.new())
    stop, moved = threading.Event(), []
    sweeping = threading.Thread(target=_sweep_until, args=(other, stop, moved))
    sweeping.start()

    await drain(app)
    stop.set()
    sweeping.join()

    assert sorted(runs) == ["quick", "slow"]
    assert [(await app.get(job.id)).errors for job in jobs] == [[], []]


async def test_a_lost_lease_cancels_the_handler_and_its_outcome_counts_for_nothing(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    app = apps(poll=1)
    started, ended = asyncio.Event(), asyncio.Event()
    runs = 0

    @app.job(lease=LEASE)
    async def work() -> str:
        nonlocal runs
        runs += 1
        if runs > 1:
            return "second"
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "first"

    job = await work.enqueue()
    with caplog.at_level(logging.WARNING, "dibs"):
        async with working(app):
            await started.wait()
            await asyncio.to_thread(take_back, app, job.id)
            await wait_until(ended.is_set)
            done = await finished(app, job)

    assert (done.result, done.attempts) == ("second", 2)
    assert [error.message for error in done.errors] == ["worker died"]
    assert [record.message for record in caplog.records if "lost" in record.message] != []


def _block_past_the_lease(app: Dibs, job: Job) -> None:
    """Block the event loop until the lease would have ended without a heartbeat."""
    assert job.lease_until is not None
    over = job.lease_until + timedelta(seconds=LEASE / 2)
    look(lambda: _lease_until(app, job) >= over)


def _lease_until(app: Dibs, job: Job) -> datetime:
    found = app.sync.get(job.id)
    assert found is not None
    assert found.lease_until is not None, "the job was taken back"
    return found.lease_until


def _sweep_until(app: Dibs, stop: threading.Event, moved: list[Any]) -> None:
    """Take back every expired lease at once, as other workers would."""
    while not stop.wait(0.02):
        moved.append(app.sync.sweep())
