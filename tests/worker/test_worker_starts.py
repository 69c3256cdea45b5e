"""What a worker does with jobs, on every engine, in this process."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import aiosqlite
import pytest

from dibs import (
    BadRequest,
    Cancel,
    Context,
    Dibs,
    Fail,
    Job,
    LeaseLost,
    NewJob,
    Retry,
    Snooze,
    StoreUnavailable,
    Worker,
)
from dibs.worker.trips import Trips
from tests.support.param_names import named
from tests.support.workers import (
    Apps,
    drain,
    finished,
    holds_for,
    is_idle,
    state_of,
    take_back,
    transaction,
    wait_until,
    working,
)

TOO_LONG = ("TimeoutError", "it took longer than its timeout of 0.2 s")
SOON = 1.5  # seconds: well before the poll of 10, and patient with a busy machine


# -- Running jobs -------------------------------------------------------------------------------


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


async def test_a_worker_never_runs_more_handlers_than_it_has_places(app: Dibs) -> None:
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


async def test_a_worker_with_two_turns_under_way_asks_for_no_more_than_it_has_places(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, asked = 0, 0, []
    exchange = Trips.exchange

    async def noted(trips: Trips, settled: Any, rides: Any, places: int, **wanted: Any) -> Any:
        asked.append(places)
        return await exchange(trips, settled, rides, places, **wanted)

    @app.job
    async def work(pauses: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(pauses):
            await asyncio.sleep(0)
        running -= 1

    monkeypatch.setattr(Trips, "exchange", noted)
    await app.enqueue(*(work.new(n % 7) for n in range(2000)))
    await drain(app, concurrency=120)

    assert (await app.counts())["succeeded"] == 2000
    assert most <= 120
    assert 0 <= min(asked) <= max(asked) <= 60


async def test_a_worker_claims_no_more_than_it_has_places(app: Dibs) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> None:
        running.set()
        await go.wait()

    await app.enqueue(*(work.new() for _ in range(5)))

    async with working(app, concurrency=2):
        await running.wait()
        await wait_until(lambda: _count(app, "running", 2))
        await holds_for(0.2, lambda: _count(app, "running", 2))
        go.set()
        await wait_until(lambda: _count(app, "succeeded", 5))


async def test_a_free_place_is_filled_while_other_handlers_go_on(app: Dibs) -> None:
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

        await wait_until(lambda: _count(app, "succeeded", 10), seconds=SOON + 1)

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


def test_queues_and_concurrency_may_be_given_by_their_place() -> None:
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
def test_a_worker_without_a_place_is_refused(places: Any) -> None:
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
        await wait_until(lambda: _count(one, "succeeded", 40))

    assert ran == 40
    assert most == 3


# -- Failures -----------------------------------------------------------------------------------


async def test_an_exception_is_a_failed_attempt_that_is_tried_again_after_its_back_off(app: Dibs) -> None:
    starts: list[float] = []

    @app.job(retry=Retry.fixed(0.4))
    async def work() -> str:
        starts.append(time.monotonic())
        if len(starts) == 1:
            raise ValueError("not yet")
        return "now"

    job = await work.enqueue()
    async with working(app):
        done = await finished(app, job)

    assert (done.state, done.result, done.attempts) == ("succeeded", "now", 2)
    [error] = done.errors
    assert (error.type, error.message, error.attempt) == ("ValueError", "not yet", 1)
    assert "in work" in error.traceback
    assert 0.3 < starts[1] - starts[0] < 0.4 + SOON


@pytest.mark.parametrize("colour", ["async", "plain"])
async def test_a_job_out_of_attempts_has_failed(app: Dibs, colour: str) -> None:
    def plain() -> None:
        raise ValueError("broken")

    async def awaited() -> None:
        plain()

    work = app.job(plain if colour == "plain" else awaited, name="w", max_attempts=2, retry=Retry.fixed(0.05))
    job = await work.enqueue()

    async with working(app):
        done = await finished(app, job)

    assert (done.state, done.attempts) == ("failed", 2)
    assert [error.message for error in done.errors] == ["broken", "broken"]


async def test_a_handler_may_snooze(app: Dibs) -> None:
    starts: list[float] = []

    @app.job(max_attempts=1)
    async def work() -> Snooze | None:
        starts.append(time.monotonic())
        return Snooze(0.3) if len(starts) == 1 else None

    job = await work.enqueue()
    async with working(app):
        done = await finished(app, job)

    assert (done.state, done.attempts, done.errors) == ("succeeded", 1, [])
    assert 0.25 < starts[1] - starts[0] < 0.3 + SOON


async def test_a_handler_may_cancel_its_job(app: Dibs) -> None:
    @app.job
    async def work() -> Cancel:
        return Cancel("nobody needs it")

    job = await work.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.message) == ("cancelled", "nobody needs it")


async def test_a_handler_may_fail_for_good(app: Dibs) -> None:
    @app.job(max_attempts=9)
    def work() -> Fail:
        return Fail("there is no such order")

    job = await work.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.attempts) == ("failed", 1)
    assert [error.message for error in done.errors] == ["there is no such order"]


async def test_arguments_that_do_not_fit_are_a_failed_attempt(app: Dibs) -> None:
    [job] = await app.enqueue(NewJob("work", args={"m": "x"}, max_attempts=1))

    @app.job
    async def work(n: int) -> None: ...

    await drain(app)

    done = await app.get(job.id)
    assert done.state == "failed"
    assert len(done.errors) == 1


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Beyond(BaseException):
    pass


def _cyclic() -> Exception:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


HOSTILE = {
    "unspeakable": Unspeakable,
    "huge": lambda: ValueError("x" * 5_000_000),
    "surrogate": lambda: ValueError("\ud800 \x00"),
    "cycle": _cyclic,
    "stop_iteration": lambda: StopIteration(3),
    "system_exit": lambda: SystemExit(3),
    "base_exception": Beyond,
    "generator_exit": GeneratorExit,
    "lease_lost": lambda: LeaseLost("not mine"),
    "cancelled": asyncio.CancelledError,
    "timeout": TimeoutError,
}


@pytest.mark.parametrize("colour", ["async", "plain"])
@pytest.mark.parametrize("exception", HOSTILE)
@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_hostile_exception_does_not_hurt_the_worker(app: Dibs, exception: str, colour: str) -> None:
    def plain() -> None:
        raise HOSTILE[exception]()

    async def awaited() -> None:
        plain()

    hostile = app.job(plain if colour == "plain" else awaited, name="hostile", max_attempts=1)

    @app.job
    async def harmless() -> None: ...

    bad, good = await hostile.enqueue(), await harmless.enqueue()
    async with working(app, concurrency=1):
        done = await finished(app, good)
        failed = await finished(app, bad)

    assert done.state == "succeeded"
    assert failed.state == "failed"
    assert len(failed.errors) == 1
    assert len(failed.errors[0].message) < 10_000


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_an_interrupt_that_a_thread_raises_is_nobodys_ctrl_c(app: Dibs) -> None:
    @app.job(max_attempts=1)
    def interrupted() -> None:
        raise KeyboardInterrupt

    job = await interrupted.enqueue()
    await Worker(app).run(until_idle=True)

    ended = await app.get(job.id)
    assert ended is not None
    assert (ended.state, ended.errors[0].message) == ("failed", "the handler raised KeyboardInterrupt")


@pytest.mark.parametrize("exception", ["huge", "surrogate", "unspeakable"])
async def test_every_store_can_keep_a_hostile_exception(app: Dibs, exception: str) -> None:
    @app.job(max_attempts=1)
    async def hostile() -> None:
        raise HOSTILE[exception]()

    job = await hostile.enqueue()

    await drain(app)

    failed = await app.get(job.id)
    assert failed.state == "failed"
    assert len(failed.errors) == 1


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("result", [object(), float("nan"), "\ud800", "x" * 2_000_000], ids=lambda _: "")
async def test_a_result_that_can_not_be_stored_is_a_failed_attempt(app: Dibs, result: Any) -> None:
    @app.job(max_attempts=1)
    async def work() -> Any:
        return result

    job = await work.enqueue()

    await drain(app)

    failed = await app.get(job.id)
    assert failed.state == "failed"
    assert len(failed.errors) == 1


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("child", [NewJob("child", args={"x": float("nan")}), 123, None], ids=named)
async def test_a_child_that_can_not_be_stored_is_a_failed_attempt(app: Dibs, child: Any) -> None:
    @app.job(max_attempts=1)
    async def work(ctx: Context) -> None:
        ctx.chain(child)

    job = await work.enqueue()
    async with working(app):
        failed = await finished(app, job)

    assert failed.state == "failed"
    assert len(failed.errors) == 1


@pytest.mark.parametrize("colour", ["async", "plain"])
async def test_an_attempt_whose_pause_can_not_be_told_has_failed_for_good(
    app: Dibs, colour: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def delay(*_: object) -> int:
        raise OverflowError("too long a pause")

    async def work() -> None:
        raise ValueError("the job's own")

    def plain() -> None:
        raise ValueError("the job's own")

    monkeypatch.setattr(Retry, "delay", delay)
    job = await app.job(work if colour == "async" else plain).enqueue()

    with caplog.at_level(logging.ERROR, "dibs"):
        await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.attempts) == ("failed", 1)
    assert [(error.type, error.message) for error in done.errors] == [("OverflowError", "too long a pause")]
    assert [str(job.id) in record.message for record in caplog.records] == [True]


async def test_what_breaks_around_a_handler_is_a_failed_attempt(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def broken(job: Job) -> Iterator[Any]:
        if job.attempts == 1:
            raise RuntimeError("no tracer")
        yield lambda outcome: outcome

    @app.job(retry=Retry.fixed(0))
    async def work() -> str:
        return "done"

    app._core.around = broken
    job = await work.enqueue()

    with caplog.at_level(logging.ERROR, "dibs"):
        await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.result) == ("succeeded", "done")
    assert [error.message for error in done.errors] == ["no tracer"]
    assert [str(job.id) in record.message for record in caplog.records] == [True]


# -- Timeouts -----------------------------------------------------------------------------------


async def test_an_async_handler_that_takes_too_long_is_cancelled_and_failed(app: Dibs) -> None:
    ends: list[str] = []

    @app.job(timeout=0.2, max_attempts=1)
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ends.append("ended")

    job = await work.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, ends) == ("failed", ["ended"])
    assert [(error.type, error.message) for error in done.errors] == [TOO_LONG]


async def test_a_timeout_of_the_handlers_own_is_not_taken_for_the_jobs(app: Dibs) -> None:
    @app.job(timeout=30, max_attempts=1)
    async def work() -> None:
        raise TimeoutError

    job = await work.enqueue()

    await drain(app)

    assert [error.message for error in (await app.get(job.id)).errors] == [""]


async def test_a_plain_handler_that_takes_too_long_is_told_by_check(app: Dibs) -> None:
    ends: list[str] = []

    @app.job(timeout=0.2, max_attempts=1)
    def work(ctx: Context) -> None:
        try:
            for _ in range(1000):
                ctx.check()
                time.sleep(0.01)
        except TimeoutError as error:
            ends.append(str(error))
            raise

    job = await work.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, ends) == ("failed", [TOO_LONG[1]])
    assert [(error.type, error.message) for error in done.errors] == [TOO_LONG]


async def test_a_plain_handler_that_does_not_check_keeps_its_job_until_it_ends(app: Dibs) -> None:
    started, go = threading.Event(), threading.Event()

    @app.job(timeout=0.1, max_attempts=1)
    def work() -> None:
        started.set()
        go.wait(20)

    job = await work.enqueue()
    async with working(app):
        await wait_until(started.is_set)
        await holds_for(0.5, lambda: _is(app, job, "running"))
        go.set()
        done = await finished(app, job)

    assert done.state == "failed"
    assert [error.type for error in done.errors] == ["TimeoutError"]


# -- Cancelling ---------------------------------------------------------------------------------


async def test_an_async_handler_of_a_cancelled_job_is_cancelled(app: Dibs) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @app.job(lease=1.5)
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    job = await work.enqueue()
    async with working(app):
        await started.wait()
        await app.cancel(job.id, "changed my mind")
        done = await finished(app, job)

    assert ended.is_set()
    assert (done.state, done.message, done.errors) == ("cancelled", "changed my mind", [])


async def test_an_async_handler_may_take_its_time_to_clean_up(app: Dibs) -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    @app.job(lease=1)
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1.5)
            cleaned.set()

    job = await work.enqueue()
    async with working(app):
        await started.wait()
        await app.cancel(job.id)
        done = await finished(app, job)

    assert cleaned.is_set()
    assert done.state == "cancelled"


async def test_a_plain_handler_of_a_cancelled_job_is_told_by_check(app: Dibs) -> None:
    started, ended = threading.Event(), threading.Event()

    @app.job(lease=1.5)
    def work(ctx: Context) -> None:
        started.set()
        try:
            for _ in range(1000):
                ctx.check()
                time.sleep(0.01)
        finally:
            ended.set()

    job = await work.enqueue()
    async with working(app):
        await wait_until(started.is_set)
        await app.cancel(job.id, "changed my mind")
        done = await finished(app, job)

    assert ended.is_set()
    assert (done.state, done.message, done.errors) == ("cancelled", "changed my mind", [])


async def test_a_cancelled_job_leaves_running_only_when_its_thread_has_ended(app: Dibs) -> None:
    started, go = threading.Event(), threading.Event()

    @app.job(lease=1.5)
    def work(ctx: Context) -> None:
        started.set()
        go.wait(20)
        ctx.check()

    job = await work.enqueue()
    async with working(app):
        await wait_until(started.is_set)
        await app.cancel(job.id)
        await holds_for(2, lambda: _is(app, job, "running"))
        go.set()
        done = await finished(app, job)

    assert done.state == "cancelled"


async def test_a_success_that_comes_before_the_cancel_is_noticed_wins(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(app._core.keeper, "look", lambda _: None)  # the hint got lost

    @app.job(lease=60)
    async def work() -> str:
        started.set()
        await go.wait()
        return "done"

    job = await work.enqueue()
    async with working(app):
        await started.wait()
        await app.cancel(job.id)
        go.set()
        done = await finished(app, job)

    assert (done.state, done.result) == ("succeeded", "done")


async def test_a_thread_that_succeeds_without_noticing_the_cancel_wins(app: Dibs) -> None:
    started, go = threading.Event(), threading.Event()

    @app.job(lease=1.5)
    def work() -> str:
        started.set()
        go.wait(20)
        return "done"

    job = await work.enqueue()
    async with working(app):
        await wait_until(started.is_set)
        await app.cancel(job.id)
        [kept] = app._core.keeper._kept.values()
        await wait_until(lambda: kept.held.cancel_reason is not None)
        go.set()
        done = await finished(app, job)

    assert (done.state, done.result) == ("succeeded", "done")


# -- Context ------------------------------------------------------------------------------------


async def test_children_appear_with_the_success_of_their_parent(app: Dibs) -> None:
    @app.job
    async def child(n: int) -> None: ...

    @app.job
    async def parent(ctx: Context) -> None:
        ctx.chain(child.new(1), child.new(2))

    job = await parent.enqueue()

    await drain(app)

    children = await app.find(kind="child")
    assert sorted(each.args["n"] for each in children) == [1, 2]
    assert {each.state for each in children} == {"succeeded"}
    assert {each.parent_id for each in children} == {job.id}
    assert {each.pipeline_id for each in children} == {job.id}
    assert (await app.get(job.id)).pipeline_id == job.id


@pytest.mark.parametrize("ending", ["raise", "snooze", "cancel", "fail"])
async def test_without_success_there_are_no_children(app: Dibs, ending: str) -> None:
    @app.job
    async def child() -> None: ...

    @app.job(max_attempts=1)
    async def parent(ctx: Context) -> Any:
        ctx.chain(child.new())
        if ending == "raise":
            raise ValueError("no")
        return {"snooze": Snooze(60), "cancel": Cancel("no"), "fail": Fail("no")}[ending]

    job = await parent.enqueue()

    await drain(app)

    assert await app.find(kind="child") == []
    assert await state_of(app, job) in ("failed", "scheduled", "cancelled")


async def test_progress_can_be_seen_while_the_handler_runs(app: Dibs) -> None:
    told, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def work(ctx: Context) -> None:
        await ctx.progress(0.4, "parsing")
        told.set()
        await go.wait()

    job = await work.enqueue()
    async with working(app):
        await told.wait()
        seen = await wait_until(lambda: _progress(app, job))
        go.set()
        await finished(app, job)

    assert seen == (0.4, "parsing")


async def test_a_handler_knows_its_job_and_its_token(app: Dibs) -> None:
    seen: list[Any] = []

    @app.job
    async def work(ctx: Context) -> None:
        seen.append((ctx.job.id, ctx.job.attempts, ctx.token, ctx.lost))
        stored = await app.get(ctx.job.id)
        seen.append((stored.id, stored.attempts, stored.token, False))

    await work.enqueue()

    await drain(app)

    assert len(seen) == 2
    assert seen[0] == seen[1]


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb"], indirect=True)
async def test_a_job_completed_in_a_transaction_is_done_when_that_commits(app: Dibs, url: str) -> None:
    @app.job
    async def work(ctx: Context) -> str:
        async with transaction(url) as connection:
            await ctx.complete("by hand", within=connection)
        return "not this"

    job = await work.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.result, done.errors) == ("succeeded", "by hand", [])


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb"], indirect=True)
async def test_a_completion_that_was_rolled_back_is_a_failed_attempt(app: Dibs, url: str) -> None:
    @app.job(max_attempts=1)
    async def work(ctx: Context) -> None:
        async with transaction(url, commit=False) as connection:
            await ctx.complete("by hand", within=connection)

    job = await work.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.result) == ("failed", None)
    assert "not committed" in done.errors[0].message


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb"], indirect=True)
async def test_a_completion_that_was_rolled_back_fails_with_what_its_handler_raised(
    app: Dibs, url: str
) -> None:
    @app.job(max_attempts=1)
    async def work(ctx: Context) -> None:
        async with transaction(url, commit=False) as connection:
            await ctx.complete("by hand", within=connection)
        raise ValueError("the commit was refused")

    job = await work.enqueue()

    await drain(app)

    [error] = (await app.get(job.id)).errors
    assert (error.type, error.message) == ("ValueError", "the commit was refused")
    assert "in work" in error.traceback


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize(
    ("answer", "state"),
    [(Snooze(60), "scheduled"), (Cancel("not needed"), "cancelled")],
    ids=["snoozes", "cancels"],
)
async def test_a_handler_whose_completion_was_rolled_back_may_answer_otherwise(
    app: Dibs, url: str, answer: Any, state: str
) -> None:
    @app.job
    async def work(ctx: Context) -> Any:
        async with transaction(url, commit=False) as connection:
            await ctx.complete("by hand", within=connection)
        return answer

    job = await work.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.errors) == (state, [])


@pytest.mark.parametrize("engine", ["postgresql", "mariadb"], indirect=True)
async def test_a_completion_whose_transaction_stays_open_keeps_no_other_job_waiting(
    app: Dibs, url: str
) -> None:
    theirs: list[Any] = []
    completed = asyncio.Event()

    @app.job
    async def other() -> None: ...

    @app.job(max_attempts=1)
    async def work(ctx: Context) -> None:
        await ctx.complete("by hand", within=theirs[0])
        completed.set()

    async with working(app):
        async with transaction(url, commit=False) as connection:
            theirs.append(connection)
            job = await work.enqueue()
            await completed.wait()
            await holds_for(0.3, lambda: _is(app, job, "running"))
            await finished(app, await other.enqueue(), seconds=SOON)
        done = await finished(app, job, seconds=SOON)

    assert done.state == "failed"
    assert "not committed" in done.errors[0].message


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb"], indirect=True)
async def test_a_completion_does_not_wait_for_others_that_wait_for_itstransaction(
    app: Dibs, url: str
) -> None:
    took: list[float] = []
    others: list[asyncio.Task[Any]] = []

    @app.job
    async def other() -> None: ...

    @app.job
    async def work(ctx: Context) -> None:
        async with transaction(url) as connection:
            others.append(asyncio.create_task(other.enqueue()))
            await asyncio.sleep(0.1)
            began = time.monotonic()
            await ctx.complete("by hand", within=connection)
            took.append(time.monotonic() - began)

    job = await work.enqueue()
    async with working(app):
        done = await finished(app, job)
        await others[0]

    assert done.result == "by hand"
    assert took[0] < SOON


# -- Starting in time ---------------------------------------------------------------------------


async def test_a_job_whose_holder_dies_while_all_others_rest_is_back_in_time(app: Dibs) -> None:
    app.job(lease=1)(_unused)
    async with working(app, queues=["here"]):
        await is_idle(app)
        [job] = await app.enqueue(NewJob("work", queue="elsewhere"))
        assert await app.claim_job(job.id, worker="dies", lease=1) is not None
        claimed_at = time.monotonic()

        await wait_until(lambda: _is_ready(app, job))

        assert time.monotonic() - claimed_at <= 1 + SOON


async def _unused() -> None: ...


async def test_what_a_worker_claimed_while_it_was_told_to_stop_is_given_back(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    app.job(lambda: ran.append("ran"), name="work")
    [job] = await app.enqueue(NewJob("work"))
    worker, exchange = Worker(app), Trips.exchange

    async def late(*given: Any, **wanted: Any) -> Any:
        answer = await exchange(*given, **wanted)
        worker.stop()
        return answer

    monkeypatch.setattr(Trips, "exchange", late)
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
    exchange, failures = Trips.exchange, [AssertionError("a bug")]

    async def failing(trips: Trips, settled: Any, *given: Any, **wanted: Any) -> Any:
        if settled and failures:
            raise failures.pop()
        return await exchange(trips, settled, *given, **wanted)

    monkeypatch.setattr(Trips, "exchange", failing)
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
    worker, exchange = Worker(app, grace=0.1), Trips.exchange

    async def failing(trips: Trips, settled: Any, *given: Any, **wanted: Any) -> Any:
        if settled:
            raise trouble
        return await exchange(trips, settled, *given, **wanted)

    async def is_free() -> bool:
        await app.sweep()
        return await state_of(app, job) == "ready"

    monkeypatch.setattr(Trips, "exchange", failing)
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
        await asyncio.wait_for(started.wait(), 5)
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
        await asyncio.wait_for(started.wait(), 5)
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
            await asyncio.wait_for(started.wait(), 5)
            waits.append(time.monotonic() - asked)

    assert sorted(waits)[2] < 0.3, waits
    assert max(waits) < SOON, waits


async def test_steps_for_an_idle_worker_start_without_a_poll(apps: Apps) -> None:
    """When their pipeline is stored, and when somebody else ends what they wait for."""
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


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "redis"], indirect=True)
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
        await wait_until(lambda: _is(app, job, "succeeded"), seconds=SOON)

    assert runs == 2


async def test_a_lost_wake_up_is_found_by_the_poll(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    app = apps(poll=0.5)
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()

    async def hear_nothing(hear: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(app._core.store, "listen", hear_nothing, raising=False)
    async with working(app):
        await is_idle(app)
        await app.enqueue(NewJob("work"))
        await asyncio.wait_for(started.wait(), 0.5 + SOON)


async def test_a_listener_that_breaks_is_started_again(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.Event()
    listen, broke = app._core.store.listen, 0

    @app.job
    async def work() -> None:
        started.set()

    async def break_first(hear: Any) -> None:
        nonlocal broke
        broke += 1
        if broke <= 2:
            raise OSError("the listener broke")
        await listen(hear)

    monkeypatch.setattr(app._core.store, "listen", break_first, raising=False)
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
    assert info.queues == ["default", "mail"]
    assert await app.workers() == []


async def test_two_workers_of_one_process_are_told_apart(apps: Apps) -> None:
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


# -- Keeping leases -----------------------------------------------------------------------------


async def test_a_handler_that_blocks_the_event_loop_keeps_its_job(apps: Apps) -> None:
    app, other = apps(), apps()
    runs = 0

    @app.job(lease=1)
    async def work() -> str:
        nonlocal runs
        runs += 1
        time.sleep(1.8)
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

    @app.job(lease=1)
    async def work(n: int) -> None:
        runs.append(n)
        if n == 0:
            time.sleep(1.8)

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

    @app.job(lease=1)
    async def slow() -> None:
        runs.append("slow")
        await quick_ends.wait()
        time.sleep(1.8)

    @app.job(lease=1)
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

    @app.job(lease=0.6)
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


# -- Stopping -----------------------------------------------------------------------------------


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
    await asyncio.wait_for(running, 3)

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
    await wait_until(lambda: _count(app, "running", 2))
    await started.wait()
    worker.stop()
    go.set()

    await wait_until(lambda: _is(app, short, "succeeded"), seconds=SOON)

    worker.stop()
    await asyncio.wait_for(running, 3)


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
    await asyncio.wait_for(running, 5)

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
    await asyncio.sleep(0.1)
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
    await asyncio.wait_for(running, 3)

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
    await asyncio.wait_for(running, 5)

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
    await asyncio.wait_for(running, 5)

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
    await asyncio.wait_for(running, 5)

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
    await asyncio.wait_for(running, 5)

    took, kept = time.monotonic() - stopped, await app.get(job.id)
    go.set()
    assert took < (2.1 + SOON if could_ask else SOON)
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
        await asyncio.wait_for(running, 5)

    assert ended.is_set()
    assert await state_of(app, job) == "ready"


# -- Looking ------------------------------------------------------------------------------------


async def _count(app: Dibs, state: str, many: int) -> bool:
    return (await app.counts()).get(state, 0) == many


async def _is(app: Dibs, job: Any, state: str) -> bool:
    return await state_of(app, job) == state


async def _progress(app: Dibs, job: Any) -> Any:
    found = await app.get(job.id)
    return None if found.progress is None else (found.progress, found.message)


async def _data_version(watch: aiosqlite.Connection) -> int:
    async with watch.execute("pragma data_version") as cursor:
        [version] = await cursor.fetchone()
    return version


def _sweep_until(app: Dibs, stop: threading.Event, moved: list[Any]) -> None:
    """Take back every expired lease at once, as other workers would."""
    while not stop.wait(0.02):
        moved.append(app.sync.sweep())


# -- Kinds that nobody here knows ---------------------------------------------------------------


async def test_a_kind_that_the_worker_does_not_know_is_said_once_and_left_alone(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    app = apps(poll=0.2)
    app.job(name="known")(_nothing)
    [stranger, _, known] = await app.enqueue(NewJob("stranger"), NewJob("stranger"), NewJob("known"))

    with caplog.at_level(logging.WARNING, "dibs"):
        async with working(app):
            await finished(app, known)
            await wait_until(lambda: _about_strangers(caplog))
            await holds_for(1.0, lambda: _is_ready(app, stranger))

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


async def _is_ready(app: Dibs, job: Job) -> bool:
    return await state_of(app, job) == "ready"


async def _nothing() -> None: ...
