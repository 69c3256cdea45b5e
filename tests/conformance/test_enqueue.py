"""Enqueue: what goes in comes out, all or none, once per id."""

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from uuid import uuid4

import pytest

from dibs import BadRequest, JobState, NewJob
from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make, nothing_written
from tests.support.param_names import named


def test_an_enqueued_job_is_ready_and_new(app: Face) -> None:
    [job] = app.enqueue(NewJob("send", args={"order": 3}))

    assert job.state == JobState.ready == "ready"
    assert job.is_new
    assert (job.kind, job.queue, job.args) == ("send", "default", {"order": 3})


def test_a_new_job_has_the_documented_defaults(app: Face) -> None:
    [job] = app.enqueue(NewJob("send"))

    assert (job.priority, job.attempts, job.max_attempts) == (0, 0, 3)
    assert (job.args, job.tags, job.meta, job.errors) == ({}, [], {}, [])
    assert (job.worker, job.token, job.lease_until, job.claimed_at, job.finished_at) == (None,) * 5
    assert (job.train, job.slot, job.unique, job.pipeline_id, job.parent_id) == (None,) * 5
    assert (job.progress, job.message, job.result, job.is_current) == (0, None, None, False)


def test_what_enqueue_answers_is_what_the_store_has(app: Face) -> None:
    [job] = app.enqueue(
        NewJob(
            "send",
            args={"order": 3, "to": ["a", None, 1.5, True]},
            queue="mail",
            priority=7,
            max_attempts=5,
            unique="order-3",
            pipeline_id=new_id(),
            tags=["red", "blue"],
            meta={"by": {"name": "ann"}},
            delay=60,
        )
    )

    stored = app.get(job.id)

    assert stored == _not_new(job)


def test_every_option_of_a_new_job_is_stored(app: Face) -> None:
    pipeline = new_id()

    [new] = app.enqueue(
        NewJob(
            "send",
            queue="mail",
            priority=-5,
            max_attempts=9,
            unique="k",
            pipeline_id=str(pipeline),
            tags=["red", "blue"],
            meta={"a": [1]},
        )
    )
    job = app.get(new.id)

    assert (job.queue, job.priority, job.max_attempts, job.unique) == ("mail", -5, 9, "k")
    assert (job.pipeline_id, job.tags, job.meta) == (pipeline, ["red", "blue"], {"a": [1]})


def test_times_are_the_stores_and_have_a_zone(app: Face) -> None:
    before = app.now()

    [job] = app.enqueue(NewJob("send"))

    assert before <= job.enqueued_at <= app.now()
    assert job.run_at == job.enqueued_at
    assert job.run_at.utcoffset() == timedelta(0)


def test_a_delayed_job_is_scheduled_by_the_stores_clock(app: Face) -> None:
    [job] = app.enqueue(NewJob("send", delay=60))

    assert job.state == "scheduled"
    assert job.run_at - job.enqueued_at == timedelta(seconds=60)


def test_a_delay_may_be_a_timedelta(app: Face) -> None:
    [job] = app.enqueue(NewJob("send", delay=timedelta(minutes=2)))

    assert job.run_at - job.enqueued_at == timedelta(minutes=2)


def test_no_delay_at_all_means_now(app: Face) -> None:
    [job] = app.enqueue(NewJob("send", delay=0))

    assert job.state == "ready"


def test_a_job_for_a_moment_to_come_is_scheduled(app: Face) -> None:
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)

    [job] = app.enqueue(NewJob("send", run_at=tomorrow))

    assert (job.state, job.run_at) == ("scheduled", tomorrow)
    assert app.get(job.id).run_at == tomorrow


def test_a_job_for_a_moment_that_passed_is_ready(app: Face) -> None:
    yesterday = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)

    [job] = app.enqueue(NewJob("send", run_at=yesterday))

    assert (job.state, job.run_at) == ("ready", yesterday)


def test_a_moment_may_have_any_zone(app: Face) -> None:
    there = datetime(2040, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    [job] = app.enqueue(NewJob("send", run_at=there))

    assert app.get(job.id).run_at == there


@pytest.mark.parametrize(
    "far",
    [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9998, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-12))),
    ],
)
def test_a_moment_may_be_very_far_away(app: Face, far: datetime) -> None:
    [job] = app.enqueue(NewJob("send", run_at=far))

    assert app.get(job.id).run_at == job.run_at == far


def test_many_jobs_are_answered_in_the_order_given(app: Face) -> None:
    new = [NewJob("send", args={"n": n}, unique="k" if n == 1 else None) for n in range(4)]

    jobs = app.enqueue(*new)

    assert [job.id for job in jobs] == [one.id for one in new]
    assert [job.args["n"] for job in jobs] == [0, 1, 2, 3]


def test_enqueueing_nothing_answers_nothing(app: Face) -> None:
    assert app.enqueue() == []


def test_one_bad_job_keeps_all_the_others_out(app: Face) -> None:
    with nothing_written(app), pytest.raises(BadRequest):
        app.enqueue(NewJob("good"), NewJob("bad", args={"x": object()}), NewJob("good"))


def test_a_refused_batch_can_be_enqueued_once_mended(app: Face) -> None:
    good = NewJob("good")
    with pytest.raises(BadRequest):
        app.enqueue(good, NewJob(""))

    [job] = app.enqueue(good)

    assert job.is_new


@pytest.mark.parametrize("options", [{}, {"delay": 60}, {"priority": 3}], ids=named)
def test_a_thousand_jobs_go_in_at_once(app: Face, options: dict[str, object]) -> None:
    new = [NewJob("send", args={"n": n}, tags=["t"], meta={"m": "ä\t\\N"}, **options) for n in range(1000)]

    jobs = app.enqueue(*new)

    assert [job.id for job in jobs] == [one.id for one in new]
    assert all(job.is_new for job in jobs)
    assert sum(app.counts().values()) == 1000
    assert app.get(new[500].id) == _not_new(jobs[500])


def test_a_thousand_jobs_again_store_nothing_new(app: Face) -> None:
    new = [NewJob("send") for _ in range(1000)]
    app.enqueue(*new)

    jobs = app.enqueue(*new)

    assert not any(job.is_new for job in jobs)
    assert app.counts()["ready"] == 1000


def test_the_same_job_again_stores_nothing_new_while_it_waits(app: Face) -> None:
    new = NewJob("send", args={"n": 1})
    app.enqueue(new)

    [again] = app.enqueue(new)

    assert (again.id, again.is_new) == (new.id, False)
    assert app.counts()["ready"] == 1


def test_the_same_job_again_stores_nothing_new_while_it_runs(app: Face) -> None:
    new = NewJob("send")
    app.enqueue(new)
    claim = app.claim_job(new.id)

    [again] = app.enqueue(new)

    assert (again.state, again.token, again.is_new) == ("running", claim.token, False)
    assert sum(app.counts().values()) == 1


@pytest.mark.parametrize("unique", [None, "key"])
def test_the_same_job_again_stores_nothing_new_when_it_has_finished(app: Face, unique: str | None) -> None:
    new = NewJob("send", unique=unique)
    app.enqueue(new)
    app.claim_job(new.id).succeed("done")

    [again] = app.enqueue(new)

    assert (again.state, again.result, again.is_new) == ("succeeded", "done", False)
    assert sum(app.counts().values()) == 1


def test_the_same_job_twice_in_one_call_is_stored_once(app: Face) -> None:
    new = NewJob("send")

    first, second = app.enqueue(new, new)

    assert first.id == second.id == new.id
    assert app.counts()["ready"] == 1


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda new: pickle.loads(pickle.dumps(new))], ids=named
)
def test_a_copy_of_a_new_job_is_the_same_job(app: Face, copied: object) -> None:
    new = NewJob("send", args={"n": 1}, tags=["a"])
    twin = copied(new)  # type: ignore[operator]
    app.enqueue(new)

    [again] = app.enqueue(twin)

    assert (again.id, again.is_new) == (new.id, False)


def test_new_and_known_jobs_mix_in_one_call(app: Face) -> None:
    known, done = NewJob("send"), NewJob("send")
    app.enqueue(known, done)
    app.claim_job(done.id).succeed()

    jobs = app.enqueue(known, fresh := NewJob("send"), done)

    assert [job.id for job in jobs] == [known.id, fresh.id, done.id]
    assert [job.is_new for job in jobs] == [False, True, False]
    assert sum(app.counts().values()) == 3


def test_a_pruned_job_may_be_enqueued_again(app: Face) -> None:
    new = NewJob("send")
    app.enqueue(new)
    app.claim_job(new.id).succeed()
    app.delete(new.id)

    [again] = app.enqueue(new)

    assert again.is_new
    assert app.get(new.id).state == "ready"


def test_a_new_job_keeps_its_id_from_the_start(app: Face) -> None:
    new = NewJob("send")

    [job] = app.enqueue(new)

    assert job.id == new.id
    assert new.id.version == 7


def test_ids_made_one_after_the_other_increase(app: Face) -> None:
    ids = [app.enqueue(NewJob("send"))[0].id for _ in range(5)]

    assert ids == sorted(set(ids))


def test_an_id_that_is_no_uuid7_is_refused(app: Face) -> None:
    with nothing_written(app), pytest.raises(BadRequest, match="UUIDv7"):
        app.enqueue(NewJob("send", id=uuid4()))


def test_a_job_can_not_be_changed(app: Face) -> None:
    [job] = app.enqueue(NewJob("send"))

    with pytest.raises(AttributeError):
        job.state = "failed"
    with pytest.raises(AttributeError):
        NewJob("send").kind = "other"  # type: ignore[misc]


# -- Tasks --------------------------------------------------------------------------------------


def test_a_task_is_enqueued_by_its_arguments(app: Face) -> None:
    @app.job
    def send(order_id: int, urgent: bool = False) -> None: ...

    job = app.enqueue_task(send, 42)

    assert (job.kind, job.args, job.is_new) == ("send", {"order_id": 42}, True)


def test_a_task_takes_arguments_by_name_too(app: Face) -> None:
    @app.job
    def send(order_id: int, urgent: bool = False) -> None: ...

    job = app.enqueue_task(send, order_id=42, urgent=True)

    assert job.args == {"order_id": 42, "urgent": True}


def test_a_task_enqueues_with_the_options_of_its_kind(app: Face) -> None:
    @app.job(name="post", queue="mail", priority=4, max_attempts=7, unique="order-{order_id}")
    def send(order_id: int) -> None: ...

    job = app.enqueue_task(send, 42)

    assert (job.kind, job.queue, job.priority, job.max_attempts) == ("post", "mail", 4, 7)
    assert job.unique == "order-42"


def test_the_options_of_a_kind_hold_for_jobs_by_kind(app: Face) -> None:
    @app.job(queue="mail", priority=4, max_attempts=7)
    def send(order_id: int) -> None: ...

    [job] = app.enqueue(NewJob("send", args={"order_id": 3}))

    assert (job.queue, job.priority, job.max_attempts) == ("mail", 4, 7)


def test_using_changes_the_options_of_one_call(app: Face) -> None:
    @app.job(queue="mail", priority=4)
    def send(order_id: int) -> None: ...

    slow = app.enqueue_task(send.using(queue="slow", priority=0, delay=60, tags=["x"], meta={"a": 1}), 1)
    usual = app.enqueue_task(send, 2)

    assert (slow.queue, slow.priority, slow.state, slow.tags) == ("slow", 0, "scheduled", ["x"])
    assert (usual.queue, usual.priority, usual.state, usual.tags) == ("mail", 4, "ready", [])


def test_using_adds_up(app: Face) -> None:
    @app.job
    def send() -> None: ...

    job = app.enqueue_task(send.using(queue="slow").using(priority=9))

    assert (job.queue, job.priority) == ("slow", 9)


def test_using_an_unknown_option_is_refused(app: Face) -> None:
    @app.job
    def send() -> None: ...

    with pytest.raises(BadRequest, match="colour"):
        send.using(colour="red")


def test_new_jobs_of_tasks_go_in_together(app: Face) -> None:
    @app.job
    def send(order_id: int) -> None: ...

    jobs = app.enqueue(send.new(1), send.using(queue="slow").new(order_id=2))

    assert [(job.queue, job.args) for job in jobs] == [
        ("default", {"order_id": 1}),
        ("slow", {"order_id": 2}),
    ]


def test_calling_a_task_just_runs_the_function(app: Face) -> None:
    @app.job
    def double(n: int) -> int:
        return 2 * n

    with nothing_written(app):
        assert double(21) == 42


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, 2), {}),
        ((1,), {"order_id": 1}),
        ((1,), {"colour": "red"}),
        (("forty-two",), {}),
        ((None,), {}),
    ],
    ids=["missing", "too many", "twice", "unknown", "wrong type", "none"],
)
def test_arguments_that_do_not_fit_the_task_are_refused(app: Face, args: tuple, kwargs: dict) -> None:
    @app.job
    def send(order_id: int) -> None: ...

    with nothing_written(app), pytest.raises(BadRequest, match="send"):
        app.enqueue_task(send, *args, **kwargs)


def test_arguments_by_kind_are_checked_where_the_kind_is_known(app: Face) -> None:
    @app.job
    def send(order_id: int) -> None: ...

    with nothing_written(app), pytest.raises(BadRequest, match="send"):
        app.enqueue(NewJob("send", args={"order_id": "x"}))


def test_two_tasks_can_not_share_a_kind(app: Face) -> None:
    app.job(name="send")(lambda: None)

    with pytest.raises(BadRequest, match="send"):
        app.job(name="send")(lambda: None)


def test_a_job_of_another_apps_kind_is_claimed_by_kind_alone(make: Make, app: Face) -> None:
    job = make.ready("never-heard-of")

    claim = app.claim_job(job.id)

    assert claim.job.kind == "never-heard-of"


def _not_new(job: object) -> object:
    import msgspec

    return msgspec.structs.replace(job, is_new=False)  # type: ignore[type-var]
