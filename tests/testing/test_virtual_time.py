"""Virtual time: it passes in the store when a test advances it."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from dibs import BadRequest, Job, LeaseLost, Refused, Snooze, Swept
from dibs.operations import upkeep
from dibs.testing import VirtualClock
from tests.support.faces import Face, Make
from tests.support.internals import core_of
from tests.support.param_names import named


def test_due_jobs_become_due(app: Face, make: Make, clock: VirtualClock) -> None:
    job = make.scheduled(delay=600)

    assert clock.advance(minutes=9) == Swept(staged=0, returned=0, failed=0, cancelled=0)
    assert app.get(job.id).state == "scheduled"
    assert clock.advance(minutes=1).staged == 1
    assert app.get(job.id).state == "ready"


def test_leases_run_out(app: Face, make: Make, clock: VirtualClock) -> None:
    claim = make.running(lease=60)

    assert clock.advance(seconds=61).returned == 1

    assert app.get(claim.job.id).errors[0].message == "worker died"
    with pytest.raises(LeaseLost):
        claim.succeed()


def test_snoozes_pass(app: Face, clock: VirtualClock, run_pending: Callable[..., list[Job]]) -> None:
    app.job(name="sleepy")(lambda: Snooze(timedelta(days=1)))
    app.enqueue_task(core_of(app.app).registry.tasks["sleepy"])
    run_pending()

    clock.advance(hours=25)

    assert len(run_pending()) == 1


def test_a_time_span_can_be_said_in_many_ways(app: Face, make: Make, clock: VirtualClock) -> None:
    job = make.scheduled(delay=timedelta(weeks=1, days=1, hours=1, minutes=1, seconds=30).total_seconds())

    clock.advance(timedelta(weeks=1))
    clock.advance(30, days=1, hours=1)
    assert app.get(job.id).state == "scheduled"
    clock.advance(minutes=1)

    assert app.get(job.id).state == "ready"


@pytest.mark.parametrize("span", [{}, {"minutes": -1}, {"seconds": 5, "minutes": -1}], ids=named)
def test_time_only_goes_forward(clock: VirtualClock, span: dict[str, float]) -> None:
    with pytest.raises(BadRequest, match="only goes forward"):
        clock.advance(**span)


def test_time_does_not_pass_for_workers_of_others(app: Face, make: Make, clock: VirtualClock) -> None:
    job = make.scheduled(delay=600)
    app.ask(lambda: upkeep.tick("pod-a", None, ["work"], concurrency=1, running=0))

    with pytest.raises(Refused, match="pod-a works on this store, too"):
        clock.advance(hours=1)

    assert app.get(job.id).state == "scheduled"
    app.ask(lambda: upkeep.leave("pod-a"))
