"""What a handler can do through its context: children, progress, completion in a transaction."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from dibs import (
    Cancel,
    Context,
    Dibs,
    Fail,
    Snooze,
)
from tests.support.workers import (
    SOON,
    drain,
    finished,
    holds_for,
    is_in_state,
    state_of,
    transaction,
    wait_until,
    working,
)


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


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql"], indirect=True)
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


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql"], indirect=True)
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


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql"], indirect=True)
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


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql"], indirect=True)
@pytest.mark.parametrize(
    ("answer", "state"),
    [(Snooze(60), "scheduled"), (Cancel("not needed"), "cancelled")],
    ids=["snoozes", "cancels"],
)
async def test_a_handler_may_return_another_outcome_after_its_completion_was_rolled_back(
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


@pytest.mark.parametrize("engine", ["postgresql", "mariadb", "mysql"], indirect=True)
async def test_a_completion_in_an_open_transaction_delays_no_other_job(app: Dibs, url: str) -> None:
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
            await holds_for(0.3, lambda: is_in_state(app, job, "running"))
            await finished(app, await other.enqueue(), seconds=SOON)
        done = await finished(app, job, seconds=SOON)

    assert done.state == "failed"
    assert "not committed" in done.errors[0].message


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql"], indirect=True)
async def test_a_completion_does_not_wait_for_others_that_wait_for_its_transaction(
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


async def _progress(app: Dibs, job: Any) -> Any:
    found = await app.get(job.id)
    return None if found.progress is None else (found.progress, found.message)
