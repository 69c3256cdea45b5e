"""Crash at a point: the store is left as by a killed process, and the jobs come back."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from dibs import BadRequest, Context, Dibs, Job, NewJob, Worker
from dibs.testing import Crashed, VirtualClock, assert_not_enqueued, crash_at
from dibs.testing.stores import POINTS
from tests.support.faces import Face, Make
from tests.support.internals import core_of, store_of
from tests.support.param_names import named

RunPending = Callable[..., list[Job]]


@pytest.fixture
def effects(app: Face) -> list[str]:
    """Return what the handler of `charge` has done so far."""
    done: list[str] = []

    @app.job
    async def charge(ctx: Context) -> str:
        done.append("charged")
        ctx.chain(NewJob("receipt"))
        return "paid"

    return done


def _work(app: Face, run_pending: RunPending, how: str) -> None:
    """Run what is ready, by `run_pending` or by a worker."""
    if how == "inline":
        run_pending()
    elif app.colour == "async":
        app.wait_for(Worker(app.app).run(until_idle=True))  # type: ignore[attr-defined]
    else:
        asyncio.run(_worked(app.app))


async def _worked(app: Dibs) -> None:
    try:
        await Worker(app).run(until_idle=True)
    finally:
        await store_of(app).leave_loop()


@pytest.mark.parametrize("how", ["inline", "worker"])
@pytest.mark.parametrize(
    ("point", "effect", "left"),
    [
        ("before_claim", 0, "ready"),
        ("after_claim", 0, "running"),
        ("before_settle", 1, "running"),
        ("after_settle", 1, "succeeded"),
    ],
    ids=named,
)
def test_a_crash_leaves_what_a_killed_process_leaves(
    app: Face,
    make: Make,
    run_pending: RunPending,
    effects: list[str],
    point: str,
    effect: int,
    left: str,
    how: str,
) -> None:
    job = make.ready("charge")

    with crash_at(app.app, point):
        _work(app, run_pending, how)
        pytest.fail("the process goes on")

    assert (len(effects), app.get(job.id).state) == (effect, left)
    if left != "succeeded":
        assert_not_enqueued(app.app, "receipt")


@pytest.mark.parametrize("point", ["after_claim", "before_settle"])
def test_the_job_comes_back_once_its_lease_ran_out(
    app: Face, make: Make, run_pending: RunPending, effects: list[str], clock: VirtualClock, point: str
) -> None:
    make.ready("charge")

    with crash_at(app.app, point):
        run_pending()
    assert run_pending() == []  # its lease still holds
    clock.advance(minutes=2)
    [job] = run_pending()

    assert (job.state, job.attempts, job.errors[0].message) == ("succeeded", 2, "worker died")


def test_a_crash_before_the_enqueue_stores_nothing_and_one_after_it_does(app: Face) -> None:
    with crash_at(app.app, "before_enqueue"):
        app.enqueue(NewJob("work"))
    assert app.counts()["ready"] == 0

    with crash_at(app.app, "after_enqueue"):
        app.enqueue(NewJob("work"))
    assert app.counts()["ready"] == 1


def test_a_claim_in_a_with_block_is_neither_settled_nor_released(app: Face, make: Make) -> None:
    job = make.ready()

    with crash_at(app.app, "after_progress"):
        claim = app.claim_job(job.id)
        with claim:
            claim.progress(0.5, "half way")

    held = app.get(job.id)
    assert (held.state, held.attempts, held.errors, held.progress) == ("running", 1, [], 0.5)


def test_a_handler_that_catches_everything_cant_outlive_its_process(
    app: Face, make: Make, run_pending: RunPending
) -> None:
    @app.job
    async def stubborn(ctx: Context) -> str:
        try:
            await ctx.progress(0.5)
        except BaseException:
            return "what crash?"
        return "fine"

    job = app.enqueue_task(stubborn)

    with crash_at(app.app, "before_progress"):
        run_pending()

    assert (app.get(job.id).state, app.get(job.id).progress) == ("running", 0.0)


def test_asyncio_has_nothing_to_complain_about(
    app: Face, run_pending: RunPending, make: Make, effects: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    make.ready("charge")

    with crash_at(app.app, "after_settle"):
        run_pending()
    gc.collect()

    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_no_lease_is_renewed_after_the_crash(app: Face, make: Make) -> None:
    job = make.ready()

    with crash_at(app.app, "before_settle"):
        claim = app.claim_job(job.id, lease=0.3)
        with claim:
            claim.succeed()

    until = app.get(job.id).lease_until
    assert until is not None
    deadline = time.monotonic() + 10
    while not app.sweep().returned:
        assert time.monotonic() < deadline
        assert app.get(job.id).lease_until == until
        time.sleep(0.02)


def test_other_handlers_of_a_worker_that_crashed_do_not_go_on(app: Face) -> None:
    passed: list[str] = []
    waits = asyncio.Event()

    @app.job
    async def quick() -> None: ...

    @app.job
    async def slow() -> None:
        await waits.wait()
        passed.append("went on")

    async def story() -> None:
        await app.app.enqueue(slow.new(), quick.new())
        with crash_at(app.app, "after_settle"):
            await Worker(app.app).run(until_idle=True)
        waits.set()
        for _ in range(10):
            await asyncio.sleep(0)
        await app.app.close()

    app.wait_for(story()) if app.colour == "async" else asyncio.run(story())  # type: ignore[attr-defined]

    assert passed == []


def test_the_nth_time_can_be_chosen(
    app: Face, make: Make, run_pending: RunPending, effects: list[str]
) -> None:
    jobs = [make.ready("charge") for _ in range(3)]

    with crash_at(app.app, "after_settle", nth=2):
        run_pending()

    assert [app.get(job.id).state for job in jobs] == ["succeeded", "succeeded", "ready"]


def test_a_claim_that_gets_nothing_is_no_claim(app: Face) -> None:
    with pytest.raises(AssertionError, match=r"nothing reached 'after_claim'; .* passed: before_claim$"):
        with crash_at(app.app, "after_claim"):
            app.claim()


def test_a_block_that_never_gets_there_fails_the_test(app: Face) -> None:
    with pytest.raises(AssertionError, match=r"nothing reached 'after_enqueue' 2 times; .* after_enqueue$"):
        with crash_at(app.app, "after_enqueue", nth=2):
            app.enqueue(NewJob("work"))

    app.enqueue(NewJob("work"))


def test_errors_of_the_block_are_passed_on(app: Face) -> None:
    with pytest.raises(ZeroDivisionError):
        with crash_at(app.app, "after_claim"):
            _ = 1 / 0


def test_a_crash_in_a_group_of_tasks_is_a_crash(app: Face) -> None:
    async def story() -> None:
        with crash_at(app.app, "after_enqueue"):
            async with asyncio.TaskGroup() as group:
                group.create_task(app.app.enqueue(NewJob("work")))
        await app.app.close()

    app.wait_for(story()) if app.colour == "async" else asyncio.run(story())  # type: ignore[attr-defined]

    assert app.counts()["ready"] == 1


def test_an_unknown_point_is_refused_with_the_known_ones(app: Face) -> None:
    with pytest.raises(BadRequest, match=r"no point 'after_lunch' .*before_enqueue, after_enqueue"):
        with crash_at(app.app, "after_lunch"):
            pass


def test_every_point_is_named_after_a_verb() -> None:
    assert set(POINTS) == {
        f"{when}_{what}"
        for when in ("before", "after")
        for what in ("enqueue", "claim", "progress", "settle")
    }


def test_a_crash_is_no_exception_that_code_would_catch() -> None:
    assert issubclass(Crashed, BaseException)
    assert not issubclass(Crashed, Exception)


def test_the_apps_own_store_and_keeper_are_back_afterwards(app: Face) -> None:
    before: dict[str, Any] = dict(vars(core_of(app.app)))

    with crash_at(app.app, "after_enqueue"):
        app.enqueue(NewJob("work"))

    assert vars(core_of(app.app)) == before
