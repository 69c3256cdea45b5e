"""Update: another priority or time for a job that waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import BadRequest, NewJob, NotFound, Refused
from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make

LATER = datetime(2090, 1, 1, tzinfo=UTC)
PAST = datetime(2020, 1, 1, tzinfo=UTC)


def states(app: Face, *jobs: Any) -> list[str]:
    return [app.get(job.id).state.value for job in jobs]


def test_a_ready_job_goes_before_others_with_a_higher_priority(app: Face, make: Make) -> None:
    first, second = make.ready(), make.ready()

    updated = app.update(second.id, priority=7)

    assert (updated.priority, updated.state, updated.run_at) == (7, "ready", second.run_at)
    assert updated == app.get(second.id)
    assert [claim.job.id for claim in app.claim(limit=2)] == [second.id, first.id]


def test_a_ready_job_that_is_due_later_is_scheduled(app: Face, make: Make) -> None:
    job = make.ready()

    updated = app.update(str(job.id), run_at=LATER)

    assert (updated.state, updated.run_at, updated.priority) == ("scheduled", LATER, 0)
    assert app.claim() == []


def test_a_scheduled_job_that_is_due_is_ready(app: Face, make: Make) -> None:
    job = make.scheduled(priority=3)

    updated = app.update(job.id, run_at=PAST)

    assert (updated.state, updated.run_at, updated.priority) == ("ready", PAST, 3)
    assert [claim.job.id for claim in app.claim()] == [job.id]


def test_a_delay_counts_from_the_stores_time(app: Face, make: Make) -> None:
    job = make.ready()

    updated = app.update(job.id, delay=timedelta(hours=1))

    assert abs(updated.run_at - app.now() - timedelta(hours=1)) < timedelta(seconds=5)
    app.age(3601)
    assert len(app.claim()) == 1 or app.sweep().staged == 1


@pytest.mark.parametrize("state", ["running", "succeeded", "failed", "cancelled"])
def test_a_job_that_does_not_wait_is_refused(app: Face, make: Make, state: str) -> None:
    job = make.running().job if state == "running" else make.finished(state)

    with pytest.raises(Refused, match=f"is {state}: only a waiting job"):
        app.update(job.id, priority=1)
    assert app.get(job.id).priority == 0


def test_an_unknown_job_is_not_found(app: Face) -> None:
    with pytest.raises(NotFound):
        app.update(new_id(), priority=1)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"priority": 40_000},
        {"priority": "1"},
        {"run_at": datetime(2030, 1, 1)},
        {"delay": -1},
        {"delay": 1, "run_at": LATER},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(app: Face, make: Make, change: dict[str, Any]) -> None:
    job = make.ready()

    with pytest.raises(BadRequest):
        app.update(job.id, **change)
    assert app.get(job.id) == job.__class__(**{**_fields(job), "is_new": False})


def _fields(job: Any) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


# -- Trains, slots, parents -----------------------------------------------------------------------


def test_a_train_keeps_its_order(app: Face, make: Make) -> None:
    first, second, third = (make.ready(train="north") for _ in range(3))

    app.update(third.id, priority=9)
    app.update(first.id, run_at=LATER)

    assert states(app, first, second, third) == ["scheduled", "blocked", "blocked"]
    assert app.claim() == []
    app.update(first.id, run_at=PAST)
    assert states(app, first, second, third) == ["ready", "blocked", "blocked"]
    app.claim()[0].succeed()
    assert states(app, second, third) == ["ready", "blocked"]


def test_a_job_behind_the_head_waits_for_its_own_time(app: Face, make: Make) -> None:
    first, second = make.ready(train="north"), make.ready(train="north")

    app.update(second.id, run_at=LATER)
    assert states(app, first, second) == ["ready", "blocked"]
    app.claim()[0].succeed()

    assert app.get(second.id).state == "scheduled"


def test_a_slot_lets_the_one_with_the_higher_priority_go_first(app: Face, make: Make) -> None:
    running = make.running(slot="csv")
    second, third = make.ready(slot="csv"), make.ready(slot="csv")

    assert app.update(third.id, priority=5).state == "blocked"
    running.succeed()

    assert states(app, second, third) == ["blocked", "ready"]


def test_a_ready_job_of_a_slot_that_is_put_off_lets_the_next_one_go(app: Face, make: Make) -> None:
    first, second = make.ready(slot="csv"), make.ready(slot="csv")

    app.update(first.id, run_at=LATER)

    assert states(app, first, second) == ["scheduled", "ready"]
    app.update(first.id, run_at=PAST)
    assert sorted(states(app, first, second)) == ["blocked", "ready"]


def test_a_job_that_waits_for_its_parents_only_notes_it(app: Face) -> None:
    pipeline = app.pipeline("nightly")
    parent = pipeline.add(NewJob("work"))
    child = pipeline.add(NewJob("work"), after=[parent])
    pipeline.enqueue()

    updated = app.update(child.id, priority=4, run_at=LATER)

    assert (updated.state, updated.priority, updated.run_at) == ("blocked", 4, LATER)
    app.claim()[0].succeed()
    assert app.get(child.id).state == "scheduled"


def test_of_a_claim_and_an_update_one_comes_first(app: Face, make: Make) -> None:
    job = make.ready()

    app.race_all(("claim_job", job.id), ("get", job.id))

    with pytest.raises(Refused):
        app.update(job.id, run_at=LATER)
    assert app.get(job.id).state == "running"
