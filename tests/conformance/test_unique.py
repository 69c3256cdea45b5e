"""Unique keys: one unfinished job per key."""

import copy
import pickle
import time
from typing import Any

import pytest

from dibs import BadRequest, NewJob, Refused
from dibs.clock import SECOND
from dibs.operations.claim import ClaimRequest
from dibs.operations.settle import exchange
from tests.support.faces import Face, Make


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


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("first", ["keep", "replace"])
def test_of_one_call_with_one_key_twice_the_last_that_replaces_counts(
    app: Face, make: Make, waits: bool, first: str
) -> None:
    before = [make.ready(unique="key").id] if waits else []

    one, two, three = app.enqueue(
        NewJob("work", {"n": 1}, unique="key", on_conflict=first),
        NewJob("work", {"n": 2}, unique="key", on_conflict="replace", delay=60),
        NewJob("work", {"n": 3}, unique="key"),
    )

    found = app.get(one.id)
    assert (found.args, found.state) == ({"n": 2}, "scheduled")
    assert {one.id, two.id, three.id} == {*before, one.id}
    assert [job.is_new for job in (one, two, three)] == [not waits, False, False]
    assert [job.args for job in (one, two, three)] == [{"n": 2}] * 3


@pytest.mark.parametrize("waits", [True, False])
def test_of_chained_jobs_with_one_key_the_last_that_replaces_counts(
    app: Face, make: Make, waits: bool
) -> None:
    if waits:
        make.ready(unique="key", kind="work")
    keyed = [NewJob("work", {"n": n}, unique="key", on_conflict="replace") for n in (1, 2)]

    make.running("parent").succeed(then=[*keyed, NewJob("work", {"n": 3}, unique="key")])

    [found] = app.find(kind="work", state="ready")
    assert found.args == {"n": 2}


def test_of_jobs_chained_by_several_with_one_key_the_last_that_replaces_counts(app: Face) -> None:
    app.enqueue(*(NewJob("parent") for _ in range(3)))
    ones = [
        claim._held.settled_by(claim._held.succeeded(None), [_replacing(n)])
        for n, claim in enumerate(app.claim(limit=3))
    ]

    app.ask(lambda: exchange(ones, ClaimRequest(worker="pod-a", lease=60 * SECOND, leases={}, limit=0)))

    [found] = app.find(kind="work")
    assert found.args == {"n": 2}


def _replacing(n: int) -> NewJob:
    return NewJob("work", {"n": n}, unique="key", on_conflict="replace")


def test_a_chained_job_is_stored_if_the_one_before_it_with_its_key_was_dropped(app: Face, make: Make) -> None:
    app.enqueue(NewJob("holder", slot="s"))
    dropped = NewJob("dropped", slot="s", slot_policy="drop", unique="key")

    make.running("parent").succeed(then=[dropped, NewJob("work", unique="key")])

    assert app.get(dropped.id) is None
    assert [job.unique for job in app.find(kind="work")] == ["key"]


def test_a_chained_job_is_stored_if_the_one_before_it_with_its_key_was_superseded(
    app: Face, make: Make
) -> None:
    superseded = NewJob("superseded", slot="s", unique="key")
    then = [superseded, NewJob("newer", slot="s", slot_policy="replace"), NewJob("work", unique="key")]

    make.running("parent").succeed(then=then)

    assert app.get(superseded.id).state == "cancelled"
    assert [job.state for job in app.find(kind="work")] == ["ready"]


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


def test_a_finished_child_leaves_its_key_to_the_next(app: Face, make: Make) -> None:
    parent = NewJob("work", unique="key")
    app.enqueue(parent)

    app.claim_job(parent.id).succeed(then=[parent, NewJob("child", unique="key")])

    assert [job.state for job in app.find(kind="child")] == ["ready"]
    assert app.get(parent.id).state == "succeeded"


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


# -- For a time, or instead ---------------------------------------------------------------------


def test_a_key_may_last_for_a_time_though_its_job_has_finished(app: Face, make: Make) -> None:
    job = make.succeeded(unique="key", unique_for=60)

    again = make.ready(unique="key")
    assert (again.id, again.state, again.is_new) == (job.id, "succeeded", False)

    app.age(61)
    assert make.ready(unique="key").is_new


def test_a_key_that_lasts_is_kept_while_its_job_lives(app: Face, make: Make) -> None:
    job = make.scheduled(delay=3600, unique="key", unique_for=60)
    app.age(120)

    assert make.ready(unique="key").id == job.id


def test_pruning_spares_a_job_whose_key_still_lasts(app: Face, make: Make) -> None:
    job = make.succeeded(unique="key", unique_for=3600)
    other = make.succeeded()
    time.sleep(0.01)  # what is a moment old is old enough

    app.prune(0)

    assert make.ready(unique="key").id == job.id
    assert app.get(other.id) is None


def test_keys_that_last_and_plain_ones_mix_in_one_call(app: Face, make: Make) -> None:
    done = make.succeeded(unique="done", unique_for=60)

    jobs = app.enqueue(
        NewJob("a"), NewJob("b", unique="done", unique_for=60), NewJob("c", unique="free", unique_for=60)
    )

    assert [job.is_new for job in jobs] == [True, False, True]
    assert jobs[1].id == done.id


def test_many_who_want_a_key_that_lasts_get_one_job(app: Face, make: Make) -> None:
    done = make.succeeded(unique="key", unique_for=60)

    answers = app.race(6, "enqueue", NewJob("work", unique="key", unique_for=60))

    assert {job.id for [job] in answers} == {done.id}


@pytest.mark.parametrize("rounds", [8, pytest.param(200, marks=pytest.mark.long)])
def test_of_many_who_want_the_key_of_a_job_that_is_ending_each_gets_a_job(app: Face, rounds: int) -> None:
    for nth in range(rounds):
        key = f"key-{nth}"
        [holder] = app.enqueue(NewJob("work", unique=key))
        claim = app.claim_job(holder.id)
        wanted = [NewJob("work", unique=key) for _ in range(5)]

        *answers, ended = app.race_all(*(("enqueue", new) for new in wanted), succeeds=claim)

        got = [job for [job] in answers]
        new = {job.id for job in got if job.is_new}
        assert (ended, app.get(holder.id).state) == (None, "succeeded")
        assert len(new) <= 1
        assert {job.id for job in got} <= {holder.id, *new}
        assert {job.id for job in app.find(state="ready")} == new
        app.cancel_many(state="ready")


@pytest.mark.parametrize("rounds", [8, pytest.param(200, marks=pytest.mark.long)])
def test_no_job_is_retried_whose_key_one_that_is_ending_keeps(app: Face, make: Make, rounds: int) -> None:
    for nth in range(rounds):
        key = f"key-{nth}"
        old = make.failed(unique=key)
        [holder] = app.enqueue(NewJob("work", unique=key, unique_for=60))
        claim = app.claim_job(holder.id)

        *answers, ended = app.race_all(*[("retry", old.id)] * 3, succeeds=claim)

        assert ended is None
        assert [type(answer) for answer in answers] == [Refused] * 3
        assert (app.get(old.id).state, app.get(holder.id).state) == ("failed", "succeeded")


@pytest.mark.parametrize("rounds", [8, pytest.param(200, marks=pytest.mark.long)])
def test_who_claims_beside_a_replacing_enqueue_gets_what_is_stored(app: Face, rounds: int) -> None:
    for nth in range(rounds):
        key = f"key-{nth}"
        [old] = app.enqueue(NewJob("work", {"n": 0}, unique=key))
        others = [NewJob("work", {"n": n}, unique=key, on_conflict="replace") for n in (1, 2, 3)]

        claim, *answers = app.race_all(("claim_job", old.id), *(("enqueue", new) for new in others))

        claim = claim or app.claim_job(old.id)  # while another has it in hand it is not to be had
        assert {job.id for [job] in answers} == {old.id}
        assert app.get(old.id).args == claim.job.args
        claim.succeed()


@pytest.mark.parametrize("state", ["ready", "scheduled"])
def test_a_conflict_may_replace_what_a_waiting_job_does_and_when(app: Face, make: Make, state: str) -> None:
    job = getattr(make, state)(unique="key", args={"n": 1})

    [later] = app.enqueue(NewJob("work", args={"n": 2}, delay=60, unique="key", on_conflict="replace"))
    assert (later.id, later.is_new, later.args, later.state) == (job.id, False, {"n": 2}, "scheduled")

    [now] = app.enqueue(NewJob("work", args={"n": 3}, unique="key", on_conflict="replace"))
    assert (now.id, now.args, now.state) == (job.id, {"n": 3}, "ready")
    assert app.claim(limit=5)[0].job.args == {"n": 3}


def test_a_running_job_is_kept_whatever_the_conflict_says(app: Face, make: Make) -> None:
    claim = make.running(unique="key", args={"n": 1})

    [kept] = app.enqueue(NewJob("work", args={"n": 2}, unique="key", on_conflict="replace"))

    assert (kept.id, kept.args, kept.state) == (claim.job.id, {"n": 1}, "running")


def test_keep_is_what_a_conflict_does_by_default(app: Face, make: Make) -> None:
    make.ready(unique="key", args={"n": 1})

    [kept] = app.enqueue(NewJob("work", args={"n": 2}, unique="key", on_conflict="keep"))

    assert kept.args == {"n": 1}


def test_a_replaced_follower_keeps_its_place_on_its_train(app: Face, make: Make) -> None:
    head = make.ready(train="t")
    follower = make.ready(train="t", unique="key", args={"n": 1})

    [replaced] = app.enqueue(NewJob("work", args={"n": 2}, unique="key", on_conflict="replace"))

    assert (replaced.id, replaced.args, replaced.state) == (follower.id, {"n": 2}, "blocked")
    app.claim_job(head.id).succeed()
    assert app.get(follower.id).state == "ready"


def test_replacing_the_time_of_who_is_ready_frees_its_slot(app: Face, make: Make) -> None:
    make.ready(slot="s", unique="key")
    second = make.ready(slot="s")

    app.enqueue(NewJob("work", delay=60, unique="key", on_conflict="replace"))

    assert app.get(second.id).state == "ready"


def test_a_task_says_how_its_keys_conflict(app: Face) -> None:

    @app.job(unique="order-{order_id}", unique_for=60, on_conflict="replace")
    def send(order_id: int, text: str) -> None: ...

    app.enqueue_task(send, 1, "a")
    again = app.enqueue_task(send, 1, "b")

    assert (again.is_new, again.args["text"]) == (False, "b")


@pytest.mark.parametrize(
    "options",
    [
        {"unique_for": 60},
        {"on_conflict": "replace"},
        {"unique": "key", "unique_for": 0},
        {"unique": "key", "unique_for": "long"},
        {"unique": "key", "on_conflict": "merge"},
    ],
    ids=repr,
)
def test_a_key_that_makes_no_sense_is_refused(app: Face, options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        app.enqueue(NewJob("work", **options))


# -- Keys that the kind makes of the arguments ----------------------------------------------------


def test_a_kinds_template_makes_the_key_however_the_job_is_enqueued(app: Face) -> None:
    @app.job(unique="u_{a}_{b}")
    def work(a: int, b: int = 2) -> None: ...

    first = app.enqueue_task(work, 1)
    [by_new] = app.enqueue(work.new(a=1))
    [by_kind] = app.enqueue(NewJob("work", args={"a": 1}))
    [other] = app.enqueue(NewJob("work", args={"a": 1, "b": 3}))

    assert {job.id for job in (first, by_new, by_kind)} == {first.id}
    assert (by_kind.is_new, by_kind.unique) == (False, "u_1_2")
    assert (other.is_new, other.unique) == (True, "u_1_3")


def test_what_the_job_says_of_its_key_goes_before_the_template(app: Face) -> None:
    @app.job(unique="u_{a}", unique_for=60)
    def work(a: int) -> None: ...

    own = NewJob("work", args={"a": 1}, unique="mine")
    without = copy.copy(work.using(unique=None).new(1))
    [mine, none, again] = app.enqueue(own, without, work.using(unique=None).new(1))

    assert (mine.unique, none.unique, again.unique) == ("mine", None, None)
    assert none.is_new
    assert again.is_new


@pytest.mark.parametrize(
    "options", [{"unique_for": 0}, {"unique_for": "1h"}, {"on_conflict": "repalce"}], ids=str
)
def test_what_a_kind_says_of_its_key_is_checked_where_it_is_said(app: Face, options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(options))):
        app.job(name="work", unique="u", **options)(lambda: None)


def test_a_kinds_template_needs_its_arguments(app: Face) -> None:
    @app.job(unique="u_{a}")
    def work(a: int) -> None: ...

    with pytest.raises(BadRequest, match="misses its argument 'a'"):
        app.enqueue(NewJob("work"))


def test_a_copy_of_a_job_that_chose_its_gate_is_not_stored_twice(app: Face) -> None:
    @app.job(train="t_{a}")
    def work(a: int) -> None: ...

    new = work.using(train="mine").new(1)
    [job] = app.enqueue(new)
    [again] = app.enqueue(copy.copy(new))
    [free] = app.enqueue(pickle.loads(pickle.dumps(work.using(train=None).new(1))))

    assert (again.id, again.is_new) == (job.id, False)
    assert free.train is None
