"""Slots: of the jobs that share one, only so many run at a time, and the one started last is current."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from dibs import BadRequest, Job, LeaseLost, NewJob
from dibs.clock import SECOND
from dibs.jobs.gates import WAITING_READ
from dibs.jobs.states import Released
from dibs.operations import upkeep
from dibs.operations.claim import ClaimRequest
from dibs.operations.claim import claim as claim_script
from dibs.operations.settle import exchange
from tests.support.faces import Face, Make
from tests.support.moves import put as ask


def put(app: Face, slot: Any = "s", kind: str = "work", **options: Any) -> Job:
    [job] = app.enqueue(NewJob(kind, slot=slot, **options))
    return job


def states(app: Face, *jobs: Job) -> list[str]:
    return [app.get(job.id).state.value for job in jobs]


# -- Wait ---------------------------------------------------------------------------------------


def test_one_of_a_slot_is_ready_and_the_others_wait(app: Face) -> None:
    jobs = [put(app) for _ in range(3)]

    assert [job.state for job in jobs] == ["ready", "blocked", "blocked"]
    assert [job.slot for job in jobs] == ["s"] * 3
    assert len(app.claim(limit=5)) == 1


@pytest.mark.parametrize("end", ["succeed", "fail", "cancel", "snooze", "release"])
def test_whoever_lets_go_of_a_slot_lets_the_next_one_go(app: Face, end: str) -> None:
    first, second = put(app), put(app, priority=5)
    claim = app.claim_job(first.id)

    {
        "succeed": claim.succeed,
        "fail": lambda: claim.fail("broken"),
        "cancel": lambda: claim.cancel("enough"),
        "snooze": lambda: claim.snooze(30),
        "release": claim.release,
    }[end]()

    assert app.get(second.id).state == "ready"
    assert app.get(first.id).state != "ready"


def test_a_slot_is_free_during_back_off_and_taken_again_in_turn(app: Face) -> None:
    first, second = put(app), put(app)
    app.claim_job(first.id).fail("broken")
    assert states(app, first, second) == ["scheduled", "ready"]
    claim = app.claim_job(second.id)

    app.age(10)
    app.sweep()
    assert app.get(first.id).state == "blocked"
    app.claim(limit=5)  # nothing: the second one runs
    claim.succeed()

    assert app.get(first.id).state == "ready"


def test_waiting_siblings_go_by_priority_then_age(app: Face) -> None:
    running = app.claim_job(put(app).id)
    low, old, young, high = put(app, priority=-1), put(app), put(app), put(app, priority=9)
    running.succeed()

    for expected in (high, old, young, low):
        [claim] = app.claim(limit=5)
        assert claim.job.id == expected.id
        claim.succeed()


def test_a_more_urgent_sibling_goes_before_one_that_has_not_started(app: Face) -> None:
    low, high = put(app), put(app, priority=5)

    assert states(app, low, high) == ["blocked", "ready"]


def test_a_delayed_job_does_not_keep_its_slot(app: Face) -> None:
    later, now = put(app, delay=60), put(app)

    assert (later.state, now.state) == ("scheduled", "ready")
    app.age(61)
    app.sweep()
    assert states(app, later, now) == ["blocked", "ready"]


def test_different_slots_and_plain_jobs_run_side_by_side(app: Face, make: Make) -> None:
    for slot in ("a", "a", "b", "b"):
        put(app, slot)
    make.ready()

    assert len(app.claim(limit=10)) == 3


def test_a_slot_spans_kinds_and_queues(app: Face) -> None:
    put(app, kind="a", queue="x")
    other = put(app, kind="b", queue="y")

    assert other.state == "blocked"


def test_a_corpse_frees_its_slot_when_its_lease_ends_and_only_then(app: Face) -> None:
    first, second = put(app, max_attempts=1), put(app)
    app.claim_job(first.id, lease=60)
    app.age(59)
    app.sweep()
    assert app.get(second.id).state == "blocked"

    app.age(2)
    app.sweep()

    assert states(app, first, second) == ["failed", "ready"]


def test_a_job_whose_worker_died_is_in_line_again(app: Face) -> None:
    first, second = put(app), put(app, priority=5)
    app.claim_job(first.id, lease=0.1)
    app.age(1)

    app.sweep()

    assert states(app, first, second) == ["blocked", "ready"]
    assert app.get(first.id).attempts == 1


def test_a_recovered_job_is_in_line_again(app: Face) -> None:
    first, second = put(app), put(app, priority=5)
    app.claim_job(first.id, lease=0.1)
    app.age(10)

    app.recover(first.id, stale_after=1)

    assert states(app, first, second) == ["blocked", "ready"]


def test_cancelling_or_deleting_who_is_ready_lets_the_next_one_go(app: Face) -> None:
    first, second, third = put(app), put(app), put(app)

    app.cancel(first.id)
    assert app.get(second.id).state == "ready"
    app.delete(second.id)

    assert app.get(third.id).state == "ready"


def test_a_retried_job_waits_for_its_slot(app: Face) -> None:
    first = put(app, max_attempts=1)
    app.claim_job(first.id).fail("broken")
    claim = app.claim_job(put(app).id)

    assert app.retry(first.id).state == "blocked"
    claim.succeed()

    assert app.get(first.id).state == "ready"


def test_a_scheduled_job_told_to_go_now_waits_for_its_slot(app: Face) -> None:
    later = put(app, delay=60)
    app.claim_job(put(app).id)

    assert app.retry(later.id).state == "blocked"


def test_the_last_of_a_slot_leaves_no_trace(app: Face) -> None:
    app.claim_job(put(app).id).succeed()

    assert _gates(app) == []


def _gates(app: Face) -> Any:
    from dibs.operations.scripts import Step

    def look() -> Any:
        which = {"names": None, "held": False, "after": None, "limit": 10}
        return (yield Step("gates", {"sort": "slot", **which}))

    return list(app.ask(look))


# -- Claiming by name ---------------------------------------------------------------------------


def test_a_claim_by_name_overtakes_siblings_that_have_not_started(app: Face) -> None:
    first, second = put(app), put(app)

    claim = app.claim_job(second.id)

    assert claim.job.id == second.id
    assert states(app, first, second) == ["blocked", "running"]
    claim.succeed()
    assert app.get(first.id).state == "ready"


def test_a_claim_by_name_never_takes_the_place_of_a_running_sibling(app: Face) -> None:
    first, second = put(app), put(app)
    app.claim_job(first.id)

    assert app.claim_job(second.id) is None
    assert (app.get(second.id).state, app.get(second.id).attempts) == ("blocked", 0)


def test_a_paused_queue_gives_nothing_of_a_slot_either(app: Face) -> None:
    _, second = put(app), put(app)
    app.pause("default")

    assert app.claim_job(second.id) is None
    assert app.get(second.id).state == "blocked"


def test_of_two_racing_claims_of_siblings_exactly_one_wins(app: Face) -> None:

    for round in range(5):
        jobs = [put(app, f"s{round}") for _ in range(2)]
        wishes = [ClaimRequest(worker="w", lease=60_000_000, leases={}, id=job.id) for job in jobs]

        answers = app.race_to_ask(*[lambda wish=wish: claim_script(wish) for wish in wishes])

        claimed = [taken for taken, _ in answers]
        assert sorted(map(len, claimed)) == [0, 1]
        loser = jobs[0] if not claimed[0] else jobs[1]
        assert (app.get(loser.id).state, app.get(loser.id).attempts) == ("blocked", 0)


# -- Current ------------------------------------------------------------------------------------


def test_the_job_started_last_is_current(app: Face) -> None:
    first, second = put(app), put(app)
    assert app.slots.current("s") is None
    assert not app.get(first.id).is_current

    claim = app.claim_job(first.id)
    assert claim.job.is_current
    assert app.get(first.id).is_current
    claim.succeed()
    assert app.slots.current("s").id == first.id  # nobody has started since
    app.claim_job(second.id)

    assert app.slots.current("s").id == second.id
    assert [app.get(job.id).is_current for job in (first, second)] == [False, True]
    assert {job.id: job.is_current for job in app.find(slot="s")} == {first.id: False, second.id: True}


def test_a_running_job_is_always_current(app: Face) -> None:
    claims = [app.claim_job(put(app, slot_limit=2).id) for _ in range(2)]

    assert [app.get(claim.job.id).is_current for claim in claims] == [True, True]
    claims[1].succeed()
    assert [app.get(claim.job.id).is_current for claim in claims] == [True, True]
    assert app.slots.current("s").id == claims[1].job.id


def test_a_job_without_a_slot_is_never_current(app: Face, make: Make) -> None:
    claim = make.running()

    assert not claim.job.is_current
    assert not app.get(claim.job.id).is_current


def test_a_slot_nobody_used_has_no_current_job(app: Face) -> None:
    assert app.slots.current(("csv", None)) is None


# -- Replace, drop, preempt ---------------------------------------------------------------------


def test_replace_cancels_those_who_wait_and_spares_the_running_one(app: Face) -> None:
    running = app.claim_job(put(app).id)
    waiting, later = put(app), put(app, delay=60)

    newest = put(app, slot_policy="replace")

    assert states(app, waiting, later, newest) == ["cancelled", "cancelled", "blocked"]
    assert app.get(waiting.id).message == f"superseded by {newest.id}"
    running.succeed()
    assert app.get(newest.id).state == "ready"


def test_of_many_replacing_jobs_the_last_one_runs(app: Face) -> None:
    jobs = [put(app, slot_policy="replace") for _ in range(4)]

    assert states(app, *jobs) == ["cancelled"] * 3 + ["ready"]


def test_replacing_jobs_of_one_call_leave_the_last(app: Face) -> None:
    jobs = app.enqueue(*[NewJob("work", slot="s", slot_policy="replace") for _ in range(3)])

    assert [job.state for job in jobs] == ["cancelled", "cancelled", "ready"]
    assert states(app, *jobs) == ["cancelled", "cancelled", "ready"]


@pytest.mark.parametrize("state", ["ready", "running", "scheduled"])
def test_drop_keeps_the_existing_job(app: Face, state: str) -> None:
    existing = put(app, delay=60 if state == "scheduled" else None)
    if state == "running":
        app.claim_job(existing.id)

    dropped = put(app, slot_policy="drop")

    assert (dropped.id, dropped.is_new, dropped.state) == (existing.id, False, state)
    assert len(app.find(slot="s")) == 1


def test_drop_stores_a_job_where_there_is_room(app: Face) -> None:
    app.claim_job(put(app).id).succeed()

    assert put(app, slot_policy="drop").is_new
    assert put(app, slot="other", slot_policy="drop", slot_limit=2).is_new
    assert put(app, slot="other", slot_policy="drop", slot_limit=2).is_new
    assert not put(app, slot="other", slot_policy="drop", slot_limit=2).is_new


def test_dropped_jobs_of_one_call_are_answered_with_the_first(app: Face) -> None:
    first, second = app.enqueue(*[NewJob("work", slot="s", slot_policy="drop") for _ in range(2)])

    assert (second.id, first.is_new, second.is_new) == (first.id, True, False)


def test_preempt_asks_the_running_one_to_stop_and_is_next(app: Face) -> None:
    old = app.claim_job(put(app).id)
    waiting = put(app, priority=9)

    newest = put(app, slot_policy="preempt")

    assert states(app, old.job, waiting, newest) == ["running", "blocked", "blocked"]
    old.release()  # its holder heard of it and lets go
    assert states(app, old.job, waiting, newest) == ["cancelled", "blocked", "ready"]
    assert app.get(old.job.id).message == f"pre-empted by {newest.id}"


def test_of_several_that_pre_empt_in_one_call_the_one_that_goes_next_is_the_reason(app: Face) -> None:
    app.enqueue(NewJob("work", slot="s"))
    [old] = app.claim()

    *_, newest = app.enqueue(*(NewJob("work", slot="s", slot_policy="preempt") for _ in range(2)))
    old.cancel()

    assert app.get(old.job.id).message == f"pre-empted by {newest.id}"
    assert app.get(newest.id).state == "ready"


def test_of_several_that_pre_empt_and_are_due_at_once_the_one_that_goes_next_asks(app: Face) -> None:
    claims = [app.claim_job(put(app, slot_limit=2).id) for _ in range(2)]
    put(app, slot_policy="preempt", slot_limit=1, delay=5)
    newest = put(app, slot_policy="preempt", slot_limit=2, delay=6)

    app.age(10)
    app.sweep()

    asked, spared = (str(app.why(claim.job.id)) for claim in claims)
    assert f"asked to stop (pre-empted by {newest.id})" in asked
    assert "asked to stop" not in spared


def test_of_several_corpses_of_a_slot_only_who_was_asked_to_stop_is_cancelled(app: Face) -> None:
    corpses = [app.claim_job(put(app, slot_limit=2).id, lease=5).job for _ in range(2)]
    limits = (1, 2)  # the newest, which goes next, asks one of them; the older one would ask both
    app.enqueue(*[NewJob("work", slot="s", slot_policy="preempt", slot_limit=limit) for limit in limits])

    app.age(6)
    app.sweep()

    assert states(app, *corpses) == ["cancelled", "blocked"]


def test_of_two_jobs_of_a_slot_that_are_released_together_only_who_was_asked_to_stop_is_cancelled(
    app: Face,
) -> None:
    claims = [app.claim_job(put(app, slot_limit=2).id) for _ in range(2)]
    app.enqueue(*[NewJob("work", slot="s", slot_policy="preempt", slot_limit=limit) for limit in (1, 2)])
    released = [claim._held.settled_by(Released()) for claim in claims]

    app.ask(lambda: exchange(released, ClaimRequest(worker="pod-a", lease=SECOND, leases={}, limit=0)))

    assert states(app, *(claim.job for claim in claims)) == ["cancelled", "blocked"]


def test_those_who_pre_empt_and_are_cancelled_together_ask_nobody_more(app: Face) -> None:
    claims = [app.claim_job(put(app, slot_limit=2).id) for _ in range(2)]
    newest, older = (
        NewJob("work", slot="s", slot_policy="preempt", slot_limit=n, tags=["z"]) for n in (2, 1)
    )
    app.enqueue(older, newest)

    app.cancel_many(tags=["z"])

    assert ["asked to stop" in str(app.why(claim.job.id)) for claim in claims] == [True, False]


def test_of_two_chained_jobs_that_pre_empt_only_who_goes_next_asks_somebody_to_stop(app: Face) -> None:
    claims = [app.claim_job(put(app, slot_limit=2).id) for _ in range(2)]
    [parent] = app.enqueue(NewJob("parent"))
    chained = [NewJob("work", slot="s", slot_policy="preempt", slot_limit=limit) for limit in (1, 2)]

    app.claim_job(parent.id).succeed(then=chained)

    assert ["asked to stop" in str(app.why(claim.job.id)) for claim in claims] == [True, False]


def test_those_who_pre_empt_and_are_deleted_together_ask_nobody_more(app: Face) -> None:
    claims = [app.claim_job(put(app, slot_limit=2).id) for _ in range(2)]
    limits = (1, 2)
    jobs = app.enqueue(*(NewJob("work", slot="s", slot_policy="preempt", slot_limit=n) for n in limits))

    ask(app, "delete", ids=[job.id for job in reversed(jobs)])

    assert ["asked to stop" in str(app.why(claim.job.id)) for claim in claims] == [True, False]


def test_a_job_that_is_named_twice_is_cancelled_once(app: Face) -> None:
    job = put(app)

    assert [row["id"] for row in ask(app, "cancel", ids=[job.id, job.id], reason=None)] == [job.id]


def test_whoever_is_superseded_in_its_own_call_pre_empts_nobody(app: Face) -> None:
    app.enqueue(NewJob("work", slot="s"))
    [old] = app.claim()

    policies = ("wait", "preempt", "replace")
    app.enqueue(*(NewJob("work", slot="s", slot_policy=policy) for policy in policies))
    old.release()

    assert app.get(old.job.id).state != "cancelled"


def test_an_older_job_that_pre_empts_stops_no_newer_one(app: Face) -> None:
    old = app.claim_job(put(app).id)
    older, newer = put(app, slot_policy="preempt"), put(app, slot_policy="preempt")
    old.release()
    running = app.claim_job(newer.id)

    put(app)  # whatever stirs the slot
    running.release()

    assert states(app, old.job, older, newer) == ["cancelled", "blocked", "ready"]


def test_an_older_job_that_pre_empts_stops_only_who_is_behind_it(app: Face) -> None:
    plain = app.claim_job(put(app, slot_limit=3).id)
    newer = app.claim_job(put(app, slot_limit=3, slot_policy="preempt").id)
    late = app.claim_job(put(app, slot_limit=3).id)
    app.cancel(plain.job.id)
    older = put(app, slot_limit=1, slot_policy="preempt")
    newest = put(app, slot_limit=3, slot_policy="preempt")
    plain.release()
    running = app.claim_job(newest.id)

    put(app, slot_limit=3)
    for claim in (newer, late, running):
        claim.release()

    assert states(app, newer.job, late.job, older, newest) == ["cancelled", "cancelled", "blocked", "ready"]


def test_a_success_that_comes_first_wins_over_preemption(app: Face) -> None:
    old = app.claim_job(put(app).id)
    newest = put(app, slot_policy="preempt")

    old.succeed("done")

    assert states(app, old.job, newest) == ["succeeded", "ready"]


def test_a_preempted_corpse_lets_go_when_its_lease_ends(app: Face) -> None:
    old = app.claim_job(put(app).id, lease=60)
    newest = put(app, slot_policy="preempt")
    app.sweep()
    assert app.get(newest.id).state == "blocked"

    app.age(61)
    app.sweep()

    assert states(app, old.job, newest) == ["cancelled", "ready"]
    claim = app.claim_job(newest.id)
    assert claim.token > old.token
    with pytest.raises(LeaseLost):
        old.succeed()


def test_preempt_goes_before_siblings_that_have_not_started(app: Face) -> None:
    first = put(app, priority=9)

    newest = put(app, slot_policy="preempt")

    assert states(app, first, newest) == ["blocked", "ready"]


def test_of_two_preempting_jobs_the_newest_is_next(app: Face) -> None:
    old = app.claim_job(put(app).id)
    first, second = put(app, slot_policy="preempt"), put(app, slot_policy="preempt")

    old.release()

    assert states(app, first, second) == ["blocked", "ready"]


def test_a_claim_by_name_that_is_refused_asks_nobody_to_stop(app: Face) -> None:
    older, newer = app.enqueue(*(NewJob("work", slot="s", slot_policy="preempt") for _ in range(2)))
    claim = app.claim_job(newer.id)

    assert app.claim_job(older.id) is None

    claim.release()
    assert app.get(newer.id).state == "ready"


def test_whoever_overtakes_a_preempting_job_by_name_is_asked_to_stop_at_once(app: Face) -> None:
    old = app.claim_job(put(app, slot_limit=2).id)
    wide = put(app, slot_limit=2)
    newest = put(app, slot_policy="preempt")

    claim = app.claim_job(wide.id)
    old.release()
    claim.release()

    assert states(app, old.job, wide, newest) == ["cancelled", "cancelled", "ready"]


def test_a_preempting_job_asks_nobody_before_it_is_due(app: Face) -> None:
    old = app.claim_job(put(app).id)
    newest = put(app, slot_policy="preempt", delay=60)
    assert app.get(newest.id).state == "scheduled"

    app.age(30)
    old.renew(lease=600)
    app.age(31)
    app.sweep()
    old.release()

    assert states(app, old.job, newest) == ["cancelled", "ready"]


# -- Limits -------------------------------------------------------------------------------------


def test_a_slot_with_a_limit_runs_that_many(app: Face) -> None:
    jobs = [put(app, slot_limit=2) for _ in range(4)]

    assert [job.state for job in jobs] == ["ready", "ready", "blocked", "blocked"]
    claims = app.claim(limit=10)
    assert len(claims) == 2
    claims[0].succeed()
    assert len(app.claim(limit=10)) == 1


def test_the_strictest_limit_of_those_who_go_counts(app: Face) -> None:
    put(app, slot_limit=1)
    wide = put(app, slot_limit=3)

    assert wide.state == "blocked"


def test_preempt_asks_as_many_as_are_in_its_way(app: Face) -> None:
    old, young = (app.claim_job(put(app, slot_limit=2).id) for _ in range(2))

    newest = put(app, slot_limit=2, slot_policy="preempt")
    young.release()

    assert states(app, young.job, newest) == ["blocked", "ready"]
    old.release()
    assert app.get(old.job.id).state == "cancelled"


def test_an_older_job_that_pre_empts_asks_once_a_newer_one_has_the_place_it_asked_for(app: Face) -> None:
    first, second = (app.claim_job(put(app, slot_limit=2).id) for _ in range(2))
    older, newer = (put(app, slot_limit=2, slot_policy="preempt") for _ in range(2))
    first.release()
    app.claim_job(newer.id)

    second.release()

    assert states(app, first.job, second.job, older) == ["cancelled", "cancelled", "ready"]


def test_a_job_that_pre_empts_and_gives_way_to_a_newer_one_asks_the_next(app: Face) -> None:
    first, second = (app.claim_job(put(app, slot_limit=2).id) for _ in range(2))
    older = put(app, slot_limit=2, slot_policy="preempt")
    first.release()
    newer = put(app, slot_limit=2, slot_policy="preempt")  # before the older one has started

    second.release()

    assert states(app, first.job, second.job, older, newer) == ["cancelled", "cancelled", "ready", "ready"]


# -- Turns that nobody takes --------------------------------------------------------------------


def test_a_ready_job_that_nobody_takes_does_not_block_the_others_for_ever(app: Face) -> None:
    stuck, other = put(app, queue="paused", priority=5), put(app, queue="open")
    app.pause("paused")
    app.sweep()
    assert app.claim(limit=5) == []

    app.age(11)

    [claim] = app.claim(limit=5)
    assert claim.job.id == other.id
    assert app.get(stuck.id).state == "blocked"
    claim.succeed()
    assert app.get(stuck.id).state == "ready"


def test_turns_go_round_until_somebody_takes_one(app: Face) -> None:
    jobs = [put(app, kind=kind) for kind in "abc"]

    for turn in range(4):
        assert [app.get(job.id).state == "ready" for job in jobs] == [turn % 3 == at for at in range(3)]
        app.age(11)
        app.sweep()


def test_a_turn_is_not_passed_on_to_jobs_that_nobody_would_take_either(app: Face) -> None:
    jobs = [put(app) for _ in range(3)]

    for _ in range(2):
        app.age(11)
        app.sweep()
    jobs.append(put(app))

    assert states(app, *jobs) == ["ready", "blocked", "blocked", "blocked"]
    assert [_run_next(app) for _ in jobs] == [job.id for job in jobs]


def test_a_turn_that_nobody_could_be_given_is_not_looked_at_again(app: Face) -> None:
    jobs = [put(app) for _ in range(2)]
    app.age(11)

    assert app.claim(kinds=["another"]) == []

    assert app.ask(upkeep.upcoming).seconds is None
    app.sweep()  # which looks after every slot, too
    assert app.ask(upkeep.upcoming).seconds is None
    other = put(app, kind="another")
    for _ in jobs:
        assert app.claim(kinds=["another"]) == []
        app.age(11)
    [claim] = app.claim(kinds=["another"])
    assert claim.job.id == other.id


def test_one_of_another_kind_behind_jobs_that_nobody_takes_has_its_turn(app: Face) -> None:
    stuck = [put(app, kind="unknown") for _ in range(3)]
    other = put(app)

    for _ in stuck:
        assert app.claim(kinds=["work"]) == []
        app.age(11)
        app.sweep()

    [claim] = app.claim(kinds=["work"])
    assert claim.job.id == other.id


def test_of_two_that_nobody_takes_only_one_that_keeps_others_waiting_gives_way(app: Face) -> None:
    stuck, kept = put(app, kind="unknown", slot_limit=2), put(app, slot_limit=2)
    others = [put(app, slot_limit=2) for _ in range(2)]

    app.age(11)
    app.sweep()

    assert states(app, stuck, kept, *others) == ["blocked", "ready", "ready", "blocked"]


def test_where_more_wait_than_are_looked_at_a_turn_is_passed_on(app: Face) -> None:
    stuck, *others = app.enqueue(*[NewJob("unknown", slot="deploy") for _ in range(WAITING_READ + 1)])
    put(app, slot="deploy")

    app.age(11)
    app.sweep()

    assert states(app, stuck, others[0]) == ["blocked", "ready"]


def _run_next(app: Face) -> UUID:
    [claim] = app.claim(limit=1)
    claim.succeed()
    return claim.job.id


def test_an_offer_that_was_taken_is_not_passed_on(app: Face) -> None:
    first, second = put(app), put(app)
    [claim] = app.claim()

    app.age(11)
    app.sweep()

    assert states(app, first, second) == ["running", "blocked"]
    claim.succeed()
    assert app.get(second.id).state == "ready"


def test_who_gives_way_to_one_that_is_due_keeps_its_place(app: Face) -> None:
    first, second = put(app), put(app)
    urgent = put(app, slot_policy="preempt", delay=60)

    app.age(61)
    app.sweep()

    assert states(app, first, second, urgent) == ["blocked", "blocked", "ready"]
    app.claim_job(urgent.id).succeed()
    assert states(app, first, second) == ["ready", "blocked"]


def test_a_lone_ready_job_keeps_its_turn(app: Face) -> None:
    job = put(app)

    app.age(3600)
    app.sweep()

    assert app.get(job.id).state == "ready"


# -- Names --------------------------------------------------------------------------------------


def test_a_slot_may_have_parts_and_none_equals_none(app: Face) -> None:
    first = put(app, ("csv", 7, None, 2026))
    same = put(app, ("csv", 7, None, 2026))
    others = [put(app, slot) for slot in (("csv", 7, 1, 2026), ("csv", "7", None, 2026), ("csv", 7, None))]

    assert same.state == "blocked"
    assert same.slot == first.slot
    assert [job.state for job in others] == ["ready"] * 3
    assert len(app.find(slot=("csv", 7, None, 2026))) == 2


def test_a_task_makes_its_slot_from_its_arguments(app: Face) -> None:
    @app.job(slot="report_{year}", slot_policy="replace")
    def report(year: int) -> None: ...

    first, second, other = (app.enqueue_task(report, year) for year in (2025, 2025, 2026))

    assert (first.slot, other.slot) == ("report_2025", "report_2026")
    assert states(app, first, second, other) == ["cancelled", "ready", "ready"]


def test_a_task_fills_the_parts_of_its_slot_with_values(app: Face) -> None:
    @app.job(slot=("csv", "{target}", "year-{year}"))
    def load(target: int | None, year: int = 2026) -> None: ...

    job = app.enqueue_task(load, None)

    assert job.slot == put(app, ("csv", None, "year-2026")).slot


def test_a_task_fills_the_parts_of_parts_too(app: Face) -> None:
    @app.job(slot=("csv", ("{target}", "year-{year}")))
    def load(target: int | None, year: int = 2026) -> None: ...

    assert app.enqueue_task(load, 7).slot == put(app, ("csv", (7, "year-2026"))).slot


@pytest.mark.parametrize(
    "options",
    [
        {"slot": ""},
        {"slot": "x" * 201},
        {"slot": ()},
        {"slot": ("x" * 600,)},
        {"slot": (float("nan"),)},
        {"slot": 7},
        {"slot": "s", "slot_policy": "push"},
        {"slot": "s", "slot_limit": 0},
        {"slot": "s", "slot_limit": "2"},
        {"slot_policy": "wait"},
        {"slot_limit": 2},
    ],
    ids=repr,
)
def test_a_slot_that_makes_no_sense_is_refused(app: Face, options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        app.enqueue(NewJob("work", **options))
    assert app.find() == []


def test_why_names_the_job_that_has_the_slot(app: Face) -> None:
    first, second = put(app), put(app)
    app.claim_job(first.id, worker="pod-a")

    why = app.why(second.id)

    assert why.code == "slot"
    assert str(first.id) in str(why)
    assert "pod-a" in str(why)


def test_why_names_the_job_whose_turn_it_is(app: Face) -> None:
    first, *others = [put(app) for _ in range(3)]
    app.ask(lambda: upkeep.tick("pod-a", None, ["work"], concurrency=1, running=0))

    for job in others:
        assert str(app.why(job.id)) == f"the slot 's' is held by job {first.id} (work), which is ready"


def test_children_wait_for_their_slot(app: Face, make: Make) -> None:
    put(app)

    make.running().succeed(then=[NewJob("child", slot="s")])

    assert app.find(kind="child")[0].state == "blocked"


def test_a_whole_slot_is_not_changed_by_a_sweep(app: Face) -> None:
    jobs = [put(app) for _ in range(3)]
    app.claim_job(jobs[0].id)

    app.sweep()

    assert states(app, *jobs) == ["running", "blocked", "blocked"]


# -- Keys of several parts ------------------------------------------------------------------------


def test_what_a_job_says_of_its_slot_leads_back_to_it(app: Face, make: Make) -> None:
    """A tuple is kept as JSON, and that text is its other spelling."""
    job = make.ready(slot=("csv", 7, None, "é"))

    assert job.slot == '["csv",7,null,"é"]'
    assert [found.id for found in app.find(slot=job.slot)] == [job.id]
    assert make.ready(slot=job.slot).state == "blocked"


def test_a_key_of_several_parts_is_no_longer_than_one_of_one(app: Face, make: Make) -> None:
    longest = make.ready(slot=("é" * 196,))

    assert len(longest.slot) == 200
    assert [found.id for found in app.find(slot=longest.slot)] == [longest.id]
    with pytest.raises(BadRequest, match="200 characters as JSON, not 201"):
        make.ready(slot=("é" * 197,))


# -- Lists ----------------------------------------------------------------------------------------


def test_slots_are_listed_with_who_is_in_them(app: Face, make: Make) -> None:
    first = make.running(slot="b", slot_limit=2)
    second = make.running(slot="b", slot_limit=2)
    make.ready(slot="b", slot_limit=2)
    make.scheduled(slot="b", slot_limit=2)
    waiting = make.ready(slot=("a", 1))
    make.ready()
    make.succeeded(slot="done")

    b, a = sorted(app.slots.list(), key=lambda slot: slot.running, reverse=True)

    assert (b.key, b.current.id, b.current.is_current) == ("b", second.job.id, True)
    assert (b.running, b.waiting) == (2, 2)
    assert (a.key, a.current, a.running, a.waiting) == ('["a",1]', None, 0, 1)
    assert [app.slots.get("b"), app.slots.get(("a", 1)), app.slots.get("done")] == [b, a, None]
    first.succeed()
    assert app.slots.get("b").current.id == second.job.id
    assert app.get(waiting.id).slot == a.key


def test_a_slot_that_waits_shows_the_job_that_ran_last(app: Face, make: Make) -> None:
    done = make.succeeded(slot="csv")
    make.ready(slot="csv")

    slot = app.slots.get("csv")

    assert (slot.current.id, slot.current.is_current, slot.running, slot.waiting) == (done.id, True, 0, 1)


def test_slots_are_listed_page_by_page(app: Face, make: Make) -> None:
    for number in range(5):
        make.ready(slot=f"s{number}")

    first = app.slots.list(limit=2)
    second = app.slots.list(limit=2, after=first[-1].key)

    assert [slot.key for slot in (*first, *second)] == ["s0", "s1", "s2", "s3"]
    assert [slot.key for slot in app.slots.list(after="s3")] == ["s4"]
    assert app.slots.list(limit=0) == app.slots.list(limit=-(10**12)) == []
