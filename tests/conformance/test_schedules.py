"""`app.schedules`: put, read, paused, resumed, run by hand and deleted, while workers serve them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import BadRequest, NewJob, NotFound, Refused
from dibs.operations.schedules import enqueue_due, stored_schedules
from tests.support.faces import Face, needs
from tests.support.internals import begin_schedule, core_of

HOUR = timedelta(hours=1)


def look(app: Face, seconds: float = 0) -> list[Any]:
    """What a worker enqueues when it looks at its schedules, that much later than now."""
    now = app.now() + timedelta(seconds=seconds)
    return app.ask(lambda: enqueue_due(core_of(app.app).schedules.definitions, now)).jobs


def ticks_of(jobs: list[Any]) -> list[str]:
    return [job.meta["tick"] for job in jobs]


# -- Put ----------------------------------------------------------------------------------------


def test_a_schedule_that_was_put_is_listed(app: Face) -> None:
    app.schedules.put(
        "report", "*/5 * * * *", NewJob("work", args={"n": 7}, queue="mail"), tz="Europe/Berlin"
    )

    [one] = app.schedules.list()
    assert one == app.schedules.get("report")
    assert (one.name, one.kind, one.queue, one.args) == ("report", "work", "mail", {"n": 7})
    assert (one.rule, one.tz, one.origin, one.paused) == ("*/5 * * * *", "Europe/Berlin", "store", False)
    assert one.last_tick is None
    assert app.now() < one.next_tick <= app.now() + timedelta(minutes=5)


def test_what_was_never_put_is_none(app: Face) -> None:
    assert app.schedules.get("report") is None
    assert app.schedules.list() == []


def test_a_worker_that_knows_no_kind_serves_it(app: Face) -> None:
    new = NewJob("unknown", args={"n": 2**60}, priority=7, tags=["t"], meta={"a": 1}, max_attempts=9)
    app.schedules.put("report", HOUR, new)
    began = app.now()

    [job] = look(app, 3601)

    stored = app.get(job.id)
    assert (stored.kind, stored.args, stored.priority) == ("unknown", {"n": 2**60}, 7)
    assert (stored.tags, stored.max_attempts) == (["t"], 9)
    assert stored.meta == {"a": 1, "schedule": "report", "tick": stored.run_at.isoformat()}
    assert abs(stored.run_at - began - HOUR) < timedelta(seconds=3)
    assert app.schedules.get("report").last_tick == stored.run_at
    assert app.schedules.get("report").next_tick == stored.run_at + HOUR


def test_options_of_the_kind_hold_for_its_jobs(app: Face) -> None:
    app.job(lambda n: None, name="work", queue="mail", train="t{n}", max_attempts=8)
    app.schedules.put("report", HOUR, NewJob("work", args={"n": 1}))

    [job] = look(app, 3601)

    assert (job.queue, job.train, job.max_attempts) == ("mail", "t1", 8)


def test_the_same_put_again_changes_nothing(app: Face) -> None:
    app.schedules.put("report", HOUR, NewJob("work"))
    before = app.ask(stored_schedules)

    app.schedules.put("report", HOUR, NewJob("work"))

    assert app.ask(stored_schedules) == before


def test_another_rule_begins_anew_and_another_job_goes_on(app: Face) -> None:
    app.schedules.put("report", HOUR, NewJob("work"))
    look(app, 3601)
    last = app.schedules.get("report").last_tick

    other_job = app.schedules.put("report", HOUR, NewJob("other"))
    other_rule = app.schedules.put("report", 2 * HOUR, NewJob("other"))

    assert (other_job.last_tick, other_job.kind) == (last, "other")
    assert other_rule.last_tick is None
    assert abs(other_rule.next_tick - app.now() - 2 * HOUR) < timedelta(seconds=5)


def test_one_that_was_read_before_it_changed_enqueues_nothing(app: Face) -> None:
    """A worker must not enqueue the job of yesterday because it looked a moment too early."""
    app.schedules.put("report", HOUR, NewJob("work"))
    later = app.now() + timedelta(seconds=3601)
    script = enqueue_due({}, later)
    step = next(script)
    rows = app.ask(lambda: _asking(step))
    app.schedules.put("report", HOUR, NewJob("other"))
    move = script.send(rows)

    assert app.ask(lambda: _asking(move)) == []
    assert app.find() == []
    assert [job.kind for job in look(app, 3601)] == ["other"]


def _asking(step: Any) -> Any:
    return list((yield step))


@pytest.mark.parametrize(
    ("name", "when", "new", "more"),
    [
        ("", HOUR, NewJob("work"), {}),
        ("r" * 201, HOUR, NewJob("work"), {}),
        ("report", "* * *", NewJob("work"), {}),
        ("report", 0, NewJob("work"), {}),
        ("report", HOUR, NewJob("work"), {"tz": "Europe/Berlin"}),
        ("report", "* * * * *", NewJob("work"), {"tz": "Nowhere/City"}),
        ("report", "* * * * *", NewJob("work"), {"missed": "some"}),
        ("report", HOUR, NewJob("work", delay=5), {}),
        ("report", HOUR, NewJob("work", run_at=datetime(2030, 1, 1, tzinfo=UTC)), {}),
        ("report", HOUR, NewJob("work", args={"a": "x" * 2_000_000}), {}),
        ("report", HOUR, NewJob("work", train="t", slot="s"), {}),
        ("report", HOUR, "work", {}),
    ],
    ids=range(12),
)
def test_what_makes_no_sense_is_refused(app: Face, name: str, when: Any, new: Any, more: Any) -> None:
    with pytest.raises(BadRequest):
        app.schedules.put(name, when, new, **more)

    assert app.schedules.list() == []


# -- Pause --------------------------------------------------------------------------------------


def test_a_paused_schedule_enqueues_nothing(app: Face) -> None:
    app.schedules.put("report", HOUR, NewJob("work"))

    paused = app.schedules.pause("report")

    assert (paused.paused, paused.next_tick) == (True, None)
    assert look(app, 3 * 3601) == []
    assert app.schedules.get("report") == paused


def test_a_tick_that_was_read_before_the_pause_is_not_enqueued_after_it(app: Face) -> None:
    app.schedules.put("report", HOUR, NewJob("work"))
    script = enqueue_due({}, app.now() + timedelta(seconds=3601))
    rows = app.ask(lambda: _asking(next(script)))
    app.schedules.pause("report")
    move = script.send(rows)

    assert app.ask(lambda: _asking(move)) == []
    assert app.find() == []


def test_a_resumed_schedule_goes_on_with_the_next_tick(app: Face) -> None:
    app.schedules.put("report", HOUR, NewJob("work"), missed="all")
    app.schedules.pause("report")
    app.age(3.5 * 3600)

    resumed = app.schedules.resume("report")

    assert not resumed.paused
    assert look(app) == []
    assert timedelta(minutes=29) < resumed.next_tick - app.now() < timedelta(minutes=31)
    assert ticks_of(look(app, 31 * 60)) == [resumed.next_tick.isoformat()]


def test_pause_and_resume_may_be_repeated(app: Face) -> None:
    app.schedules.put("report", HOUR, NewJob("work"))

    assert app.schedules.pause("report") == app.schedules.pause("report")
    assert app.schedules.resume("report") == app.schedules.resume("report")


def test_a_paused_schedule_stays_paused_when_it_is_put_again(app: Face) -> None:
    app.schedules.put("report", HOUR, NewJob("work"))
    app.schedules.pause("report")

    assert app.schedules.put("report", HOUR, NewJob("other")).paused
    assert app.schedules.put("report", 2 * HOUR, NewJob("other")).paused


# -- Run now, delete ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_paused", [False, True])
def test_run_now_enqueues_one_job_and_moves_no_tick(app: Face, is_paused: bool) -> None:
    app.schedules.put("report", HOUR, NewJob("work", args={"n": 7}))
    if is_paused:
        app.schedules.pause("report")
    before = app.schedules.get("report")

    job = app.schedules.run_now("report")

    assert app.find() == [app.get(job.id)]
    assert (job.state, job.args, job.is_new) == ("ready", {"n": 7}, True)
    assert job.meta == {"schedule": "report", "tick": job.run_at.isoformat()}
    assert timedelta(0) <= job.enqueued_at - job.run_at <= timedelta(seconds=2)
    assert app.schedules.get("report") == before


def test_run_now_of_a_job_that_is_unique_gives_the_one_that_waits(app: Face) -> None:
    app.schedules.put("report", HOUR, NewJob("work", unique="one"))

    first, second = app.schedules.run_now("report"), app.schedules.run_now("report")

    assert (second.id, second.is_new) == (first.id, False)


def test_a_deleted_schedule_ticks_no_more_and_its_jobs_stay(app: Face) -> None:
    app.schedules.put("report", HOUR, NewJob("work"))
    job = app.schedules.run_now("report")

    app.schedules.delete("report")

    assert app.schedules.list() == []
    assert look(app, 3601) == []
    assert app.get(job.id) is not None


@pytest.mark.parametrize("verb", ["pause", "resume", "run_now", "delete"])
def test_an_unknown_name_is_not_found(app: Face, verb: str) -> None:
    with pytest.raises(NotFound, match="'report'"):
        getattr(app.schedules, verb)("report")


# -- Schedules of the code ----------------------------------------------------------------------


@pytest.fixture
def nightly(app: Face) -> Face:
    """An app with a schedule in its code."""
    app.every(HOUR, name="nightly", args={"n": 1}, queue="nights")(app.job(_work, name="work"))
    return app


def _work(n: int) -> None: ...


def test_a_schedule_of_the_code_is_recorded_by_a_worker(nightly: Face, open_app: Callable[[], Face]) -> None:
    needs(nightly, "shared")
    look(nightly)

    [one] = open_app().schedules.list()

    assert (one.name, one.kind, one.queue, one.args) == ("nightly", "work", "nights", {"n": 1})
    assert (one.rule, one.origin, one.last_tick) == ("every 3600 s", "code", None)
    assert one.next_tick > nightly.now()


def test_a_schedule_of_the_code_is_paused_by_another_process(
    nightly: Face, open_app: Callable[[], Face]
) -> None:
    needs(nightly, "shared")
    look(nightly)

    open_app().schedules.pause("nightly")

    assert look(nightly, 3601) == []
    assert open_app().schedules.run_now("nightly").args == {"n": 1}
    open_app().schedules.resume("nightly")
    assert len(look(nightly, 3601)) == 1


def test_only_workers_with_its_code_serve_it(nightly: Face, open_app: Callable[[], Face]) -> None:
    needs(nightly, "shared")
    look(nightly)

    assert look(open_app(), 3601) == []
    assert len(look(nightly, 3601)) == 1


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_schedule_of_the_code_is_not_put_nor_deleted(
    nightly: Face, open_app: Callable[[], Face], is_recorded: bool
) -> None:
    if is_recorded:
        needs(nightly, "shared")
        look(nightly)
    other = open_app() if is_recorded else nightly

    with pytest.raises(Refused, match=r"made by @app\.every"):
        other.schedules.put("nightly", HOUR, NewJob("work"))
    with pytest.raises(Refused, match=r"made by @app\.every"):
        other.schedules.delete("nightly")


def test_one_that_is_no_longer_in_the_code_can_be_deleted(
    nightly: Face, open_app: Callable[[], Face]
) -> None:
    needs(nightly, "shared")
    other = open_app()
    past = nightly.now() - timedelta(hours=2)
    nightly.ask(lambda: enqueue_due(core_of(nightly.app).schedules.definitions, past))

    other.schedules.delete("nightly")

    assert other.schedules.list() == []


def test_one_that_no_worker_has_recorded_can_be_paused_and_run(nightly: Face) -> None:
    assert nightly.schedules.run_now("nightly").args == {"n": 1}
    assert nightly.schedules.pause("nightly").paused
    assert look(nightly, 3601) == []


def test_a_worker_of_two_versions_records_its_own_once(nightly: Face, open_app: Callable[[], Face]) -> None:
    needs(nightly, "shared")
    newer = open_app()
    newer.every(2 * HOUR, name="nightly", args={"n": 1})(newer.job(_work, name="work"))
    assert look(nightly) == look(newer) == []
    later = nightly.now() + timedelta(seconds=60)

    known = core_of(nightly.app).schedules.definitions
    nightly.ask(lambda: enqueue_due(known, later, is_first=False))

    assert nightly.schedules.get("nightly").rule == "every 7200 s"


def test_what_a_worker_of_an_earlier_version_noted_can_be_paused(nightly: Face) -> None:
    now = nightly.now()
    nightly.ask(lambda: begin_schedule("nightly", now))
    nightly.ask(lambda: begin_schedule("of another app", now))

    assert nightly.schedules.pause("nightly").kind == "work"
    assert nightly.schedules.pause("of another app").paused
    with pytest.raises(Refused, match="nothing is known"):
        nightly.schedules.run_now("of another app")
    assert look(nightly, 3601) == []
