"""`@app.every`: workers enqueue a job at every tick, once, on time, and ask nothing while nothing ticks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from dibs import Context, Dibs, Job, Worker
from dibs.clock import SECOND
from dibs.operations import upkeep
from dibs.operations.schedules import Ticked, enqueue_due
from dibs.operations.scripts import Rows, Script, Step
from dibs.operations.upkeep import Upcoming
from dibs.worker.upkeep import ScheduleTicks
from tests.support.internals import core_of, store_of
from tests.support.workers import Apps, drain, holds_for, is_idle, running, wait_until, working

EVERY_SECOND = "* * * * * *"
SOON = 1.0  # seconds after its tick by which a job has begun, on a busy machine

durable = pytest.mark.parametrize(
    "engine", ["sqlite", "postgresql", "mariadb", "mysql", "redis"], indirect=True
)


async def age(app: Dibs, seconds: float) -> None:
    await store_of(app).run_async(lambda _: upkeep.age(round(seconds * SECOND)))


def tick_of(job: Job) -> datetime:
    return datetime.fromisoformat(job.meta["tick"])


async def all_jobs(app: Dibs) -> list[Job]:
    return await app.find(limit=1000)


async def as_many(app: Dibs, jobs: int) -> bool:
    return (await app.counts())["succeeded"] >= jobs


# -- On time ------------------------------------------------------------------------------------


async def test_a_worker_runs_a_job_at_every_tick(app: Dibs) -> None:
    ticks: list[str] = []

    @app.every(EVERY_SECOND)
    @app.job
    async def work(ctx: Context) -> None:
        ticks.append(ctx.job.meta["tick"])

    async with working(app):
        await wait_until(lambda: as_many(app, 3))

    jobs = sorted(await all_jobs(app), key=tick_of)
    assert [tick_of(job).isoformat() for job in jobs][: len(ticks)] == sorted(ticks)
    assert {tick_of(later) - tick_of(job) for job, later in pairwise(jobs)} == {timedelta(seconds=1)}
    for job in jobs:
        assert job.run_at == tick_of(job) <= job.enqueued_at < tick_of(job) + timedelta(seconds=SOON)


async def test_a_plain_function_on_an_interval_runs_too(app: Dibs) -> None:
    @app.every(timedelta(seconds=1), name="beat", args={"n": 7}, queue="beats", tags=["beat"])
    def work(n: int) -> int:
        return n

    async with working(app):
        await wait_until(lambda: as_many(app, 2))

    jobs = await app.find(queue="beats", tags=["beat"], state="succeeded")
    assert {job.result for job in jobs} == {7}
    assert {job.meta["schedule"] for job in jobs} == {"beat"}


async def test_a_worker_enqueues_also_what_is_for_other_queues(app: Dibs) -> None:
    app.every(EVERY_SECOND)(app.job(lambda: None, name="work", queue="elsewhere"))

    async with working(app, queues=["here"]):
        await wait_until(lambda: app.find(queue="elsewhere", state="ready"))


async def test_a_schedule_that_is_added_later_is_noticed(apps: Apps) -> None:
    app = apps(poll=0.3)
    app.job(lambda: None, name="other")

    async with working(app):
        await is_idle(app)
        app.every(EVERY_SECOND)(app.job(lambda: None, name="work"))
        await wait_until(lambda: as_many(app, 1))


async def test_a_job_that_still_waits_is_not_joined_by_another_if_it_is_unique(app: Dibs) -> None:
    app.every(EVERY_SECOND)(app.job(lambda: None, name="work", queue="elsewhere", unique="work"))

    async with working(app, queues=["here"]):
        [first] = await wait_until(lambda: app.find(queue="elsewhere"))
        await wait_until(lambda: _has_moved_past(app, tick_of(first) + timedelta(seconds=2)))

    assert [job.id for job in await all_jobs(app)] == [first.id]


async def _has_moved_past(app: Dibs, tick: datetime) -> bool:
    [schedule] = await app.schedules.list()
    return schedule.last_tick is not None and schedule.last_tick >= tick


# -- Once ---------------------------------------------------------------------------------------


class ClockBehind(ScheduleTicks):
    """A worker with a clock that is a second behind."""

    async def enqueue_due(self, upcoming: Upcoming) -> bool:
        return await super().enqueue_due(replace(upcoming, now=upcoming.now - timedelta(seconds=1)))

    def seconds(self, now: datetime) -> float:
        return super().seconds(now - timedelta(seconds=1))


class NewsBehind(ScheduleTicks):
    """A worker that knows the time, but of the schedules only what it read the time before."""

    _known: Rows = ()

    async def enqueue_due(self, upcoming: Upcoming) -> bool:
        if self._next_ticks and not self._is_due(upcoming.now):
            return False
        known, self._known = self._known, await store_of(self).run_async(lambda _: _look())
        schedules = core_of(self).schedules.definitions
        ticked = await store_of(self).run_async(
            lambda _: _as_known(known, enqueue_due(schedules, upcoming.now))
        )
        self._next_ticks = dict(ticked.next_ticks)
        return bool(ticked.jobs)


def _look() -> Script[Rows]:
    return (yield Step("schedules", {}))


def _as_known(known: Rows, script: Script[Ticked]) -> Script[Ticked]:
    """Run the script, but give it what was known when it reads the schedules."""
    assert next(script).question == "schedules"
    try:
        step = script.send(known)
        while True:
            step = script.send((yield step))
    except StopIteration as end:
        ticked: Ticked = end.value
        return ticked


late_ones = pytest.mark.parametrize("late", [ClockBehind, NewsBehind])


@contextlib.asynccontextmanager
async def two_workers(apps: Apps, late: type[ScheduleTicks]) -> AsyncIterator[tuple[Worker, Dibs]]:
    """Run both; yield the punctual one, and the app of the late one. Their jobs finish at once."""
    one, other = apps(), apps()
    for app in (one, other):
        app.every(EVERY_SECOND)(app.job(_at_once, name="work"))
    punctual, behind = Worker(one), Worker(other)
    behind._upkeep.schedules = late(core_of(other))
    async with running(punctual), running(behind):
        yield punctual, other


async def _at_once() -> None: ...


async def _once_per_tick(app: Dibs, ticks: int) -> None:
    await wait_until(lambda: as_many(app, ticks), seconds=ticks + 15)

    times = Counter(tick_of(job) for job in await all_jobs(app))
    assert [tick for tick in times if times[tick] > 1] == []
    assert len(times) == (max(times) - min(times)) / timedelta(seconds=1) + 1 >= ticks


@durable
@late_ones
async def test_two_workers_one_of_them_late_enqueue_every_tick_once(
    apps: Apps, late: type[ScheduleTicks]
) -> None:
    async with two_workers(apps, late) as (_, app):
        await _once_per_tick(app, 3)


@durable
@pytest.mark.long
async def test_two_workers_one_a_second_behind_enqueue_each_of_a_hundred_ticks_once(apps: Apps) -> None:
    async with two_workers(apps, ClockBehind) as (_, app):
        await _once_per_tick(app, 100)


@durable
@late_ones
async def test_a_late_worker_goes_on_when_the_punctual_one_is_gone(
    apps: Apps, late: type[ScheduleTicks]
) -> None:
    async with two_workers(apps, late) as (punctual, app):
        await wait_until(lambda: as_many(app, 1))
        punctual.stop()
        await _once_per_tick(app, 3)


# -- Missed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missed", "jobs"), [("latest", 1), ("all", 3), ("skip", 0)])
async def test_ticks_that_came_while_no_worker_ran(app: Dibs, missed: Any, jobs: int) -> None:
    app.every(timedelta(hours=1), missed=missed)(app.job(lambda: None, name="work"))
    await drain(app)
    await age(app, 3.5 * 3600)

    await drain(app)
    await drain(app)

    done = sorted(await all_jobs(app), key=tick_of)
    [schedule] = await app.schedules.list()
    assert [job.state for job in done] == ["succeeded"] * jobs
    assert all(tick_of(job) == schedule.last_tick for job in done[-1:])
    now = await _now(app)
    assert timedelta(minutes=29) < now - schedule.last_tick < timedelta(minutes=31)


async def test_a_thousand_missed_ticks_are_made_up_for_and_not_more(app: Dibs) -> None:
    app.every(60, missed="all")(app.job(lambda: None, name="work", queue="elsewhere"))
    await drain(app, queues=["here"])
    await age(app, 3600 * 60)

    await drain(app, queues=["here"])

    assert (await app.counts())["ready"] == 1000


async def test_a_worker_that_starts_first_enqueues_no_tick_of_the_past(app: Dibs) -> None:
    app.every("0 0 1 1 *")(app.job(lambda: None, name="work"))

    await drain(app)

    assert await all_jobs(app) == []
    assert [(one.last_tick, one.next_tick is None) for one in await app.schedules.list()] == [(None, False)]


async def _now(app: Dibs) -> datetime:
    return (await store_of(app).run_async(lambda _: upkeep.upcoming())).now


# -- Calm ---------------------------------------------------------------------------------------


def _asked(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of all questions that this app asks from now on."""
    asked: list[str] = []
    store = store_of(app)
    run_async = store.run_async

    def noting(operation: Any) -> Any:
        def script(tries: Any) -> Any:
            inner, rows = operation(tries), None
            try:
                while True:
                    step = inner.send(rows)
                    asked.append(step.question)
                    rows = yield step
            except StopIteration as end:
                return end.value

        return script

    monkeypatch.setattr(store, "run_async", lambda operation, *more: run_async(noting(operation), *more))
    return asked


async def test_a_worker_without_schedules_never_asks_for_any(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = apps(poll=0.1)
    app.job(lambda: None, name="work")
    asked = _asked(app, monkeypatch)

    async with working(app):
        await wait_until(lambda: asked.count("upcoming") + asked.count("tick") >= 5)

    assert not {"schedules", "enqueue_tick"} & set(asked)


async def test_a_schedule_that_ticks_rarely_costs_nothing_between_its_ticks(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = apps(poll=0.1)
    app.every("0 0 1 1 *")(app.job(lambda: None, name="work"))
    asked = _asked(app, monkeypatch)

    async with working(app):
        await wait_until(lambda: asked.count("upcoming") + asked.count("tick") >= 5)

    assert (asked.count("set_schedule"), asked.count("enqueue_tick")) == (1, 0)
    assert asked.count("schedules") <= 3


async def test_an_idle_worker_with_schedules_is_as_calm_as_one_without(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.every("*/5 * * * *", name="often")(app.every("0 6 * * *")(app.job(lambda: None, name="work")))

    async with working(app):
        await is_idle(app)
        await asyncio.sleep(0.5)
        asked = _asked(app, monkeypatch)
        most = 2 if app.traits.wakes else 6  # where nothing wakes it a worker looks about once a second
        await holds_for(3, lambda: _is_calm(asked, most))


async def _is_calm(asked: list[str], most: int) -> bool:
    ticking = {
        "schedules",
        "enqueue_tick",
        "claim",
        "exchange",
        "settle",
    }  # should a tick fall into this time
    return len([question for question in asked if question not in ticking]) <= most


def test_the_next_tick_is_planned_by_the_clock_of_the_store() -> None:
    app = Dibs("memory://")
    app.every("*/5 * * * *")(app.job(lambda: None, name="work"))
    worker = Worker(app)
    now = datetime.fromisoformat("2031-01-01T00:04:00+00:00")  # nothing like ours

    asyncio.run(worker._upkeep.schedules.enqueue_due(Upcoming(False, False, None, 0, now)))

    assert 60 <= worker._upkeep.schedules.seconds(now) < 60.1
    assert worker._upkeep.schedules.seconds(now + timedelta(minutes=2)) < 0.1
