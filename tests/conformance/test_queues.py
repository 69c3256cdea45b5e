"""Queues: paused, resumed, limited, listed."""

import pytest

from dibs import BadRequest, NewJob
from tests.support.faces import Face, Make


def test_a_resumed_queue_gives_its_jobs_again(app: Face, make: Make) -> None:
    job = make.ready(queue="mail")
    app.pause("mail")

    app.resume("mail")

    assert app.claim_job(job.id) is not None


def test_pausing_and_resuming_twice_is_the_same_as_once(app: Face, make: Make) -> None:
    make.ready(queue="mail")
    app.pause("mail")
    app.pause("mail")

    app.resume("mail")
    app.resume("mail")

    assert len(app.claim(queues=["mail"])) == 1


def test_a_queue_may_be_paused_before_it_has_jobs(app: Face, make: Make) -> None:
    app.pause("mail")

    job = make.ready(queue="mail")

    assert app.claim_job(job.id) is None


def test_to_lift_what_is_not_set_leaves_no_queue_behind(app: Face) -> None:
    app.resume("typo")
    app.limit("typo", None)

    assert app.queues() == []


def test_a_queue_that_has_a_limit_is_resumed_and_keeps_it(app: Face) -> None:
    app.limit("mail", 3)
    app.pause("mail")
    app.resume("mail")
    app.pause("slow")
    app.limit("slow", None)

    assert [(queue.name, queue.paused, queue.limit) for queue in app.queues()] == [
        ("mail", False, 3),
        ("slow", True, None),
    ]


def test_a_pause_leaves_running_jobs_alone(app: Face, make: Make) -> None:
    claim = make.running(queue="mail")
    app.pause("mail")

    claim.renew()
    claim.succeed()

    assert app.get(claim.job.id).state == "succeeded"


# -- Limit --------------------------------------------------------------------------------------


def test_no_more_run_than_the_limit(app: Face) -> None:
    app.enqueue(*(NewJob("work", queue="mail") for _ in range(5)))
    app.limit("mail", 2)

    assert len(app.claim(limit=10)) == 2
    assert app.claim(limit=10) == []
    assert app.claim(queues=["mail"], kinds=["work"], limit=10) == []


def test_a_limited_queue_asked_for_by_name_gives_as_much_as_it_may(app: Face) -> None:
    app.enqueue(*(NewJob("work", queue="mail") for _ in range(5)))
    app.limit("mail", 2)

    assert len(app.claim(queues=["mail"], kinds=["work"], limit=1)) == 1
    assert len(app.claim(queues=["mail"], kinds=["work"], limit=10)) == 1


def test_a_finished_job_makes_room_for_the_next(app: Face, make: Make) -> None:
    app.limit("mail", 1)
    claim = make.running(queue="mail")
    job = make.ready(queue="mail")
    assert app.claim() == []

    claim.succeed()

    assert app.claim()[0].job.id == job.id


def test_a_limit_holds_for_a_job_by_id_too(app: Face, make: Make) -> None:
    app.limit("mail", 1)
    claim = make.running(queue="mail")
    job = make.ready(queue="mail")
    assert app.claim_job(job.id) is None

    claim.release()

    assert app.claim_job(job.id) is not None


def test_a_limit_of_one_queue_leaves_the_others_alone(app: Face) -> None:
    app.enqueue(*(NewJob(kind, queue=queue) for kind in "ab" for queue in ("mail", "slow") for _ in range(3)))
    app.limit("mail", 2)

    queues = [claim.job.queue for claim in app.claim(limit=20)]

    assert (queues.count("mail"), queues.count("slow")) == (2, 6)


def test_order_holds_where_queues_are_limited(app: Face, make: Make) -> None:
    jobs = [make.ready(kind, queue=queue, priority=p) for kind, queue, p in [
        ("a", "mail", 1), ("b", "mail", 5), ("a", "slow", 3), ("b", "mail", 4), ("b", "slow", 2),
    ]]  # fmt: skip
    app.limit("mail", 2)

    claims = app.claim(limit=3)

    assert [claim.job.id for claim in claims] == [jobs[1].id, jobs[3].id, jobs[2].id]


def test_a_limit_of_none_at_all_lets_nothing_run(app: Face, make: Make) -> None:
    job = make.ready(queue="mail")
    app.limit("mail", 0)

    assert app.claim() == []
    assert app.claim_job(job.id) is None


def test_a_lifted_limit_lets_all_run(app: Face, make: Make) -> None:
    for _ in range(3):
        make.ready(queue="mail")
    app.limit("mail", 1)

    app.limit("mail", None)

    assert len(app.claim(limit=10)) == 3


def test_a_limit_below_what_already_runs_lets_nothing_more_run(app: Face, make: Make) -> None:
    for _ in range(3):
        make.running(queue="mail")
    make.ready(queue="mail")

    app.limit("mail", 1)

    assert app.claim(limit=10) == []
    assert app.counts()["running"] == 3


def test_a_limit_and_a_pause_do_not_undo_each_other(app: Face, make: Make) -> None:
    for _ in range(3):
        make.ready(queue="mail")
    app.limit("mail", 1)
    app.pause("mail")
    app.limit("mail", 2)
    assert app.claim(limit=10) == []

    app.resume("mail")

    assert len(app.claim(limit=10)) == 2


def test_a_limit_holds_against_all_who_claim_at_once(app: Face) -> None:
    app.enqueue(*(NewJob("work", queue="mail") for _ in range(20)))
    app.limit("mail", 3)

    answers = app.race(8, "claim", limit=5)

    assert sum(map(len, answers)) == 3 == app.counts()["running"]


@pytest.mark.parametrize("n", [-1, 1.5, "3", True], ids=repr)
def test_a_limit_that_is_no_number_is_refused(app: Face, n: object) -> None:
    with pytest.raises(BadRequest, match="limit"):
        app.limit("mail", n)

    assert app.queues() == []


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\ud800", 5, None], ids=repr)
def test_a_queue_that_can_not_be_is_refused(app: Face, verb: str, name: object) -> None:
    with pytest.raises(BadRequest, match="queue"):
        getattr(app, verb)(name)

    assert app.queues() == []


# -- List ---------------------------------------------------------------------------------------


def test_queues_with_live_jobs_or_a_setting_are_listed_by_name(app: Face, make: Make) -> None:
    make.ready(queue="mail")
    make.scheduled(queue="mail")
    make.running(queue="errands")
    make.succeeded(queue="done")
    app.pause("paused")
    app.limit("mail", 4)

    queues = app.queues()

    assert [(queue.name, queue.paused, queue.limit) for queue in queues] == [
        ("errands", False, None),
        ("mail", False, 4),
        ("paused", True, None),
    ]
    assert queues[1].counts["ready"] == queues[1].counts["scheduled"] == 1
    assert queues[0].counts["running"] == 1
    assert {type(state) for queue in queues for state in queue.counts} == {str}


def test_a_store_without_queues_lists_none(app: Face) -> None:
    assert app.queues() == []
