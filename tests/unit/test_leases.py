"""The keeper's two threads, and what happens between them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from dibs import Dibs, NewJob, Worker
from dibs.app import leases
from tests.support.internals import core_of, store_of


def test_the_next_beat_does_not_wait_for_the_thread_of_the_last_one_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, beats = threading.Event(), threading.Semaphore(0)

    class SlowToEnd(threading.Thread):
        """On Python 3.13 a thread is alive for a while after its last line."""

        def run(self) -> None:
            super().run()
            if self.name == "dibs-beat":
                beats.release()
                over.wait(30)

    class Threading:
        Thread, Condition, current_thread = SlowToEnd, threading.Condition, threading.current_thread

    monkeypatch.setattr(leases, "threading", Threading)
    app: Any = Dibs("memory://").sync
    [job] = app.enqueue(NewJob("work"))

    with app.claim_job(job.id, lease=1.5):
        for _ in range(4):
            assert beats.acquire(timeout=30)
        over.set()

    assert app.get(job.id).state == "succeeded"
    app.close()


@pytest.mark.parametrize("how", ["found lost by a beat", "given up by the watch"])
def test_who_can_not_be_told_of_a_loss_costs_nobody_else_the_lease(
    caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Whose loop is closed, say: the claims of others go on being renewed."""
    app: Any = Dibs("memory://").sync
    app.enqueue(NewJob("work"), NewJob("work"))
    doomed, other = app.claim(limit=2, lease=1.5)
    if how == "found lost by a beat":
        doomed.snooze(60)
    keeper, told = core_of(app).keeper, threading.Event()

    def fail(_: Any) -> None:
        told.set()
        raise RuntimeError("Event loop is closed")

    keeper.keep(doomed._held, 1_500_000 if how == "found lost by a beat" else 1, fail)
    keeper.keep(other._held, 1_500_000, lambda _: None)
    assert told.wait(5)
    time.sleep(2)
    app.sweep()

    assert not other.lost
    other.succeed()
    assert "Event loop is closed" in caplog.text
    app.close()


def test_a_beat_that_fails_for_no_known_reason_is_tried_again_a_little_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renew, tries = leases.renew, iter([MemoryError("no room")])

    def first_fails(*given: Any) -> Any:
        for error in tries:
            raise error
        return renew(*given)

    monkeypatch.setattr(leases, "renew", first_fails)

    _hold_for_two_leases()

    assert caplog.text.count("no room") == 1


def test_a_beat_for_which_there_is_no_thread_is_tried_again_a_little_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, iter(["can't start new thread"])

    def first_refused(thread: threading.Thread) -> None:
        if thread.name == "dibs-beat":
            for why in refused:
                raise RuntimeError(why)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", first_refused)

    _hold_for_two_leases()

    assert "can't start new thread" in caplog.text


@pytest.mark.parametrize("who", ["worker", "claim", "sync claim"])
def test_a_beat_that_overtakes_the_answer_to_a_settlement_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """It finds the claim gone, by our own doing; who settles it will hear that it counts."""
    app = Dibs("memory://")

    @app.job
    async def work() -> None: ...

    lost: list[str] = []
    core_of(app).events.subscribe(lambda event: lost.append(event.name), ["lost"])
    _beat_before_each_answer(monkeypatch, app)

    async def do_it() -> None:
        job = await work.enqueue()
        if who == "worker":
            await Worker(app).run(until_idle=True, handle_signals=False)
        elif who == "claim":
            claim = await app.claim_job(job.id)
            async with claim:
                await claim.succeed()
        else:
            blocking = app.sync.claim_job(job.id)
            with blocking:
                blocking.succeed()
        assert (await app.get(job.id)).state == "succeeded"
        await app.close()

    asyncio.run(do_it())
    assert lost == []


def _beat_before_each_answer(monkeypatch: pytest.MonkeyPatch, app: Dibs) -> None:
    keeper, store = core_of(app).keeper, store_of(app)
    run, run_async = store.run, store.run_async

    def beat() -> None:
        with monkeypatch.context() as plain:
            plain.setattr(store, "run", run)
            keeper._renew(60_000_000, list(keeper._kept.values()))

    def answer(*asked: Any) -> Any:
        reply = run(*asked)
        beat()
        return reply

    async def answer_async(*asked: Any) -> Any:
        reply = await run_async(*asked)
        beat()
        return reply

    monkeypatch.setattr(store, "run", answer)
    monkeypatch.setattr(store, "run_async", answer_async)


def _hold_for_two_leases() -> None:
    app: Any = Dibs("memory://").sync
    app.enqueue(NewJob("work"))
    [claim] = app.claim(lease=1.5)
    core_of(app).keeper.keep(claim._held, 1_500_000, lambda _: None)
    time.sleep(3.2)
    app.sweep()

    assert not claim.lost
    claim.succeed()
    app.close()
