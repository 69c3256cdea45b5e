"""Exchange: settle what is done and claim what is next, in one commit."""

from typing import Any
from uuid import UUID

from dibs import NewJob
from dibs.jobs.states import Raised, Released, Succeeded
from dibs.operations.claim import ClaimRequest
from dibs.operations.settle import exchange
from tests.support.faces import Face, Make

WISH: dict[str, Any] = {"worker": "busy", "lease": 60_000_000, "leases": {}}


def _exchange(app: Face, settlements: list, limit: int = 1, **wish: Any) -> tuple[list[UUID], list]:
    (lost, _), jobs = app.ask(lambda: exchange(settlements, ClaimRequest(**WISH, limit=limit, **wish)))
    return [one.id for one in lost], jobs


def _succeeds(claim: Any, result: str | None = None, then: tuple[NewJob, ...] = ()) -> Any:
    return claim._held.settled_by(Succeeded(result), then)


def test_what_is_done_is_settled_and_what_is_next_is_claimed(app: Face, make: Make) -> None:
    done, waiting = make.running(), make.ready()

    lost, taken = _exchange(app, [_succeeds(done, '"yes"')])

    assert (lost, [job.id for job in taken]) == ([], [waiting.id])
    assert (app.get(done.job.id).state, app.get(done.job.id).result) == ("succeeded", "yes")
    assert (app.get(waiting.id).state, app.get(waiting.id).worker) == ("running", "busy")


def test_several_are_settled_together_each_in_its_way(app: Face, make: Make) -> None:
    won, broken = make.running(), make.running()
    failure = broken._held.settled_by(broken._held.raised("broken"))

    lost, taken = _exchange(app, [_succeeds(won), failure])

    assert (lost, taken) == ([], [])
    assert [app.get(claim.job.id).state for claim in (won, broken)] == ["succeeded", "scheduled"]


def test_no_more_than_the_limit_are_claimed_in_order(app: Face, make: Make) -> None:
    done = make.running()
    jobs = [make.ready(priority=p, queue=q) for p, q in [(0, "a"), (5, "b"), (3, "a"), (9, "c")]]

    _, taken = _exchange(app, [_succeeds(done)], limit=3)

    assert [job.id for job in taken] == [jobs[3].id, jobs[1].id, jobs[2].id]


def test_nothing_to_settle_is_a_claim(app: Face, make: Make) -> None:
    job = make.ready()

    assert [one.id for one in _exchange(app, [])[1]] == [job.id]


def test_nothing_to_claim_is_a_settle(app: Face, make: Make) -> None:
    done = make.running()

    assert _exchange(app, [_succeeds(done)]) == ([], [])
    assert app.get(done.job.id).state == "succeeded"


def test_a_claim_that_is_lost_is_named_and_the_rest_goes_on(app: Face, make: Make) -> None:
    zombie = make.expired()
    app.sweep()
    app.claim_job(zombie.job.id)
    done, waiting = make.running(), make.ready()

    lost, taken = _exchange(app, [_succeeds(zombie, '"mine"'), _succeeds(done)])

    assert (lost, [job.id for job in taken]) == ([zombie.job.id], [waiting.id])
    assert app.get(zombie.job.id).state == "running"
    assert app.get(done.job.id).state == "succeeded"


def test_the_same_settlement_again_is_not_lost(app: Face, make: Make) -> None:
    done = make.running()
    settlement = _succeeds(done)
    _exchange(app, [settlement])

    assert _exchange(app, [settlement]) == ([], [])


def test_children_come_with_success(app: Face, make: Make) -> None:
    done, child = make.running(), NewJob("child", delay=60)

    lost, _ = _exchange(app, [_succeeds(done, then=(child,))])

    job = app.get(child.id)
    assert (lost, job.parent_id, job.pipeline_id) == ([], done.job.id, done.job.id)


def test_children_of_a_lost_claim_do_not_come(app: Face, make: Make) -> None:
    zombie, child = make.expired(), NewJob("child")
    app.sweep()

    _exchange(app, [_succeeds(zombie, then=(child,))], queues=["none"])

    assert app.get(child.id) is None


def test_the_filters_of_a_claim_hold(app: Face, make: Make) -> None:
    make.ready("other", queue="mail")
    make.ready("send", queue="slow")
    wanted = make.ready("send", queue="mail")

    _, taken = _exchange(app, [], limit=9, queues=["mail"], kinds=["send"])

    assert [job.id for job in taken] == [wanted.id]


def test_a_paused_queue_gives_nothing(app: Face, make: Make) -> None:
    make.ready(queue="mail")
    app.pause("mail")

    assert _exchange(app, [], limit=9)[1] == []


def test_a_limited_queue_gives_the_place_that_was_freed(app: Face, make: Make) -> None:
    app.limit("mail", 2)
    held = [make.running(queue="mail") for _ in range(2)]
    waiting = [make.ready(queue="mail") for _ in range(3)]

    lost, taken = _exchange(app, [_succeeds(held[0])], limit=9)

    assert (lost, [job.id for job in taken]) == ([], [waiting[0].id])
    assert app.counts("mail")["running"] == 2


def test_a_released_job_is_free_for_others(app: Face, make: Make) -> None:
    held = make.running()

    lost, _ = _exchange(app, [held._held.settled_by(Released())], queues=["none"])

    assert (lost, app.get(held.job.id).state, app.get(held.job.id).attempts) == ([], "ready", 0)


def test_a_flagged_job_ends_here_too(app: Face, make: Make) -> None:
    flagged = make.asked_to_cancel(reason="not needed")
    failure = flagged._held.settled_by(Raised({"attempt": 1} | _error()))

    lost, _ = _exchange(app, [failure])

    assert (lost, app.get(flagged.job.id).state) == ([], "cancelled")


def _error() -> dict[str, Any]:
    return {"token": 1, "at": "2026-01-01T00:00:00Z", "worker": None, "type": "E", "message": "m"}
