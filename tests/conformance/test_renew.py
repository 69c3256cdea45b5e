"""Renew and progress: only the holder, and the holder learns how the job stands."""

from datetime import timedelta

import pytest

from dibs import BadRequest, LeaseLost
from dibs.operations.settle import renew
from tests.support.faces import Face, Make


def test_renewing_pushes_the_lease(app: Face, make: Make) -> None:
    claim = make.running(lease=60)
    app.age(30)
    before = app.now()

    until = claim.renew(lease=60)

    assert before + timedelta(seconds=60) <= until <= app.now() + timedelta(seconds=60)
    assert claim.lease_until == until == app.get(claim.job.id).lease_until


def test_renewing_without_a_length_takes_the_one_of_the_claim(app: Face, make: Make) -> None:
    claim = make.running(lease=7)
    before = app.now()

    until = claim.renew()

    assert timedelta(seconds=7) <= until - before < timedelta(seconds=8)


@pytest.mark.parametrize("lease", [0.1, 0.25, timedelta(milliseconds=1_234)])
def test_a_renewed_lease_is_exact_too(app: Face, make: Make, lease: float | timedelta) -> None:
    span = lease if isinstance(lease, timedelta) else timedelta(seconds=lease)
    claim = make.running()
    before = app.now()

    until = claim.renew(lease=lease)

    assert before + span <= until <= app.now() + span


@pytest.mark.parametrize("lease", [0.05, -1, "60"])
def test_a_renewal_too_short_is_refused_and_changes_nothing(app: Face, make: Make, lease: object) -> None:
    claim = make.running()

    with pytest.raises(BadRequest, match="lease"):
        claim.renew(lease=lease)

    assert app.get(claim.job.id) == claim.job


def test_renewing_changes_nothing_but_the_lease(app: Face, make: Make) -> None:
    claim = make.running(lease=60)

    claim.renew(lease=90)

    job = app.get(claim.job.id)
    assert (job.state, job.token, job.attempts) == ("running", claim.token, 1)
    assert (job.claimed_at, job.worker) == (claim.job.claimed_at, claim.job.worker)


def test_a_renewal_after_the_lease_counts_while_nobody_swept(app: Face, make: Make) -> None:
    claim = make.expired()

    claim.renew(lease=60)

    assert app.sweep().returned == 0
    assert app.get(claim.job.id).token == claim.token


def test_a_renewed_job_is_not_swept(app: Face, make: Make) -> None:
    claim = make.running(lease=10)
    claim.renew(lease=100)
    app.age(50)

    app.sweep()

    assert app.get(claim.job.id).state == "running"


def test_several_claims_are_renewed_in_one_question(app: Face, make: Make) -> None:
    held = [make.running() for _ in range(3)]
    lost = make.running()
    lost.succeed()
    claims = [(claim.job.id, claim.token) for claim in [*held, lost]]

    standing = app.ask(lambda: renew(claims, 90_000_000))

    assert set(standing) == {(claim.job.id, claim.token) for claim in held}


def test_renewing_after_settling_is_refused(app: Face, make: Make) -> None:
    claim = make.running()
    claim.succeed()

    with pytest.raises(LeaseLost, match=str(claim.job.id)):
        claim.renew()


# -- Progress -----------------------------------------------------------------------------------


def test_progress_is_noted_with_its_message(app: Face, make: Make) -> None:
    claim = make.running()

    claim.progress(0.4, "parsing")

    job = app.get(claim.job.id)
    assert (job.progress, job.message, job.state) == (0.4, "parsing", "running")


def test_progress_without_a_message_keeps_the_last_one(app: Face, make: Make) -> None:
    claim = make.running()
    claim.progress(0.4, "parsing")

    claim.progress(0.5)

    job = app.get(claim.job.id)
    assert (job.progress, job.message) == (0.5, "parsing")


@pytest.mark.parametrize("fraction", [0, 1, 0.0, 1.0])
def test_progress_goes_from_nothing_to_all(app: Face, make: Make, fraction: float) -> None:
    claim = make.running()

    claim.progress(fraction)

    assert app.get(claim.job.id).progress == fraction


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf"), "half", None, True])
def test_progress_outside_of_that_is_refused(app: Face, make: Make, fraction: object) -> None:
    claim = make.running()

    with pytest.raises(BadRequest, match="progress"):
        claim.progress(fraction)

    assert app.get(claim.job.id).progress == 0


@pytest.mark.parametrize("message", ["a\x00b", "\ud800", 5])
def test_a_message_that_can_not_be_stored_is_refused(app: Face, make: Make, message: object) -> None:
    claim = make.running()

    with pytest.raises(BadRequest, match="message"):
        claim.progress(0.5, message)

    assert app.get(claim.job.id) == claim.job


def test_progress_does_not_renew(app: Face, make: Make) -> None:
    claim = make.running(lease=60)

    claim.progress(0.5)

    assert app.get(claim.job.id).lease_until == claim.job.lease_until


def test_progress_after_settling_is_refused(app: Face, make: Make) -> None:
    claim = make.running()
    claim.succeed()

    with pytest.raises(LeaseLost):
        claim.progress(0.9, "late")

    assert app.get(claim.job.id).message is None


# -- The holder learns --------------------------------------------------------------------------


@pytest.mark.parametrize("beat", ["renew", "progress"])
def test_the_holder_learns_that_the_job_should_be_cancelled(app: Face, make: Make, beat: str) -> None:
    claim = make.running()
    app.cancel(claim.job.id, "not needed")

    claim.renew() if beat == "renew" else claim.progress(0.5)

    assert claim.cancel_reason == "not needed"


def test_the_holder_learns_of_a_cancel_without_a_reason_too(app: Face, make: Make) -> None:
    claim = make.running()
    assert claim.cancel_reason is None
    app.cancel(claim.job.id)

    claim.renew()

    assert claim.cancel_reason is not None
