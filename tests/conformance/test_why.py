"""Why: one sentence for people, one code for programs."""

import time
from datetime import UTC, timedelta

import psycopg
import pytest

from dibs import NewJob, NotFound
from dibs.jobs.ids import new_id
from dibs.operations import upkeep
from tests.support.faces import Face, Make, open_face
from tests.support.servers import PostgreSQL


def a_worker_is_there(app: Face, *kinds: str) -> None:
    app.ask(lambda: upkeep.tick("pod-a", None, kinds, concurrency=1, running=0))


def test_a_ready_job_waits_for_a_claim(app: Face, make: Make) -> None:
    job = make.ready()
    a_worker_is_there(app, job.kind)

    why = app.why(job.id)

    assert why.code == "ready"
    assert "ready" in str(why)


def test_a_ready_job_where_no_worker_is_says_so_and_how_to_start_one(app: Face, make: Make) -> None:
    why = app.why(make.ready().id)

    assert why.code == "no_worker"
    assert "no worker has been heard of lately" in str(why)
    assert "dibs work MODULE:APP" in str(why)
    assert "claim" in str(why)


def test_a_worker_that_learned_a_kind_since_it_came_knows_it(app: Face, make: Make) -> None:
    a_worker_is_there(app, "old")
    job = make.ready()
    assert app.why(job.id).code == "no_worker"

    a_worker_is_there(app, "old", job.kind)

    assert app.why(job.id).code == "ready"
    assert app.workers()[0].kinds == ["old", job.kind]


def test_a_worker_says_which_dibs_it_runs(app: Face) -> None:
    app.ask(lambda: upkeep.tick("pod-a", None, ["work"], version="0.1", concurrency=1, running=0))
    app.ask(lambda: upkeep.tick("pod-b", None, ["work"], concurrency=1, running=0))
    assert [worker.version for worker in app.workers()] == ["0.1", None]

    app.ask(lambda: upkeep.tick("pod-a", None, ["work"], version="0.2", concurrency=1, running=0))

    assert [worker.version for worker in app.workers()] == ["0.2", None]


def test_a_worker_is_as_busy_as_its_jobs_say(app: Face, make: Make) -> None:
    """Its own report is as old as its last upkeep round."""
    a_worker_is_there(app, "work")
    claims = [make.running(worker="pod-a"), make.running(worker="pod-a", train="north")]
    make.running(worker="pod-b")

    assert [worker.running for worker in app.workers()] == [2]
    claims[0].succeed()
    assert [worker.running for worker in app.workers()] == [1]
    claims[1].succeed()
    assert [worker.running for worker in app.workers()] == [0]


def test_a_worker_that_left_is_none(app: Face, make: Make) -> None:
    job = make.ready()
    a_worker_is_there(app, job.kind)
    app.ask(lambda: upkeep.leave("pod-a"))

    assert app.why(job.id).code == "no_worker"


def test_a_scheduled_job_says_until_when(app: Face, make: Make) -> None:
    job = make.scheduled(delay=7200)

    why = app.why(str(job.id))

    assert why.code == "scheduled"
    assert f"{job.run_at:%Y-%m-%d %H:%M}" in str(why)


def test_a_job_in_its_back_off_says_so(app: Face, make: Make) -> None:
    claim = make.running()
    claim.fail("broken")

    why = app.why(claim.job.id)

    assert why.code == "scheduled"
    assert "attempt 1 of 3" in str(why)


def test_a_running_job_says_where(app: Face, make: Make) -> None:
    why = app.why(make.running(worker="pod-a").job.id)

    assert why.code == "running"
    assert "pod-a" in str(why)


def test_a_running_job_says_until_when_its_lease_holds(app: Face, make: Make) -> None:
    job = make.running(lease=14_400).job

    assert str(app.why(job.id)).endswith("attempt 1 of 3; its lease ends in 4 h unless it is renewed")


@pytest.mark.parametrize(
    ("reason", "said"), [("no longer wanted", "asked to stop (no longer wanted)"), (None, "asked to stop")]
)
def test_a_running_job_that_was_asked_to_stop_says_so(
    app: Face, make: Make, reason: str | None, said: str
) -> None:
    job = make.running(lease=60).job
    app.cancel(job.id, reason=reason)

    assert str(app.why(job.id)).endswith(said)
    app.age(61)
    assert "the next sweep cancels it" in str(app.why(job.id))


def test_a_running_job_that_is_pre_empted_names_the_other(app: Face) -> None:
    [old] = app.enqueue(NewJob("work", slot="s"))
    app.claim_job(old.id)
    [urgent] = app.enqueue(NewJob("work", slot="s", slot_policy="preempt"))

    assert f"asked to stop (pre-empted by {urgent.id})" in str(app.why(old.id))


def test_a_running_job_whose_lease_ran_out_says_so(app: Face, make: Make) -> None:
    job = make.expired().job
    a_worker_is_there(app, job.kind)

    why = app.why(job.id)

    assert why.code == "running"
    assert "lease" in str(why)
    assert "no worker" not in str(why)


def test_an_expired_lease_that_nobody_would_sweep_says_so(app: Face, make: Make) -> None:
    why = app.why(make.expired().job.id)

    assert why.code == "running"
    assert "lease" in str(why)
    assert "no worker has been heard of lately" in str(why)


def test_a_due_job_that_nobody_would_sweep_says_so(app: Face, make: Make) -> None:
    job = make.scheduled(delay=60)
    app.age(120)

    why = app.why(job.id)

    assert why.code == "scheduled"
    assert "no worker has been heard of lately" in str(why)


def test_a_job_of_a_paused_queue_names_the_queue(app: Face, make: Make) -> None:
    job = make.ready(queue="mail")
    app.pause("mail")

    why = app.why(job.id)

    assert why.code == "paused"
    assert "'mail'" in str(why)


def test_a_job_behind_a_limit_says_how_many_run(app: Face, make: Make) -> None:
    app.limit("mail", 1)
    make.running(queue="mail")

    why = app.why(make.ready(queue="mail").id)

    assert why.code == "limit"
    assert str(why) == "the queue 'mail' may run 1 at a time and runs 1 now"


def test_a_limit_with_room_is_no_reason(app: Face, make: Make) -> None:
    app.limit("mail", 2)
    make.running(queue="mail")
    job = make.ready(queue="mail")
    a_worker_is_there(app, job.kind)

    assert app.why(job.id).code == "ready"


@pytest.mark.parametrize(
    ("state", "word"), [("succeeded", "succeeded"), ("failed", "broken"), ("cancelled", "cancelled")]
)
def test_a_finished_job_says_how_it_ended(app: Face, make: Make, state: str, word: str) -> None:
    why = app.why(make.finished(state).id)

    assert why.code == "finished"
    assert word in str(why)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("user_id"), ": KeyError: 'user_id'"),
        (AssertionError(), ": AssertionError"),
        (ValueError("one\n  two\n"), ": ValueError: one two"),
        (ValueError("x" * 500), f": ValueError: {'x' * 188}…"),
    ],
    ids=["named", "without a message", "of two lines", "very long"],
)
def test_a_failed_job_gives_the_error_in_one_sentence(
    app: Face, make: Make, error: Exception, said: str
) -> None:
    claim = make.running(max_attempts=1)
    with pytest.raises(type(error)), claim:
        raise error

    why = app.why(claim.job.id)

    assert str(why).endswith(f" after 1 of 1 attempts{said}")
    assert why.without_errors.endswith(" after 1 of 1 attempts")


def test_a_job_that_was_given_up_early_says_that_it_is_not_tried_again(app: Face, make: Make) -> None:
    claim = make.running(max_attempts=4)
    claim.fail("no such order", retry=False)

    why = app.why(claim.job.id)

    assert " after 1 of 4 attempts, not tried again: " in str(why)
    assert str(why).endswith("no such order")


def test_the_ended_head_of_a_held_train_says_that_the_train_waits_for_it(app: Face) -> None:
    head, _ = app.enqueue(*(NewJob("work", train="t", on_failed="hold") for _ in range(2)))
    app.claim_job(head.id).fail("no", retry=False)

    held = str(app.why(head.id))
    app.trains.release("t")

    assert held.endswith("no; its train 't' waits for it: retry it, or release the train")
    assert str(app.why(head.id)).endswith("no")


def test_an_expired_lease_is_not_swept_by_its_dead_holder(app: Face, make: Make) -> None:
    a_worker_is_there(app, "work")
    job = make.running(worker="pod-a", lease=0.1).job
    time.sleep(0.2)

    assert "no other worker has been heard of lately that would sweep" in str(app.why(job.id))


def test_a_cancelled_job_gives_the_reason(app: Face, make: Make) -> None:
    assert "not needed" in str(app.why(make.cancelled(reason="not needed").id))


@pytest.mark.parametrize("way", ["waiting", "running", "by its handler", "after its worker died"])
def test_a_job_that_was_cancelled_without_a_reason_gives_none(app: Face, make: Make, way: str) -> None:
    claim = make.running(lease=60)
    claim.progress(0.5, "half way")
    match way:
        case "waiting":
            claim.release()
            app.cancel(claim.job.id)
        case "running":
            app.cancel(claim.job.id)
            claim.release()
        case "by its handler":
            claim.cancel()
        case _:
            app.cancel(claim.job.id)
            app.age(61)
            app.sweep()

    why = str(app.why(claim.job.id))

    assert why.startswith("it was cancelled at ")
    assert why.endswith(" UTC")


def test_a_finished_job_of_a_paused_queue_is_finished(app: Face, make: Make) -> None:
    job = make.succeeded(queue="mail")
    app.pause("mail")

    assert app.why(job.id).code == "finished"


def test_a_job_behind_one_that_can_not_start_says_what_keeps_that_one(app: Face) -> None:
    a_worker_is_there(app, "work")
    app.limit("narrow", 0)
    app.pause("shut")
    reasons = {
        "ready: the queue 'shut' is paused; resume it to let its jobs run": {"queue": "shut"},
        "ready: the queue 'narrow' may run 0 at a time and runs 0 now": {"queue": "narrow"},
        "ready: it is ready, but of 1 live worker none knows the kind 'rare'": {"kind": "rare"},
    }

    for number, (reason, options) in enumerate(reasons.items()):
        for gate, code in (({"train": f"t{number}"}, "train"), ({"slot": f"s{number}"}, "slot")):
            first, second = app.enqueue(NewJob(**{"kind": "work", **options, **gate}), NewJob("work", **gate))
            why = app.why(second.id)
            assert (why.code, why.others) == (code, (first.id,))
            assert str(why).endswith(f", which is {reason}")


def test_a_job_behind_a_dead_one_says_that_its_lease_ran_out(app: Face) -> None:
    first, second = app.enqueue(NewJob("work", train="t"), NewJob("work", train="t"))
    app.claim_job(first.id, worker="pod-a", lease=1)
    app.age(31)

    assert "no worker has been heard of lately that would sweep" in str(app.why(second.id))
    a_worker_is_there(app, "work")
    behind = f"it is behind job {first.id} (work) of its train 't', which is running at pod-a"
    assert str(app.why(second.id)) == f"{behind}; its lease ran out 30 s ago, the next sweep takes it back"


def test_a_job_behind_one_that_was_asked_to_stop_says_so(app: Face) -> None:
    [old] = app.enqueue(NewJob("work", slot="s"))
    app.claim_job(old.id, worker="pod-a")
    [urgent] = app.enqueue(NewJob("work", slot="s", slot_policy="preempt"))

    assert str(app.why(urgent.id)).endswith(
        f"which is running at pod-a; it was asked to stop (pre-empted by {urgent.id})"
    )


def test_a_step_after_one_that_waits_says_whom_that_one_waits_for(app: Face) -> None:
    pipeline = app.pipeline("nightly", on_failed="hold")
    steps = [pipeline.add(NewJob("work", max_attempts=1))]
    for _ in range(5):
        steps.append(pipeline.add(NewJob("work"), after=[steps[-1]]))
    pipeline.enqueue()
    app.claim_job(steps[0].id).fail("out of paper")

    why = app.why(steps[2].id)
    assert (why.code, why.others) == ("parent", (steps[1].id, steps[0].id))
    assert str(why).startswith(f"it waits for job {steps[1].id} (work), which is blocked: it waits for job")
    assert str(why).endswith("out of paper; retry that job")
    assert len(app.why(steps[5].id).others) == 4


def test_an_unknown_job_is_not_found(app: Face) -> None:
    with pytest.raises(NotFound, match="no job"):
        app.why(new_id())


def test_moments_are_utc_wherever_the_server_lives(face: str, postgresql: PostgreSQL) -> None:
    url = postgresql.fresh_database()
    with psycopg.connect(url, autocommit=True) as connection:
        name = url.rpartition("/")[2]
        connection.execute(f"alter database {name} set timezone = 'Asia/Tokyo'")
    with open_face(face, url) as app:
        app.migrate()
        job = Make(app).scheduled(delay=7200)

        why = app.why(job.id)

        assert job.run_at.utcoffset() == app.get(job.id).run_at.utcoffset() == timedelta(0)
        assert f"{job.run_at.astimezone(UTC):%Y-%m-%d %H:%M}" in str(why)
