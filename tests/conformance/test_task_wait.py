"""`task.wait`: the result of one job, as its handler returned it, or why there is none."""

import dataclasses
import threading
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Optional
from uuid import UUID

import pytest

from dibs import BadRequest, Cancel, DibsError, Fail, Job, JobCancelled, JobFailed, NotFound, Snooze, Task
from dibs.jobs.ids import new_id
from tests.support.faces import Face


@dataclasses.dataclass
class Receipt:
    id: UUID
    price: Decimal
    sent: datetime


RECEIPT = Receipt(UUID(int=7 << 76), Decimal("1.10"), datetime(2026, 1, 2, tzinfo=UTC))


def wait(app: Face, task: Task[..., Any], job: Any, **more: Any) -> Any:
    return app.wait_for((task.sync if app.colour == "sync" else task).wait(job, **more))


def ran(app: Face, task: Task[..., Any], *args: Any) -> Job:
    job: Job = app.run_job(app.enqueue_task(task, *args).id)
    return job


def test_the_result_is_of_the_type_that_the_handler_names(app: Face) -> None:
    @app.job
    async def send() -> Receipt | Snooze:
        return RECEIPT

    @app.job
    def count() -> dict[int, Optional[Receipt]]:  # noqa: UP045
        return {1: RECEIPT, 2: None}

    @app.job
    def untyped():  # type: ignore[no-untyped-def]
        return (1, "a")

    assert wait(app, send, ran(app, send)) == RECEIPT
    assert wait(app, count, str(ran(app, count).id), timeout=5) == {1: RECEIPT, 2: None}
    assert wait(app, untyped, ran(app, untyped).id) == [1, "a"]


def test_what_does_not_fit_the_annotation_comes_as_it_is(app: Face) -> None:
    @app.job
    def odd() -> Receipt:
        return {"id": 5}  # type: ignore[return-value]

    @app.job
    def nothing() -> Receipt:
        return None  # type: ignore[return-value]

    @app.job
    def unknown() -> "Absent":  # type: ignore[name-defined]  # noqa: F821
        return "text"

    assert wait(app, odd, ran(app, odd)) == {"id": 5}
    assert wait(app, nothing, ran(app, nothing)) is None
    assert wait(app, unknown, ran(app, unknown)) == "text"


def test_a_type_that_is_named_before_it_is_defined_is_known_by_then(app: Face) -> None:
    @app.job
    def early() -> "Later":
        return Later(5)

    assert wait(app, early, ran(app, early)) == Later(5)


def test_a_job_that_failed_is_raised_with_its_error(app: Face) -> None:
    @app.job(max_attempts=1)
    def broken() -> int:
        raise KeyError("user_id")

    @app.job(max_attempts=9)
    def useless() -> int:
        raise Fail("card expired")

    job = ran(app, broken)
    with pytest.raises(JobFailed, match=r"KeyError: 'user_id'") as failed:
        wait(app, broken, job)
    with pytest.raises(JobFailed, match="Fail: card expired"):
        wait(app, useless, ran(app, useless))

    assert str(job.id) in str(failed.value)
    assert failed.value.job == app.get(job.id)
    assert isinstance(failed.value, DibsError)


def test_a_job_that_was_cancelled_is_raised_with_its_reason(app: Face) -> None:
    @app.job
    def never() -> int:
        raise Cancel("not needed")

    @app.job
    def waits() -> int:
        return 7

    waiting = app.enqueue_task(waits)
    app.cancel(waiting.id)

    with pytest.raises(JobCancelled, match="not needed") as cancelled:
        wait(app, never, ran(app, never))
    with pytest.raises(JobCancelled, match=str(waiting.id)):
        wait(app, waits, waiting.id)

    assert cancelled.value.job.state == "cancelled"
    assert isinstance(cancelled.value, DibsError)


def test_a_job_that_is_not_finished_in_time_is_a_timeout(app: Face) -> None:
    task = app.job(name="slow")(lambda: 7)
    job = app.enqueue_task(task)

    with pytest.raises(TimeoutError, match=str(job.id)):
        wait(app, task, job, timeout=0.05)


def test_a_result_that_comes_meanwhile_is_waited_for(app: Face) -> None:
    task = app.job(name="slow")(lambda: 7)
    job = app.enqueue_task(task)
    runs = threading.Timer(0.05, app.app.sync.run_job, [job.id])
    runs.start()

    assert wait(app, task, job, timeout=20) == 7
    runs.join()


def test_only_jobs_of_this_kind_are_waited_for(app: Face) -> None:
    one, other = app.job(name="one")(lambda: 1), app.job(name="other")(lambda: 2)
    job = ran(app, other)

    for given in (job, job.id):
        with pytest.raises(BadRequest, match=r"'other'.*'one'"):
            wait(app, one, given)
    with pytest.raises(NotFound):
        wait(app, one, new_id())
    with pytest.raises(BadRequest):
        wait(app, one, "no id")


@dataclasses.dataclass
class Later:
    n: int
