"""`@app.on(name)`: called after the store has the change; no job depends on the callback."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from typing import Any

import pytest

from dibs import BadRequest, Cancel, Context, Dibs, Fail, JobEvent, NewJob, Retry
from dibs.app import callbacks
from tests.support.internals import core_of, store_of
from tests.support.workers import Apps, drain, finished, ignore_stop_hints, take_back, wait_until, working

ALL = ("succeeded", "failed", "retried", "cancelled", "lost")


def _hear_all(app: Dibs, colour: str = "plain") -> list[JobEvent]:
    heard: list[JobEvent] = []

    async def awaited(event: JobEvent) -> None:
        heard.append(event)

    for name in ALL:
        app.on(name)(awaited if colour == "awaited" else heard.append)
    return heard


def _losses(heard: list[JobEvent]) -> list[JobEvent]:
    """Return the events of lost claims, not what became of the jobs by that."""
    return [event for event in heard if event.name == "lost"]


@pytest.mark.parametrize("colour", ["awaited", "plain"])
async def test_a_callback_receives_how_a_job_ended(app: Dibs, colour: str) -> None:
    heard = _hear_all(app, colour)

    @app.job(max_attempts=2, retry=Retry.fixed(0))
    async def work(how: str) -> Any:
        if how == "raise":
            raise ValueError("broken")
        return {"succeed": 7, "fail": Fail("no way"), "cancel": Cancel("not needed")}[how]

    for how in ("succeed", "fail", "cancel", "raise"):
        await work.enqueue(how)
        await drain(app)

    told = [(each.name, each.job.args["how"], each.error and each.error.message) for each in heard]
    assert told == [
        ("succeeded", "succeed", None),
        ("failed", "fail", "no way"),
        ("cancelled", "cancel", None),
        ("retried", "raise", "broken"),
        ("failed", "raise", "broken"),
    ]
    assert heard[0].job.result == 7
    assert [each.job.state for each in heard][-1] == "failed"
    assert [each.error.attempt for each in heard[-2:]] == [1, 2]


async def test_a_cancel_of_a_running_job_is_reported(app: Dibs) -> None:
    heard = _hear_all(app)
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()
        await asyncio.sleep(60)

    job = await work.enqueue()
    async with working(app):
        await started.wait()
        await app.cancel(job.id, "not needed")
        await finished(app, job)
        await wait_until(lambda: heard)

    assert [(each.name, each.job.message) for each in heard] == [("cancelled", "not needed")]


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("since", ["ready", "scheduled", "retried"])
async def test_a_cancel_of_a_waiting_job_is_reported_by_the_caller(app: Dibs, face: str, since: str) -> None:
    @app.job(retry=Retry.fixed(60))
    async def work() -> None:
        raise ValueError("broken")

    job = await work.using(delay=60 if since == "scheduled" else 0).enqueue()
    if since == "retried":
        await app.run_job(job.id)
    heard = _hear_all(app)

    if face == "sync":
        await asyncio.to_thread(app.sync.cancel, job.id, "not needed")
    else:
        await app.cancel(job.id, "not needed")

    told = [(each.name, each.job.id, each.job.state, each.job.message, each.error) for each in heard]
    assert told == [("cancelled", job.id, "cancelled", "not needed", None)]


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("how", ["cancel_many", "pipeline"])
async def test_a_cancel_of_many_reports_each_that_waited(app: Dibs, face: str, how: str) -> None:
    plan = app.pipeline("nightly")
    steps = [plan.add(NewJob("work"))]
    for _ in range(3):
        steps.append(plan.add(NewJob("work"), after=steps[-1:]))
    await plan.enqueue()
    await app.claim_job(steps[0].id)
    heard = _hear_all(app)

    side = app.sync if face == "sync" else app
    cancel = side.cancel_many if how == "cancel_many" else side.pipelines.cancel
    asked = {"kind": "work"} if how == "cancel_many" else {"id": plan.id}
    if face == "sync":
        number = await asyncio.to_thread(cancel, reason="not needed", **asked)
    else:
        number = await cancel(reason="not needed", **asked)

    told = {(each.name, each.job.id, each.job.state, each.job.message) for each in heard}
    assert (number, len(heard)) == (4, 3)  # the first has a holder, and that tells
    assert told == {("cancelled", step.id, "cancelled", "not needed") for step in steps[1:]}


async def test_a_cancel_of_very_many_reports_each_once(app: Dibs) -> None:
    jobs = await app.enqueue(*(NewJob("work") for _ in range(1_100)))
    heard = _hear_all(app, "awaited")

    assert await app.cancel_many(kind="work") == 1_100

    assert sorted(each.job.id for each in heard) == sorted(job.id for job in jobs)


async def test_a_cancel_that_its_holder_carries_out_meanwhile_is_reported_once(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = _hear_all(app)
    ignore_stop_hints(app, monkeypatch)

    @app.job
    async def work() -> None: ...

    claim = await app.claim_job((await work.enqueue()).id)
    ask = store_of(app).run_async

    async def answer_late(operation: Any, within: Any = None) -> Any:
        monkeypatch.setattr(store_of(app), "run_async", ask)
        await ask(operation, within)
        await claim.release()
        return await app.get(claim.job.id)

    monkeypatch.setattr(store_of(app), "run_async", answer_late)
    cancelled = await app.cancel(claim.job.id)

    assert cancelled.state == "cancelled"
    assert [each.name for each in heard] == ["cancelled"]


@pytest.mark.parametrize(
    ("attempts", "cancelled", "names"),
    [(1, False, ["lost", "failed"]), (2, False, ["lost"]), (2, True, ["lost", "cancelled"])],
)
async def test_the_death_of_a_worker_is_reported_by_the_worker_that_sweeps_the_job(
    app: Dibs, attempts: int, cancelled: bool, names: list[str]
) -> None:
    heard = _hear_all(app)

    @app.job(max_attempts=attempts, queue="dead")
    async def work() -> None: ...

    claim = await app.claim_job((await work.enqueue()).id, worker="the dead one", lease=0.1)
    if cancelled:
        await app.cancel(claim.job.id)
    await asyncio.sleep(0.2)
    async with working(app, queues=["other"]):
        await wait_until(lambda: len(heard) >= len(names))

    assert [event.name for event in heard] == names
    for event in heard:
        assert event.job.id == claim.job.id
        assert (event.error.message, event.error.worker) == ("worker died", "the dead one")


async def test_a_holder_that_lost_its_job_reports_it(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = _hear_all(app)
    ignore_stop_hints(app, monkeypatch)

    @app.job(max_attempts=1)
    def work(ctx: Context) -> None:
        take_back(app, ctx.job.id)

    await work.enqueue()
    async with working(app):
        await wait_until(lambda: _losses(heard))

    assert [each.error.message for each in _losses(heard)] == ["worker died"]


async def test_a_worker_that_sweeps_a_job_it_lost_reports_it_once(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = _hear_all(app)
    ignore_stop_hints(app, monkeypatch)
    held: list[tuple[Any, int]] = []

    @app.job(max_attempts=2)
    def work(ctx: Context) -> None:
        held.append((ctx.job.id, ctx.token))
        if len(held) == 1:
            take_back(app, ctx.job.id)

    job = await work.enqueue()
    async with working(app) as worker:
        await finished(app, job)
        for token in (held[0][1], held[0][1] + 1000):  # the same loss, and another
            worker._settlements.callbacks.tell([callbacks.PendingEvent("lost", job.id, token)])
        await wait_until(lambda: len(_losses(heard)) == 2)

    assert len(_losses(heard)) == 2


async def test_a_loss_that_heartbeat_and_settlement_notice_is_reported_once(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = _hear_all(app)
    ignore_stop_hints(app, monkeypatch)
    keeper = core_of(app).keeper
    drop = keeper.drop

    def hear_and_drop(*claims: Any) -> None:
        for held in claims:
            keeper.lose(held)
        drop(*claims)

    @app.job(max_attempts=1)
    def lost(ctx: Context) -> None:
        monkeypatch.setattr(keeper, "drop", hear_and_drop)  # before: the loss may be heard of at once
        take_back(app, ctx.job.id)

    @app.job
    def last() -> None: ...

    await lost.enqueue()
    async with working(app):
        await wait_until(lambda: _losses(heard))
        monkeypatch.setattr(keeper, "drop", drop)
        await last.enqueue()
        await wait_until(lambda: heard[-1].name == "succeeded")

    assert len(_losses(heard)) == 1


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("colour", ["awaited", "plain"])
async def test_run_job_and_claims_by_hand_report_before_they_return(
    app: Dibs, face: str, colour: str
) -> None:
    heard = _hear_all(app, colour)

    @app.job(max_attempts=1)
    async def work() -> None:
        raise ValueError("broken")

    job, other = await app.enqueue(work.new(), work.new())
    if face == "async":
        await app.run_job(job.id)
        await (await app.claim_job(other.id)).succeed()
    else:
        await asyncio.to_thread(app.sync.run_job, job.id)
        await asyncio.to_thread(lambda: app.sync.claim_job(other.id).succeed())

    assert [(each.name, each.job.id) for each in heard] == [("failed", job.id), ("succeeded", other.id)]


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("how", ["claim", "run_job"])
async def test_a_claim_by_hand_reports_what_it_took_back_from_a_dead_worker(
    app: Dibs, face: str, how: str
) -> None:
    heard = _hear_all(app)

    @app.job(max_attempts=1)
    def work() -> None: ...

    dead, other = await app.enqueue(work.new(), work.new())
    await app.claim_job(dead.id, worker="the dead one", lease=0.1)
    await asyncio.sleep(0.2)
    claim = {"claim": lambda face: face.claim(limit=2), "run_job": lambda face: face.run_job(other.id)}[how]
    if face == "async":
        await claim(app)
    else:
        await asyncio.to_thread(claim, app.sync)

    names = [each.name for each in heard if each.job.id == dead.id]
    assert names == ["lost", "failed"]


async def test_a_claim_cancelled_while_it_reports_what_it_took_back_is_given_back(app: Dibs) -> None:
    reporting = asyncio.Event()

    @app.on("lost")
    async def hang(event: JobEvent) -> None:
        reporting.set()
        await asyncio.Event().wait()

    @app.job(max_attempts=1)
    def work() -> None: ...

    dead, other = await app.enqueue(work.new(), work.new())
    await app.claim_job(dead.id, worker="the dead one", lease=0.1)
    await asyncio.sleep(0.2)
    claiming = asyncio.create_task(app.claim())
    await reporting.wait()
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming

    given_back = await app.get(other.id)
    assert (given_back.state, given_back.attempts) == ("ready", 0)


@pytest.mark.parametrize("colour", ["awaited", "plain"])
async def test_a_callback_that_raises_changes_nothing_and_is_logged_once(
    app: Dibs, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    def plain(event: JobEvent) -> None:
        raise SystemExit("the alert is broken")

    async def awaited(event: JobEvent) -> None:
        raise RuntimeError("the alert is broken")

    app.on("succeeded")(awaited if colour == "awaited" else plain)

    @app.job
    async def work() -> None: ...

    await app.enqueue(*(work.new() for _ in range(20)))
    with caplog.at_level(logging.ERROR, "dibs"):
        await drain(app)

    assert (await app.counts())["succeeded"] == 20
    assert len([record for record in caplog.records if "callback" in record.message]) == 1


@pytest.mark.parametrize("colour", ["awaited", "plain"])
async def test_a_callback_that_hangs_delays_no_other_job(
    app: Dibs, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "LAST_MOMENT", 0.2)
    go, called = threading.Event(), threading.Event()

    def plain(event: JobEvent) -> None:
        called.set()
        go.wait(20)

    async def awaited(event: JobEvent) -> None:
        called.set()
        await asyncio.sleep(60)

    app.on("succeeded")(awaited if colour == "awaited" else plain)

    @app.job
    async def work() -> None: ...

    await app.enqueue(*(work.new() for _ in range(50)))
    began = time.monotonic()
    await drain(app)
    took = time.monotonic() - began
    go.set()

    assert called.is_set()
    assert took < 5
    assert (await app.counts())["succeeded"] == 50


async def test_an_event_may_be_read_as_if_it_were_its_job(app: Dibs) -> None:
    heard = _hear_all(app)

    @app.job(queue="mail")
    async def work(n: int) -> None: ...

    job = await work.enqueue(7)
    await app.run_job(job.id)

    [event] = heard
    assert (event.id, event.kind, event.queue, event.args) == (job.id, "work", "mail", {"n": 7})
    assert (event.name, event.error, event.state) == ("succeeded", None, "succeeded")
    assert copy.copy(event) == event
    with pytest.raises(AttributeError, match="nonsense"):
        _ = event.nonsense


async def test_an_unknown_name_is_refused(app: Dibs) -> None:
    with pytest.raises(BadRequest, match="succeeded, failed, retried, cancelled, lost"):
        app.on("fialed")
    with pytest.raises(BadRequest, match="function"):
        app.on("failed")(7)


async def test_a_callback_receives_which_job_holds_its_train(app: Dibs) -> None:
    heard: list[JobEvent] = []
    app.on("held")(heard.append)

    @app.job(on_failed="hold", on_cancelled="hold", max_attempts=1)
    async def work() -> None:
        raise ValueError("broken")

    [first, behind, other, advancing, _] = await app.enqueue(
        work.using(train="north").new(),
        work.using(train="north").new(),
        work.using(train="south").new(),
        work.using(train="west", on_failed="advance").new(),
        work.new(),
    )
    await app.cancel(other.id)
    await app.cancel(behind.id)
    await drain(app)

    assert [(event.name, event.job.id, event.error is None) for event in heard] == [
        ("held", other.id, True),
        ("held", first.id, False),
    ]
    assert [train.name for train in await app.trains.held()] == ["north", "south"]
    assert (await app.get(advancing.id)).state == "failed"  # type: ignore[union-attr]


async def test_without_callbacks_nothing_is_read_and_no_event_is_built(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = apps()
    monkeypatch.setattr(callbacks, "read_events", None)
    monkeypatch.setattr("dibs.events.Event", None)

    @app.job
    async def work() -> None: ...

    await app.enqueue(*(work.new() for _ in range(20)))
    await drain(app)

    assert (await app.counts())["succeeded"] == 20


async def test_the_event_of_a_success_carries_the_job_as_the_store_has_it(app: Dibs) -> None:
    heard = _hear_all(app)

    @app.job(slot=("report", "{n}"))
    async def report(ctx: Context, n: int) -> int:
        await ctx.progress(0.9, "row 9 of 10")
        return n

    job = await report.enqueue(7)
    await drain(app)
    await wait_until(lambda: heard)

    [event] = heard
    assert event.job == await app.get(job.id)
    assert (event.job.is_current, event.job.progress, event.job.result) == (True, 1.0, 7)
    assert (event.kind, event.id, event.args) == ("report", job.id, {"n": 7})
