"""`ctx.progress`: called as often as a handler likes, stored twice a second, the latest note at the end."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from dibs import BadRequest, Context, Dibs, LeaseLost, NewJob
from dibs.operations.settle import progress
from tests.support.workers import drain, finished, ignore_stop_hints, take_back, wait_until, working


class Written:
    """Return every note that is sent to the store, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[tuple[float, str | None]] = []
        send = progress

        def noted(id: Any, token: int, fraction: float, message: str | None, worker: str) -> Any:
            self.notes.append((fraction, message))
            return send(id, token, fraction, message, worker)

        monkeypatch.setattr("dibs.app.claims.progress", noted)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(monkeypatch)


COLOURS = pytest.mark.parametrize("colour", ["awaited", "plain"])


def _loops(app: Dibs, colour: str, notes: list[tuple[float, str | None]], then: Any = lambda: None) -> Any:
    """Return a task that notes all of these one after another, async or plain."""

    async def awaited(ctx: Context) -> None:
        for fraction, message in notes:
            await ctx.progress(fraction, message)
        await asyncio.to_thread(then)

    def plain(ctx: Context) -> None:
        for fraction, message in notes:
            ctx.sync.progress(fraction, message)
        then()

    return app.job(name="work")(awaited if colour == "awaited" else plain)


@COLOURS
async def test_a_thousand_notes_are_few_writes_and_the_last_one_is_stored(
    app: Dibs, written: Written, colour: str
) -> None:
    work = _loops(app, colour, [(n / 2000, f"row {n}") for n in range(1000)])
    job = await work.enqueue()
    began = time.monotonic()

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.progress, done.message) == ("succeeded", 1.0, "row 999")
    assert written.notes[0] == (0.0, "row 0")
    assert len(written.notes) <= 3 + 2 * (time.monotonic() - began)


@COLOURS
async def test_what_came_too_soon_is_written_a_little_later(app: Dibs, colour: str) -> None:
    go = threading.Event()
    work = _loops(app, colour, [(0.1, "reading"), (0.2, "parsing"), (0.3, None)], lambda: go.wait(20))
    job = await work.enqueue()

    async with working(app):
        seen = await wait_until(lambda: _at(app, job, 0.3), seconds=5)
        go.set()
        await finished(app, job)

    assert seen.message == "parsing"


@COLOURS
async def test_the_end_is_not_made_to_wait(app: Dibs, written: Written, colour: str) -> None:
    go = threading.Event()
    work = _loops(app, colour, [(0.1, None), (0.2, None), (1.0, "done"), (1.0, "done")], lambda: go.wait(20))
    job = await work.enqueue()

    async with working(app):
        await wait_until(lambda: _at(app, job, 1.0), seconds=5)
        assert written.notes == [(0.1, None), (1.0, "done")]
        go.set()
        await finished(app, job)


@COLOURS
async def test_a_note_that_can_not_be_stored_is_refused(app: Dibs, colour: str) -> None:
    refused: list[str] = []

    async def awaited(ctx: Context) -> None:
        await ctx.progress(0.1)
        for bad in (1.1, -0.1, True, float("nan"), "half"):
            with pytest.raises(BadRequest) as error:
                await ctx.progress(bad)
            refused.append(str(error.value))

    def plain(ctx: Context) -> None:
        ctx.sync.progress(0.1)
        for bad in (1.1, -0.1, True, float("nan"), "half"):
            with pytest.raises(BadRequest) as error:
                ctx.sync.progress(bad)
            refused.append(str(error.value))

    work = app.job(name="work")(awaited if colour == "awaited" else plain)
    job = await work.enqueue()
    await drain(app)

    assert (await app.get(job.id)).state == "succeeded"
    assert len(refused) == 5


@COLOURS
async def test_a_handler_that_lost_its_job_learns_it_from_progress(
    app: Dibs, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[type] = []
    ignore_stop_hints(app, monkeypatch)

    async def awaited(ctx: Context) -> None:
        await asyncio.to_thread(take_back, app, ctx.job.id)
        try:
            await ctx.progress(0.5)
        except LeaseLost as error:
            told.append(type(error))
            raise

    def plain(ctx: Context) -> None:
        take_back(app, ctx.job.id)
        try:
            ctx.sync.progress(0.5)
        except LeaseLost as error:
            told.append(type(error))
            raise

    work = app.job(name="work", max_attempts=1)(awaited if colour == "awaited" else plain)
    job = await work.enqueue()
    await drain(app)

    done = await app.get(job.id)
    assert told == [LeaseLost]
    assert (done.state, done.progress, done.errors[0].message) == ("failed", 0.0, "worker died")


@COLOURS
async def test_a_late_note_hears_that_the_job_was_lost(
    app: Dibs, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_stop_hints(app, monkeypatch)
    monkeypatch.setattr("dibs.app.context.EVERY", 2.0)  # so that the note still waits when the job is taken
    ended = threading.Event()

    async def awaited(ctx: Context) -> None:
        await ctx.progress(0.1)
        await ctx.progress(0.2)
        try:
            await asyncio.to_thread(take_back, app, ctx.job.id)
            await asyncio.sleep(20)
        finally:
            ended.set()

    def plain(ctx: Context) -> None:
        ctx.sync.progress(0.1)
        ctx.sync.progress(0.2)
        take_back(app, ctx.job.id)
        while not ctx.lost:
            time.sleep(0.01)
        ended.set()

    work = app.job(name="work", max_attempts=1)(awaited if colour == "awaited" else plain)
    await work.enqueue()
    async with working(app):
        await wait_until(ended.is_set)


@COLOURS
async def test_a_cancel_is_noticed_with_progress(
    app: Dibs, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_stop_hints(app, monkeypatch)  # the hint got lost
    started = threading.Event()

    async def awaited(ctx: Context) -> None:
        started.set()
        for n in range(1000):
            await ctx.progress(n / 1000)
            await asyncio.sleep(0.01)

    def plain(ctx: Context) -> None:
        started.set()
        for n in range(1000):
            ctx.sync.progress(n / 1000)
            time.sleep(0.01)

    work = app.job(name="work")(awaited if colour == "awaited" else plain)
    job = await work.enqueue()
    async with working(app):
        await wait_until(started.is_set)
        await app.cancel(job.id, "not needed")
        done = await finished(app, job, seconds=5)

    assert (done.state, done.message) == ("cancelled", "not needed")


@pytest.mark.parametrize("face", ["sync", "async"])
@COLOURS
async def test_run_job_writes_the_last_note_too(app: Dibs, face: str, colour: str) -> None:
    work = _loops(app, colour, [(0.1, "one"), (0.2, "two")])
    job = await work.enqueue()

    done = await (asyncio.to_thread(app.sync.run_job, job.id) if face == "sync" else app.run_job(job.id))

    assert (done.state, done.progress, done.message) == ("succeeded", 1.0, "two")


@COLOURS
async def test_a_failed_attempt_shows_how_far_it_got(app: Dibs, colour: str) -> None:
    def broken() -> None:
        raise ValueError("broken")

    work = _loops(app, colour, [(0.1, "one"), (0.2, "two")], broken)
    job = await work.enqueue()
    await drain(app)

    failed = await app.get(job.id)
    assert (failed.state, failed.progress, failed.message) == ("scheduled", 0.2, "two")


async def test_a_context_that_notes_nothing_costs_nothing(app: Dibs, written: Written) -> None:
    app.job(lambda: None, name="work")
    await app.enqueue(*(NewJob("work") for _ in range(20)))

    await drain(app)

    assert written.notes == []
    assert not [thread for thread in threading.enumerate() if thread.name == "dibs-later"]


async def _at(app: Dibs, job: Any, fraction: float) -> Any:
    found = await app.get(job.id)
    return found if found.progress == fraction else None
