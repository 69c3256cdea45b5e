"""Wait: until the job has finished."""

import threading
import time

import pytest

from dibs import BadRequest, NotFound, SyncClaim
from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_is_answered_at_once(app: Face, make: Make, state: str) -> None:
    job = make.finished(state)

    assert app.wait(job.id, timeout=0) == app.wait(str(job.id)) == job


def test_a_job_that_finishes_meanwhile_is_answered(app: Face, make: Make) -> None:
    claim = make.running()
    settle = threading.Timer(0.05, SyncClaim(claim._held).succeed, ["done"])
    settle.start()

    job = app.wait(claim.job.id, timeout=10)

    settle.join()
    assert (job.state, job.result) == ("succeeded", "done")


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_job_that_takes_too_long_is_a_timeout(app: Face, make: Make, timeout: float) -> None:
    job = make.ready()
    began = time.monotonic()

    with pytest.raises(TimeoutError, match=str(job.id)):
        app.wait(job.id, timeout=timeout)

    assert time.monotonic() - began < 2


def test_an_unknown_job_is_not_found(app: Face) -> None:
    with pytest.raises(NotFound):
        app.wait(new_id(), timeout=1)


def test_a_job_that_is_deleted_meanwhile_is_not_found(app: Face, make: Make) -> None:
    job = make.ready()
    app.delete(job.id)

    with pytest.raises(NotFound):
        app.wait(job.id, timeout=1)


@pytest.mark.parametrize("timeout", ["soon", float("nan")], ids=repr)
def test_a_timeout_that_is_no_time_span_is_refused(app: Face, make: Make, timeout: object) -> None:
    job = make.ready()

    with pytest.raises(BadRequest, match="timeout"):
        app.wait(job.id, timeout=timeout)
