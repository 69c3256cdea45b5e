"""Retry: a person lets a job run again."""

import pytest

from dibs import NewJob, NotFound, Refused
from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make, nothing_written


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_failed_or_cancelled_job_waits_again_with_a_fresh_budget(app: Face, make: Make, state: str) -> None:
    job = make.finished(state, priority=5, tags=["a"], meta={"m": 1}, args={"n": 1})
    before = app.now()

    answer = app.retry(job.id)

    assert (answer.state, answer.attempts) == ("ready", 0)
    assert (answer.finished_at, answer.worker, answer.lease_until) == (None, None, None)
    assert before <= answer.run_at <= app.now()
    assert (answer.priority, answer.tags, answer.meta, answer.args) == (5, ["a"], {"m": 1}, {"n": 1})
    assert answer == app.get(job.id)


def test_the_errors_are_kept(app: Face, make: Make) -> None:
    job = make.failed(reason="broken")

    app.retry(job.id)

    assert [error.message for error in app.get(job.id).errors] == ["broken"]


def test_a_retried_job_can_be_claimed_and_finished(app: Face, make: Make) -> None:
    job = make.failed()
    app.retry(job.id)

    claim = app.claim_job(job.id)
    claim.succeed("done")

    assert claim.job.attempts == 1
    assert app.get(job.id).result == "done"


def test_what_the_earlier_life_left_is_gone(app: Face, make: Make) -> None:
    claim = make.running()
    claim.progress(0.5, "half")
    claim.cancel("why")

    answer = app.retry(claim.job.id)

    assert (answer.progress, answer.message, answer.result) == (0, None, None)


def test_the_cancel_that_was_asked_for_is_forgotten(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel()
    claim.release()
    app.retry(claim.job.id)

    app.claim_job(claim.job.id).release()

    assert app.get(claim.job.id).state == "ready"


def test_a_retried_job_counts_once(app: Face, make: Make) -> None:
    job = make.failed()

    app.retry(job.id)

    assert app.counts()["ready"] == sum(app.counts().values()) == 1


def test_a_scheduled_job_is_due_now(app: Face, make: Make) -> None:
    job = make.scheduled()
    before = app.now()

    answer = app.retry(job.id)

    assert answer.state == "ready"
    assert before <= answer.run_at <= app.now()


def test_a_job_in_its_back_off_is_due_now_with_its_attempts(app: Face, make: Make) -> None:
    claim = make.running()
    claim.fail("broken")

    answer = app.retry(claim.job.id)

    assert (answer.state, answer.attempts) == ("ready", 1)


def test_a_ready_job_stays_ready(app: Face, make: Make) -> None:
    job = make.ready()

    assert app.retry(job.id).state == "ready"


def test_a_running_job_is_refused(app: Face, make: Make) -> None:
    claim = make.running()

    with nothing_written(app), pytest.raises(Refused, match="running"):
        app.retry(claim.job.id)


def test_a_succeeded_job_is_refused(app: Face, make: Make) -> None:
    job = make.succeeded()

    with nothing_written(app), pytest.raises(Refused, match="succeeded"):
        app.retry(job.id)


def test_a_job_whose_unique_key_is_taken_is_refused(app: Face, make: Make) -> None:
    job = make.failed(unique="key")
    make.ready(unique="key")

    with nothing_written(app), pytest.raises(Refused, match="key"):
        app.retry(job.id)


def test_a_job_whose_unique_key_a_finished_one_keeps_for_a_time_is_refused(app: Face, make: Make) -> None:
    job = make.failed(unique="key")
    keeper = make.succeeded(unique="key", unique_for=60)

    with nothing_written(app), pytest.raises(Refused, match="key"):
        app.retry(job.id)
    assert app.retry_many(state="failed") == 0
    assert make.ready(unique="key").id == keeper.id

    app.age(61)
    assert app.retry(job.id).state == "ready"


def test_a_job_that_keeps_its_own_unique_key_for_a_time_is_retried(app: Face, make: Make) -> None:
    earlier = make.failed(unique="key")
    job = make.failed(unique="key", unique_for=60)

    assert app.retry_many(state="failed") == 1

    assert [app.get(one.id).state for one in (earlier, job)] == ["failed", "ready"]
    assert make.ready(unique="key").id == job.id


def test_a_job_whose_unique_key_is_free_again_is_retried(app: Face, make: Make) -> None:
    job = make.failed(unique="key")
    app.cancel(make.ready(unique="key").id)

    assert app.retry(job.id).state == "ready"
    assert make.ready(unique="key").id == job.id


def test_an_unknown_job_is_not_found(app: Face) -> None:
    with pytest.raises(NotFound):
        app.retry(new_id())


def test_those_who_retry_at_once_all_see_one_job(app: Face, make: Make) -> None:
    job = make.failed()

    answers = app.race(4, "retry", job.id)

    assert {answer.state for answer in answers} == {"ready"}
    assert sum(app.counts().values()) == 1


def test_the_old_claim_of_a_retried_job_is_lost(app: Face, make: Make) -> None:
    claim = make.running()
    claim.fail("broken", retry=False)
    app.retry(claim.job.id)
    app.claim_job(claim.job.id)

    from dibs import LeaseLost

    with nothing_written(app), pytest.raises(LeaseLost):
        claim.succeed()


# -- Many ---------------------------------------------------------------------------------------


def test_all_that_match_are_retried(app: Face, make: Make) -> None:
    failed, cancelled = make.failed(queue="mail"), make.cancelled(queue="mail")
    scheduled, other = make.scheduled(queue="mail"), make.failed(queue="other")

    changed = app.retry_many(queue="mail")

    assert changed == 3
    assert {app.get(job.id).state for job in (failed, cancelled, scheduled)} == {"ready"}
    assert app.get(other.id).state == "failed"


def test_retrying_many_heeds_the_state(app: Face, make: Make) -> None:
    failed, cancelled = make.failed(), make.cancelled()

    changed = app.retry_many(state="failed")

    assert changed == 1
    assert [app.get(job.id).state for job in (failed, cancelled)] == ["ready", "cancelled"]


def test_retrying_many_leaves_out_what_may_not_be_retried(app: Face, make: Make) -> None:
    make.succeeded()
    make.running()
    make.failed(unique="key")
    make.ready(unique="key")

    with nothing_written(app):
        assert app.retry_many() == 0


def test_of_many_with_one_unique_key_one_is_retried(app: Face, make: Make) -> None:
    for _ in range(3):
        make.failed(unique="key")

    changed = app.retry_many(state="failed")

    assert changed == 1
    assert (app.counts()["ready"], app.counts()["failed"]) == (1, 2)


def test_more_than_a_page_is_retried(app: Face) -> None:
    app.enqueue(*(NewJob("work") for _ in range(501)))
    app.cancel_many()

    assert app.retry_many() == 501
    assert app.counts()["ready"] == 501
