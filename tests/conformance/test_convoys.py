"""Convoys: a worker runs the next jobs of a train under the lease of their head, and settles them with it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dibs import Job, NewJob, operations
from dibs.clock import SECOND
from dibs.operations import Settled, Wish
from dibs.states import Succeeded
from tests.support.faces import Face

LEASE = 60 * SECOND
WISH: dict[str, Any] = {"worker": "busy", "lease": LEASE, "leases": {}}


def train(app: Face, length: int, **options: Any) -> list[Job]:
    return list(app.enqueue(*(NewJob("work", train="t", **options) for _ in range(length))))


def states(app: Face, jobs: list[Job]) -> list[str]:
    return [app.get(job.id).state.value for job in jobs]


def followers(app: Face, head: Any, limit: int = 10) -> list[Job]:
    found: list[Job] = app.ask(lambda: operations.followers(head.job.id, head.token, limit))
    return found


def ride(head: Any, job: Job | None = None, *, began: float = 0, ended: float | None = 0) -> tuple[Any, ...]:
    """A job that ran under the lease of that head, or the head itself; times in seconds ago."""
    id, token = (head.job.id, head.token) if job is None else (job.id, job.token)
    until = None if ended is None else round(ended * SECOND)
    return id, token, head.job.id, head.token, LEASE, round(began * SECOND), until


def ends(job: Job, result: str | None = None, **instead: Any) -> Settled:
    """The settlement of a follower, as its worker makes it."""
    to = {"state": "succeeded", "delay": None, "refund": False, **instead}
    values = (
        *(job.id, job.token, to["state"], to["state"], to["delay"], to["refund"], result),
        *("[]", None, None, job.train, None),
    )
    return Settled(values=values)


def settle(app: Face, settlements: list[Settled], convoy: list[tuple[Any, ...]]) -> list[UUID]:
    lost = app.ask(lambda: operations.settle_if_held(settlements, convoy))
    return [one.id for one in lost]


# -- Who may follow -----------------------------------------------------------------------------


def test_followers_are_named_in_order_and_nothing_is_written_for_them(app: Face) -> None:
    jobs = train(app, 4)
    [head] = app.claim()
    before = [app.get(job.id) for job in jobs]

    found = followers(app, head, limit=2)

    assert [job.id for job in found] == [jobs[1].id, jobs[2].id]
    assert [app.get(job.id) for job in jobs] == before
    assert head.token < found[0].token < found[1].token


def test_a_later_claim_has_a_greater_token_than_those_that_were_handed_to_followers(app: Face) -> None:
    jobs = train(app, 2)
    [head] = app.claim()
    [follower] = followers(app, head)
    head.release()

    [again] = app.claim()

    assert again.job.id == jobs[0].id
    assert again.token > follower.token


def test_a_claim_that_does_not_hold_its_job_leads_nobody(app: Face) -> None:
    train(app, 2)
    [head] = app.claim()
    head.release()

    assert followers(app, head) == []


def test_a_claim_whose_lease_is_over_leads_nobody(app: Face) -> None:
    train(app, 2)
    [head] = app.claim(lease=1)
    app.age(2)

    assert followers(app, head) == []


def test_a_job_without_a_train_leads_nobody(app: Face) -> None:
    app.enqueue(NewJob("work"), NewJob("work", slot="t"))

    assert [followers(app, claim) for claim in app.claim(limit=5)] == [[], []]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"delay": 60}, id="not due"),
        pytest.param({"max_attempts": 1}, id="has one attempt"),
        pytest.param({"unique": "key"}, id="its arguments may be replaced"),
        pytest.param({"queue": "paused"}, id="its queue is paused"),
        pytest.param({"queue": "limited"}, id="its queue is limited"),
    ],
)
def test_a_convoy_ends_before_a_job_that_must_come_by_itself(app: Face, options: dict[str, Any]) -> None:
    app.pause("paused")
    app.limit("limited", 5)
    jobs = app.enqueue(
        *(NewJob("work", train="t") for _ in range(2)),
        NewJob("work", train="t", **options),
        NewJob("work", train="t"),
    )
    [head] = app.claim()

    assert [job.id for job in followers(app, head)] == [jobs[1].id]


def test_a_cancelled_or_deleted_job_follows_nobody(app: Face) -> None:
    jobs = train(app, 4)
    [head] = app.claim()
    app.cancel(jobs[1].id)
    app.delete(jobs[2].id)

    assert [job.id for job in followers(app, head)] == [jobs[3].id]


# -- Settled together ---------------------------------------------------------------------------


def test_a_head_and_its_followers_are_settled_together_and_the_next_one_may_go(app: Face) -> None:
    jobs = train(app, 4)
    [head] = app.claim(worker="busy")
    second, third, _ = followers(app, head)

    lost = settle(
        app,
        [head._held.settled_by(Succeeded(None)), ends(second, "2"), ends(third)],
        [ride(head), ride(head, second), ride(head, third)],
    )

    assert lost == []
    assert states(app, jobs) == ["succeeded", "succeeded", "succeeded", "ready"]
    done = app.get(second.id)
    assert (done.attempts, done.token, done.worker, done.result) == (1, second.token, "busy", 2)


def test_an_exchange_takes_the_next_one_of_the_train_with_it(app: Face) -> None:
    jobs = train(app, 3)
    [head] = app.claim()
    [second] = followers(app, head, limit=1)
    settlements = [head._held.settled_by(Succeeded(None)), ends(second)]

    lost, taken = app.ask(
        lambda: operations.exchange(settlements, Wish(**WISH), [ride(head), ride(head, second)])
    )

    assert (lost, [job.id for job in taken]) == ([], [jobs[2].id])


def test_a_whole_train_leaves_no_trace(app: Face) -> None:
    train(app, 3)
    [head] = app.claim()
    second, third = followers(app, head)

    settle(
        app,
        [head._held.settled_by(Succeeded(None)), ends(second), ends(third)],
        [ride(head), ride(head, second), ride(head, third)],
    )

    assert app.trains.get("t") is None


def test_jobs_of_a_convoy_began_and_ended_one_after_another(app: Face) -> None:
    jobs = train(app, 3)
    [head] = app.claim()
    second, third = followers(app, head)
    app.age(10)

    settle(
        app,
        [head._held.settled_by(Succeeded(None)), ends(second), ends(third)],
        [
            ride(head, ended=3),
            ride(head, second, began=3, ended=2),
            ride(head, third, began=2, ended=1),
        ],
    )

    first, second, third = (app.get(job.id) for job in jobs)
    assert first.claimed_at < first.finished_at <= second.claimed_at
    assert second.finished_at - second.claimed_at == timedelta(seconds=1)
    assert second.finished_at <= third.claimed_at < third.finished_at


@pytest.mark.parametrize(
    ("instead", "state", "attempts"),
    [
        pytest.param({"state": "scheduled", "delay": LEASE}, "scheduled", 1, id="retry"),
        pytest.param({"state": "scheduled", "delay": LEASE, "refund": True}, "scheduled", 0, id="snooze"),
        pytest.param({"state": "failed"}, "failed", 1, id="fail"),
        pytest.param({"state": "cancelled"}, "cancelled", 1, id="cancel"),
    ],
)
def test_whatever_the_last_one_came_to_is_applied_and_the_rest_waits_as_before(
    app: Face, instead: dict[str, Any], state: str, attempts: int
) -> None:
    jobs = train(app, 3)
    [head] = app.claim()
    second, third = followers(app, head)

    lost = settle(
        app,
        [head._held.settled_by(Succeeded(None)), ends(second, **instead)],
        [ride(head), ride(head, second)],
    )

    assert lost == []
    assert (app.get(second.id).state, app.get(second.id).attempts) == (state, attempts)
    rest = app.get(jobs[2].id)
    assert rest.state == ("blocked" if state == "scheduled" else "ready")
    assert (rest.attempts, rest.token) == (0, None)
    assert third.token is not None


def test_a_follower_that_fails_holds_its_train_if_it_is_to_hold(app: Face) -> None:
    jobs = app.enqueue(
        NewJob("work", train="t"), NewJob("work", train="t", on_failed="hold"), NewJob("work", train="t")
    )
    [head] = app.claim()
    second, _ = followers(app, head)

    settle(
        app,
        [head._held.settled_by(Succeeded(None)), ends(second, state="failed")],
        [ride(head), ride(head, second)],
    )

    assert states(app, jobs) == ["succeeded", "failed", "blocked"]
    assert app.trains.get("t").held


def test_a_follower_that_still_runs_is_leased_when_those_before_it_are_settled(app: Face) -> None:
    jobs = train(app, 3)
    [head] = app.claim(worker="busy")
    second, _ = followers(app, head)
    app.age(10)

    settle(
        app,
        [head._held.settled_by(Succeeded(None))],
        [ride(head), ride(head, second, began=1, ended=None)],
    )

    assert states(app, jobs) == ["succeeded", "running", "blocked"]
    running = app.get(second.id)
    assert (running.attempts, running.token, running.worker) == (1, second.token, "busy")
    assert timedelta(seconds=60.9) < running.lease_until - running.claimed_at < timedelta(seconds=61.1)
    assert settle(app, [ends(second)], []) == []
    assert states(app, jobs) == ["succeeded", "succeeded", "ready"]


def test_the_same_settlements_again_are_no_loss_and_change_nothing(app: Face) -> None:
    jobs = train(app, 3)
    [head] = app.claim()
    second, _ = followers(app, head)
    sent = [head._held.settled_by(Succeeded(None)), ends(second)]
    convoy = [ride(head), ride(head, second)]
    settle(app, sent, convoy)
    before = [app.get(job.id) for job in jobs]

    assert settle(app, sent, convoy) == []
    assert [app.get(job.id) for job in jobs] == before


# -- Fenced by the head -------------------------------------------------------------------------


def test_a_convoy_whose_head_was_lost_settles_nobody(app: Face) -> None:
    jobs = train(app, 3)
    [head] = app.claim(lease=1)
    second, third = followers(app, head)
    app.age(2)
    app.sweep()

    lost = settle(
        app,
        [head._held.settled_by(Succeeded(None)), ends(second), ends(third)],
        [ride(head), ride(head, second), ride(head, third)],
    )

    assert lost == [head.job.id, second.id, third.id]
    assert states(app, jobs) == ["ready", "blocked", "blocked"]
    assert [app.get(job.id).attempts for job in jobs] == [1, 0, 0]


def test_a_convoy_whose_head_has_another_holder_settles_nobody(app: Face) -> None:
    jobs = train(app, 2)
    [head] = app.claim(lease=1)
    [second] = followers(app, head)
    app.age(2)
    app.sweep()
    [heir] = app.claim()

    lost = settle(
        app,
        [head._held.settled_by(Succeeded(None)), ends(second)],
        [ride(head), ride(head, second)],
    )

    assert lost == [head.job.id, second.id]
    assert states(app, jobs) == ["running", "blocked"]
    heir.succeed()


def test_a_follower_that_was_cancelled_stays_so_and_those_after_it_count(app: Face) -> None:
    jobs = train(app, 4)
    [head] = app.claim()
    second, third, _ = followers(app, head)
    app.cancel(second.id)

    lost = settle(
        app,
        [head._held.settled_by(Succeeded(None)), ends(second), ends(third)],
        [ride(head), ride(head, second), ride(head, third)],
    )

    assert lost == [second.id]
    assert states(app, jobs) == ["succeeded", "cancelled", "succeeded", "ready"]
    assert app.get(second.id).attempts == 0


def test_a_head_ended_when_it_did_also_if_nobody_followed(app: Face) -> None:
    jobs = train(app, 2)
    [head] = app.claim()
    [follower] = followers(app, head)
    app.delete(jobs[1].id)
    app.age(40)

    settle(
        app,
        [ends(head.job), ends(follower)],
        [ride(head, began=40, ended=30), ride(head, follower, began=30)],
    )

    ended = app.get(jobs[0].id)
    assert ended.finished_at - ended.claimed_at < timedelta(seconds=25)


def test_a_follower_that_was_deleted_is_not_there_again(app: Face) -> None:
    jobs = train(app, 2)
    [head] = app.claim()
    [second] = followers(app, head)
    app.delete(second.id)

    lost = settle(
        app, [head._held.settled_by(Succeeded(None)), ends(second)], [ride(head), ride(head, second)]
    )

    assert lost == [second.id]
    assert app.get(jobs[1].id) is None


def test_a_head_starts_nobody_of_another_train(app: Face) -> None:
    train(app, 2)
    other = app.enqueue(*(NewJob("other", train="u") for _ in range(2)))
    [head] = app.claim(kinds=["work"])
    [rival] = app.claim(kinds=["other"])
    [stranger] = followers(app, rival)

    lost = settle(
        app, [head._held.settled_by(Succeeded(None)), ends(stranger)], [ride(head), ride(head, stranger)]
    )

    assert lost == [stranger.id]
    assert states(app, other) == ["running", "blocked"]


def test_claiming_by_hand_gives_heads_only(app: Face) -> None:
    jobs = train(app, 3)
    [head] = app.claim(limit=10)
    followers(app, head)

    assert head.job.id == jobs[0].id
    assert app.claim(limit=10) == []
    assert app.claim_job(jobs[1].id) is None
