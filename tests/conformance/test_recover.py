"""Recover: a person takes a job from a holder that has been silent for long."""

from datetime import timedelta

import pytest

from dibs import BadRequest, LeaseLost, NotFound, NotStale, Refused
from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make, nothing_written


def test_a_job_whose_lease_is_long_over_is_ready_with_a_fresh_budget(app: Face, make: Make) -> None:
    claim = make.running(lease=60)
    app.age(60 + 1800 + 1)

    answer = app.recover(claim.job.id)

    assert (answer.state, answer.attempts, answer.worker, answer.lease_until) == ("ready", 0, None, None)
    assert answer == app.get(claim.job.id)


def test_a_recovered_job_has_not_begun(app: Face, make: Make) -> None:
    claim = make.running()
    claim.progress(0.4, "row 4 of 10")
    app.age(61)

    answer = app.recover(claim.job.id, stale_after=0)

    assert (answer.progress, answer.message) == (0.0, None)


def test_what_a_recovered_job_died_of_is_kept(app: Face, make: Make) -> None:
    claim = make.running(lease=60, worker="pod-a")
    claim.fail("broken")
    app.retry(claim.job.id)
    claim = app.claim_job(claim.job.id, worker="pod-b", lease=60)
    app.age(60 + 1800 + 1)

    answer = app.recover(claim.job.id)

    broken, died = answer.errors
    assert (broken.message, broken.worker) == ("broken", "pod-a")
    assert (died.message, died.type, died.worker) == ("worker died", "LeaseLost", "pod-b")
    assert (died.attempt, died.token) == (claim.job.attempts, claim.token)
    assert abs(died.at - broken.at) < timedelta(minutes=1)


@pytest.mark.parametrize("aged", [0, 59, 61, 60 + 1790])
def test_until_then_it_is_not_stale(app: Face, make: Make, aged: int) -> None:
    claim = make.running(lease=60, worker="pod-a")
    app.age(aged)

    with nothing_written(app), pytest.raises(NotStale, match="pod-a"):
        app.recover(claim.job.id)


@pytest.mark.parametrize("stale_after", [10, timedelta(seconds=10)])
def test_the_caller_may_be_less_patient(app: Face, make: Make, stale_after: object) -> None:
    claim = make.running(lease=60)
    app.age(69)
    with pytest.raises(NotStale):
        app.recover(claim.job.id, stale_after=stale_after)
    app.age(2)

    answer = app.recover(claim.job.id, stale_after=stale_after)

    assert answer.state == "ready"


def test_no_patience_at_all_still_respects_the_lease(app: Face, make: Make) -> None:
    claim = make.running(lease=60)

    with pytest.raises(NotStale):
        app.recover(claim.job.id, stale_after=0)
    app.age(61)

    assert app.recover(claim.job.id, stale_after=0).state == "ready"


@pytest.mark.parametrize("stale_after", [-1, "soon", float("nan")], ids=repr)
def test_a_patience_that_is_no_time_span_is_refused(app: Face, make: Make, stale_after: object) -> None:
    claim = make.running()

    with nothing_written(app), pytest.raises(BadRequest, match="stale_after"):
        app.recover(claim.job.id, stale_after=stale_after)


def test_the_old_holder_has_lost_the_job(app: Face, make: Make) -> None:
    claim = make.expired()
    app.recover(claim.job.id, stale_after=0)

    with nothing_written(app), pytest.raises(LeaseLost):
        claim.succeed()


def test_a_job_failed_by_worker_died_is_retried(app: Face, make: Make) -> None:
    claim = make.expired(max_attempts=1)
    app.sweep()
    assert app.get(claim.job.id).state == "failed"

    answer = app.recover(claim.job.id)

    assert (answer.state, answer.attempts) == ("ready", 0)
    assert [error.message for error in answer.errors] == ["worker died"]


def test_a_job_that_failed_otherwise_is_refused(app: Face, make: Make) -> None:
    job = make.failed()

    with nothing_written(app), pytest.raises(Refused, match="failed") as caught:
        app.recover(job.id)
    assert not isinstance(caught.value, NotStale)


@pytest.mark.parametrize("state", ["ready", "scheduled", "succeeded", "cancelled"])
def test_a_job_that_is_not_running_is_refused(app: Face, make: Make, state: str) -> None:
    job = make.finished(state)

    with nothing_written(app), pytest.raises(Refused, match=state) as caught:
        app.recover(job.id)
    assert not isinstance(caught.value, NotStale)


def test_a_flagged_job_that_is_recovered_waits_again(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel(lease=0.1)
    app.age(1)
    app.recover(claim.job.id, stale_after=0)

    app.claim_job(claim.job.id).release()

    assert app.get(claim.job.id).state == "ready"


def test_an_unknown_job_is_not_found(app: Face) -> None:
    with pytest.raises(NotFound):
        app.recover(new_id())


def test_the_patience_of_the_app_is_a_setting(open_app, url: str) -> None:
    impatient = open_app(stale_after=5)
    make = Make(impatient)
    claim = make.running(lease=1)
    impatient.age(7)

    assert impatient.recover(claim.job.id).state == "ready"
