"""`with claim as job`: kept alive inside, settled on leaving."""

import asyncio
import time
from typing import Any

import pytest

from dibs import LeaseLost
from dibs.operations import upkeep
from tests.support.faces import Face, Make, nothing_written
from tests.support.internals import held_of, store_of

LEASE = 3.0  # seconds: renewed after one, and patient with a busy machine


def test_the_block_gets_the_job(app: Face, make: Make) -> None:
    claim = make.running(args={"n": 1})

    with claim as job:
        assert job == claim.job
        assert app.get(job.id).state == "running"


def test_leaving_the_block_is_success(app: Face, make: Make) -> None:
    claim = make.running()

    with claim:
        pass

    assert app.get(claim.job.id).state == "succeeded"


def test_an_exception_is_a_failed_attempt_and_goes_on(app: Face, make: Make) -> None:
    claim = make.running()

    with pytest.raises(ZeroDivisionError), claim:
        raise ZeroDivisionError("division by zero")

    job = app.get(claim.job.id)
    assert (job.state, job.attempts) == ("scheduled", 1)
    assert (job.errors[0].type, job.errors[0].message) == ("ZeroDivisionError", "division by zero")
    assert "test_with_claim.py" in job.errors[0].traceback


@pytest.mark.parametrize("stop", [asyncio.CancelledError, KeyboardInterrupt])
def test_being_stopped_gives_the_job_back(app: Face, make: Make, stop: type[BaseException]) -> None:
    claim = make.running()

    with pytest.raises(stop), claim:
        raise stop

    job = app.get(claim.job.id)
    assert (job.state, job.attempts, job.errors) == ("ready", 0, [])


def test_what_was_settled_inside_stays(app: Face, make: Make) -> None:
    claim = make.running()

    with claim:
        claim.succeed("mine")

    assert app.get(claim.job.id).result == "mine"


def test_an_exception_after_settling_changes_nothing(app: Face, make: Make) -> None:
    claim = make.running()

    with pytest.raises(ZeroDivisionError), claim:
        claim.snooze(30)
        raise ZeroDivisionError("division by zero")

    assert app.get(claim.job.id).errors == []


def test_the_lease_is_renewed_while_the_block_runs(app: Face, make: Make) -> None:
    claim = make.running(lease=LEASE)

    with claim:
        _until(lambda: _is_renewed(app, claim))
        held = app.get(claim.job.id)

    assert (held.state, held.token) == ("running", claim.token)
    assert app.get(claim.job.id).state == "succeeded"


def test_a_block_that_lost_its_job_says_so_and_settles_nothing(app: Face, make: Make) -> None:
    claim = make.running(lease=0.3)

    with pytest.raises(LeaseLost, match=str(claim.job.id)), claim:
        _lose(app, claim)
        with pytest.raises(LeaseLost):
            claim.check()

    assert app.get(claim.job.id).state == "ready"


def test_a_success_in_a_block_that_had_given_up_counts(app: Face, make: Make) -> None:
    claim = make.running()

    with claim:
        held_of(claim).give_up()  # as a renewal that did not get through in time would do
        claim.succeed("sent")

    assert app.get(claim.job.id).result == "sent"


def test_a_block_whose_lease_ran_out_unnoticed_settles_nothing(app: Face, make: Make) -> None:
    claim = make.running()
    with pytest.raises(LeaseLost), claim:
        app.age(61)
        app.sweep()
        app.claim_job(claim.job.id)

    assert app.get(claim.job.id).state == "running"


def test_the_block_learns_that_the_job_should_be_cancelled(app: Face, make: Make) -> None:
    claim = make.running(lease=LEASE)

    with claim:
        app.cancel(claim.job.id, "not needed")
        _until(lambda: claim.cancel_reason is not None)
        claim.release()

    assert app.get(claim.job.id).state == "cancelled"


def test_two_blocks_at_once_keep_two_jobs(app: Face, make: Make) -> None:
    first, second = make.running(lease=LEASE), make.running(lease=LEASE / 2)

    with first, second:
        _until(lambda: _is_renewed(app, first) and _is_renewed(app, second))

    assert app.counts()["succeeded"] == 2


def test_a_failing_block_of_a_lost_job_is_a_lost_lease(app: Face, make: Make) -> None:
    claim = make.expired()
    app.sweep()

    with nothing_written(app), pytest.raises(LeaseLost), claim:
        raise ZeroDivisionError("division by zero")


# -- What only a task can feel ------------------------------------------------------------------


@pytest.mark.parametrize("face", ["async"], indirect=True)
def test_a_cancelled_task_gives_its_job_back(app: Face, make: Make) -> None:
    held = make.running()

    async def work() -> None:
        async with held._claim:
            await asyncio.sleep(30)

    async def cancelled() -> None:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    app.wait_for(cancelled())

    job = app.get(held.job.id)
    assert (job.state, job.attempts) == ("ready", 0)


@pytest.mark.parametrize("face", ["async"], indirect=True)
def test_a_task_that_lost_its_job_is_stopped_at_once(app: Face, make: Make) -> None:
    held = make.running(lease=0.3)

    async def work() -> None:
        async with held._claim:
            await asyncio.sleep(30)

    async def lost() -> None:
        task = asyncio.ensure_future(work())
        while not held.lost:
            await store_of(app.app).run_async(lambda *_: upkeep.age(1_000_000))
            await app.app.sweep()
            await asyncio.sleep(0.01)
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(task, 2)
        assert task.cancelling() == 0

    app.wait_for(lost())

    assert app.get(held.job.id).state == "ready"


def _is_renewed(app: Face, claim: Any) -> bool:
    return bool(app.get(claim.job.id).lease_until > claim.job.lease_until)


def _lose(app: Face, claim: object) -> None:
    def swept() -> bool:
        app.age(1)
        app.sweep()
        return claim.lost  # type: ignore[attr-defined]

    _until(swept)


def _until(true: object) -> None:
    deadline = time.monotonic() + 5
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
