"""Sweep: due jobs become ready, jobs of dead holders come back or end."""

from datetime import timedelta

import pytest

from dibs import NewJob, Swept
from dibs.operations import upkeep
from tests.support.faces import Face, Make


def test_a_sweep_of_nothing_moves_nothing(app: Face, make: Make) -> None:
    make.ready()
    make.scheduled()
    make.running()
    make.succeeded()

    assert app.sweep() == Swept(staged=0, returned=0, failed=0, cancelled=0)


# -- Stage --------------------------------------------------------------------------------------


def test_a_due_job_becomes_ready(app: Face, make: Make) -> None:
    job = make.scheduled(delay=60)
    app.age(61)

    swept = app.sweep()

    assert swept.staged == 1
    assert app.get(job.id).state == "ready"


def test_a_job_not_yet_due_stays_scheduled(app: Face, make: Make) -> None:
    job = make.scheduled(delay=60)
    app.age(50)

    swept = app.sweep()

    assert swept.staged == 0
    assert app.get(job.id).state == "scheduled"


def test_a_staged_job_keeps_the_place_its_run_at_gives_it(app: Face, make: Make) -> None:
    late, early = make.scheduled(delay=60), make.scheduled(delay=30)
    app.age(61)

    app.sweep()

    assert [claim.job.id for claim in app.claim(limit=2)] == [early.id, late.id]


def test_more_than_a_batch_of_due_jobs_is_staged(app: Face) -> None:
    app.enqueue(*(NewJob("work", delay=60) for _ in range(501)))
    app.age(61)

    assert app.sweep().staged == 501
    assert app.counts()["ready"] == 501


def test_a_due_job_of_a_paused_queue_becomes_ready_but_is_not_given(app: Face, make: Make) -> None:
    job = make.scheduled(delay=60, queue="mail")
    app.pause("mail")
    app.age(61)

    app.sweep()

    assert app.get(job.id).state == "ready"
    assert app.claim_job(job.id) is None


# -- Expired leases -----------------------------------------------------------------------------


def test_a_lost_lease_returns_to_ready_at_once_and_keeps_its_attempt(app: Face, make: Make) -> None:
    claim = make.expired()

    swept = app.sweep()

    job = app.get(claim.job.id)
    assert swept.returned == 1
    assert (job.state, job.attempts, job.worker, job.lease_until) == ("ready", 1, None, None)


def test_a_lost_lease_waits_for_no_back_off(app: Face, make: Make) -> None:
    claim = make.expired()
    before = app.get(claim.job.id).run_at

    app.sweep()

    assert app.get(claim.job.id).run_at == before
    assert app.claim_job(claim.job.id).job.attempts == 2


def test_a_lost_lease_leaves_the_error_worker_died(app: Face, make: Make) -> None:
    claim = make.expired(worker="pod-a")
    before = app.now()

    app.sweep()

    [error] = app.get(claim.job.id).errors
    assert (error.message, error.attempt, error.token) == ("worker died", 1, claim.token)
    assert (error.worker, error.traceback) == ("pod-a", None)
    assert before - timedelta(seconds=1) <= error.at <= app.now()
    assert error.at.utcoffset() == timedelta(0)


def test_a_lost_lease_keeps_the_errors_of_before(app: Face, make: Make) -> None:
    claim = make.running()
    claim.fail("broken 'ä' \"quoted\"")
    app.retry(claim.job.id)
    app.claim_job(claim.job.id, lease=0.1)
    app.age(1)

    app.sweep()

    errors = app.get(claim.job.id).errors
    assert [error.message for error in errors] == ["broken 'ä' \"quoted\"", "worker died"]


def test_a_job_that_keeps_killing_its_worker_runs_out_of_attempts(app: Face, make: Make) -> None:
    job = make.ready(max_attempts=2)

    for _ in range(2):
        app.claim_job(job.id, lease=0.1)
        app.age(0.2)
        swept = app.sweep()

    job = app.get(job.id)
    assert swept.failed == 1
    assert (job.state, job.attempts, job.lease_until) == ("failed", 2, None)
    assert [error.message for error in job.errors] == ["worker died", "worker died"]
    assert job.finished_at is not None


def test_a_lease_that_still_holds_is_left_alone(app: Face, make: Make) -> None:
    claim = make.running(lease=60)
    app.age(59)
    before = app.get(claim.job.id)

    app.sweep()

    assert app.get(claim.job.id) == before


def test_a_real_lease_runs_out_by_the_stores_clock(app: Face, make: Make) -> None:
    import time

    claim = make.running(lease=0.1)
    time.sleep(0.15)

    assert app.sweep().returned == 1
    assert app.get(claim.job.id).state == "ready"


def test_a_flagged_job_whose_holder_died_is_cancelled(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel(reason="not needed", lease=0.1)
    app.age(0.2)

    swept = app.sweep()

    job = app.get(claim.job.id)
    assert swept.cancelled == 1
    assert (job.state, job.message) == ("cancelled", "not needed")
    assert job.finished_at is not None


def test_a_flagged_job_without_a_reason_is_cancelled_too(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel(lease=0.1, max_attempts=1)
    app.age(0.2)

    app.sweep()

    assert app.get(claim.job.id).state == "cancelled"


def test_more_than_a_batch_of_lost_leases_comes_back(app: Face) -> None:
    app.enqueue(*(NewJob("work") for _ in range(501)))
    app.claim(limit=501, lease=0.1)
    app.age(0.2)

    assert app.sweep().returned == 501
    assert app.counts()["ready"] == 501


def test_all_kinds_of_upkeep_are_one_round(app: Face, make: Make) -> None:
    make.scheduled(delay=10)
    make.running(lease=5)
    make.running(lease=5, max_attempts=1)
    make.asked_to_cancel(lease=5)
    app.age(11)

    assert app.sweep() == Swept(staged=1, returned=1, failed=1, cancelled=1)
    assert app.sweep() == Swept(staged=0, returned=0, failed=0, cancelled=0)


def test_those_who_sweep_at_once_count_each_job_once(app: Face) -> None:
    app.enqueue(*(NewJob("work") for _ in range(20)))
    app.claim(limit=20, lease=0.1)
    app.age(1)

    answers = app.race(4, "sweep")

    assert sum(swept.returned for swept in answers) == 20
    assert {len(job.errors) for job in app.find()} == {1}


@pytest.mark.parametrize("unique", ["key"])
def test_a_job_failed_by_the_sweep_frees_its_unique_key(app: Face, make: Make, unique: str) -> None:
    make.running(lease=0.1, max_attempts=1, unique=unique)
    app.age(1)
    app.sweep()

    assert make.ready(unique=unique).is_new


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_a_job_that_is_gone_before_its_time_is_not_due(app: Face, verb: str) -> None:
    [job] = app.enqueue(NewJob("work", delay=60))
    getattr(app, verb)(job.id)
    app.age(61)

    due = app.ask(upkeep.upcoming)

    assert (due.overdue, due.seconds) == (False, None)
