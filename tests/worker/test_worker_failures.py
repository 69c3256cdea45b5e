"""What becomes of a job with a handler that fails, on purpose or not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from dibs import (
    Cancel,
    Context,
    Dibs,
    Fail,
    Job,
    LeaseLost,
    NewJob,
    Retry,
    Snooze,
    Worker,
)
from dibs.app.outcomes import CANCELLED_ITSELF
from tests.support.internals import core_of
from tests.support.param_names import named
from tests.support.workers import (
    SOON,
    drain,
    finished,
    working,
)


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
        return Cancel("not needed any more")

    job = await work.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.message) == ("cancelled", "not needed any more")


async def test_a_handler_may_fail_for_good(app: Dibs) -> None:
    @app.job(max_attempts=9)
    def work() -> Fail:
        return Fail("there is no such order")

    job = await work.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.attempts) == ("failed", 1)
    assert [error.message for error in done.errors] == ["there is no such order"]


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_outcomes_may_be_raised(app: Dibs, colour: str) -> None:
    outcomes = {"snooze": Snooze(60), "cancel": Cancel("not needed"), "fail": Fail("no such order")}

    def plain(how: str) -> None:
        raise outcomes[how]

    async def awaited(how: str) -> None:
        plain(how)

    work = app.job(plain if colour == "plain" else awaited, name="work", max_attempts=9, timeout=30)
    jobs = await app.enqueue(*map(work.new, outcomes))

    await drain(app)

    snoozed, cancelled, failed = [await app.get(job.id) for job in jobs]
    assert (snoozed.state, snoozed.attempts, snoozed.errors) == ("scheduled", 0, [])
    assert (cancelled.state, cancelled.message) == ("cancelled", "not needed")
    assert (failed.state, failed.attempts, failed.errors[0].message) == ("failed", 1, "no such order")


async def test_a_traceback_begins_at_the_handler(app: Dibs) -> None:
    def plain() -> None:
        raise ValueError("broken")

    async def awaited() -> None:
        async with asyncio.timeout(20), asyncio.TaskGroup():
            plain()

    async def slow() -> None:
        await asyncio.sleep(20)

    tasks = [
        app.job(plain, max_attempts=1),
        app.job(awaited, max_attempts=1),
        app.job(slow, max_attempts=1, timeout=0.1),
    ]
    jobs = await app.enqueue(*(task.new() for task in tasks))

    await drain(app)

    for job, task in zip(jobs, tasks, strict=True):
        [error] = (await app.get(job.id)).errors
        assert f"in {task.kind}" in error.traceback.splitlines()[0]


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
async def test_an_interrupt_that_a_thread_raises_does_not_stop_the_worker(app: Dibs) -> None:
    @app.job(max_attempts=1)
    def interrupted() -> None:
        raise KeyboardInterrupt

    job = await interrupted.enqueue()
    await Worker(app).run(until_idle=True)

    ended = await app.get(job.id)
    assert ended is not None
    assert (ended.state, ended.errors[0].message) == ("failed", "the handler raised KeyboardInterrupt")


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("when", ["awaits", "has a timeout", "cancelled by a task of its own"])
async def test_a_handler_that_cancels_itself_is_a_failed_attempt(app: Dibs, when: str) -> None:
    runs: list[int] = []

    @app.job(max_attempts=2, retry=Retry.fixed(0.3), timeout=30 if when == "has a timeout" else None)
    async def gives_up() -> None:
        runs.append(1)
        task = asyncio.current_task()
        assert task is not None
        if when == "cancelled by a task of its own":
            asyncio.get_running_loop().call_later(0.01, task.cancel)
        else:
            task.cancel()
        await asyncio.sleep(30)

    @app.job
    async def harmless() -> None: ...

    job, other = await gives_up.enqueue(), await harmless.enqueue()
    async with working(app, concurrency=1):
        done = await finished(app, job)
        beside = await finished(app, other)

    assert (done.state, done.attempts, len(runs), beside.state) == ("failed", 2, 2, "succeeded")
    assert [error.message for error in done.errors] == [CANCELLED_ITSELF] * 2


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_loop_that_ends_with_its_worker_gives_the_jobs_back(app: Dibs) -> None:
    started = asyncio.Event()

    @app.job(max_attempts=1)
    async def waits() -> None:
        started.set()
        await asyncio.sleep(30)

    job = await waits.enqueue()
    worker = asyncio.create_task(Worker(app).run())
    await started.wait()
    others = asyncio.all_tasks() - {asyncio.current_task()}  # as asyncio.run does at its end
    for task in others:
        task.cancel()
    await asyncio.gather(worker, return_exceptions=True)

    back = await app.get(job.id)
    assert back is not None
    assert (back.state, back.attempts) == ("ready", 0)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("timeout", [None, 30])
async def test_an_async_handler_that_raises_an_interrupt_fails_alone(
    app: Dibs, exception: type[BaseException], timeout: float | None
) -> None:
    raised = asyncio.Event()

    @app.job(max_attempts=1, timeout=timeout)
    async def interrupted() -> None:
        raised.set()
        raise exception

    @app.job
    async def beside() -> str:
        await raised.wait()
        await asyncio.sleep(0.05)
        return "unharmed"

    neighbour, job = await beside.enqueue(), await interrupted.enqueue()
    await drain(app)

    ended, unharmed = await app.get(job.id), await app.get(neighbour.id)
    assert ended is not None
    assert unharmed is not None
    assert (ended.state, ended.errors[0].type) == ("failed", exception.__name__)
    assert (unharmed.state, unharmed.result) == ("succeeded", "unharmed")


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
async def test_an_attempt_without_a_valid_back_off_has_failed_for_good(
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

    core_of(app).around = broken
    job = await work.enqueue()

    with caplog.at_level(logging.ERROR, "dibs"):
        await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.result) == ("succeeded", "done")
    assert [error.message for error in done.errors] == ["no tracer"]
    assert [str(job.id) in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_what_goes_around_handlers_is_cancelled_with_them(app: Dibs, colour: str) -> None:
    seen: list[str] = []

    @app.around
    @asynccontextmanager
    async def session(job: Job) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    async def slow() -> None:
        await asyncio.sleep(20)

    def slow_plain(ctx: Context) -> None:
        while True:
            ctx.check()
            time.sleep(0.01)

    work = app.job(slow_plain if colour == "plain" else slow, name="work", timeout=0.1, max_attempts=1)
    job = await work.enqueue()

    await drain(app)

    assert "longer than its timeout" in (await app.get(job.id)).errors[0].message
    assert seen == ["CancelledError"]
