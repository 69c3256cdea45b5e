"""Convoys: a worker runs quick jobs of a train one after another, and the store hears of them together."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dibs import Cancel, Context, Dibs, Fail, Job, JobEvent, NewJob, Retry, Snooze, Worker
from dibs.contract import STOP_HINT
from dibs.worker import convoys
from dibs.worker.trips import Trips
from tests.support.workers import Apps, drain, finished, processes, state_of, take_back, wait_until, working

LONG = 30.0  # seconds; longer than any test

colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture(autouse=True)
def looks_ahead_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second job of a train leads all others, and no slice ends, unless a test says so."""
    monkeypatch.setattr(convoys, "ENOUGH", 1)
    monkeypatch.setattr(convoys, "QUICK", LONG)
    monkeypatch.setattr(convoys, "SLICE", LONG)


POISON = """
import os
from dibs import Dibs
from dibs.worker import convoys
convoys.ENOUGH = 1
app = Dibs()

@app.job(lease=0.5)
async def work(n: int) -> None:
    if n == 5:
        os._exit(1)
"""


class Looks:
    """How often a worker looked ahead on a train, and for whom."""

    def __init__(self, app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heads: list[Any] = []
        asked = convoys.operations.followers

        def followers(head: Any, token: int, limit: int) -> Any:
            self.heads.append(head)
            return asked(head, token, max(limit, 20))

        monkeypatch.setattr(convoys.operations, "followers", followers)


@pytest.fixture
def looks(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(app, monkeypatch)


async def train(app: Dibs, length: int, kind: str = "work", **options: Any) -> list[Job]:
    new = [NewJob(kind, args={"n": n}, train="t", **options) for n in range(length)]
    return list(await app.enqueue(*new))


async def states(app: Dibs, jobs: list[Job]) -> list[str]:
    return [await state_of(app, job) for job in jobs]


async def test_a_long_train_runs_in_order_with_far_fewer_turns_than_jobs(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, turns, exchange = [], 0, Trips.exchange

    async def counted(*given: Any, **wanted: Any) -> Any:
        nonlocal turns
        turns += 1
        return await exchange(*given, **wanted)

    @app.job
    async def work(n: int) -> int:
        ran.append(n)
        return n * n

    monkeypatch.setattr(Trips, "exchange", counted)
    jobs = await train(app, 200)
    await drain(app, convoys=True)

    assert ran == list(range(200))
    assert turns < 40
    done = [await app.get(job.id) for job in jobs]
    assert [(job.state, job.attempts, job.result) for job in done] == [
        ("succeeded", 1, n * n) for n in range(200)
    ]
    tokens = [job.token for job in done]
    assert tokens == sorted(tokens)
    assert all(job.worker is not None for job in done)
    for one, next in pairwise(done):
        assert one.claimed_at <= one.finished_at <= next.claimed_at


@pytest.mark.long
@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_a_train_of_jobs_that_do_nothing_drains_five_times_as_fast_in_convoys(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # convoys as people have them

    @app.job
    async def work(n: int) -> None: ...

    async def drained(convoys: bool) -> float:
        await train(app, 2000)
        began = time.perf_counter()
        await drain(app, convoys=convoys)
        return time.perf_counter() - began

    turns = [(await drained(True), await drained(False)) for _ in range(3)]

    together, one_by_one = (statistics.median(each) for each in zip(*turns, strict=True))
    print(f"{one_by_one / together:.1f} times as fast")
    assert one_by_one / together >= 5


async def test_plain_functions_ride_too(app: Dibs, looks: Looks) -> None:
    ran, threads = [], set()

    @app.job
    def work(n: int) -> None:
        ran.append(n)
        threads.add(threading.current_thread())

    await train(app, 12)
    await drain(app, convoys=True)

    assert ran == list(range(12))
    assert threading.main_thread() not in threads
    assert looks.heads


async def test_trains_of_few_jobs_are_not_looked_ahead_on(
    app: Dibs, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convoys, "ENOUGH", 3)

    @app.job
    async def work(n: int) -> None: ...

    for name in ("a", "b", "c"):
        await app.enqueue(*(work.using(train=name).new(n) for n in range(3)))
    await app.enqueue(*(work.new(n) for n in range(10)))
    await drain(app, convoys=True)

    assert looks.heads == []
    assert (await app.counts())["succeeded"] == 19


async def test_jobs_that_take_their_time_are_settled_one_by_one(
    app: Dibs, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convoys, "QUICK", 0.001)
    ahead = []

    @app.job
    async def work(n: int) -> None:
        ahead.append((await states(app, jobs))[:n])
        await asyncio.sleep(0.005)

    jobs = await train(app, 6)
    await drain(app, convoys=True)

    assert looks.heads == []
    assert ahead == [["succeeded"] * n for n in range(6)]


async def test_a_quick_job_after_slow_ones_leads_nobody_yet(
    app: Dibs, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convoys, "ENOUGH", 3)
    monkeypatch.setattr(convoys, "QUICK", 0.01)

    @app.job
    async def work(n: int) -> None:
        if n < 4:
            await asyncio.sleep(0.03)

    jobs = await train(app, 20)
    await drain(app, convoys=True)

    assert await states(app, jobs) == ["succeeded"] * 20
    assert not {job.id for job in jobs[:7]} & set(looks.heads)


async def test_a_worker_without_convoys_settles_each_before_the_next(app: Dibs, looks: Looks) -> None:
    ahead = []

    @app.job
    async def work(n: int) -> None:
        ahead.append((await states(app, jobs))[:n])

    jobs = await train(app, 6)
    await drain(app, convoys=False)

    assert looks.heads == []
    assert ahead == [["succeeded"] * n for n in range(6)]


async def test_who_waits_for_a_follower_goes_when_it_has_succeeded(app: Dibs, looks: Looks) -> None:
    ran = []

    @app.job
    async def work(n: int) -> None:
        ran.append(n)

    pipeline = app.pipeline("p")
    jobs = [pipeline.add(work.using(train="t").new(n)) for n in range(6)]
    pipeline.add(work.new(100), after=[jobs[3], jobs[4]])
    await pipeline.enqueue()
    await drain(app, convoys=True)

    assert looks.heads
    assert [n for n in ran if n < 100] == list(range(6))
    assert 100 in ran


async def test_a_follower_that_fails_keeps_its_place_and_nobody_overtakes_it(
    app: Dibs, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convoys, "ENOUGH", 0)
    ran = []

    @app.job(retry=Retry.fixed(0.05))
    async def work(ctx: Context, n: int) -> None:
        ran.append(n)
        if n == 4 and ctx.job.attempts < 3:
            raise ValueError("not yet")

    jobs = await train(app, 8)
    await drain(app, convoys=True)
    async with working(app, convoys=True):
        last = await finished(app, jobs[-1])

    assert ran == [0, 1, 2, 3, 4, 4, 4, 5, 6, 7]
    failed = await app.get(jobs[4].id)
    assert (last.state, failed.state, failed.attempts) == ("succeeded", "succeeded", 3)
    assert [(error.attempt, error.message) for error in failed.errors] == [(1, "not yet"), (2, "not yet")]
    assert jobs[0].id in looks.heads
    assert jobs[4].id not in looks.heads  # it had been tried before: alone


@pytest.mark.parametrize(
    ("answer", "state", "attempts"),
    [
        (Fail("no"), "failed", 1),
        (Cancel("no"), "cancelled", 1),
        (Snooze(60), "scheduled", 0),
    ],
    ids=["fail", "cancel", "snooze"],
)
async def test_whatever_a_follower_answers_is_applied_and_the_rest_is_as_it_was(
    app: Dibs, answer: Any, state: str, attempts: int
) -> None:
    ran = []

    @app.job
    async def work(n: int) -> Any:
        ran.append(n)
        return answer if n == 3 else None

    jobs = await train(app, 6)
    await drain(app, convoys=True)

    third = await app.get(jobs[3].id)
    assert (third.state, third.attempts) == (state, attempts)
    if state == "scheduled":
        assert ran == [0, 1, 2, 3]
        rest = [await app.get(job.id) for job in jobs[4:]]
        assert [(job.state, job.attempts, job.token) for job in rest] == [("blocked", 0, None)] * 2
    else:
        assert ran == list(range(6))


async def test_a_follower_that_takes_long_gets_a_lease_of_its_own(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    monkeypatch.setattr(convoys, "SLICE", 0.2)
    begun, go_on, tokens = asyncio.Event(), asyncio.Event(), []

    @app.job
    async def work(ctx: Context, n: int) -> None:
        if n == 3:
            tokens.append(ctx.token)
            begun.set()
            await go_on.wait()

    jobs = await train(app, 5)
    async with working(app, convoys=True):
        await begun.wait()
        running = await wait_until(lambda: _running(app, jobs[3]))
        before = await states(app, jobs)
        go_on.set()
        last = await finished(app, jobs[-1])

    assert before == ["succeeded"] * 3 + ["running", "blocked"]
    assert running.token == tokens[0]
    assert (running.attempts, last.state) == (1, "succeeded")
    assert jobs[3].id not in looks.heads


async def _running(app: Dibs, job: Job) -> Job | None:
    found = await app.get(job.id)
    assert found is not None
    return found if found.state == "running" else None


async def test_a_follower_that_runs_on_can_be_cancelled(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    monkeypatch.setattr(convoys, "SLICE", 0.1)
    stopped = asyncio.Event()

    @app.job
    async def work(n: int) -> None:
        if n == 3:
            try:
                await asyncio.sleep(LONG)
            finally:
                stopped.set()

    jobs = await train(app, 5)
    async with working(app, convoys=True):
        await wait_until(lambda: _running(app, jobs[3]))
        await app.cancel(jobs[3].id)
        done = await finished(app, jobs[3])
        await finished(app, jobs[4])

    assert done.state == "cancelled"
    assert stopped.is_set()


async def test_a_follower_cancelled_before_its_worker_knew_that_the_store_knew_is_stopped(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    monkeypatch.setattr(convoys, "SLICE", 0.1)
    settled, hear = convoys.Convoys.settled, Worker._hear

    @app.job(lease=600)
    async def work(n: int) -> None:
        if n == 3:
            await asyncio.sleep(LONG)

    def late(self: Any, rides: Any, sent_at: float) -> None:
        for ride in rides:
            if ride.ended is None:
                app.sync.cancel(ride.held.job.id)
        settled(self, rides, sent_at)

    def deaf(self: Worker, hint: str) -> None:
        if not hint.startswith(STOP_HINT):
            hear(self, hint)

    monkeypatch.setattr(convoys.Convoys, "settled", late)
    monkeypatch.setattr(Worker, "_hear", deaf)
    jobs = await train(app, 4)
    async with working(app, convoys=True):
        done = await finished(app, jobs[3])

    assert done.state == "cancelled"


async def test_a_follower_cancelled_before_the_store_knew_that_it_ran_is_stopped(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    monkeypatch.setattr(convoys, "SLICE", 0.3)
    begun, stopped = asyncio.Event(), asyncio.Event()

    @app.job(lease=600)
    async def work(n: int) -> None:
        if n == 3:
            begun.set()
            try:
                await asyncio.sleep(LONG)
            finally:
                stopped.set()

    jobs = await train(app, 5)
    async with working(app, convoys=True):
        await begun.wait()
        await app.cancel(jobs[3].id)
        await finished(app, jobs[4])
        await wait_until(stopped.is_set)

    assert await states(app, jobs) == ["succeeded"] * 3 + ["cancelled", "succeeded"]


async def test_progress_of_a_follower_is_noted(app: Dibs) -> None:
    seen = []

    @app.job
    async def work(ctx: Context, n: int) -> None:
        if n == 3:
            await ctx.progress(0.5, "half")
            seen.append(await app.get(ctx.job.id))

    jobs = await train(app, 5)
    await drain(app, convoys=True)

    [seen_then] = seen
    assert (seen_then.state, seen_then.progress, seen_then.message) == ("running", 0.5, "half")
    assert await states(app, jobs) == ["succeeded"] * 5


async def test_a_heartbeat_that_finds_the_head_settled_is_no_loss_for_who_follows(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    ran, exchange = [], Trips.exchange

    async def slow(trips: Trips, settled: Any, rides: list[Any], places: int, **wanted: Any) -> Any:
        answer = await exchange(trips, settled, rides, places, **wanted)
        if rides:
            app._core.keeper.look(ride.head for ride in rides)
            await asyncio.sleep(0.1)  # long enough for a beat, before the worker hears that all is well
        return answer

    @app.job
    async def work(ctx: Context, n: int) -> None:
        ran.append(n)
        if n == 3:
            await ctx.progress(0.5)

    monkeypatch.setattr(Trips, "exchange", slow)
    jobs = await train(app, 5)
    await drain(app, convoys=True)

    assert ran == [0, 1, 2, 3, 4]
    assert await states(app, jobs) == ["succeeded"] * 5


async def test_progress_of_a_plain_follower_is_noted(app: Dibs) -> None:
    @app.job
    def work(ctx: Context, n: int) -> None:
        if n == 3:
            ctx.sync.progress(0.5, "half")

    jobs = await train(app, 5)
    await drain(app, convoys=True)

    assert await states(app, jobs) == ["succeeded"] * 5
    assert (await app.get(jobs[3].id)).message == "half"


async def test_children_of_a_follower_come_with_its_success(app: Dibs) -> None:
    ran = []

    @app.job
    async def child(n: int) -> None:
        ran.append(n)

    @app.job
    async def work(ctx: Context, n: int) -> None:
        ctx.chain(child.new(n))

    jobs = await train(app, 6)
    await drain(app, convoys=True)

    assert sorted(ran) == list(range(6))
    assert (await app.get(jobs[3].id)).pipeline_id == jobs[3].id


async def test_a_follower_cancelled_before_it_starts_never_runs(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convoys, "SLICE", 0.1)
    ran, begun, go_on = [], asyncio.Event(), asyncio.Event()

    @app.job
    async def work(n: int) -> None:
        ran.append(n)
        if n == 3:
            begun.set()
            await go_on.wait()

    jobs = await train(app, 7)
    async with working(app, convoys=True):
        await begun.wait()
        await app.cancel(jobs[4].id)
        await app.delete(jobs[5].id)
        await wait_until(lambda: _running(app, jobs[3]))  # its slice is over
        go_on.set()
        await finished(app, jobs[6])

    assert ran == [0, 1, 2, 3, 6]
    assert await state_of(app, jobs[4]) == "cancelled"


async def test_who_was_cancelled_while_it_ran_unseen_stays_cancelled(app: Dibs, looks: Looks) -> None:
    ran, begun, go_on = [], asyncio.Event(), asyncio.Event()

    @app.job
    async def work(n: int) -> None:
        ran.append(n)
        if n == 3:
            begun.set()
            await go_on.wait()

    jobs = await train(app, 6)
    async with working(app, convoys=True):
        await begun.wait()
        assert await state_of(app, jobs[3]) == "blocked"
        await app.cancel(jobs[3].id)
        go_on.set()
        await finished(app, jobs[5])

    assert ran == list(range(6))
    third = await app.get(jobs[3].id)
    assert (third.state, third.attempts) == ("cancelled", 0)


@pytest.mark.parametrize("colour", ["awaited", "plain"])
async def test_a_convoy_whose_head_is_lost_stops_and_its_jobs_run_again_in_order(
    app: Dibs, looks: Looks, colour: str
) -> None:
    ran, begun, lost = [], threading.Event(), []

    if colour == "awaited":

        @app.job(name="work", lease=60)
        async def wait(ctx: Context, n: int) -> None:
            ran.append(n)
            if n == 3 and not begun.is_set():
                begun.set()
                try:
                    await asyncio.sleep(LONG)
                finally:
                    lost.append(ctx.lost)
    else:

        @app.job(name="work", lease=60)
        def block(ctx: Context, n: int) -> None:
            ran.append(n)
            if n == 3 and not begun.is_set():
                begun.set()
                try:
                    while True:
                        ctx.check()
                        time.sleep(0.01)
                finally:
                    lost.append(ctx.lost)

    jobs = await train(app, 6)
    async with working(app, convoys=True) as worker:
        await wait_until(begun.is_set)
        await asyncio.to_thread(take_back, app, jobs[1].id)
        worker._core.keeper.look(worker._lanes.held())
        await finished(app, jobs[5])

    assert lost == [True]
    assert ran == [0, 1, 2, 3, 1, 2, 3, 4, 5]
    done = [await app.get(job.id) for job in jobs]
    assert [(job.state, job.attempts) for job in done] == [
        ("succeeded", 2 if n == 1 else 1) for n in range(6)
    ]
    assert [error.message for error in done[1].errors] == ["worker died"]
    assert looks.heads.count(jobs[1].id) == 1  # the second time it ran alone


async def test_a_cancel_for_a_head_that_has_succeeded_does_not_stop_who_runs_after_it(
    app: Dibs, looks: Looks
) -> None:
    ran, begun, go_on = [], asyncio.Event(), asyncio.Event()

    @app.job(lease=1)
    async def work(n: int) -> None:
        ran.append(n)
        if n == 3:
            begun.set()
            await go_on.wait()

    jobs = await train(app, 5)
    async with working(app, convoys=True) as worker:
        await begun.wait()
        await app.cancel(jobs[1].id)
        [head] = [held for held in worker._lanes.held() if held.job.id == jobs[1].id]
        await wait_until(lambda: head.cancel_reason is not None)
        await asyncio.sleep(0.05)  # whoever would be stopped for it is stopped by now
        go_on.set()
        await finished(app, jobs[4])

    assert ran == [0, 1, 2, 3, 4]
    assert await states(app, jobs) == ["succeeded"] * 5


async def test_a_worker_that_stops_hands_back_who_has_not_started(app: Dibs, looks: Looks) -> None:
    ran, begun, go_on = [], asyncio.Event(), asyncio.Event()

    @app.job
    async def work(n: int) -> None:
        ran.append(n)
        if n == 3:
            begun.set()
            await go_on.wait()

    jobs = await train(app, 6)
    worker = Worker(app, convoys=True)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await begun.wait()
    worker.stop()
    go_on.set()
    await run

    assert ran == [0, 1, 2, 3]
    assert await states(app, jobs) == ["succeeded"] * 4 + ["ready", "blocked"]


async def test_a_worker_that_must_stop_at_once_leaves_a_follower_as_if_it_had_never_begun(
    app: Dibs, looks: Looks
) -> None:
    begun = asyncio.Event()

    @app.job
    async def work(n: int) -> None:
        if n == 3:
            begun.set()
            await asyncio.sleep(LONG)

    jobs = await train(app, 6)
    worker = Worker(app, convoys=True)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await begun.wait()
    worker.stop()
    worker.stop()
    await run

    assert await states(app, jobs) == ["succeeded"] * 3 + ["ready", "blocked", "blocked"]
    stopped = await app.get(jobs[3].id)
    assert (stopped.attempts, stopped.token) == (0, None)


async def test_a_convoy_ends_before_a_kind_or_queue_that_this_worker_does_not_serve(
    app: Dibs, looks: Looks
) -> None:
    ran = []

    @app.job
    async def work(n: int) -> None:
        ran.append(n)

    jobs = [
        *await train(app, 4),
        *await train(app, 1, queue="elsewhere"),
        *await train(app, 1),
    ]
    await drain(app, convoys=True, queues=["default"])

    assert ran == [0, 1, 2, 3]
    assert await states(app, jobs[4:]) == ["ready", "blocked"]
    [stranger] = await train(app, 1, kind="stranger")
    await drain(app, convoys=True)
    assert await state_of(app, stranger) == "ready"


async def test_what_a_follower_leaves_in_its_context_does_not_reach_the_next(app: Dibs) -> None:
    seen = []

    @app.job
    async def work(n: int) -> None:
        seen.append(colour.get())
        if n in (3, 4):
            colour.set(str(n))

    await train(app, 8)
    await drain(app, convoys=True)

    assert seen == ["none"] * 8


async def test_callbacks_hear_of_every_job_of_a_convoy(app: Dibs, looks: Looks) -> None:
    told = []

    @app.job
    async def work(n: int) -> None: ...

    @app.on("succeeded")
    async def tell(event: JobEvent) -> None:
        told.append(event.job.id)

    jobs = await train(app, 8)
    await drain(app, convoys=True)

    assert looks.heads
    assert sorted(told) == sorted(job.id for job in jobs)


async def test_a_store_that_is_away_at_the_look_ahead_costs_nothing_but_the_convoy(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dibs.errors import StoreUnavailable

    def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    @app.job
    async def work(n: int) -> None: ...

    monkeypatch.setattr(convoys.operations, "followers", away)
    jobs = await train(app, 6)
    await drain(app, convoys=True)

    assert await states(app, jobs) == ["succeeded"] * 6


@pytest.mark.long
@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "redis"], indirect=True)
async def test_a_follower_that_kills_its_worker_runs_out_of_attempts(
    app: Dibs, url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(POISON)
    jobs = await train(app, 9)

    with processes(tmp_path, url) as start:
        killed = 0
        while await state_of(app, jobs[-1]) != "succeeded":
            await asyncio.to_thread(start("--convoys", "--until-idle").ended, 30)
            killed += 1
            assert killed < 40

    done = [await app.get(job.id) for job in jobs]
    assert [job.state for job in done] == ["succeeded"] * 5 + ["failed"] + ["succeeded"] * 3
    assert [error.message for error in done[5].errors] == ["worker died"] * 3
    assert max(job.attempts for job in done if job is not done[5]) <= 2


async def test_two_workers_share_trains_and_keep_their_order(apps: Apps) -> None:
    ran: dict[str, list[int]] = {name: [] for name in "abcd"}
    running: set[str] = set()

    def jobs_of(app: Dibs) -> Dibs:
        @app.job
        async def work(name: str, n: int) -> None:
            assert name not in running
            running.add(name)
            await asyncio.sleep(0.001 if n % 5 == 0 else 0)
            running.discard(name)
            ran[name].append(n)

        return app

    one, two = jobs_of(apps()), apps()
    if two is not one:
        jobs_of(two)
    await one.enqueue(
        *(NewJob("work", args={"name": name, "n": n}, train=name) for n in range(40) for name in "abcd")
    )
    async with working(one, convoys=True), working(two, convoys=True):
        await wait_until(lambda: sum(map(len, ran.values())) == 160)

    assert ran == {name: list(range(40)) for name in "abcd"}
