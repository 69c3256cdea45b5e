"""Unique keys: one unfinished job per key."""

import pytest

from dibs import NewJob
from faces import Face, Make


@pytest.mark.parametrize("delay", [0, 3600])
def test_while_a_job_waits_its_key_answers_that_job(app: Face, make: Make, delay: int) -> None:
    job = make.ready(unique="key", delay=delay, args={"n": 1})

    again = make.ready(unique="key", args={"n": 2})

    assert (again.id, again.is_new, again.args) == (job.id, False, {"n": 1})
    assert sum(app.counts().values()) == 1


def test_while_a_job_runs_its_key_answers_that_job(app: Face, make: Make) -> None:
    claim = make.running(unique="key")

    again = make.ready(unique="key")

    assert (again.id, again.is_new, again.state) == (claim.job.id, False, "running")


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_frees_its_key(app: Face, make: Make, state: str) -> None:
    job = make.finished(state, unique="key")

    again = make.ready(unique="key")

    assert again.is_new
    assert again.id != job.id


def test_a_job_in_its_back_off_keeps_its_key(app: Face, make: Make) -> None:
    claim = make.running(unique="key")
    claim.fail("broken")

    assert make.ready(unique="key").id == claim.job.id


def test_a_key_holds_across_kinds_and_queues(app: Face, make: Make) -> None:
    job = make.ready("send", queue="mail", unique="key")

    assert make.ready("print", queue="slow", unique="key").id == job.id


def test_keys_are_told_apart_exactly(app: Face, make: Make) -> None:
    assert all(make.ready(unique=key).is_new for key in ("key", "Key", "key ", "kéy", "🦊"))


def test_one_call_with_one_key_twice_stores_the_first(app: Face) -> None:
    first, second, other = app.enqueue(
        NewJob("work", unique="key"), NewJob("work", unique="key"), NewJob("work", unique="other")
    )

    assert (first.is_new, second.is_new, other.is_new) == (True, False, True)
    assert second.id == first.id
    assert app.counts()["ready"] == 2


def test_keyed_and_plain_jobs_mix_in_one_call(app: Face, make: Make) -> None:
    held = make.ready(unique="held")

    jobs = app.enqueue(
        NewJob("a"), NewJob("b", unique="held"), NewJob("c", unique="free", delay=60), NewJob("d")
    )

    assert [job.is_new for job in jobs] == [True, False, True, True]
    assert [job.kind for job in jobs] == ["a", "work", "c", "d"]
    assert jobs[1].id == held.id


def test_a_finished_job_enqueued_again_is_itself_though_its_key_is_taken(app: Face, make: Make) -> None:
    new = NewJob("work", unique="key")
    app.enqueue(new)
    app.claim_job(new.id).succeed("done")
    make.ready(unique="key")

    [again] = app.enqueue(new)

    assert (again.id, again.state, again.is_new) == (new.id, "succeeded", False)


def test_a_finished_job_does_not_stand_in_for_a_new_one_with_its_key(app: Face) -> None:
    done, new = NewJob("work", unique="key"), NewJob("work", unique="key")
    app.enqueue(done)
    app.claim_job(done.id).succeed()

    first, second = app.enqueue(done, new)

    assert (first.id, first.state) == (done.id, "succeeded")
    assert (second.id, second.state, second.is_new) == (new.id, "ready", True)


def test_one_job_enqueued_by_many_at_once_is_stored_once(app: Face) -> None:
    new = NewJob("work", unique="key")

    answers = app.race(8, "enqueue", new)

    assert {job.id for [job] in answers} == {new.id}
    assert app.counts()["ready"] == 1


def test_a_task_with_a_fixed_key_is_stored_once(app: Face) -> None:
    @app.job(unique="key")
    def send() -> None: ...

    answers = [app.enqueue_task(send) for _ in range(4)]

    assert [job.is_new for job in answers] == [True, False, False, False]
    assert len({job.id for job in answers}) == 1


def test_a_task_makes_its_key_from_its_arguments(app: Face) -> None:
    @app.job(unique="{shop}-{order_id}")
    def send(order_id: int, shop: str = "main") -> None: ...

    first, same = app.enqueue_task(send, 1), app.enqueue_task(send, order_id=1, shop="main")
    other = app.enqueue_task(send, 1, shop="other")

    assert (first.unique, other.unique) == ("main-1", "other-1")
    assert (same.id, other.is_new) == (first.id, True)


def test_using_may_replace_or_drop_the_key_of_a_task(app: Face) -> None:
    @app.job(unique="order-{order_id}")
    def send(order_id: int) -> None: ...

    replaced, dropped = (
        app.enqueue_task(send.using(unique="mine"), 1),
        app.enqueue_task(send.using(unique=None), 1),
    )

    assert (replaced.unique, dropped.unique) == ("mine", None)
