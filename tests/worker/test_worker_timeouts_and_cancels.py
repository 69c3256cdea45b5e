"""Handlers that take too long, and handlers of cancelled jobs."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dibs import (
    Context,
    Dibs,
)
from tests.support.internals import core_of
from tests.support.workers import (
    drain,
    finished,
    holds_for,
    is_in_state,
    wait_until,
    working,
)

TOO_LONG = ("TimeoutError", "it took longer than its timeout of 0.2 s")


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


async def test_a_plain_handler_that_takes_too_long_learns_it_from_check(app: Dibs) -> None:
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
        await holds_for(0.5, lambda: is_in_state(app, job, "running"))
        go.set()
        done = await finished(app, job)

    assert done.state == "failed"
    assert [error.type for error in done.errors] == ["TimeoutError"]


async def test_an_async_handler_of_a_cancelled_job_is_cancelled(app: Dibs) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @app.job(lease=60)
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

    @app.job(lease=2)
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(2.5)
            cleaned.set()

    job = await work.enqueue()
    async with working(app):
        await started.wait()
        await app.cancel(job.id)
        done = await finished(app, job)

    assert cleaned.is_set()
    assert done.state == "cancelled"


async def test_a_plain_handler_of_a_cancelled_job_learns_it_from_check(app: Dibs) -> None:
    started, ended = threading.Event(), threading.Event()

    @app.job(lease=60)
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

    @app.job(lease=2)
    def work(ctx: Context) -> None:
        started.set()
        go.wait(20)
        ctx.check()

    job = await work.enqueue()
    async with working(app):
        await wait_until(started.is_set)
        await app.cancel(job.id)
        await holds_for(2.5, lambda: is_in_state(app, job, "running"))
        go.set()
        done = await finished(app, job)

    assert done.state == "cancelled"


async def test_a_success_that_comes_before_the_cancel_is_noticed_wins(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(core_of(app).keeper, "look", lambda _: None)  # the hint got lost

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

    @app.job(lease=60)
    def work() -> str:
        started.set()
        go.wait(20)
        return "done"

    job = await work.enqueue()
    async with working(app):
        await wait_until(started.is_set)
        await app.cancel(job.id)
        [kept] = core_of(app).keeper._kept.values()
        await wait_until(lambda: kept.held.cancel_reason is not None)
        go.set()
        done = await finished(app, job)

    assert (done.state, done.result) == ("succeeded", "done")
