"""Take: what a worker claims. For a single line a store may know a shorter way, by the same rules."""

from datetime import timedelta
from typing import Any

import pytest

from dibs import Job, NewJob
from dibs.clock import SECOND
from dibs.operations.claim import ClaimRequest, take
from tests.support.faces import Face, Make


def _take(
    app: Face, limit: int = 10, *, queue: str = "default", kind: str = "work", **wish: Any
) -> list[Job]:
    asked = {"worker": "pod-a", "lease": 60 * SECOND, "leases": {}, **wish}
    return app.ask(lambda: take(ClaimRequest(limit=limit, queues=[queue], kinds=[kind], **asked)))


def test_an_empty_line_gives_nothing(app: Face) -> None:
    app.enqueue(NewJob("other"), NewJob("work", queue="other"))

    assert _take(app) == []


def test_a_line_is_taken_in_the_order_of_claiming(app: Face) -> None:
    low, high, late = app.enqueue(
        NewJob("work"), NewJob("work", priority=5), NewJob("work", delay=timedelta(hours=1))
    )

    taken = _take(app)

    assert [job.id for job in taken] == [high.id, low.id]
    assert app.get(late.id).state == "scheduled"
    assert app.get(low.id) == taken[1]


def test_what_is_taken_is_leased_like_any_claim(app: Face, make: Make) -> None:
    make.ready(kind="work")

    [job] = _take(app, leases={"work": 5 * SECOND})

    assert (job.state, job.worker, job.attempts) == ("running", "pod-a", 1)
    assert job.lease_until - job.claimed_at == timedelta(seconds=5)
    assert _take(app) == []


def test_never_more_than_asked_for_are_taken(app: Face) -> None:
    app.enqueue(*(NewJob("work") for _ in range(5)))

    assert [len(_take(app, 3)) for _ in range(3)] == [3, 2, 0]


def test_other_lines_stay(app: Face) -> None:
    work, *others = app.enqueue(NewJob("work"), NewJob("other"), NewJob("work", queue="other"))

    assert [job.id for job in _take(app)] == [work.id]
    assert {app.get(job.id).state for job in others} == {"ready"}


def test_nothing_is_taken_from_a_paused_queue(app: Face, make: Make) -> None:
    make.ready(kind="work")
    app.pause("default")

    assert _take(app) == []


@pytest.mark.parametrize("most", [0, 2])
def test_a_limited_queue_never_runs_more_than_its_limit(app: Face, most: int) -> None:
    app.enqueue(*(NewJob("work") for _ in range(5)))
    app.limit("default", most)

    assert [len(_take(app, 3)) for _ in range(2)] == [most, 0]


def test_of_many_who_take_the_same_line_each_gets_jobs_of_its_own(app: Face) -> None:
    jobs = app.enqueue(*(NewJob("work") for _ in range(40)))
    wish = ClaimRequest(
        worker="pod-a", lease=60 * SECOND, leases={}, limit=5, queues=["default"], kinds=["work"]
    )

    answers = app.race_to_ask(*[lambda: take(wish)] * 10)

    taken = [job.id for answer in answers for job in answer]
    assert len(taken) == len(set(taken))
    assert set(taken) | {job.id for job in _take(app, 40)} == {job.id for job in jobs}
