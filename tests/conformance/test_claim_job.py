"""claim_job: exactly this one, or nobody."""

from uuid import uuid4

import pytest

from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make


def test_the_wanted_job_is_claimed_whatever_waits_before_it(app: Face, make: Make) -> None:
    make.ready(priority=9)
    wanted = make.ready()

    claim = app.claim_job(wanted.id, worker="pod-a", lease=5)

    assert claim.job.id == wanted.id
    assert (claim.job.worker, claim.job.state, claim.job.attempts) == ("pod-a", "running", 1)


def test_an_id_may_be_text(app: Face, make: Make) -> None:
    job = make.ready()

    assert app.claim_job(str(job.id)).job.id == job.id


def test_the_loser_gets_none_and_changes_nothing(app: Face, make: Make) -> None:
    held = make.running(worker="winner")

    loser = app.claim_job(held.job.id, worker="loser")

    assert loser is None
    assert app.get(held.job.id) == held.job


def test_of_many_at_once_one_wins(app: Face, make: Make) -> None:
    job = make.ready()

    answers = app.race(8, "claim_job", job.id)

    [winner] = [answer for answer in answers if answer is not None]
    assert app.get(job.id).token == winner.token
    assert app.get(job.id).attempts == 1


def test_a_scheduled_job_is_not_for_the_taking(app: Face, make: Make) -> None:
    job = make.scheduled()

    assert app.claim_job(job.id) is None
    assert app.get(job.id) == _seen(job)


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_is_not_for_the_taking(app: Face, make: Make, state: str) -> None:
    job = make.finished(state)

    assert app.claim_job(job.id) is None
    assert app.get(job.id) == _seen(job)


def test_a_job_of_a_paused_queue_is_not_for_the_taking(app: Face, make: Make) -> None:
    job = make.ready(queue="mail")
    app.pause("mail")

    assert app.claim_job(job.id) is None
    assert app.get(job.id) == _seen(job)


def test_an_unknown_job_is_not_for_the_taking(app: Face) -> None:
    assert app.claim_job(new_id()) is None
    assert app.claim_job(uuid4()) is None


def test_a_due_job_is_claimed_though_nobody_swept(app: Face, make: Make) -> None:
    job = make.scheduled(delay=60)
    app.age(61)

    assert app.claim_job(job.id).job.state == "running"


def test_a_job_whose_holder_died_is_claimed_though_nobody_swept(app: Face, make: Make) -> None:
    dead = make.expired()

    claim = app.claim_job(dead.job.id)

    assert claim.token > dead.token
    assert claim.job.attempts == 2


def _seen(job: object) -> object:
    import msgspec

    return msgspec.structs.replace(job, is_new=False)  # type: ignore[type-var]
