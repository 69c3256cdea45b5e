"""A worker that is stopped: its grace, and what it releases."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dibs import (
    Context,
    Dibs,
    Worker,
)
from dibs.worker.runner import LAST_CHECK
from tests.support.workers import (
    SOON,
    count_is,
    is_in_state,
    state_of,
    wait_until,
)


async def test_a_worker_that_stops_lets_its_handlers_finish(app: Dibs) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> str:
        started.set()
        await go.wait()
        return "finished"

    job = await work.enqueue()
    worker = Worker(app, grace=10)
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    later = await work.enqueue()
    await asyncio.sleep(0.1)
    assert not running.done()
    go.set()
    await asyncio.wait_for(running, SOON)

    assert (await app.get(job.id)).result == "finished"
    assert await state_of(app, later) == "ready"


async def test_what_ends_within_the_grace_is_settled_then_not_at_its_end(app: Dibs) -> None:
    started, go, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.job
    async def work(n: int) -> None:
        started.set()
        await (never if n else go).wait()

    short, _long = await app.enqueue(work.new(0), work.new(1))
    worker = Worker(app, grace=10)
    running = asyncio.create_task(worker.run())
    await wait_until(lambda: count_is(app, "running", 2))
    await started.wait()
    worker.stop()
    go.set()

    await wait_until(lambda: is_in_state(app, short, "succeeded"), seconds=SOON)

    worker.stop()
    await asyncio.wait_for(running, SOON)


async def test_after_the_grace_async_handlers_are_cancelled_and_their_jobs_given_back(app: Dibs) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    job = await work.enqueue()
    worker = Worker(app, grace=0.3)
    running = asyncio.create_task(worker.run())
    await started.wait()
    stopped = time.monotonic()
    worker.stop()
    await asyncio.wait_for(running, SOON)

    back = await app.get(job.id)
    assert ended.is_set()
    assert 0.25 < time.monotonic() - stopped < 0.3 + SOON
    assert (back.state, back.attempts, back.worker, back.errors) == ("ready", 0, None, [])


async def test_a_second_stop_ends_the_grace(app: Dibs) -> None:
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()
        await asyncio.sleep(60)

    job = await work.enqueue()
    worker = Worker(app, grace=30)
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    worker.stop()
    await asyncio.wait_for(running, SOON)

    back = await app.get(job.id)
    assert (back.state, back.attempts) == ("ready", 0)


async def test_a_thread_that_is_still_running_keeps_its_job(app: Dibs) -> None:
    started, go = threading.Event(), threading.Event()

    @app.job
    def work() -> None:
        started.set()
        go.wait(20)

    job = await work.enqueue()
    worker = Worker(app, grace=0.1)
    running = asyncio.create_task(worker.run())
    await wait_until(started.is_set)
    worker.stop()
    await asyncio.wait_for(running, SOON)

    kept = await app.get(job.id)
    go.set()
    assert (kept.state, kept.attempts, kept.worker) == ("running", 1, worker.name)


@pytest.mark.parametrize("asks", ["check", "progress"])
@pytest.mark.parametrize("stops", [1, 2])
async def test_after_the_grace_a_plain_handler_that_asks_ends_and_its_job_is_given_back(
    app: Dibs, asks: str, stops: int
) -> None:
    started, ended = threading.Event(), threading.Event()

    @app.job
    def work(ctx: Context) -> None:
        started.set()
        try:
            for _ in range(2000):
                ctx.check() if asks == "check" else ctx.sync.progress(0.5)
                time.sleep(0.01)
        finally:
            ended.set()

    job = await work.enqueue()
    worker = Worker(app, grace=0.3 if stops == 1 else 30)
    running = asyncio.create_task(worker.run())
    await wait_until(started.is_set)
    stopped = time.monotonic()
    for _ in range(stops):
        worker.stop()
    await asyncio.wait_for(running, SOON)

    back = await app.get(job.id)
    assert ended.is_set()
    assert (0.25 if stops == 1 else 0) < time.monotonic() - stopped < 0.3 + SOON
    assert (back.state, back.attempts, back.worker, back.errors) == ("ready", 0, None, [])


async def test_within_the_grace_nothing_stops_a_plain_handler(app: Dibs) -> None:
    started, go = threading.Event(), threading.Event()

    @app.job
    def work(ctx: Context) -> str:
        started.set()
        go.wait(20)
        ctx.check()
        return "finished"

    job = await work.enqueue()
    worker = Worker(app, grace=10)
    running = asyncio.create_task(worker.run())
    await wait_until(started.is_set)
    worker.stop()
    await asyncio.sleep(0.1)
    go.set()
    await asyncio.wait_for(running, SOON)

    assert (await app.get(job.id)).result == "finished"


async def test_a_plain_handler_that_succeeds_after_the_grace_has_succeeded(app: Dibs) -> None:
    started, asked = threading.Event(), threading.Event()

    @app.job
    def work(ctx: Context) -> str:
        started.set()
        while not asked.is_set():
            try:
                ctx.check()
            except Exception:
                asked.set()
            time.sleep(0.01)
        return "finished all the same"

    job = await work.enqueue()
    worker = Worker(app, grace=0.1)
    running = asyncio.create_task(worker.run())
    await wait_until(started.is_set)
    worker.stop()
    await asyncio.wait_for(running, SOON)

    done = await app.get(job.id)
    assert (done.state, done.result) == ("succeeded", "finished all the same")


@pytest.mark.parametrize("could_ask", [True, False])
async def test_a_plain_handler_that_never_asks_is_not_waited_for_for_long(app: Dibs, could_ask: bool) -> None:
    started, go = threading.Event(), threading.Event()

    def asking(ctx: Context) -> None:
        mute()

    def mute() -> None:
        started.set()
        go.wait(20)

    job = await app.job(asking if could_ask else mute).enqueue()
    worker = Worker(app, grace=0.1)
    running = asyncio.create_task(worker.run())
    await wait_until(started.is_set)
    stopped = time.monotonic()
    worker.stop()
    await asyncio.wait_for(running, SOON)

    took, kept = time.monotonic() - stopped, await app.get(job.id)
    go.set()
    assert took < LAST_CHECK + SOON if could_ask else took < LAST_CHECK
    assert (kept.state, kept.attempts, kept.worker) == ("running", 1, worker.name)


async def test_a_worker_can_run_again_after_it_stopped(app: Dibs) -> None:
    @app.job
    async def work() -> None: ...

    worker = Worker(app)
    await work.enqueue()
    await worker.run(until_idle=True)
    await work.enqueue()
    await worker.run(until_idle=True)

    assert (await app.counts())["succeeded"] == 2


async def test_cancelling_a_worker_gives_its_jobs_back(app: Dibs) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    job = await work.enqueue()
    running = asyncio.create_task(Worker(app, grace=0.1).run())
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, SOON)

    assert ended.is_set()
    assert await state_of(app, job) == "ready"
