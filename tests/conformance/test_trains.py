"""Trains: jobs that share one run strictly one after another, in the order they were enqueued."""

from __future__ import annotations

import pickle
import time
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from dibs import BadRequest, Job, NewJob, NotFound, Refused
from dibs.jobs.ids import new_id
from dibs.operations import manage
from tests.support.faces import Face, Make
from tests.support.internals import core_of


class Colour(Enum):
    red = "r"


def train(app: Face, length: int, name: str = "t", **options: Any) -> list[Job]:
    """That many jobs on one train, enqueued one after another."""
    return [app.enqueue(NewJob("work", train=name, **options))[0] for _ in range(length)]


def states(app: Face, jobs: list[Job]) -> list[str]:
    return [app.get(job.id).state.value for job in jobs]


# -- Order --------------------------------------------------------------------------------------


def test_only_the_head_of_a_train_is_ready(app: Face) -> None:
    jobs = train(app, 3)

    assert [job.state for job in jobs] == ["ready", "blocked", "blocked"]
    assert [job.train for job in jobs] == ["t"] * 3
    assert states(app, jobs) == ["ready", "blocked", "blocked"]


def test_the_jobs_of_a_train_are_claimed_in_the_order_of_their_enqueue(app: Face) -> None:
    jobs = train(app, 4)
    order = []

    while claims := app.claim(limit=10):
        [claim] = claims
        assert app.claim(limit=10) == []
        order.append(claim.job.id)
        claim.succeed()

    assert order == [job.id for job in jobs]


def test_one_call_puts_its_jobs_on_the_train_in_the_order_given(app: Face) -> None:
    new = [NewJob("work", train="t") for _ in range(3)]

    jobs = app.enqueue(new[2], new[0], new[1])

    assert [job.state for job in jobs] == ["ready", "blocked", "blocked"]
    for expected in jobs:
        [claim] = app.claim()
        assert claim.job.id == expected.id
        claim.succeed()


def test_priority_does_not_change_places_on_a_train(app: Face) -> None:
    first, second = app.enqueue(NewJob("a", train="t", priority=-5), NewJob("b", train="t", priority=5))

    [claim] = app.claim(limit=5)
    assert claim.job.id == first.id
    claim.succeed()

    assert app.get(second.id).state == "ready"


def test_priority_ranks_a_head_against_other_jobs(app: Face, make: Make) -> None:
    plain = make.ready(priority=1)
    [head] = train(app, 1, priority=5)

    claims = app.claim(limit=2)

    assert [claim.job.id for claim in claims] == [head.id, plain.id]


def test_different_trains_and_plain_jobs_run_side_by_side(app: Face, make: Make) -> None:
    heads = [train(app, 2, name)[0] for name in ("a", "b")]
    plain = make.ready()

    claims = app.claim(limit=10)

    assert {claim.job.id for claim in claims} == {heads[0].id, heads[1].id, plain.id}


def test_a_train_may_span_kinds_and_queues(app: Face) -> None:
    jobs = app.enqueue(NewJob("a", queue="x", train="t"), NewJob("b", queue="y", train="t"))

    assert app.claim(queues=["y"]) == []
    app.claim(queues=["x"])[0].succeed()

    assert app.claim(queues=["y"])[0].job.id == jobs[1].id


def test_a_job_behind_its_train_is_not_claimed_by_name(app: Face) -> None:
    _, second = train(app, 2)

    assert app.claim_job(second.id) is None
    assert app.get(second.id).attempts == 0


def test_a_head_that_is_not_due_blocks_its_train(app: Face) -> None:
    [head] = app.enqueue(NewJob("work", train="t", delay=60))
    [second] = train(app, 1)

    assert states(app, [head, second]) == ["scheduled", "blocked"]
    assert app.claim() == []

    app.age(61)
    [claim] = app.claim(limit=5)
    assert claim.job.id == head.id


def test_a_follower_that_is_not_due_waits_for_its_time_once_it_is_head(app: Face) -> None:
    [head] = train(app, 1)
    [second] = app.enqueue(NewJob("work", train="t", delay=60))
    assert app.get(second.id).state == "blocked"

    app.claim_job(head.id).succeed()

    assert app.get(second.id).state == "scheduled"
    app.age(61)
    app.sweep()
    assert app.get(second.id).state == "ready"


# -- Keeping a place ----------------------------------------------------------------------------


def test_a_head_that_failed_an_attempt_keeps_its_place(app: Face) -> None:
    first, second = train(app, 2)

    app.claim_job(first.id).fail("broken")

    assert states(app, [first, second]) == ["scheduled", "blocked"]
    app.age(10)
    assert app.claim(limit=5)[0].job.id == first.id


def test_a_head_that_snoozed_keeps_its_place(app: Face) -> None:
    first, second = train(app, 2)

    app.claim_job(first.id).snooze(30)

    assert states(app, [first, second]) == ["scheduled", "blocked"]


def test_a_released_head_keeps_its_place(app: Face) -> None:
    first, second = train(app, 2)

    app.claim_job(first.id).release()

    assert states(app, [first, second]) == ["ready", "blocked"]


def test_a_head_whose_worker_died_keeps_its_place(app: Face) -> None:
    first, second = train(app, 2)
    app.claim_job(first.id, lease=0.1)
    app.age(1)

    app.sweep()

    assert states(app, [first, second]) == ["ready", "blocked"]
    assert app.get(first.id).attempts == 1


def test_a_recovered_head_keeps_its_place(app: Face) -> None:
    first, second = train(app, 2)
    app.claim_job(first.id, lease=0.1)
    app.age(10)

    app.recover(first.id, stale_after=1)

    assert states(app, [first, second]) == ["ready", "blocked"]


# -- Advance and hold ---------------------------------------------------------------------------


def test_success_lets_the_next_one_go_and_the_last_leaves_no_trace(app: Face) -> None:
    first, second = train(app, 2)

    app.claim_job(first.id).succeed()
    assert app.get(second.id).state == "ready"
    assert app.trains.get("t").length == 1
    app.claim_job(second.id).succeed()

    assert app.trains.get("t") is None
    assert app.trains.list() == []
    assert train(app, 1)[0].state == "ready"


@pytest.mark.parametrize("end", ["failed", "cancelled", "swept"])
def test_a_train_advances_by_default(app: Face, end: str) -> None:
    first, second = train(app, 2, max_attempts=1)

    _end(app, first, end)

    assert app.get(first.id).state == ("failed" if end == "swept" else end)
    assert app.get(second.id).state == "ready"


@pytest.mark.parametrize("end", ["failed", "cancelled", "swept", "asked", "settled"])
def test_a_train_that_is_to_hold_waits_for_a_person(app: Face, end: str) -> None:
    first, second = train(app, 2, max_attempts=1, on_failed="hold", on_cancelled="hold")

    _end(app, first, end)
    app.age(3600)
    app.sweep()

    held = app.trains.get("t")
    assert (held.held, held.head.id, held.length) == (True, first.id, 2)
    assert [each.name for each in app.trains.held()] == ["t"]
    assert app.get(second.id).state == "blocked"
    assert app.claim(limit=5) == []


def _end(app: Face, job: Job, how: str) -> None:
    if how == "failed":
        app.claim_job(job.id).fail("broken")
    elif how == "cancelled":
        app.cancel(job.id)
    elif how == "settled":
        app.claim_job(job.id).cancel("enough")
    elif how == "asked":
        claim = app.claim_job(job.id)
        app.cancel(job.id)
        claim.release()
    else:
        app.claim_job(job.id, lease=0.1)
        app.age(1)
        app.sweep()


def test_each_policy_stands_for_itself(app: Face) -> None:
    first, second = train(app, 2, on_cancelled="hold")

    app.claim_job(first.id).fail("broken", retry=False)

    assert app.get(second.id).state == "ready"
    assert app.trains.held() == []


def test_a_follower_that_is_cancelled_holds_nobody(app: Face) -> None:
    first, second, third = train(app, 3, on_cancelled="hold")

    app.cancel(second.id)
    app.claim_job(first.id).succeed()

    assert app.get(third.id).state == "ready"


def test_a_released_train_goes_on_with_the_next(app: Face) -> None:
    first, second = train(app, 2, on_failed="hold")
    app.claim_job(first.id).fail("broken", retry=False)

    assert app.trains.release("t") is True

    assert app.get(second.id).state == "ready"
    assert app.trains.held() == []
    assert app.trains.release("t") is False


def test_all_trains_that_are_held_are_found_however_many(app: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.app.collections.MOST_FOUND", 2)
    names = [f"t{number}" for number in range(5)]
    app.enqueue(*(NewJob("work", train=name, on_cancelled="hold", tags=["a"]) for name in names))

    app.cancel_many(tags=["a"])

    assert [train.name for train in app.trains.held()] == names


def test_a_held_train_without_followers_is_gone_when_released(app: Face) -> None:
    [only] = train(app, 1, on_failed="hold")
    app.claim_job(only.id).fail("broken", retry=False)
    assert app.trains.get("t").length == 1

    app.trains.release("t")

    assert app.trains.get("t") is None


def test_a_train_that_nobody_is_on_can_not_be_released(app: Face) -> None:
    with pytest.raises(NotFound, match="no train 'nobody'"):
        app.trains.release("nobody")


def test_the_head_that_holds_its_train_is_retried_at_its_old_place(app: Face) -> None:
    first, second = train(app, 2, on_failed="hold")
    app.claim_job(first.id).fail("broken", retry=False)
    third = train(app, 1)[0]

    job = app.retry(first.id)

    assert (job.state, job.attempts) == ("ready", 0)
    assert states(app, [first, second, third]) == ["ready", "blocked", "blocked"]
    assert app.trains.held() == []


def test_others_are_retried_at_the_end_of_their_train(app: Face) -> None:
    first, second, third = train(app, 3)
    app.claim_job(first.id).fail("broken", retry=False)

    assert app.retry(first.id).state == "blocked"

    for expected in (second, third, first):
        [claim] = app.claim(limit=5)
        assert claim.job.id == expected.id
        claim.succeed()


def test_a_head_released_from_is_retried_at_the_end(app: Face) -> None:
    first, second = train(app, 2, on_failed="hold")
    app.claim_job(first.id).fail("broken", retry=False)
    app.trains.release("t")

    app.retry(first.id)

    assert states(app, [first, second]) == ["blocked", "ready"]


def test_a_job_retried_onto_an_empty_train_goes_at_once(app: Face) -> None:
    [only] = train(app, 1)
    app.claim_job(only.id).fail("broken", retry=False)

    assert app.retry(only.id).state == "ready"


def test_a_scheduled_head_can_be_told_to_go_now(app: Face) -> None:
    [head] = app.enqueue(NewJob("work", train="t", delay=60))

    assert app.retry(head.id).state == "ready"


def test_a_blocked_job_is_not_moved_by_a_retry(app: Face) -> None:
    _, second = train(app, 2)

    assert app.retry(second.id).state == "blocked"


def test_deleting_the_head_lets_the_next_one_go(app: Face) -> None:
    first, second = train(app, 2, on_cancelled="hold")

    app.delete(first.id)

    assert app.get(second.id).state == "ready"


def test_deleting_the_job_that_holds_a_train_lets_the_next_one_go(app: Face) -> None:
    first, second = train(app, 2, on_failed="hold")
    app.claim_job(first.id).fail("broken", retry=False)

    app.delete(first.id)

    assert app.get(second.id).state == "ready"


def test_pruning_spares_the_job_that_holds_a_train(app: Face) -> None:
    first, _ = train(app, 2, on_failed="hold")
    app.claim_job(first.id).fail("broken", retry=False)
    other = app.enqueue(NewJob("other"))[0]
    app.claim_job(other.id).succeed()
    time.sleep(0.01)  # what is a moment old is old enough

    app.prune(0)

    assert app.trains.get("t").head.id == first.id
    assert app.get(other.id) is None


def test_deleting_all_of_a_train_leaves_no_trace(app: Face) -> None:
    for job in train(app, 3):
        app.delete(job.id)

    assert app.trains.list() == []


# -- Looking ------------------------------------------------------------------------------------


def test_trains_are_listed_by_name_page_by_page(app: Face) -> None:
    for name in ("c", "a", "b"):
        train(app, 2, name)

    assert [(each.name, each.length, each.held) for each in app.trains.list()] == [
        ("a", 2, False),
        ("b", 2, False),
        ("c", 2, False),
    ]
    assert [each.name for each in app.trains.list(limit=2)] == ["a", "b"]
    assert [each.name for each in app.trains.list(limit=2, after="b")] == ["c"]


def test_a_train_shows_its_running_head(app: Face) -> None:
    first, _ = train(app, 2)
    app.claim_job(first.id, worker="pod-a")

    assert (app.trains.get("t").head.id, app.trains.get("t").head.worker) == (first.id, "pod-a")


def test_why_names_the_job_ahead_and_who_runs_it(app: Face) -> None:
    first, second = train(app, 2)
    app.claim_job(first.id, worker="pod-a")

    why = app.why(second.id)

    assert why.code == "train"
    assert str(first.id) in str(why)
    assert "pod-a" in str(why)


def test_why_says_that_a_train_is_held(app: Face) -> None:
    first, second = train(app, 2, on_failed="hold")
    app.claim_job(first.id).fail("out of paper", retry=False)

    why = app.why(second.id)

    assert why.code == "train"
    assert "held" in str(why)
    assert str(first.id) in str(why)
    assert "out of paper" in str(why)


def test_jobs_are_found_by_their_train(app: Face, make: Make) -> None:
    jobs = train(app, 2)
    make.ready()

    assert {job.id for job in app.find(train="t")} == {job.id for job in jobs}


# -- Names --------------------------------------------------------------------------------------


def test_a_task_makes_its_train_from_its_arguments(app: Face) -> None:
    @app.job(train="dest_{dest_id}", on_cancelled="hold")
    def deploy(dest_id: int, what: str = "all") -> None: ...

    jobs = [app.enqueue_task(deploy, 1), app.enqueue_task(deploy, dest_id=2), app.enqueue_task(deploy, 1)]

    assert [job.train for job in jobs] == ["dest_1", "dest_2", "dest_1"]
    assert [job.state for job in jobs] == ["ready", "ready", "blocked"]
    app.cancel(jobs[0].id)
    assert app.trains.get("dest_1").held


def test_a_job_by_kind_gets_the_train_of_its_kind(app: Face) -> None:
    @app.job(train="dest_{dest_id}")
    def deploy(dest_id: int) -> None: ...

    [job] = app.enqueue(NewJob("deploy", args={"dest_id": 7}))

    assert job.train == "dest_7"


def test_using_may_replace_or_drop_the_train_of_a_task(app: Face) -> None:
    @app.job(train="dest_{dest_id}")
    def deploy(dest_id: int) -> None: ...

    assert app.enqueue_task(deploy.using(train="mine"), 1).train == "mine"
    assert app.enqueue_task(deploy.using(train=None), 1).train is None


def test_a_slot_in_place_of_a_train_must_be_said(app: Face) -> None:
    @app.job(train="dest_{dest_id}")
    def deploy(dest_id: int) -> None: ...

    @app.job(slot=("report", "{year}"))
    def report(year: int) -> None: ...

    with pytest.raises(BadRequest, match=r"has train='dest_\{dest_id\}'.* using\(slot=…, train=None\)"):
        app.enqueue_task(deploy.using(slot="s"), 1)
    with pytest.raises(BadRequest, match=r"using\(train=…, slot=None\)"):
        app.enqueue_task(report.using(train="t"), 1)

    job = app.enqueue_task(deploy.using(slot="s").using(train=None), 1)
    assert (job.train, job.slot) == (None, "s")
    assert app.enqueue_task(report.using(train="t", slot=None), 1).train == "t"


def test_a_job_by_kind_does_not_leave_the_gate_of_its_kind_unsaid(app: Face) -> None:
    @app.job(train="dest_{dest_id}")
    def deploy(dest_id: int) -> None: ...

    @app.job(slot=("report", "{year}"))
    def report(year: int) -> None: ...

    with pytest.raises(BadRequest, match=r"has train='dest_\{dest_id\}'.* using\(slot=…, train=None\)"):
        app.enqueue(NewJob("deploy", args={"dest_id": 1}, slot="s"))
    with pytest.raises(BadRequest, match=r"using\(train=…, slot=None\)"):
        app.enqueue(NewJob("report", args={"year": 2026}, train="t"))

    assert sum(app.counts().values()) == 0
    [own, free] = app.enqueue(
        NewJob("deploy", args={"dest_id": 1}, train="mine"),
        pickle.loads(pickle.dumps(deploy.using(slot="s", train=None).new(1))),
    )
    assert (own.train, free.train, free.slot) == ("mine", None, "s")


@pytest.mark.parametrize("slot", [["report", 7], 7, {"a"}], ids=repr)
def test_a_slot_that_is_neither_text_nor_tuple_is_refused(app: Face, slot: Any) -> None:
    with pytest.raises(BadRequest, match="a string or a tuple"):
        app.enqueue(NewJob("work", slot=slot))


def test_names_of_trains_are_told_apart_exactly(app: Face) -> None:
    names = ("t", "T", "t ", "tä", "🦊", "{t}", "a:b", "'\"")

    assert [train(app, 1, name)[0].state for name in names] == ["ready"] * len(names)
    assert all(app.trains.get(name).length == 1 for name in names)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", 7], ids=repr)
def test_a_bad_name_for_a_train_is_refused(app: Face, name: Any) -> None:
    with pytest.raises(BadRequest, match="train"):
        app.enqueue(NewJob("work", train=name))


def test_a_train_template_must_name_arguments(app: Face) -> None:
    with pytest.raises(BadRequest, match="dest"):

        @app.job(train="dest_{dest}")
        def deploy(dest_id: int) -> None: ...


@pytest.mark.parametrize(
    "template", ["{dest}", "{dest_id:{width}}", "{dest_id!z}", "{dest_id.x}", "{dest_id[0]}", "{}", "{", 7]
)
@pytest.mark.parametrize("option", ["train", "slot", "unique"])
def test_a_template_that_can_never_be_filled_is_refused_with_its_kind(
    app: Face, option: str, template: Any
) -> None:
    with pytest.raises(BadRequest, match=option):

        @app.job(**{option: template})
        def deploy(dest_id: int) -> None: ...


@pytest.mark.parametrize("option", ["train", "slot", "unique"])
def test_a_template_that_these_arguments_do_not_fill_is_refused_before_anything_is_written(
    app: Face, option: str
) -> None:
    @app.job(**{option: "dest_{dest:05d}"})
    def deploy(dest: str) -> None: ...

    for new in (lambda: deploy.new("a"), lambda: NewJob("deploy", {"dest": "a"})):
        with pytest.raises(BadRequest, match="can't be filled"):
            app.enqueue(NewJob("work"), new())
    assert app.find() == []


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (datetime, datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00Z"),
        (timedelta, timedelta(seconds=90), "PT90S"),
        (Colour, Colour.red, "r"),
        (float, 1, 1.0),
        (bytes, b"abc", "YWJj"),
    ],
    ids=str,
)
@pytest.mark.parametrize("option", ["train", "slot", "unique"])
def test_a_template_makes_the_same_of_an_argument_however_the_job_is_enqueued(
    app: Face, option: str, annotation: Any, value: Any, text: Any
) -> None:
    def deploy(dest): ...  # type: ignore[no-untyped-def]

    deploy.__annotations__["dest"] = annotation
    task = app.job(**{option: "dest_{dest}"})(deploy)

    [by_task] = app.enqueue(task.new(value))
    [by_kind] = app.enqueue(NewJob("deploy", {"dest": text}))

    assert getattr(by_task, option) == getattr(by_kind, option)


def test_a_job_has_a_train_or_a_slot_but_not_both(app: Face) -> None:
    with pytest.raises(BadRequest, match="not both"):
        app.enqueue(NewJob("work", train="t", slot="s"))
    with pytest.raises(BadRequest, match="not both"):

        @app.job(train="t", slot="s")
        def deploy() -> None: ...


# -- Together with others -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine", ["sqlite", "postgresql", "mariadb", "mysql", "redis", "redis-cluster"], indirect=True
)
@pytest.mark.parametrize("way", ["cancelled", "failed", "stopped", "swept", "claimed"])
def test_a_train_that_must_hold_is_held_by_whoever_ends_its_head(app: Face, open_app: Any, way: str) -> None:
    @app.job(train="t", on_cancelled="hold", on_failed="hold", max_attempts=1)
    def deploy() -> None: ...

    first, second = app.enqueue_task(deploy), app.enqueue_task(deploy)
    without_code = open_app()

    if way in ("swept", "claimed"):
        app.claim_job(first.id, lease=1)
        app.age(10)
    match way:
        case "cancelled":
            without_code.cancel(first.id)
        case "failed":
            without_code.claim_job(first.id).fail("broken", retry=False)
        case "stopped":
            without_code.claim_job(first.id).cancel("not today")
        case "swept":
            without_code.sweep()
        case "claimed":  # who claims by hand takes back what is over
            assert without_code.claim(limit=9) == []

    assert app.trains.get("t").held
    assert app.get(second.id).state == "blocked"


def test_enqueueing_the_same_job_again_gives_it_no_second_place(app: Face) -> None:
    new = NewJob("work", train="t")
    app.enqueue(new)

    [again] = app.enqueue(new)

    assert (again.is_new, again.state) == (False, "ready")
    assert app.trains.get("t").length == 1


def test_those_who_enqueue_at_once_make_one_head(app: Face) -> None:
    def put() -> Any:
        from dibs.operations.enqueue import enqueue

        row = core_of(app.app).registry.prepare(NewJob("work", train="t"))
        return enqueue([row], fresh=True)

    app.race_to_ask(*[put] * 8)

    assert (app.counts()["ready"], app.counts()["blocked"]) == (1, 7)
    for _ in range(8):
        [claim] = app.claim(limit=8)
        claim.succeed()


def test_children_join_their_train_with_the_parents_success(app: Face, make: Make) -> None:
    [head] = train(app, 1)
    claim = make.running()

    claim.succeed(then=[NewJob("child", train="t")])

    [child] = app.find(kind="child")
    assert (child.state, child.train, child.parent_id) == ("blocked", "t", claim.job.id)
    app.claim_job(head.id).succeed()
    assert app.get(child.id).state == "ready"


def test_a_head_may_put_its_own_successor_on_the_train(app: Face) -> None:
    [head] = train(app, 1)

    app.claim_job(head.id).succeed(then=[NewJob("child", train="t")])

    assert app.find(kind="child")[0].state == "ready"


def test_cancelling_many_of_a_train_leaves_the_rest_going(app: Face) -> None:
    jobs = train(app, 4)

    assert app.cancel_many(train="t") == 4

    assert states(app, jobs) == ["cancelled"] * 4
    assert app.trains.get("t") is None
    assert app.retry_many(train="t") == 4
    assert app.counts()["ready"] == 1


@pytest.mark.parametrize("way", ["retry_many", "pipelines.retry", "drawn"])
def test_more_than_a_page_is_retried_in_the_order_of_its_making(
    app: Face, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(manage, "BATCH", 3)
    pipeline = app.pipeline("nightly")
    id = pipeline.id if way == "drawn" else new_id()
    new = [NewJob("work", train="t", pipeline_id=None if way == "drawn" else id) for _ in range(8)]
    if way == "drawn":
        for job in new:
            pipeline.add(job)
        pipeline.enqueue()
    else:
        app.enqueue(*new)
    app.cancel_many(train="t")

    changed = app.retry_many(train="t") if way == "retry_many" else app.pipelines.retry(id)

    assert changed == 8
    assert _run_all(app) == [job.id for job in new]


def test_of_many_trains_each_is_retried_in_its_order(app: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manage, "BATCH", 3)
    jobs = app.enqueue(*[NewJob("work", train=f"t{nth % 2}", tags=["again"]) for nth in range(8)])
    others = app.enqueue(*[NewJob("work", train=f"t{nth % 2}") for nth in range(4)])
    app.cancel_many(kind="work")

    changed = app.retry_many(kind="work", tags=["again"], state="cancelled")

    assert changed == 8
    ran = _run_all(app)
    assert [id for id in ran if id in {job.id for job in jobs[::2]}] == [job.id for job in jobs[::2]]
    assert [id for id in ran if id in {job.id for job in jobs[1::2]}] == [job.id for job in jobs[1::2]]
    assert states(app, others) == ["cancelled"] * 4


def _run_all(app: Face) -> list[UUID]:
    """Whom one claim after another got."""
    order = []
    while claims := app.claim():
        order.append(claims[0].job.id)
        claims[0].succeed()
    return order


def test_a_running_head_can_not_be_retried_onto_its_train(app: Face) -> None:
    first, _ = train(app, 2)
    app.claim_job(first.id)

    with pytest.raises(Refused):
        app.retry(first.id)


def test_tokens_grow_along_a_train(app: Face) -> None:
    train(app, 3)
    tokens = []

    for _ in range(3):
        [claim] = app.claim()
        tokens.append(claim.token)
        claim.succeed()

    assert tokens == sorted(set(tokens))
