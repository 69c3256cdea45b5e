"""Pipelines: jobs that belong together, some of which wait until others have succeeded."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest

from dibs import BadRequest, Context, Dibs, Job, NewJob, NotFound, Refused
from dibs.clock import SECOND
from dibs.jobs.ids import new_id
from dibs.moving import give_back_sync, move_sync
from dibs.operations.claim import ClaimRequest
from dibs.operations.settle import exchange
from tests.support.faces import Face, Make
from tests.support.moves import ELSEWHERE, put


class Drawn:
    """A pipeline by letters: `{"c": "ab"}` says that c waits for a and b."""

    def __init__(self, app: Face, after: dict[str, str], on_failed: str = "cancel", **options: Any) -> None:
        self._app = app
        self._pipeline = app.pipeline("nightly", on_failed=on_failed)
        self.id: UUID = self._pipeline.id
        self.new: dict[str, NewJob] = {}
        for kind, parents in after.items():
            new = NewJob(kind, **{"max_attempts": 1, **options.get(kind, {})})
            self.new[kind] = self._pipeline.add(new, after=[self.new[parent] for parent in parents])

    def enqueue(self, **options: Any) -> list[Job]:
        return self._pipeline.enqueue(**options)

    def state(self, kind: str) -> str:
        return str(self.job(kind).state)

    def job(self, kind: str) -> Job:
        return self._app.get(self.new[kind].id)

    def states(self) -> dict[str, str]:
        return {kind: self.state(kind) for kind in self.new}

    def claim(self, kind: str) -> Any:
        claim = self._app.claim_job(self.new[kind].id, worker="pod-a")
        assert claim is not None
        return claim

    def succeed(self, *kinds: str, result: Any = None) -> None:
        for kind in kinds:
            self.claim(kind).succeed(result)

    def fail(self, kind: str) -> None:
        self.claim(kind).fail("broken")


def drawn(app: Face, after: dict[str, str], on_failed: str = "cancel", **options: Any) -> Drawn:
    """An enqueued one."""
    pipeline = Drawn(app, after, on_failed, **options)
    pipeline.enqueue()
    return pipeline


CHAIN = {"a": "", "b": "a", "c": "b"}
DIAMOND = {"a": "", "b": "a", "c": "a", "d": "bc"}


# -- Waiting for parents ------------------------------------------------------------------------


def test_only_those_that_wait_for_nobody_are_ready(app: Face) -> None:
    pipeline = Drawn(app, DIAMOND)

    jobs = pipeline.enqueue()

    assert [(job.kind, job.state, job.is_new) for job in jobs] == [
        ("a", "ready", True),
        ("b", "blocked", True),
        ("c", "blocked", True),
        ("d", "blocked", True),
    ]
    assert {job.pipeline_id for job in jobs} == {pipeline.id}
    assert [app.get(job.id).state for job in jobs] == [job.state for job in jobs]
    assert [claim.job.kind for claim in app.claim(limit=9)] == ["a"]


def test_a_job_goes_when_the_last_of_its_parents_has_succeeded(app: Face) -> None:
    pipeline = drawn(app, DIAMOND)

    pipeline.succeed("a")
    assert pipeline.states() == {"a": "succeeded", "b": "ready", "c": "ready", "d": "blocked"}
    pipeline.succeed("c")
    assert pipeline.state("d") == "blocked"
    pipeline.succeed("b")

    assert pipeline.state("d") == "ready"
    pipeline.succeed("d")
    assert app.counts()["succeeded"] == 4


def test_parents_that_succeed_at_the_same_moment_let_their_child_go_once(app: Face) -> None:
    parents = {f"p{n}": "" for n in range(8)}
    pipeline = Drawn(app, parents)
    child = pipeline._pipeline.add(NewJob("child"), after=list(pipeline.new.values()))
    pipeline.enqueue()
    claims = [pipeline.claim(kind) for kind in parents]

    app.race_to_succeed(claims)

    assert app.get(child.id).state == "ready"
    assert [claim.job.id for claim in app.claim(limit=9)] == [child.id]


def test_nobody_claims_a_job_that_waits_for_its_parents(app: Face) -> None:
    pipeline = drawn(app, CHAIN)

    assert app.claim_job(pipeline.new["b"].id) is None
    assert app.claim(kinds=["b", "c"], limit=5) == []


def test_a_parent_that_will_be_tried_again_changes_nothing(app: Face) -> None:
    pipeline = drawn(app, CHAIN, a={"max_attempts": 3})

    pipeline.claim("a").fail("once")
    assert pipeline.states() == {"a": "scheduled", "b": "blocked", "c": "blocked"}
    app.retry(pipeline.new["a"].id)
    pipeline.claim("a").snooze(60)
    app.retry(pipeline.new["a"].id)
    pipeline.claim("a").release()

    assert pipeline.states() == {"a": "ready", "b": "blocked", "c": "blocked"}


def test_a_job_that_is_not_due_when_its_parents_are_done_waits_for_its_time(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "a"}, b={"delay": 600})

    pipeline.succeed("a")
    assert pipeline.state("b") == "scheduled"
    app.age(601)
    app.sweep()

    assert pipeline.state("b") == "ready"


def test_a_step_keeps_all_that_was_said_of_it(app: Face) -> None:
    options = {"queue": "slow", "priority": 7, "tags": ["red"], "meta": {"n": 1}, "args": {"x": 2}}
    pipeline = drawn(app, {"a": "", "b": "a"}, b={**options, "max_attempts": 9})
    before = pipeline.job("b")

    pipeline.succeed("a")

    job = pipeline.job("b")
    assert (job.queue, job.priority, job.tags, job.meta, job.args) == ("slow", 7, ["red"], {"n": 1}, {"x": 2})
    assert (job.max_attempts, job.attempts, job.parent_id) == (9, 0, pipeline.new["a"].id)
    assert job.enqueued_at == before.enqueued_at
    assert (job.state, job.errors, job.token) == ("ready", [], None)


def test_the_same_pipeline_is_stored_once(app: Face) -> None:
    pipeline = Drawn(app, CHAIN)
    first = pipeline.enqueue()

    pipeline.succeed("a")
    again = pipeline.enqueue()

    assert [job.id for job in again] == [job.id for job in first]
    assert not any(job.is_new for job in again)
    assert pipeline.states() == {"a": "succeeded", "b": "ready", "c": "blocked"}


def test_a_pipeline_may_be_long_and_wide(app: Face) -> None:
    first, last = [f"l{n}" for n in range(30)], "last"
    after = {kind: ("" if n == 0 else first[n - 1]) for n, kind in enumerate(first)}
    pipeline = app.pipeline("long")
    added: dict[str, NewJob] = {}
    for kind, parent in after.items():
        added[kind] = pipeline.add(NewJob(kind), after=[added[parent]] if parent else [])
    pipeline.add(NewJob(last), after=list(added.values()))
    pipeline.enqueue()

    order = []
    while claims := app.claim(limit=5):
        [claim] = claims
        order.append(claim.job.kind)
        claim.succeed()

    assert order == [*first, last]


# -- Trains and slots ---------------------------------------------------------------------------


def test_a_job_takes_its_place_on_its_train_when_its_parents_are_done(app: Face, make: Make) -> None:
    pipeline = drawn(app, {"a": "", "b": "a"}, b={"train": "t"})
    other = make.ready(train="t")

    assert other.state == "ready"
    pipeline.succeed("a")
    assert pipeline.state("b") == "blocked"
    app.claim_job(other.id).succeed()

    assert pipeline.state("b") == "ready"
    assert app.trains.get("t").length == 1
    pipeline.succeed("b")
    assert app.trains.get("t") is None


def test_a_job_that_waits_for_its_parents_is_nowhere_on_its_train(app: Face, make: Make) -> None:
    pipeline = drawn(app, {"a": "", "b": "a"}, b={"train": "t", "on_cancelled": "hold"})

    assert app.trains.get("t") is None
    head = make.ready(train="t")
    assert (app.trains.get("t").length, app.trains.get("t").head.id) == (1, head.id)
    app.cancel(pipeline.new["b"].id)

    assert app.trains.held() == []
    assert app.get(head.id).state == "ready"
    app.claim_job(head.id).succeed()
    assert app.trains.get("t") is None


def test_a_job_takes_its_place_in_its_slot_when_its_parents_are_done(app: Face, make: Make) -> None:
    pipeline = drawn(app, {"a": "", "b": "a"}, b={"slot": "s", "slot_policy": "replace"})
    running, waiting = make.running(slot="s"), make.ready(slot="s")

    pipeline.succeed("a")

    assert (pipeline.state("b"), app.get(waiting.id).state) == ("blocked", "cancelled")
    running.succeed()
    assert pipeline.state("b") == "ready"


def test_a_job_that_was_superseded_takes_those_after_it_along(app: Face, make: Make) -> None:
    pipeline = drawn(app, {"a": "", "b": "a"}, a={"slot": "s"})

    make.ready(slot="s", slot_policy="replace")

    assert pipeline.states() == {"a": "cancelled", "b": "cancelled"}


def test_a_step_that_another_of_its_pipeline_superseded_takes_those_after_it_along(app: Face) -> None:
    newest = {"slot": "s", "slot_policy": "replace"}
    at_once = Drawn(app, {"a": "", "b": "", "c": "a", "d": "c", "e": "b"}, a={"slot": "s"}, b=newest)
    jobs = at_once.enqueue()
    later = drawn(app, {"a": "", "b": "a", "c": "a", "d": "b"}, b=newest, c={**newest, "slot": "s"})

    later.succeed("a")

    ends = {"a": "cancelled", "c": "cancelled", "d": "cancelled"}
    assert {job.kind: job.state for job in jobs} == {**ends, "b": "ready", "e": "blocked"}
    assert later.states() == {"a": "succeeded", "b": "cancelled", "c": "ready", "d": "cancelled"}
    assert at_once.states() == {**ends, "b": "cancelled", "e": "cancelled"}


def test_a_step_that_was_superseded_as_soon_as_it_could_go_keeps_its_age(app: Face) -> None:
    newest = {"slot": "s", "slot_policy": "replace"}
    pipeline = drawn(app, {"a": "", "b": "a", "c": "a"}, b=newest, c=newest)
    app.age(60)
    before = pipeline.job("b").enqueued_at

    pipeline.succeed("a")

    assert pipeline.states() == {"a": "succeeded", "b": "cancelled", "c": "ready"}
    assert pipeline.job("b").enqueued_at == before


def test_a_job_superseded_by_a_step_of_another_pipeline_takes_those_after_it_along(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "a"}, a={"slot": "s"})

    newer = drawn(app, {"a": "", "b": "a"}, a={"slot": "s", "slot_policy": "replace"})

    assert pipeline.states() == {"a": "cancelled", "b": "cancelled"}
    assert newer.states() == {"a": "ready", "b": "blocked"}


def test_a_job_superseded_by_a_step_of_its_own_pipeline_takes_those_after_it_along(app: Face) -> None:
    after, replaces = {"a": "", "b": "a", "c": "", "d": "c"}, {"slot": "s", "slot_policy": "replace"}
    pipeline = Drawn(app, after, a={"slot": "s"}, c=replaces)

    jobs = pipeline.enqueue()

    expected = {"a": "cancelled", "b": "cancelled", "c": "ready", "d": "blocked"}
    assert {job.kind: str(job.state) for job in jobs} == expected
    assert pipeline.states() == expected


# -- A parent that does not succeed -------------------------------------------------------------


def test_those_after_a_failed_job_are_cancelled_and_say_why(app: Face) -> None:
    pipeline = drawn(app, {**CHAIN, "other": ""})

    pipeline.fail("a")

    assert pipeline.states() == {"a": "failed", "b": "cancelled", "c": "cancelled", "other": "ready"}
    message = f"job {pipeline.new['a'].id} before it failed"
    assert (pipeline.job("b").message, pipeline.job("c").message) == (message, message)


def test_those_after_a_cancelled_job_are_cancelled(app: Face) -> None:
    pipeline = drawn(app, DIAMOND)

    app.cancel(pipeline.new["b"].id, "not needed")

    assert pipeline.states() == {"a": "ready", "b": "cancelled", "c": "blocked", "d": "cancelled"}
    assert pipeline.job("d").message == f"job {pipeline.new['b'].id} before it was cancelled"
    pipeline.succeed("a", "c")
    assert pipeline.state("d") == "cancelled"


def test_those_after_a_job_whose_worker_died_are_cancelled_by_the_sweep(app: Face) -> None:
    pipeline = drawn(app, CHAIN)
    app.claim_job(pipeline.new["a"].id, lease=0.1)

    app.age(1)
    app.sweep()

    assert pipeline.states() == {"a": "failed", "b": "cancelled", "c": "cancelled"}


def test_those_after_a_job_that_was_asked_to_stop_go_on_if_it_succeeds_first(app: Face) -> None:
    pipeline = drawn(app, CHAIN)
    claim = pipeline.claim("a")

    app.cancel(pipeline.new["a"].id)
    assert pipeline.state("b") == "blocked"
    claim.succeed()

    assert pipeline.state("b") == "ready"


def test_a_job_after_two_that_were_cancelled_at_once_names_the_older(app: Face) -> None:
    tagged = {"tags": ["blue"]}
    pipeline = drawn(app, {"a": "", "b": "a", "c": "", "d": "bc"}, a=tagged, c=tagged)

    assert app.cancel_many(tags=["blue"]) == 2

    cause = f"job {pipeline.new['a'].id} before it was cancelled"
    assert [pipeline.job(kind).message for kind in "bd"] == [cause, cause]


def test_a_job_after_two_whose_workers_died_names_the_older(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "", "c": "ab"})
    for kind, lease in (("b", 1), ("a", 2)):
        app.claim_job(pipeline.new[kind].id, lease=lease)

    app.age(60)
    app.sweep()

    assert pipeline.job("c").message == f"job {pipeline.new['a'].id} before it failed"


def test_a_job_that_gives_up_after_it_was_asked_to_stop_cancels_those_after_it(app: Face) -> None:
    pipeline = drawn(app, CHAIN)
    claim = pipeline.claim("a")

    app.cancel(pipeline.new["a"].id)
    claim.release()

    assert pipeline.states() == {"a": "cancelled", "b": "cancelled", "c": "cancelled"}


def test_a_pipeline_that_holds_keeps_those_after_a_failed_job_waiting(app: Face) -> None:
    pipeline = drawn(app, CHAIN, on_failed="hold")

    pipeline.fail("a")
    assert pipeline.states() == {"a": "failed", "b": "blocked", "c": "blocked"}
    app.retry(pipeline.new["a"].id)
    pipeline.succeed("a")

    assert pipeline.states() == {"a": "succeeded", "b": "ready", "c": "blocked"}


def test_a_zombie_parent_lets_nobody_go(app: Face) -> None:
    pipeline = drawn(app, CHAIN, a={"max_attempts": 3})
    zombie = app.claim_job(pipeline.new["a"].id, lease=0.1)
    app.age(1)
    app.sweep()

    with pytest.raises(Exception, match="no longer held"):
        zombie.succeed()

    assert pipeline.states() == {"a": "ready", "b": "blocked", "c": "blocked"}


# -- Retry --------------------------------------------------------------------------------------


def test_those_cancelled_for_a_failed_job_wait_again_when_it_is_retried(app: Face) -> None:
    pipeline = drawn(app, DIAMOND)
    pipeline.fail("a")

    app.retry(pipeline.new["a"].id)

    assert pipeline.states() == {"a": "ready", "b": "blocked", "c": "blocked", "d": "blocked"}
    pipeline.succeed("a", "b", "c", "d")
    assert pipeline.state("d") == "succeeded"


@pytest.mark.parametrize("whom", ["the one that failed", "all"])
def test_those_that_wait_again_for_a_retried_job_keep_their_time(app: Face, whom: str) -> None:
    pipeline = drawn(app, CHAIN, b={"delay": 600})
    due = pipeline.job("b").run_at
    pipeline.fail("a")

    if whom == "all":
        app.pipelines.retry(pipeline.id)
    else:
        app.retry(pipeline.new["a"].id)
    pipeline.succeed("a")

    assert (pipeline.job("b").run_at, pipeline.states()["b"]) == (due, "scheduled")


def test_a_settlement_that_is_sent_twice_counts_also_after_a_person_retried_the_step(app: Face) -> None:
    pipeline = drawn(app, CHAIN)
    claim = pipeline.claim("a")
    claim.snooze(60)
    app.cancel(claim.job.id)
    app.retry(claim.job.id)

    claim.snooze(60)  # its first answer got lost, say

    assert pipeline.states() == {"a": "ready", "b": "blocked", "c": "blocked"}


def test_a_job_that_a_person_cancelled_is_not_revived_with_its_parent(app: Face) -> None:
    pipeline = drawn(app, CHAIN)
    app.cancel(pipeline.new["b"].id)
    app.cancel(pipeline.new["a"].id)

    app.retry(pipeline.new["a"].id)

    assert pipeline.states() == {"a": "ready", "b": "cancelled", "c": "cancelled"}


def test_a_job_after_two_that_failed_waits_again_when_both_are_retried(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "", "c": "ab"})
    a, b = pipeline.claim("a"), pipeline.claim("b")
    a.fail("broken")
    b.fail("broken")

    app.retry(pipeline.new["a"].id)
    assert pipeline.states() == {"a": "ready", "b": "failed", "c": "cancelled"}
    app.retry(pipeline.new["b"].id)

    assert pipeline.states() == {"a": "ready", "b": "ready", "c": "blocked"}


def test_a_parent_that_succeeds_while_its_child_is_cancelled_counts_all_the_same(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "", "c": "ab"})
    pipeline.fail("a")

    pipeline.succeed("b")
    app.retry(pipeline.new["a"].id)
    pipeline.succeed("a")

    assert pipeline.state("c") == "ready"


def test_a_retried_job_whose_parents_have_not_succeeded_waits_for_them(app: Face) -> None:
    pipeline = drawn(app, CHAIN)
    pipeline.fail("a")

    job = app.retry(pipeline.new["b"].id)
    assert (job.state, pipeline.state("c")) == ("blocked", "blocked")
    app.retry(pipeline.new["a"].id)
    pipeline.succeed("a")

    assert pipeline.state("b") == "ready"


def test_a_retried_job_whose_parents_have_succeeded_goes_at_once(app: Face) -> None:
    pipeline = drawn(app, CHAIN)
    pipeline.succeed("a")
    pipeline.fail("b")

    assert app.retry(pipeline.new["b"].id).state == "ready"
    assert pipeline.state("c") == "blocked"


def test_a_job_that_was_cancelled_for_another_then_retried_then_cancelled_by_a_person_stays_so(
    app: Face,
) -> None:
    pipeline = drawn(app, CHAIN)
    pipeline.fail("a")
    app.retry(pipeline.new["b"].id)
    app.cancel(pipeline.new["b"].id)

    app.retry(pipeline.new["a"].id)

    assert pipeline.states() == {"a": "ready", "b": "cancelled", "c": "cancelled"}


def test_a_cancel_that_is_refused_changes_nobody_after_the_job(app: Face) -> None:
    pipeline = drawn(app, CHAIN)
    pipeline.fail("a")
    app.retry(pipeline.new["c"].id)

    for kind in ("a", "b"):
        with pytest.raises(Refused):
            app.cancel(pipeline.new[kind].id)

    assert pipeline.states() == {"a": "failed", "b": "cancelled", "c": "blocked"}


def test_a_job_that_is_only_made_due_brings_nobody_back(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "", "c": "ab"}, a={"delay": 60})
    app.delete(pipeline.new["b"].id)

    app.retry(pipeline.new["a"].id)

    assert (pipeline.state("a"), pipeline.state("c")) == ("ready", "cancelled")


# -- Delete and prune ---------------------------------------------------------------------------


def test_those_after_a_deleted_job_are_cancelled_and_can_be_retried_without_it(app: Face) -> None:
    pipeline = drawn(app, CHAIN)

    assert app.delete(pipeline.new["a"].id)

    assert (pipeline.state("b"), pipeline.state("c")) == ("cancelled", "cancelled")
    assert pipeline.job("b").message == f"job {pipeline.new['a'].id} before it was deleted"
    assert app.retry(pipeline.new["b"].id).state == "ready"
    assert pipeline.state("c") == "blocked"


def test_a_succeeded_job_is_kept_as_long_as_somebody_may_ask_for_its_result(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "a", "c": ""})
    pipeline.succeed("a", "c")
    app.age(100)

    assert app.prune(0) == 1
    assert (app.get(pipeline.new["c"].id), pipeline.state("a")) == (None, "succeeded")
    pipeline.succeed("b")
    app.age(100)

    assert app.prune(0) == 2
    assert app.pipelines.get(pipeline.id) is None


def test_a_pipeline_keeps_its_name_as_long_as_a_chained_job_belongs_to_it(app: Face) -> None:
    pipeline = drawn(app, {"a": ""})
    child = NewJob("child")
    claim = app.claim_job(pipeline.new["a"].id)
    claim.succeed(then=[child])
    app.age(100)

    assert app.prune(0) == 1
    assert app.pipelines.get(pipeline.id).name == "nightly"
    app.delete(child.id)

    assert app.pipelines.get(pipeline.id) is None
    assert [job.is_new for job in pipeline.enqueue()] == [True]


def test_a_pipeline_whose_jobs_are_gone_can_be_stored_again(app: Face) -> None:
    pipeline = Drawn(app, {"a": "", "b": "a"})
    pipeline.enqueue()
    for kind in ("b", "a"):
        app.delete(pipeline.new[kind].id)

    jobs = pipeline.enqueue()

    assert [(job.state, job.is_new) for job in jobs] == [("ready", True), ("blocked", True)]


def test_a_pipeline_that_is_not_done_is_not_moved_to_another_store(app: Face) -> None:
    pipeline, target = drawn(app, CHAIN), Dibs("memory://")

    with pytest.raises(Refused, match=f"'nightly' .{pipeline.id}. may wait"):
        move_sync(app.app, target)

    assert target.sync.find() == []
    pipeline.succeed("a", "b", "c")
    assert move_sync(app.app, target).jobs["succeeded"] == 3
    app.app.sync.close()
    target.sync.close()


def test_a_pipeline_that_comes_while_others_depart_stays_until_nobody_in_it_waits(app: Face) -> None:
    [plain] = app.enqueue(NewJob("plain"))
    pipeline = drawn(app, CHAIN)

    assert _departed(app) == {plain.id}
    pipeline.succeed("a")
    assert _departed(app) == set()  # who runs next may ask for its result
    pipeline.succeed("b", "c")

    assert _departed(app) == {new.id for new in pipeline.new.values()}


def _departed(app: Face) -> set[UUID]:
    return {row["id"] for row in put(app, "depart", store=ELSEWHERE, after=None, limit=10)}


def test_a_pipeline_that_has_departed_leaves_no_trace(app: Face) -> None:
    pipeline = drawn(app, CHAIN)
    pipeline.succeed("a", "b", "c")

    put(app, "depart", store=ELSEWHERE, after=None, limit=10)

    assert put(app, "pipelines", ids=[pipeline.id]) == []
    assert put(app, "parents", jobs=[new.id for new in pipeline.new.values()]) == []


def test_jobs_that_are_given_back_belong_together_but_wait_for_nobody(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "a"})
    app.pipelines.cancel(pipeline.id)
    put(app, "depart", store=ELSEWHERE, after=None, limit=10)

    assert give_back_sync(app.app) == 2

    found = app.pipelines.get(pipeline.id)
    assert (found.name, found.counts["cancelled"]) == (None, 2)
    assert app.retry(pipeline.new["b"].id).state == "ready"
    assert [(job.state, job.is_new) for job in pipeline.enqueue()] == [("cancelled", False), ("ready", False)]


# -- What is refused ----------------------------------------------------------------------------


def test_what_makes_no_pipeline_is_refused_before_anything_is_written(app: Face) -> None:
    pipeline, first = app.pipeline("nightly"), NewJob("a")
    pipeline.add(first)

    for after in ([NewJob("never added")], [new_id()], ["nonsense"], first, str(first.id), None, 7, [None]):
        with pytest.raises(BadRequest):
            pipeline.add(NewJob("b"), after=after)
    for new in (first, NewJob("b", pipeline_id=new_id()), "b"):
        with pytest.raises(BadRequest):
            pipeline.add(new)

    assert app.find() == []
    assert [job.kind for job in pipeline.enqueue()] == ["a"]
    with pytest.raises(BadRequest, match="was enqueued"):
        pipeline.add(NewJob("late"))


def test_a_name_or_a_policy_that_is_none_is_refused(app: Face) -> None:
    for name, on_failed in [("", "cancel"), ("x" * 201, "cancel"), ("nightly", "explode")]:
        with pytest.raises(BadRequest):
            app.pipeline(name, on_failed=on_failed)


@pytest.mark.parametrize("options", [{"unique": "k"}, {"slot": "s", "slot_policy": "drop"}], ids=str)
def test_a_job_that_may_not_be_stored_at_all_is_no_step(app: Face, options: dict[str, Any]) -> None:
    pipeline = app.pipeline("nightly")
    pipeline.add(NewJob("fine"))
    pipeline.add(NewJob("a", **options))

    with pytest.raises(BadRequest):
        pipeline.enqueue()

    assert app.find() == []


def test_a_job_that_was_enqueued_on_its_own_is_no_step(app: Face) -> None:
    new, pipeline = NewJob("a"), app.pipeline("nightly")
    app.enqueue(new)
    pipeline.add(new)
    pipeline.add(NewJob("b"), after=[new])

    with pytest.raises(Refused, match=str(new.id)):
        pipeline.enqueue()

    assert [job.id for job in app.find()] == [new.id]


def test_a_pipeline_without_jobs_stores_nothing(app: Face) -> None:
    assert app.pipeline("empty").enqueue() == []


# -- Look ---------------------------------------------------------------------------------------


def test_a_pipeline_tells_how_far_it_has_come(app: Face) -> None:
    pipeline = drawn(app, DIAMOND)
    pipeline.succeed("a")
    pipeline.claim("b").progress(0.5)

    found = app.pipelines.get(pipeline.id)

    assert (found.id, found.name, found.on_failed, found.is_finished) == (
        pipeline.id,
        "nightly",
        "cancel",
        False,
    )
    assert {state: n for state, n in found.counts.items() if n} == {
        "succeeded": 1,
        "running": 1,
        "ready": 1,
        "blocked": 1,
    }
    assert found.progress == pytest.approx(1.5 / 4)
    assert [job.kind for job in found.jobs] == ["a", "b", "c", "d"]
    assert found.after[pipeline.new["d"].id] == (pipeline.new["b"].id, pipeline.new["c"].id)


def test_the_tree_of_a_pipeline_shows_who_follows_whom(app: Face) -> None:
    pipeline = drawn(app, {**DIAMOND, "e": ""})

    def shown(branches: Any) -> Any:
        return {branch.job.kind: shown(branch.then) for branch in branches}

    tree = app.pipelines.get(str(pipeline.id)).tree

    assert shown(tree) == {"a": {"b": {"d": {}}, "c": {}}, "e": {}}


def test_jobs_that_only_share_a_pipeline_are_one(app: Face, make: Make) -> None:
    id = new_id()
    make.succeeded(pipeline_id=id), make.ready(pipeline_id=id), make.ready()

    found = app.pipelines.get(id)

    assert (found.counts["succeeded"], found.counts["ready"], found.progress) == (1, 1, 0.5)
    assert (found.name, len(found.tree)) == (None, 2)


def test_a_pipeline_of_chained_jobs_shows_who_chained_whom(app: Face, make: Make) -> None:
    claim, child = make.running("parent"), NewJob("child")
    claim.succeed(then=[child])

    [root] = app.pipelines.get(claim.job.id).tree

    assert (root.job.kind, [one.job.id for one in root.then]) == ("parent", [child.id])


def test_a_pipeline_that_nobody_belongs_to_is_none(app: Face) -> None:
    assert app.pipelines.get(new_id()) is None
    for act in (app.pipelines.cancel, app.pipelines.retry):
        with pytest.raises(NotFound, match="no pipeline"):
            act(new_id())
    for look in (app.pipelines.get, app.pipelines.cancel, app.pipelines.retry):
        with pytest.raises(BadRequest):
            look("nonsense")


def test_why_names_the_parent_and_who_runs_it(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "", "c": "ab", "d": "c"})
    pipeline.claim("a")

    why = app.why(pipeline.new["c"].id)
    assert why.code == "parent"
    a = pipeline.new["a"].id
    assert str(why) == f"it waits for job {a} (a) and 1 more, which is running at pod-a"
    behind = f"it waits for job {pipeline.new['c'].id} (c), which is blocked: {why}"
    assert str(app.why(pipeline.new["d"].id)) == behind


def test_why_names_the_parent_that_failed_and_what_to_do(app: Face) -> None:
    pipeline = drawn(app, {"a": "", "b": "", "c": "ab"}, on_failed="hold")
    pipeline.fail("b")

    why = app.why(pipeline.new["c"].id)

    assert why.code == "parent"
    assert str(why).startswith(f"it waits for job {pipeline.new['b'].id} (b), which failed at")
    assert str(why).endswith("broken; retry that job")


# -- Act on the whole ---------------------------------------------------------------------------


def test_a_whole_pipeline_is_cancelled_and_retried(app: Face) -> None:
    pipeline = drawn(app, DIAMOND)
    pipeline.succeed("a")
    claim = pipeline.claim("b")

    assert app.pipelines.cancel(pipeline.id, "stop it") == 3
    assert pipeline.states() == {"a": "succeeded", "b": "running", "c": "cancelled", "d": "cancelled"}
    assert pipeline.job("c").message == "stop it"
    claim.release()
    assert pipeline.state("b") == "cancelled"

    assert app.pipelines.retry(pipeline.id) == 3
    assert pipeline.states() == {"a": "succeeded", "b": "ready", "c": "ready", "d": "blocked"}
    pipeline.succeed("b", "c", "d")
    assert app.pipelines.get(pipeline.id).is_finished


def test_all_of_a_long_pipeline_that_is_cancelled_or_retried_is_counted(
    app: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.operations.manage.BATCH", 3)
    late = [NewJob("after") for _ in range(7)]  # older than whom they wait for
    pipeline = app.pipeline("nightly")
    first = pipeline.add(NewJob("first"))
    for one in late:
        pipeline.add(one, after=[first])
    pipeline.enqueue()

    assert app.pipelines.cancel(pipeline.id) == 8
    assert app.pipelines.retry(pipeline.id) == 8

    assert app.counts() == {**app.counts(), "ready": 1, "blocked": 7, "cancelled": 0}


def test_a_whole_pipeline_of_chained_jobs_is_cancelled_and_retried(app: Face, make: Make) -> None:
    id = new_id()
    waiting, other = make.ready(pipeline_id=id), make.ready()

    assert app.pipelines.cancel(id) == 1
    assert (app.get(waiting.id).state, app.get(other.id).state) == ("cancelled", "ready")
    assert app.pipelines.retry(id) == 1

    assert app.get(waiting.id).state == "ready"


# -- In your transaction, and results -----------------------------------------------------------


def test_the_results_of_parents_are_handed_on(app: Face) -> None:
    seen = []

    @app.job(name="load")
    async def load(ctx: Context) -> None:
        seen.extend([(job.kind, job.result) for job in await ctx.parents()])

    pipeline = drawn(app, {"b": "", "a": "", "load": "ab"})
    pipeline.succeed("a", result={"rows": 3})
    pipeline.succeed("b", result=[1])

    assert app.run_job(pipeline.new["load"].id).state == "succeeded"
    assert seen == [("a", {"rows": 3}), ("b", [1])]


# -- Chained jobs -------------------------------------------------------------------------------


def test_children_of_a_job_that_fails_are_never_made(app: Face) -> None:
    @app.job(name="parent", max_attempts=1)
    def parent(ctx: Context) -> None:
        ctx.chain(NewJob("child"))
        raise ValueError("broken")

    job = app.enqueue_task(parent)

    assert app.run_job(job.id).state == "failed"
    assert app.find(kind="child") == []


def test_children_of_a_job_that_fails_first_are_made_once_when_it_succeeds(app: Face) -> None:
    tries = []

    @app.job(name="parent", max_attempts=1)
    def parent(ctx: Context) -> None:
        ctx.chain(NewJob("child"))
        tries.append(ctx.job.attempts)
        if len(tries) == 1:
            raise ValueError("broken")

    job = app.enqueue_task(parent)
    app.run_job(job.id)
    app.retry(job.id)

    assert app.run_job(job.id).state == "succeeded"
    assert [child.parent_id for child in app.find(kind="child")] == [job.id]


def test_children_of_a_job_that_was_pre_empted_are_never_made(app: Face) -> None:
    blocking = app.app.sync

    @app.job(name="old", slot="s")
    def old(ctx: Context) -> None:
        ctx.chain(NewJob("child"))
        blocking.enqueue(NewJob("newest", slot="s", slot_policy="preempt"))
        while blocking.get(ctx.job.id) is not None:  # until it hears of it
            ctx.sync.progress(0.5)
            time.sleep(0.01)

    job = app.enqueue_task(old)

    assert app.run_job(job.id).state == "cancelled"
    assert [(found.kind, found.state) for found in app.find()] == [("newest", "ready"), ("old", "cancelled")]
    blocking.close()


def test_a_child_whose_unique_key_is_taken_is_not_made_and_its_parent_succeeds(app: Face, make: Make) -> None:
    holder, claim = make.ready("child", unique="k"), make.running("parent")
    other = NewJob("other")

    claim.succeed("done", then=[NewJob("child", unique="k"), other])

    assert app.get(claim.job.id).state == "succeeded"
    assert [job.id for job in app.find(kind="child")] == [holder.id]
    assert app.get(other.id).parent_id == claim.job.id


def test_a_settlement_sent_twice_makes_its_children_once(app: Face, make: Make) -> None:
    claim, child = make.running("parent"), NewJob("child")

    claim.succeed(then=[child])
    app.claim_job(child.id).succeed()
    claim.succeed(then=[child])

    assert app.get(child.id).state == "succeeded"
    assert len(app.find()) == 2


def test_children_chained_by_a_step_belong_to_its_pipeline(app: Face) -> None:
    pipeline, child = drawn(app, CHAIN), NewJob("chained")

    pipeline.claim("a").succeed(then=[child])

    assert (app.get(child.id).pipeline_id, app.get(child.id).state) == (pipeline.id, "ready")
    assert pipeline.state("b") == "ready"
    assert app.pipelines.get(pipeline.id).after[child.id] == (pipeline.new["a"].id,)


def exchanged(app: Face, claim: Any, limit: int) -> tuple[Any, ...]:
    """What a worker asks that has succeeded with one job and wants more."""
    held = claim._held
    one = held.settled_by(held.succeeded(None))
    wish = ClaimRequest(worker="pod-a", lease=60 * SECOND, leases={}, limit=limit)
    (lost, _), taken = app.ask(lambda: exchange([one], wish))
    return list(lost), taken


def test_an_exchange_may_claim_whom_its_settlements_let_go(app: Face) -> None:
    pipeline = drawn(app, CHAIN)

    lost, taken = exchanged(app, pipeline.claim("a"), limit=5)

    assert (lost, [job.kind for job in taken], pipeline.state("c")) == ([], ["b"], "blocked")


def settled_together(app: Face, pipeline: Drawn, kinds: str) -> None:
    helds = [pipeline.claim(kind)._held for kind in kinds]
    ones = [held.settled_by(held.succeeded(None)) for held in helds]
    app.ask(lambda: exchange(ones, ClaimRequest(worker="pod-a", lease=60 * SECOND, leases={}, limit=0)))


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_steps_that_go_together_take_their_places_in_their_own_order(app: Face, order: str) -> None:
    north = {"train": "north"}
    pipeline = drawn(app, {"a": "", "b": "", "c": "b", "d": "a", "e": "ab"}, c=north, d=north, e=north)

    settled_together(app, pipeline, order)

    assert [pipeline.state(kind) for kind in "cde"] == ["ready", "blocked", "blocked"]
    pipeline.succeed("c")
    assert [pipeline.state(kind) for kind in "de"] == ["ready", "blocked"]


@pytest.mark.parametrize("is_step", [True, False])
def test_who_is_after_two_that_were_superseded_together_names_the_older(app: Face, is_step: bool) -> None:
    app.claim_job(app.enqueue(NewJob("holder", slot="gate"))[0].id)
    gate, urgent = {"slot": "gate"}, {"slot": "gate", "priority": 5}
    pipeline = drawn(app, {"a": "", "b": "", "c": "ab"}, a=gate, b=urgent)
    newest = {"slot": "gate", "slot_policy": "replace"}

    if is_step:
        drawn(app, {"q": "", "r": "q"}, r=newest).succeed("q")
    else:
        app.enqueue(NewJob("newest", **newest))

    assert pipeline.states() == dict.fromkeys("abc", "cancelled")
    assert str(pipeline.new["a"].id) in str(pipeline.job("c").message)


def test_who_is_after_one_that_failed_and_one_superseded_for_that_turn_names_the_one_that_failed(
    app: Face,
) -> None:
    app.claim_job(app.enqueue(NewJob("holder", slot="gate"))[0].id)
    gate = {"slot": "gate"}
    pipeline = drawn(
        app,
        {"a": "", "b": "", "q": "", "c": "ab", "newest": "q"},
        a=gate,
        newest=gate | {"slot_policy": "replace"},
    )
    failed, succeeded = (pipeline.claim(kind)._held for kind in "bq")
    ones = [
        failed.settled_by(failed.raised(ValueError("broken"))),
        succeeded.settled_by(succeeded.succeeded(None)),
    ]

    app.ask(lambda: exchange(ones, ClaimRequest(worker="pod-a", lease=60 * SECOND, leases={}, limit=0)))

    assert [pipeline.state(kind) for kind in "abc"] == ["cancelled", "failed", "cancelled"]
    assert str(pipeline.new["b"].id) in str(pipeline.job("c").message)


@pytest.mark.parametrize("after", [{"c": "a", "d": "a"}, {"c": "a", "d": "b"}])
def test_of_steps_that_go_together_only_who_goes_next_asks_somebody_to_stop(
    app: Face, after: dict[str, str]
) -> None:
    app.enqueue(*(NewJob("work", slot="gate", slot_limit=2) for _ in range(2)))
    claims = app.claim(limit=2)
    push = {"slot": "gate", "slot_policy": "preempt"}
    limits = {
        "c": {**push, "slot_limit": 1},
        "d": {**push, "slot_limit": 2},
    }  # d, which goes next, needs one of them
    pipeline = drawn(app, {"a": "", "b": "", **after}, **limits)

    settled_together(app, pipeline, "ab")

    assert ["asked to stop" in str(app.why(claim.job.id)) for claim in claims] == [True, False]


@pytest.mark.parametrize(
    "gate", [{"train": "north"}, {"slot": "gate"}, {"slot": "gate", "slot_policy": "preempt"}]
)
def test_whom_an_exchange_lets_go_has_its_turn_in_it_at_a_gate_too(app: Face, gate: dict[str, Any]) -> None:
    pipeline = drawn(app, CHAIN, b={**gate, "args": {"n": 1}, "tags": ["step"]})
    app.enqueue(NewJob("younger"))

    lost, [taken] = exchanged(app, pipeline.claim("a"), limit=1)

    assert (lost, taken.kind, taken.state, taken.attempts) == ([], "b", "running", 1)
    found = pipeline.job("b")
    assert (taken.args, taken.tags, taken.token, taken.worker) == (
        found.args,
        found.tags,
        found.token,
        "pod-a",
    )
    assert (taken.train, taken.slot, taken.lease_until) == (found.train, found.slot, found.lease_until)
    assert [claim.job.kind for claim in app.claim(limit=5)] == ["younger"]


def test_whom_an_exchange_lets_go_waits_in_it_behind_who_is_ahead_at_its_gate(app: Face) -> None:
    app.enqueue(NewJob("ahead", train="north"))
    pipeline = drawn(app, CHAIN, b={"train": "north"})
    app.enqueue(NewJob("younger"))

    _, taken = exchanged(app, pipeline.claim("a"), limit=5)

    assert [job.kind for job in taken] == ["ahead", "younger"]
    assert pipeline.state("b") == "blocked"


# -- Lists ----------------------------------------------------------------------------------------


def test_pipelines_are_listed_newest_first(app: Face, make: Make) -> None:
    old = app.pipeline("old")
    head = old.add(NewJob("work"))
    old.add(NewJob("work"), after=[head])
    old.enqueue()
    chained = make.running()
    chained.succeed(then=[NewJob("work"), NewJob("work")])
    new = app.pipeline("new")
    new.add(NewJob("work"))
    new.enqueue()
    make.ready()
    app.claim_job(head.id).succeed()
    child = app.claim_job(app.find(pipeline_id=chained.job.id, state="ready")[0].id)
    child.progress(0.5)

    found = app.pipelines.list()

    assert [one.id for one in found] == sorted([new.id, chained.job.id, old.id], reverse=True)
    assert {one.name for one in found} == {"new", None, "old"}
    for one in found:
        whole = app.pipelines.get(one.id)
        assert (one.counts, one.progress) == (whole.counts, pytest.approx(whole.progress))
    assert [one.progress for one in found if one.name is None] == [pytest.approx(0.5)]


def test_pipelines_are_listed_page_by_page(app: Face) -> None:
    ids = [new_id() for _ in range(5)]
    for id in ids:
        app.enqueue(NewJob("work", pipeline_id=id), NewJob("work", pipeline_id=id))

    first = app.pipelines.list(limit=2)
    second = app.pipelines.list(limit=2, after=first[-1].id)
    rest = app.pipelines.list(after=second[-1].id)

    assert [one.id for one in (*first, *second, *rest)] == ids[::-1]
    assert app.pipelines.list(limit=0) == app.pipelines.list(limit=-(10**12)) == []


def test_a_pipeline_without_jobs_is_listed_no_more(app: Face) -> None:
    id = new_id()
    app.enqueue(NewJob("work", pipeline_id=id), NewJob("work", pipeline_id=id))
    app.delete(app.find(pipeline_id=id)[0].id)
    assert [one.counts["ready"] for one in app.pipelines.list()] == [1]

    app.delete_many(pipeline_id=id)

    assert app.pipelines.list() == []


def test_a_large_pipeline_is_counted_whole(app: Face) -> None:
    id = new_id()
    app.enqueue(*(NewJob("work", pipeline_id=id) for _ in range(4500)))

    [one] = app.pipelines.list()

    assert (one.counts["ready"], one.progress) == (4500, 0.0)
