"""Handlers that share an asyncio task: what one of them does to its surroundings never reaches the next.

The runner knows nothing of stores, so one store is enough here.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from dibs import Dibs, Worker
from dibs.worker.exchange import Exchanged
from tests.support.workers import drain, finished, working

colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture
def url() -> str:
    return "memory://"


async def test_handlers_that_never_wait_share_a_task(app: Dibs) -> None:
    tasks: set[object] = set()

    @app.job
    async def work() -> None:
        tasks.add(asyncio.current_task())

    await app.enqueue(*(work.new() for _ in range(20)))
    await drain(app, concurrency=20)

    assert len(tasks) < 20
    assert (await app.counts())["succeeded"] == 20


async def test_handlers_that_wait_all_run_at_once(app: Dibs) -> None:
    begun = 0
    all_begun = asyncio.Event()

    @app.job
    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 20:
            all_begun.set()
        await asyncio.wait_for(all_begun.wait(), 15)

    await app.enqueue(*(work.new() for _ in range(20)))
    await drain(app, concurrency=20)

    assert (await app.counts())["succeeded"] == 20


async def test_a_context_variable_that_a_handler_sets_is_not_seen_by_the_next(app: Dibs) -> None:
    seen = []

    @app.job
    async def work(n: int) -> None:
        seen.append(colour.get())
        colour.set(f"of {n}")

    await app.enqueue(*(work.new(n) for n in range(20)))
    await drain(app, concurrency=20)

    assert seen == ["none"] * 20


async def test_a_cancelled_handler_takes_no_neighbour_with_it(app: Dibs) -> None:
    begun = asyncio.Event()

    @app.job
    async def waits() -> None:
        begun.set()
        await asyncio.sleep(60)

    @app.job
    async def quick() -> str:
        return "done"

    async with working(app, concurrency=20):
        slow, *others = await app.enqueue(waits.new(), *(quick.new() for _ in range(10)))
        await begun.wait()
        await app.cancel(slow.id, "enough")
        more = await app.enqueue(*(quick.new() for _ in range(10)))
        ended = await finished(app, slow)
        results = [(await finished(app, job)).result for job in (*others, *more)]

    assert (ended.state, ended.message, set(results)) == ("cancelled", "enough", {"done"})


async def test_what_had_not_begun_when_the_worker_was_hurried_is_given_back(app: Dibs) -> None:
    @app.job
    async def work() -> None:
        worker.stop()
        worker.stop()
        await asyncio.sleep(60)

    worker = Worker(app, concurrency=20)
    await app.enqueue(*(work.new() for _ in range(20)))
    await worker.run()

    waiting = await app.find(state="ready")
    assert [(job.attempts, job.errors) for job in waiting] == [(0, [])] * 20


async def test_a_claim_that_came_after_its_lease_begins_nothing(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    @app.job(lease=10)
    async def work() -> None:
        ran.append(1)
        await asyncio.sleep(0.3)

    worker = Worker(app)
    exchange, late = worker._turns._exchange, []
    settle_and_claim = exchange.settle_and_claim

    async def slow(*given: Any) -> Exchanged:
        exchanged = await settle_and_claim(*given)
        if exchanged.claimed and not late:
            late.append(exchanged.claimed)
            for held in exchanged.claimed:
                held.asked_at -= 9.5  # it was asked for that long ago
        return exchanged

    monkeypatch.setattr(exchange, "settle_and_claim", slow)
    job = await work.enqueue()
    running = asyncio.create_task(worker.run())
    await finished(app, job)
    worker.stop()
    await running

    done = await app.get(job.id)
    assert done is not None
    assert (done.state, done.attempts, done.errors, len(ran)) == ("succeeded", 1, [], 1)
