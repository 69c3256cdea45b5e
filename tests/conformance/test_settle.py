"""Settle: how a claim ends, and that nobody but its holder can end it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from dibs import BadRequest, LeaseLost, NewJob, Retry
from tests.support.faces import Face, Make, nothing_written
from tests.support.param_names import named

SETTLES: dict[str, Callable[[Any], None]] = {
    "succeed": lambda claim: claim.succeed("again"),
    "fail": lambda claim: claim.fail("again"),
    "fail for good": lambda claim: claim.fail("again", retry=False),
    "snooze": lambda claim: claim.snooze(30),
    "release": lambda claim: claim.release(),
    "cancel": lambda claim: claim.cancel("again"),
}
every_settle = pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES.keys())

ACTS = {
    **SETTLES,
    "renew": lambda claim: claim.renew(),
    "progress": lambda claim: claim.progress(0.9, "mine"),
}
every_act = pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())


# -- Succeed ------------------------------------------------------------------------------------


def test_success_ends_the_job_with_its_result(app: Face, make: Make) -> None:
    claim = make.running()
    before = app.now()

    claim.succeed({"sent": 3})

    job = app.get(claim.job.id)
    assert (job.state, job.result, job.attempts) == ("succeeded", {"sent": 3}, 1)
    assert before <= job.finished_at <= app.now()
    assert job.lease_until is None


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}, "null", 1.5, ["ä", None]], ids=repr)
def test_a_result_comes_back_as_it_was(app: Face, make: Make, result: object) -> None:
    claim = make.running()

    claim.succeed(result)

    found = app.get(claim.job.id).result
    assert (found, type(found)) == (result, type(result))


@pytest.mark.parametrize("result", [object(), float("nan"), "a\x00b", "x" * 2_000_000], ids=type)
def test_a_result_that_can_not_be_stored_is_refused_and_the_job_still_held(
    app: Face, make: Make, result: object
) -> None:
    claim = make.running()

    with pytest.raises(BadRequest, match="result"):
        claim.succeed(result)

    assert app.get(claim.job.id) == claim.job


def test_a_finished_job_remembers_who_did_it(app: Face, make: Make) -> None:
    claim = make.running(worker="pod-a")

    claim.succeed()

    job = app.get(claim.job.id)
    assert (job.worker, job.token, job.claimed_at) == ("pod-a", claim.token, claim.job.claimed_at)


def test_a_success_after_failures_keeps_their_errors(app: Face, make: Make) -> None:
    first = make.running()
    first.fail("broken")
    app.retry(first.job.id)

    app.claim_job(first.job.id).succeed()

    job = app.get(first.job.id)
    assert (job.state, [error.message for error in job.errors]) == ("succeeded", ["broken"])


# -- Fail ---------------------------------------------------------------------------------------


def test_a_failed_attempt_is_tried_again_after_the_back_off(app: Face, make: Make) -> None:
    claim = make.running()
    before = app.now()

    claim.fail("broken")

    job = app.get(claim.job.id)
    assert (job.state, job.attempts, job.worker, job.lease_until) == ("scheduled", 1, None, None)
    assert timedelta(seconds=1.8) <= job.run_at - before <= timedelta(seconds=2.3)


def test_a_failed_attempt_leaves_an_error_that_says_everything(app: Face, make: Make) -> None:
    claim = make.running(worker="pod-a")
    before = app.now()

    claim.fail("broken")

    [error] = app.get(claim.job.id).errors
    assert (error.attempt, error.token, error.worker) == (1, claim.token, "pod-a")
    assert (error.message, error.traceback) == ("broken", None)
    assert abs(error.at - before) < timedelta(seconds=1)
    assert error.at.utcoffset() == timedelta(0)


def test_an_exception_leaves_its_type_and_traceback(app: Face, make: Make) -> None:
    claim = make.running()

    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        claim.fail(error)

    [error] = app.get(claim.job.id).errors
    assert (error.type, error.message) == ("ZeroDivisionError", "by zero")
    assert "test_settle.py" in error.traceback


def test_the_back_off_grows_with_the_attempts(app: Face, make: Make) -> None:
    app.job(name="send", retry=Retry.exponential(base=3, cap=20, jitter=0))(lambda: None)
    job, pauses = make.ready("send", max_attempts=9), []

    for _ in range(4):
        claim = app.claim_job(job.id)
        before = app.now()
        claim.fail("broken")
        pauses.append((app.get(job.id).run_at - before).total_seconds())
        app.retry(job.id)

    assert [round(pause) for pause in pauses] == [3, 9, 20, 20]


def test_a_pause_of_nothing_makes_the_job_ready_at_once(app: Face, make: Make) -> None:
    app.job(name="send", retry=Retry.fixed(0))(lambda: None)
    claim = make.running("send")

    claim.fail("broken")

    assert app.get(claim.job.id).state == "ready"


def test_the_last_attempt_fails_the_job(app: Face, make: Make) -> None:
    claim = make.running(max_attempts=1)
    before = app.now()

    claim.fail("broken")

    job = app.get(claim.job.id)
    assert (job.state, job.attempts, job.errors[-1].message) == ("failed", 1, "broken")
    assert before <= job.finished_at <= app.now()


def test_every_failed_attempt_leaves_one_error(app: Face, make: Make) -> None:
    job = make.ready(max_attempts=3)

    for attempt in range(3):
        app.claim_job(job.id).fail(f"broken {attempt}")
        app.age(3600)

    errors = app.get(job.id).errors
    assert [(error.attempt, error.message) for error in errors] == [
        (1, "broken 0"),
        (2, "broken 1"),
        (3, "broken 2"),
    ]
    assert app.get(job.id).state == "failed"


def test_a_failure_that_no_retry_can_mend_ends_the_job(app: Face, make: Make) -> None:
    claim = make.running(max_attempts=9)

    claim.fail("broken", retry=False)

    assert app.get(claim.job.id).state == "failed"


def test_a_kind_that_never_retries_ends_with_its_first_failure(app: Face, make: Make) -> None:
    app.job(name="send", retry=Retry.never())(lambda: None)
    claim = make.running("send")

    claim.fail("broken")

    assert app.get(claim.job.id).state == "failed"


@pytest.mark.parametrize("reason", [None, 5, ["x"]], ids=repr)
def test_a_reason_that_is_no_text_is_refused(app: Face, make: Make, reason: object) -> None:
    claim = make.running()

    with pytest.raises(BadRequest, match="reason"):
        claim.fail(reason)

    assert app.get(claim.job.id) == claim.job


@pytest.mark.parametrize("reason", ["", "a\x00b", "lone \ud800", "x" * 100_000, "🦊'\"\\"], ids=len)
def test_any_text_can_be_a_reason(app: Face, make: Make, reason: str) -> None:
    claim = make.running()

    claim.fail(reason)

    [error] = app.get(claim.job.id).errors
    assert len(error.message) < 5_000


# -- Snooze, release, cancel --------------------------------------------------------------------


def test_snooze_puts_the_job_off_and_gives_the_attempt_back(app: Face, make: Make) -> None:
    claim = make.running()
    before = app.now()

    claim.snooze(30)

    job = app.get(claim.job.id)
    assert (job.state, job.attempts, job.worker, job.lease_until) == ("scheduled", 0, None, None)
    assert timedelta(seconds=30) <= job.run_at - before < timedelta(seconds=31)
    assert job.errors == []


def test_a_snooze_may_be_a_timedelta(app: Face, make: Make) -> None:
    claim = make.running()
    before = app.now()

    claim.snooze(timedelta(minutes=1))

    assert app.get(claim.job.id).run_at - before >= timedelta(minutes=1)


def test_a_snooze_of_nothing_is_ready_at_once(app: Face, make: Make) -> None:
    claim = make.running()

    claim.snooze(0)

    assert app.get(claim.job.id).state == "ready"


@pytest.mark.parametrize("delay", [-1, "soon", None, float("nan"), float("inf")], ids=repr)
def test_a_snooze_that_is_no_time_span_is_refused(app: Face, make: Make, delay: object) -> None:
    claim = make.running()

    with pytest.raises(BadRequest, match="snooze"):
        claim.snooze(delay)

    assert app.get(claim.job.id) == claim.job


def test_release_gives_the_job_back_as_if_never_claimed(app: Face, make: Make) -> None:
    claim = make.running()

    claim.release()

    job = app.get(claim.job.id)
    assert (job.state, job.attempts, job.worker, job.lease_until) == ("ready", 0, None, None)
    assert (job.run_at, job.errors) == (claim.job.run_at, [])


def test_a_released_job_goes_first_again(app: Face, make: Make) -> None:
    first = make.ready()
    make.ready()
    app.claim_job(first.id).release()

    assert app.claim()[0].job.id == first.id


def test_released_and_snoozed_attempts_are_never_used_up(app: Face, make: Make) -> None:
    job = make.ready(max_attempts=1)

    for _ in range(3):
        app.claim_job(job.id).release()
        app.claim_job(job.id).snooze(0)
    app.claim_job(job.id).succeed()

    assert app.get(job.id).state == "succeeded"


def test_cancel_by_the_holder_ends_the_job_with_the_reason(app: Face, make: Make) -> None:
    claim = make.running()

    claim.cancel("not needed")

    job = app.get(claim.job.id)
    assert (job.state, job.message, job.lease_until) == ("cancelled", "not needed", None)
    assert job.finished_at is not None


def test_cancel_by_the_holder_needs_no_reason(app: Face, make: Make) -> None:
    claim = make.running()

    claim.cancel()

    assert app.get(claim.job.id).state == "cancelled"


@pytest.mark.parametrize("reason", ["a\x00b", "\ud800", 5], ids=repr)
def test_a_reason_to_cancel_that_can_not_be_stored_is_refused(app: Face, make: Make, reason: object) -> None:
    claim = make.running()

    with pytest.raises(BadRequest, match="reason"):
        claim.cancel(reason)

    assert app.get(claim.job.id) == claim.job


# -- Late, twice, and lost ----------------------------------------------------------------------


@every_settle
def test_a_settle_after_the_lease_counts_while_nobody_swept(
    app: Face, make: Make, settle: Callable[[Any], None]
) -> None:
    claim = make.expired()

    settle(claim)

    assert app.get(claim.job.id).state != "running"


@every_settle
def test_the_winning_settle_repeated_is_a_success_and_changes_nothing(
    app: Face, make: Make, settle: Callable[[Any], None]
) -> None:
    claim = make.running()
    settle(claim)

    with nothing_written(app):
        settle(claim)


@pytest.mark.parametrize("first", SETTLES)
def test_any_other_settle_after_the_first_is_refused_and_changes_nothing(
    app: Face, make: Make, first: str
) -> None:
    claim = make.running()
    SETTLES[first](claim)

    for then in SETTLES.keys() - {first}:
        with nothing_written(app), pytest.raises(LeaseLost, match=str(claim.job.id)):
            SETTLES[then](claim)


@every_act
def test_a_zombie_changes_nothing_once_another_holds_the_job(
    app: Face, make: Make, act: Callable[[Any], None]
) -> None:
    zombie = make.expired()
    app.sweep()
    holder = app.claim_job(zombie.job.id, worker="successor")

    with nothing_written(app), pytest.raises(LeaseLost, match="nothing was changed"):
        act(zombie)

    holder.succeed("mine")
    assert app.get(zombie.job.id).result == "mine"


@every_act
def test_a_zombie_changes_nothing_once_it_was_swept(
    app: Face, make: Make, act: Callable[[Any], None]
) -> None:
    zombie = make.expired()
    app.sweep()

    with nothing_written(app), pytest.raises(LeaseLost):
        act(zombie)


@every_act
def test_a_zombie_changes_nothing_once_another_finished_the_job(
    app: Face, make: Make, act: Callable[[Any], None]
) -> None:
    zombie = make.expired()
    app.sweep()
    app.claim_job(zombie.job.id).succeed("mine")

    with nothing_written(app), pytest.raises(LeaseLost):
        act(zombie)


@every_act
def test_a_zombie_changes_nothing_once_the_job_was_deleted(
    app: Face, make: Make, act: Callable[[Any], None]
) -> None:
    zombie = make.expired()
    app.sweep()
    app.delete(zombie.job.id)

    with nothing_written(app), pytest.raises(LeaseLost):
        act(zombie)


def test_a_zombie_leaves_no_children(app: Face, make: Make) -> None:
    zombie = make.expired()
    app.sweep()

    with nothing_written(app), pytest.raises(LeaseLost):
        zombie.succeed(then=[NewJob("child")])


# -- Children -----------------------------------------------------------------------------------


def test_children_appear_with_success(app: Face, make: Make) -> None:
    claim = make.running()
    child, later = NewJob("audit", args={"n": 1}, queue="slow"), NewJob("audit", delay=60)

    claim.succeed("done", then=[child, later])

    first, second = app.get(child.id), app.get(later.id)
    assert (first.state, first.args, first.queue) == ("ready", {"n": 1}, "slow")
    assert second.state == "scheduled"
    assert first.parent_id == second.parent_id == claim.job.id


def test_chaining_from_a_job_without_a_pipeline_starts_one(app: Face, make: Make) -> None:
    claim = make.running()
    child = NewJob("audit")

    claim.succeed(then=[child])

    assert app.get(child.id).pipeline_id == app.get(claim.job.id).pipeline_id == claim.job.id


def test_children_of_one_success_go_in_their_order(app: Face, make: Make) -> None:
    children = [
        NewJob("child", unique="one"),
        NewJob("child"),
        NewJob("child", slot="desk"),
        NewJob("child", train="north"),
        NewJob("child"),
    ]

    make.running().succeed(then=children)

    assert [claim.job.id for claim in app.claim(limit=5)] == [child.id for child in children]


def test_children_inherit_the_pipeline(app: Face, make: Make) -> None:
    root = make.running()
    child, grandchild = NewJob("audit"), NewJob("report")
    root.succeed(then=[child])

    app.claim_job(child.id).succeed(then=[grandchild])

    job = app.get(grandchild.id)
    assert (job.pipeline_id, job.parent_id) == (root.job.id, child.id)


def test_a_success_without_children_starts_no_pipeline(app: Face, make: Make) -> None:
    assert make.succeeded().pipeline_id is None


def test_a_refused_child_keeps_the_job_held(app: Face, make: Make) -> None:
    claim = make.running()

    with nothing_written(app), pytest.raises(BadRequest):
        claim.succeed(then=[NewJob("good"), NewJob("bad", args={"x": float("nan")})])

    claim.succeed()


@pytest.mark.parametrize("child", ["audit", None, {"kind": "audit"}], ids=repr)
def test_a_child_that_is_no_job_is_refused(app: Face, make: Make, child: object) -> None:
    claim = make.running()

    with nothing_written(app), pytest.raises(BadRequest):
        claim.succeed(then=[child])


@pytest.mark.parametrize("then", [5, None, "child", {"kind": "child"}], ids=named)
def test_follow_up_jobs_that_are_no_list_are_refused(app: Face, make: Make, then: Any) -> None:
    claim = make.running()

    with nothing_written(app), pytest.raises(BadRequest, match="then="):
        claim.succeed(then=then)


def test_a_single_follow_up_job_need_not_be_in_a_list(app: Face, make: Make) -> None:
    claim, child = make.running(), NewJob("child")

    claim.succeed(then=child)

    assert app.get(child.id).parent_id == claim.job.id


def test_a_repeated_success_stores_its_children_once(app: Face, make: Make) -> None:
    claim = make.running()
    child = NewJob("audit")
    claim.succeed(then=[child])

    claim.succeed(then=[child])

    assert app.counts()["ready"] == 1


def test_a_repeated_success_with_children_that_it_had_not_is_refused(app: Face, make: Make) -> None:
    claim, first, second = make.running(), NewJob("audit"), NewJob("audit")
    claim.succeed("done", then=[first])

    with nothing_written(app), pytest.raises(LeaseLost, match="enqueue them on their own"):
        claim.succeed("done", then=[first, second])
    claim.succeed("done", then=[first])
    claim.succeed("done")

    assert [job.id for job in app.find(kind="audit")] == [first.id]


def test_a_repeated_success_brings_no_finished_child_back(app: Face, make: Make) -> None:
    claim = make.running()
    child = NewJob("audit")
    claim.succeed(then=[child])
    app.claim_job(child.id).succeed()

    claim.succeed(then=[child])

    assert app.get(child.id).state == "succeeded"
    assert app.counts()["ready"] == 0


def test_a_child_whose_unique_key_is_taken_is_not_added(app: Face, make: Make) -> None:
    make.ready(unique="audit")
    claim = make.running()

    claim.succeed(then=[NewJob("audit", unique="audit"), NewJob("other")])

    assert app.counts()["ready"] == 2
    assert app.get(claim.job.id).state == "succeeded"


def test_children_of_one_parent_may_share_a_unique_key(app: Face, make: Make) -> None:
    claim = make.running()

    claim.succeed(then=[NewJob("audit", unique="k"), NewJob("audit", unique="k")])

    assert app.counts()["ready"] == 1


def test_a_child_may_take_the_unique_key_of_its_parent(app: Face, make: Make) -> None:
    claim = make.running(unique="key")
    child = NewJob("next", unique="key")

    claim.succeed(then=[child])

    assert app.get(child.id).state == "ready"
