"""A handler that has ended while its `ctx.complete(within=…)` is neither committed nor rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from dibs import Cancel, Context, Dibs, Fail, Job, JobEvent, NewJob, Snooze, StoreUnavailable
from dibs.engines import retries
from dibs.engines.mysql import pools, session
from tests.support.internals import store_of
from tests.support.workers import (
    Apps,
    finished,
    holds_for,
    state_of,
    take_back,
    transaction,
    wait_until,
    working,
)

SOON = 10.0  # seconds: more than the longest pause between two tries, on a busy machine; leases last 60

with_transactions = pytest.mark.parametrize(
    "engine", ["sqlite", "postgresql", "mariadb", "mysql"], indirect=True
)
with_locked_rows = pytest.mark.parametrize("engine", ["postgresql", "mariadb", "mysql"], indirect=True)


class Completing:
    """Jobs with a handler that completes them within a transaction and ends at once."""

    def __init__(self, app: Dibs, url: str, end: Callable[[], Any], *, commit: bool) -> None:
        self._url, self._end, self._commit = url, end, commit
        self._open: dict[UUID, AsyncExitStack] = {}
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        app.job(name="work", max_attempts=1)(self._work)

    async def _work(self, ctx: Context) -> Any:
        self._open[ctx.job.id] = stack = AsyncExitStack()
        connection = await stack.enter_async_context(transaction(self._url, commit=self._commit))
        await ctx.complete("by hand", within=connection)
        self._jobs.put_nowait(ctx.job)
        return self._end()

    async def begin(self, app: Dibs, **options: Any) -> Job:
        """Return a job with a handler that has ended, and a transaction that has not."""
        await app.enqueue(NewJob("work", max_attempts=1, **options))
        return await self._jobs.get()

    async def finish(self, job: Job) -> None:
        """End its transaction."""
        await self._open.pop(job.id).aclose()

    async def finish_all(self) -> None:
        for stack in self._open.values():
            await stack.aclose()


@asynccontextmanager
async def completing(
    app: Dibs, url: str, end: Callable[[], Any] = lambda: None, *, commit: bool = False, concurrency: int = 10
) -> AsyncIterator[Completing]:
    """Run such jobs beside the body; end the transactions that are still open after the worker."""
    work = Completing(app, url, end, commit=commit)
    try:
        async with working(app, concurrency=concurrency):
            yield work
    finally:
        await work.finish_all()


def _refuse() -> None:
    raise ValueError("the commit was refused")


def _hear(app: Dibs) -> list[str]:
    heard: list[str] = []

    async def hear(event: JobEvent) -> None:
        heard.append(event.name)

    for name in ("succeeded", "failed", "lost"):
        app.on(name)(hear)
    return heard


async def _is(app: Dibs, job: Job, state: str) -> bool:
    return await state_of(app, job) == state


async def _errors(app: Dibs, job: Job) -> list[str]:
    found = await app.get(job.id)
    assert found is not None
    return [error.message for error in found.errors]


# -- What need not wait -------------------------------------------------------------------------


@with_locked_rows
@pytest.mark.parametrize("pool_size", [1, 3])
async def test_transactions_that_stay_open_leave_room_and_connections_to_other_jobs(
    apps: Apps, url: str, pool_size: int
) -> None:
    app, elsewhere = apps(pool_size=pool_size), apps()

    @app.job
    async def other() -> None: ...

    async with completing(app, url, concurrency=3) as work:
        jobs = [await work.begin(elsewhere) for _ in range(3)]
        await holds_for(0.3, lambda: _is(elsewhere, jobs[0], "running"))

        for _ in range(3):
            [quick] = await elsewhere.enqueue(NewJob("other"))
            await finished(elsewhere, quick, seconds=SOON)


@with_locked_rows
async def test_a_transaction_that_stays_open_delays_no_other_completion(apps: Apps, url: str) -> None:
    app, elsewhere = apps(pool_size=1), apps()

    async with completing(app, url, _refuse) as work:
        first, second = await work.begin(elsewhere), await work.begin(elsewhere)
        await holds_for(0.3, lambda: _is(elsewhere, second, "running"))
        await work.finish(second)
        await finished(elsewhere, second, seconds=SOON)

        assert await _errors(elsewhere, second) == ["the commit was refused"]
        assert await _is(elsewhere, first, "running")


@with_locked_rows
async def test_a_worker_ends_beside_a_transaction_that_stays_open_and_logs_it(
    apps: Apps, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, elsewhere = apps(), apps()

    async with asyncio.timeout(10), completing(app, url) as work:
        job = await work.begin(elsewhere)

    said = [record.getMessage() for record in caplog.records if "is not committed" in record.getMessage()]
    assert len(said) == 1
    assert str(job.id) in said[0]


# -- A rollback that comes late -----------------------------------------------------------------


@with_transactions
@pytest.mark.parametrize(
    ("end", "state", "errors"),
    [
        (_refuse, "failed", ["the commit was refused"]),
        (lambda: Fail("it is of no use"), "failed", ["it is of no use"]),
        (lambda: Snooze(60), "scheduled", []),
        (lambda: Cancel("not needed"), "cancelled", []),
    ],
    ids=["raises", "fails", "snoozes", "cancels"],
)
async def test_what_a_handler_returned_counts_after_a_late_rollback(
    apps: Apps, url: str, end: Callable[[], Any], state: str, errors: list[str]
) -> None:
    app, elsewhere = apps(), apps()

    async with completing(app, url, end) as work:
        job = await work.begin(elsewhere)
        await asyncio.sleep(0.2)
        await work.finish(job)
        await wait_until(lambda: _is(elsewhere, job, state))

    assert await _errors(elsewhere, job) == errors


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
async def test_what_a_handler_raised_outlives_the_longest_wait_for_a_lock(
    apps: Apps, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation, rest = pools.SESSION
    short = rest.replace(f"innodb_lock_wait_timeout = {session.LOCK_TIMEOUT}", "innodb_lock_wait_timeout = 1")
    monkeypatch.setattr(pools, "SESSION", (isolation, short))
    monkeypatch.setattr(retries, "PAUSES", ())
    app, elsewhere = apps(), apps()

    async with completing(app, url, _refuse) as work:
        job = await work.begin(elsewhere)
        await asyncio.sleep(1.5)
        await work.finish(job)
        await finished(elsewhere, job, seconds=SOON)

    assert short != rest
    assert await _errors(elsewhere, job) == ["the commit was refused"]


@pytest.mark.long
@with_locked_rows
async def test_what_a_handler_raised_counts_after_a_transaction_that_was_open_for_long(
    apps: Apps, url: str
) -> None:
    app, elsewhere = apps(), apps()

    async with completing(app, url, _refuse) as work:
        job = await work.begin(elsewhere)
        await asyncio.sleep(25)
        await work.finish(job)
        await finished(elsewhere, job, seconds=SOON)

    assert await _errors(elsewhere, job) == ["the commit was refused"]


@with_transactions
async def test_what_a_handler_raised_outlives_a_store_that_is_away_for_a_moment(
    apps: Apps, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, elsewhere = apps(), apps()
    store, missed = store_of(app), asyncio.Semaphore(0)
    run_async = store.run_async

    async def away(*_: Any) -> None:
        missed.release()
        raise StoreUnavailable("it is away")

    @app.job(max_attempts=1)
    async def rolls_back(ctx: Context) -> None:
        async with transaction(url, commit=False) as connection:
            await ctx.complete("by hand", within=connection)
        monkeypatch.setattr(store, "run_async", away)
        _refuse()

    async with working(app):
        [job] = await elsewhere.enqueue(NewJob("rolls_back", max_attempts=1))
        for _ in range(4):
            await missed.acquire()
        monkeypatch.setattr(store, "run_async", run_async)
        await finished(elsewhere, job, seconds=2 * SOON)

    assert await _errors(elsewhere, job) == ["the commit was refused"]


@with_locked_rows
async def test_a_long_wait_for_a_transaction_is_logged_with_the_job(
    apps: Apps, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dibs.worker.open_transactions.LONG", 0.2)
    app, elsewhere = apps(), apps()

    async with completing(app, url, _refuse) as work:
        job = await work.begin(elsewhere)
        await wait_until(lambda: str(job.id) in caplog.text)
        await asyncio.sleep(0.3)
        await work.finish(job)
        await finished(elsewhere, job)

    assert caplog.text.count("has not ended") == 1


@with_transactions
async def test_a_lease_that_was_lost_after_a_rollback_is_reported_as_lost(
    apps: Apps, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, elsewhere = apps(), apps()
    heard = _hear(app)

    @app.job(max_attempts=1)
    async def rolls_back(ctx: Context) -> None:
        async with transaction(url, commit=False) as connection:
            await ctx.complete("by hand", within=connection)
        take_back(elsewhere, ctx.job.id)
        _refuse()

    async with working(app):
        [job] = await elsewhere.enqueue(NewJob("rolls_back", max_attempts=1))
        await wait_until(lambda: heard)

    assert await _errors(elsewhere, job) == ["worker died"]
    assert (heard, caplog.text.count("lease lost")) == (["lost"], 1)


@with_locked_rows
async def test_the_lease_of_a_train_s_job_is_kept_while_it_can_not_be_settled(apps: Apps, url: str) -> None:
    app, elsewhere = apps(), apps()
    theirs = AsyncExitStack()

    @app.job(max_attempts=1, lease=1.5, train="t")
    async def rolls_back(ctx: Context) -> None:
        async with transaction(url, commit=False) as connection:
            await ctx.complete("by hand", within=connection)
        other = await theirs.enter_async_context(transaction(url, commit=False))
        await elsewhere.enqueue(NewJob("rolls_back", train="t"), within=other)
        _refuse()

    async with theirs, working(app):
        [job] = await elsewhere.enqueue(NewJob("rolls_back", max_attempts=1, train="t"))
        await wait_until(lambda: _is(elsewhere, job, "running"))
        first = await elsewhere.get(job.id)
        await wait_until(lambda: _lease_ends_later(elsewhere, first, seconds=1))
        await theirs.aclose()
        await finished(elsewhere, job)

    assert await _errors(elsewhere, job) == ["the commit was refused"]


async def _lease_ends_later(app: Dibs, before: Job, *, seconds: float) -> bool:
    now = await app.get(before.id)
    assert now is not None
    assert (now.state, now.token) == ("running", before.token)
    return bool((now.lease_until - before.lease_until).total_seconds() > seconds)


# -- A commit that comes late -------------------------------------------------------------------


@with_transactions
@pytest.mark.parametrize("gate", [{}, {"train": "t"}, {"slot": "s"}], ids=["plain", "train", "slot"])
@pytest.mark.parametrize("end", [lambda: None, _refuse], ids=["returns", "raises"])
async def test_a_late_commit_is_reported_as_a_success(
    apps: Apps, url: str, gate: dict[str, str], end: Callable[[], Any]
) -> None:
    app, elsewhere = apps(), apps()
    heard = _hear(app)

    async with completing(app, url, end, commit=True) as work:
        job = await work.begin(elsewhere, **gate)
        await asyncio.sleep(0.2)
        await work.finish(job)
        await wait_until(lambda: heard)

    done = await elsewhere.get(job.id)
    assert (heard, done.state, done.result, done.errors) == (["succeeded"], "succeeded", "by hand", [])


@with_transactions
async def test_a_handler_that_was_stopped_after_its_commit_has_succeeded(apps: Apps, url: str) -> None:
    app, elsewhere = apps(), apps()
    heard, committed = _hear(app), asyncio.Event()

    @app.job
    async def goes_on(ctx: Context) -> None:
        async with transaction(url) as connection:
            await ctx.complete("by hand", within=connection)
        committed.set()
        await asyncio.sleep(60)

    async with working(app):
        [job] = await elsewhere.enqueue(NewJob("goes_on"))
        await committed.wait()

    assert (heard, await state_of(elsewhere, job)) == (["succeeded"], "succeeded")


@with_transactions
async def test_a_handler_that_has_completed_is_not_stopped_when_its_lease_would_have_ended(
    app: Dibs, url: str
) -> None:
    """Its transaction decides from then on: the lease is no longer renewed, and needs not be."""
    ended: list[str] = []

    @app.job(lease=0.5)
    async def work(ctx: Context) -> None:
        async with transaction(url, commit=True) as connection:
            await ctx.complete("by hand", within=connection)
            await asyncio.sleep(0.6)
            ctx.check()
            ended.append("without being stopped")

    job = await app.enqueue(work.new())
    async with working(app):
        done = await finished(app, job[0])

    assert (done.state, done.result, ended) == ("succeeded", "by hand", ["without being stopped"])
