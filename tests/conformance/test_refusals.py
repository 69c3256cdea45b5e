"""Refusals: what a claim tries after it has lost its job is noted with the job, for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dibs import LeaseLost, NewJob
from dibs.jobs.ids import new_id
from dibs.operations.settle import LateWrite, forget_refusals, record_refusals
from tests.support.faces import Face, Make

LATE: dict[str, Callable[[Any], object]] = {
    "succeeded": lambda claim: claim.succeed("late"),
    "failed": lambda claim: claim.fail("late", retry=False),
    "retried": lambda claim: claim.fail("late"),
    "snoozed": lambda claim: claim.snooze(60),
    "released": lambda claim: claim.release(),
    "cancelled": lambda claim: claim.cancel("late"),
    "renew": lambda claim: claim.renew(60),
    "progress": lambda claim: claim.progress(0.5, "late"),
}


def lose(app: Face, make: Make, worker: str = "pod-a") -> Any:
    claim = make.expired(worker=worker)
    app.sweep()
    return claim


def test_a_heartbeat_that_comes_too_late_is_kept(app: Face, make: Make) -> None:
    claim = app.claim_job(make.ready().id, worker="pod-a", lease=1)

    with pytest.raises(LeaseLost), claim:
        app.age(2)
        app.sweep()
        deadline = time.monotonic() + 30
        while not app.refusals(claim.job.id) and time.monotonic() < deadline:
            time.sleep(0.02)

    told = {(refusal.worker, refusal.token, refusal.tried) for refusal in app.refusals(claim.job.id)}
    assert ("pod-a", claim.token, "renew") in told


@pytest.mark.parametrize("tried", LATE)
def test_a_late_write_is_kept_with_the_job(app: Face, make: Make, tried: str) -> None:
    zombie = lose(app, make)
    holder = app.claim_job(zombie.job.id, worker="pod-b")
    before = app.get(zombie.job.id)

    with pytest.raises(LeaseLost):
        LATE[tried](zombie)

    assert app.get(zombie.job.id) == before
    [refusal] = app.refusals(zombie.job.id)
    assert (refusal.worker, refusal.token, refusal.tried) == ("pod-a", zombie.token, tried)
    assert abs((refusal.at - app.now()).total_seconds()) < 60
    holder.succeed()
    assert app.refusals(str(zombie.job.id)) == [refusal]


def test_what_counts_is_refused_nowhere(app: Face, make: Make) -> None:
    claim = make.running()
    claim.renew()
    claim.progress(0.5)
    claim.succeed(7)
    claim.succeed(7)  # the same again is a success

    assert app.refusals(claim.job.id) == []
    assert app.refusals(new_id()) == []


def test_late_writes_of_several_claims_are_told_apart_and_repetitions_are_not(app: Face, make: Make) -> None:
    first = lose(app, make)
    second = app.claim_job(first.job.id, worker="pod-b", lease=0.1)
    app.age(1)
    app.sweep()
    for write in (first.renew, first.renew, second.succeed, first.succeed):
        with pytest.raises(LeaseLost):
            write()

    told = [(refusal.worker, refusal.tried) for refusal in app.refusals(first.job.id)]
    assert sorted(told) == [("pod-a", "renew"), ("pod-a", "succeeded"), ("pod-b", "succeeded")]


def test_the_newest_twenty_are_kept(app: Face, make: Make) -> None:
    job = make.ready()

    for token in range(30):
        app.ask(lambda token=token: record_refusals([LateWrite(job.id, token, None, "renew")]))

    kept = [refusal.token for refusal in app.refusals(job.id)]
    assert len(kept) >= 20
    assert kept[-20:] == list(range(10, 30))


def test_they_go_with_their_job(app: Face, make: Make) -> None:
    pruned, deleted, kept = [lose(app, make) for _ in range(3)]
    for claim in (pruned, deleted, kept):
        with pytest.raises(LeaseLost):
            claim.succeed()
    app.claim_job(pruned.job.id).succeed()
    app.age(10)
    app.prune(5)
    app.delete(deleted.job.id)

    app.ask(forget_refusals)

    assert [len(app.refusals(claim.job.id)) for claim in (pruned, deleted, kept)] == [0, 0, 1]
    for claim in (pruned, deleted):
        app.enqueue(NewJob("work", id=claim.job.id))
        assert app.refusals(claim.job.id) == []


def test_a_late_write_to_a_job_that_is_gone_is_not_kept(app: Face, make: Make) -> None:
    zombie = lose(app, make)
    app.delete(zombie.job.id)

    with pytest.raises(LeaseLost):
        zombie.succeed()

    app.enqueue(NewJob("work", id=zombie.job.id))
    assert app.refusals(zombie.job.id) == []
