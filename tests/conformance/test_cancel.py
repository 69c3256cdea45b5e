"""Cancel: a waiting job ends, a running one is asked to stop, a finished one stays."""

import pytest

from dibs import BadRequest, LeaseLost, NewJob, NotFound, Refused
from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make, nothing_written


@pytest.mark.parametrize("delay", [0, 3600])
def test_a_waiting_job_ends_at_once(app: Face, make: Make, delay: int) -> None:
    job = make.ready(delay=delay)

    answer = app.cancel(job.id, "not needed")

    assert (answer.state, answer.message) == ("cancelled", "not needed")
    assert answer.finished_at is not None
    assert answer == app.get(job.id)


def test_a_cancelled_job_is_never_claimed(app: Face, make: Make) -> None:
    job = make.ready()
    app.cancel(job.id)

    assert app.claim(limit=10) == []
    assert app.claim_job(job.id) is None


def test_a_cancelled_job_is_never_staged(app: Face, make: Make) -> None:
    job = make.scheduled(delay=60)
    app.cancel(job.id)
    app.age(61)

    assert app.sweep().staged == 0
    assert app.get(job.id).state == "cancelled"


def test_no_reason_is_needed(app: Face, make: Make) -> None:
    job = make.ready()

    assert app.cancel(str(job.id)).message is None


def test_a_running_job_is_only_flagged(app: Face, make: Make) -> None:
    claim = make.running()

    answer = app.cancel(claim.job.id, "not needed")

    assert (answer.state, answer.token) == ("running", claim.token)


def test_a_success_that_comes_first_wins(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel(reason="not needed")

    claim.succeed("done", then=[NewJob("child")])

    job = app.get(claim.job.id)
    assert (job.state, job.result, job.message) == ("succeeded", "done", None)
    assert app.counts()["ready"] == 1


def test_a_final_failure_of_a_flagged_job_stays_a_failure(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel(max_attempts=1)

    claim.fail("broken")

    assert app.get(claim.job.id).state == "failed"


@pytest.mark.parametrize(
    "settle",
    [
        lambda claim: claim.release(),
        lambda claim: claim.fail("broken"),
        lambda claim: claim.snooze(30),
        lambda claim: claim.cancel(),
    ],
    ids=["release", "fail", "snooze", "cancel"],
)
def test_a_flagged_job_never_goes_back_to_waiting(app: Face, make: Make, settle: object) -> None:
    claim = make.asked_to_cancel(reason="not needed")

    settle(claim)  # type: ignore[operator]

    job = app.get(claim.job.id)
    assert (job.state, job.message, job.lease_until) == ("cancelled", "not needed", None)
    assert job.finished_at is not None


def test_a_flagged_job_that_failed_keeps_the_error(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel()

    claim.fail("broken")

    assert [error.message for error in app.get(claim.job.id).errors] == ["broken"]


def test_the_holders_own_reason_beats_the_one_it_was_asked_with(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel(reason="not needed")

    claim.cancel("stopped halfway")

    assert app.get(claim.job.id).message == "stopped halfway"


def test_a_settle_of_a_flagged_job_repeated_is_a_success(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel()
    claim.release()

    with nothing_written(app):
        claim.release()
    with nothing_written(app), pytest.raises(LeaseLost):
        claim.succeed()


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_is_refused_and_unchanged(app: Face, make: Make, state: str) -> None:
    job = make.finished(state)

    with nothing_written(app), pytest.raises(Refused, match=str(job.id)):
        app.cancel(job.id)


def test_an_unknown_job_is_not_found(app: Face) -> None:
    with pytest.raises(NotFound):
        app.cancel(new_id())


@pytest.mark.parametrize("reason", ["a\x00b", "\ud800", 5], ids=repr)
def test_a_reason_that_can_not_be_stored_is_refused(app: Face, make: Make, reason: object) -> None:
    job = make.ready()

    with nothing_written(app), pytest.raises(BadRequest, match="reason"):
        app.cancel(job.id, reason)


def test_a_cancelled_job_frees_its_unique_key(app: Face, make: Make) -> None:
    make.cancelled(unique="key")

    assert make.ready(unique="key").is_new


def test_a_flagged_job_keeps_its_unique_key_until_it_ends(app: Face, make: Make) -> None:
    claim = make.asked_to_cancel(unique="key")

    assert make.ready(unique="key").id == claim.job.id


# -- Many ---------------------------------------------------------------------------------------


def test_all_that_match_are_cancelled(app: Face, make: Make) -> None:
    ready, scheduled = make.ready(queue="mail"), make.scheduled(queue="mail")
    running, other = make.running(queue="mail"), make.ready(queue="other")

    changed = app.cancel_many(queue="mail")

    assert changed == 3
    assert [app.get(job.id).state for job in (ready, scheduled, other)] == ["cancelled", "cancelled", "ready"]
    running.renew()
    assert running.cancel_reason is not None


def test_many_are_cancelled_for_one_reason(app: Face, make: Make) -> None:
    waiting, running = make.ready(queue="mail"), make.running(queue="mail")

    app.cancel_many(queue="mail", reason="the shop is closed")

    assert app.get(waiting.id).message == "the shop is closed"
    running.renew()
    assert running.cancel_reason == "the shop is closed"


def test_cancelling_many_leaves_the_finished_alone(app: Face, make: Make) -> None:
    for state in ("succeeded", "failed", "cancelled"):
        make.finished(state)

    with nothing_written(app):
        assert app.cancel_many() == 0


def test_cancelling_many_heeds_every_filter(app: Face, make: Make) -> None:
    wanted = make.ready("send", queue="mail", tags=["a", "b"])
    make.ready("send", queue="mail", tags=["a"])
    make.ready("other", queue="mail", tags=["a", "b"])
    make.scheduled("send", queue="mail", tags=["a", "b"])

    changed = app.cancel_many(queue="mail", kind="send", tags=["a", "b"], state="ready")

    assert changed == 1
    assert app.get(wanted.id).state == "cancelled"


def test_more_than_a_page_is_cancelled(app: Face) -> None:
    app.enqueue(*(NewJob("work") for _ in range(501)))

    assert app.cancel_many(kind="work") == 501
    assert app.counts()["cancelled"] == 501


@pytest.mark.parametrize("filter", [{"colour": "red"}, {"state": "tired"}, {"limit": 5}], ids=repr)
def test_a_filter_that_does_not_exist_is_refused(app: Face, make: Make, filter: dict) -> None:
    make.ready()

    with nothing_written(app), pytest.raises(BadRequest):
        app.cancel_many(**filter)
