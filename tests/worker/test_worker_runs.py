"""A worker claims what it has room for and runs it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from dibs import (
    BadRequest,
    Dibs,
    NewJob,
    Worker,
)
from dibs.worker.exchange import Exchange
from tests.support.workers import (
    SOON,
    Apps,
    count_is,
    drain,
    finished,
    holds_for,
    is_in_state,
    state_of,
    wait_until,
    working,
)


async def test_a_worker_that_drains_runs_everything_and_returns(app: Dibs) -> None:
    ran: list[int] = []

    @app.job
    async def work(n: int) -> None:
        ran.append(n)

    await app.enqueue(*(work.new(n) for n in range(50)))

    await drain(app, concurrency=7)

    assert sorted(ran) == list(range(50))
    assert (await app.counts())["succeeded"] == 50


async def test_a_worker_that_drains_an_empty_store_returns(app: Dibs) -> None:
    app.job(lambda: None, name="never")

    await drain(app)

    assert await app.find() == []


async def test_the_result_of_an_async_handler_is_stored(app: Dibs) -> None:
    @app.job
    async def work(n: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"twice": 2 * n}

    job = await work.enqueue(21)

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.result, done.attempts, done.errors) == ("succeeded", {"twice": 42}, 1, [])


async def test_a_plain_handler_runs_in_a_thread_and_its_result_is_stored(app: Dibs) -> None:
    threads: list[int] = []

    @app.job
    def work(n: int) -> int:
        threads.append(threading.get_ident())
        return 2 * n

    job = await work.enqueue(21)

    await drain(app)

    assert (await app.get(job.id)).result == 42
    assert threads != [threading.get_ident()]
    assert len(threads) == 1


async def test_plain_handlers_run_beside_each_other(app: Dibs) -> None:
    together = threading.Barrier(4)

    @app.job
    def work() -> None:
        together.wait(10)

    await app.enqueue(*(work.new() for _ in range(4)))

    await drain(app, concurrency=4)

    assert (await app.counts())["succeeded"] == 4


async def test_a_worker_never_runs_more_handlers_than_its_concurrency(app: Dibs) -> None:
    now, most, ran = 0, 0, 0

    @app.job
    async def work() -> None:
        nonlocal now, most, ran
        now, ran = now + 1, ran + 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    await app.enqueue(*(work.new() for _ in range(30)))

    await drain(app, concurrency=3)

    assert ran == 30
    assert most == 3


async def test_two_turns_under_way_claim_no_more_than_there_is_room_for(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, asked = 0, 0, []
    settle_and_claim = Exchange.settle_and_claim

    async def noted(exchange: Exchange, settlements: Any, limit: int, pair: Any) -> Any:
        asked.append(limit)
        return await settle_and_claim(exchange, settlements, limit, pair)

    @app.job
    async def work(pauses: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(pauses):
            await asyncio.sleep(0)
        running -= 1

    monkeypatch.setattr(Exchange, "settle_and_claim", noted)
    await app.enqueue(*(work.new(n % 7) for n in range(2000)))
    await drain(app, concurrency=120)

    assert (await app.counts())["succeeded"] == 2000
    assert most <= 120
    assert 0 <= min(asked) <= max(asked) <= 60


async def test_a_worker_claims_no_more_than_it_has_room_for(app: Dibs) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> None:
        running.set()
        await go.wait()

    await app.enqueue(*(work.new() for _ in range(5)))

    async with working(app, concurrency=2):
        await running.wait()
        await wait_until(lambda: count_is(app, "running", 2))
        await holds_for(0.2, lambda: count_is(app, "running", 2))
        go.set()
        await wait_until(lambda: count_is(app, "succeeded", 5))


async def test_free_room_is_filled_while_other_handlers_run(app: Dibs) -> None:
    long, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def slow() -> None:
        long.set()
        await go.wait()

    @app.job
    async def quick() -> None: ...

    job = await slow.enqueue()
    async with working(app, concurrency=2):
        await long.wait()
        await app.enqueue(*(quick.new() for _ in range(10)))

        await wait_until(lambda: count_is(app, "succeeded", 10), seconds=SOON + 1)

        assert await state_of(app, job) == "running"
        go.set()
        await finished(app, job)


async def test_only_the_given_queues_are_worked_on(app: Dibs) -> None:
    @app.job
    async def work() -> None: ...

    other, mine = await work.using(queue="other").enqueue(), await work.using(queue="mine").enqueue()

    await drain(app, queues=["mine"])

    assert await state_of(app, mine) == "succeeded"
    assert await state_of(app, other) == "ready"


async def test_a_kind_that_no_worker_knows_stays_ready_and_why_says_so(app: Dibs) -> None:
    @app.job
    async def known() -> None: ...

    [stranger] = await app.enqueue(NewJob("stranger"))
    other = await known.enqueue()

    async with working(app):
        await finished(app, other)
        why = await app.why(stranger.id)

    assert why.code == "no_worker"
    assert str(why) == "it is ready, but of 1 live worker none knows the kind 'stranger'"
    assert await state_of(app, stranger) == "ready"


def test_a_worker_without_any_job_is_refused() -> None:
    with pytest.raises(BadRequest, match="no jobs are registered"):
        Worker(Dibs("memory://"))


async def test_one_queue_may_be_given_as_its_name(app: Dibs) -> None:
    @app.job
    async def work() -> None: ...

    ours = await work.using(queue="mail").enqueue()
    other = await work.using(queue="m").enqueue()

    await drain(app, queues="mail")

    assert (await state_of(app, ours), await state_of(app, other)) == ("succeeded", "ready")


def test_queues_and_concurrency_may_be_given_by_position() -> None:
    app = Dibs("memory://")
    app.job(lambda: None, name="work")

    worker = Worker(app, ["mail"], 3)

    assert (worker._queues, worker._concurrency) == (["mail"], 3)


@pytest.mark.parametrize("queues", [[], "", [""], [5], 5, ["a\n"]])
def test_queues_that_are_none_are_refused(queues: Any) -> None:
    app = Dibs("memory://")
    app.job(lambda: None, name="work")

    with pytest.raises(BadRequest, match="queue"):
        Worker(app, queues=queues)


@pytest.mark.parametrize("app", ["memory://", None, Dibs])
def test_a_worker_of_something_else_than_an_app_is_refused(app: Any) -> None:
    with pytest.raises(BadRequest, match="Worker"):
        Worker(app)


@pytest.mark.parametrize("places", [0, -1, 1.5, "10", True, None])
def test_a_worker_without_room_is_refused(places: Any) -> None:
    app = Dibs("memory://")
    app.job(lambda: None, name="work")

    with pytest.raises(BadRequest, match="concurrency"):
        Worker(app, concurrency=places)


async def test_a_limit_of_a_queue_is_held_across_two_workers(apps: Apps) -> None:
    now, most, ran = 0, 0, 0

    def with_handler(app: Dibs) -> Any:
        @app.job
        async def work() -> None:
            nonlocal now, most, ran
            now, ran = now + 1, ran + 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1

        return work

    one, other = apps(poll=0.5), apps(poll=0.5)
    work = with_handler(one)
    if other is not one:
        with_handler(other)
    await one.limit("default", 3)
    await one.enqueue(*(work.new() for _ in range(40)))

    async with working(one), working(other):
        await wait_until(lambda: count_is(one, "succeeded", 40))

    assert ran == 40
    assert most == 3


async def test_a_kind_that_the_worker_does_not_know_is_logged_once_and_left_alone(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    app = apps(poll=0.2)
    app.job(name="known")(_nothing)
    [stranger, _, known] = await app.enqueue(NewJob("stranger"), NewJob("stranger"), NewJob("known"))

    with caplog.at_level(logging.WARNING, "dibs"):
        async with working(app):
            await finished(app, known)
            await wait_until(lambda: _about_strangers(caplog))
            await holds_for(1.0, lambda: is_in_state(app, stranger, "ready"))

    assert len(_about_strangers(caplog)) == 1
    assert "'stranger'" in _about_strangers(caplog)[0]


async def test_a_worker_that_ends_when_idle_names_the_kinds_it_left_first(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def known() -> None: ...

    await app.enqueue(NewJob("stranger"), NewJob("stranger"), known.new(), known.new())

    with caplog.at_level("WARNING", logger="dibs"):
        await drain(app)

    assert len(_about_strangers(caplog)) == 1
    assert "'stranger'" in _about_strangers(caplog)[0]


def _about_strangers(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "no handler here" in record.getMessage()]


async def _nothing() -> None: ...
