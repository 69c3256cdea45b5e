"""Enqueue a tick: a schedule moves on and its job is stored, both or neither, for one caller only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from dibs import NewJob
from dibs.operations.schedules import enqueue_due, stored_schedules
from dibs.operations.scripts import Script, Step
from tests.support.faces import Face, needs
from tests.support.internals import begin_schedule, core_of

START = datetime(2026, 5, 1, 10, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def asking(
    app: Face,
    since: datetime | None,
    tick: datetime,
    *jobs: NewJob,
    schedule: str = "rollup",
    revision: int = 0,
) -> Callable[[], Script[Any]]:
    """The question, with jobs that nobody stored before; without `since` the schedule is made."""

    def script() -> Script[Any]:
        if since is None:
            return [dict(row) for row in (yield from begin_schedule(schedule, tick))]
        rows = [core_of(app.app).registry.prepare(job) for job in jobs]
        move = {"schedule": schedule, "since": since, "revision": revision, "tick": tick, "jobs": rows}
        answer = yield Step("enqueue_tick", move)
        return [dict(row) for row in answer]

    return script


def ask(app: Face, *given: Any, **named: Any) -> list[dict[str, Any]]:
    return app.ask(asking(app, *given, **named))


def last_ticks(app: Face) -> dict[str, datetime]:
    return {name: one.last_tick for name, one in app.ask(stored_schedules).items()}


# -- One caller ---------------------------------------------------------------------------------


def test_a_schedule_begins_where_the_first_caller_says(app: Face) -> None:
    first, second = ask(app, None, at(0)), ask(app, None, at(5))

    assert (len(first), second) == (1, [])
    assert last_ticks(app) == {"rollup": at(0)}


def test_a_move_from_where_the_schedule_stands_stores_its_job(app: Face) -> None:
    ask(app, None, at(0))
    job = NewJob("work", run_at=at(60), meta={"tick": "first"})

    answer = ask(app, at(0), at(60), job)

    stored = app.get(job.id)
    assert [row["is_new"] for row in answer[1:]] == [True]
    assert (stored.state, stored.run_at, stored.meta) == ("ready", at(60), {"tick": "first"})
    assert last_ticks(app) == {"rollup": at(60)}


@pytest.mark.parametrize("since", [None, -1, 1, 0.000001], ids=str)
def test_a_move_from_anywhere_else_stores_nothing(app: Face, since: float | None) -> None:
    ask(app, None, at(0))

    answer = ask(app, None if since is None else at(since), at(60), NewJob("work"))

    assert answer == []
    assert app.find() == []
    assert last_ticks(app) == {"rollup": at(0)}


def test_a_schedule_that_nobody_began_can_not_be_moved(app: Face) -> None:
    assert ask(app, at(0), at(60), NewJob("work")) == []
    assert last_ticks(app) == {}


def test_a_tick_whose_job_has_long_finished_is_not_enqueued_again(app: Face) -> None:
    ask(app, None, at(0))
    ask(app, at(0), at(60), NewJob("work"))
    [claim] = app.claim()
    claim.succeed()
    app.delete(claim.job.id)

    assert ask(app, at(0), at(60), NewJob("work")) == []
    assert app.find() == []


def test_a_move_may_carry_no_job_or_many(app: Face) -> None:
    ask(app, None, at(0))

    none = ask(app, at(0), at(60))
    many = ask(app, at(60), at(120), *(NewJob("work") for _ in range(100)))

    assert (len(none), len(many)) == (1, 101)
    assert app.counts()["ready"] == 100


def test_schedules_do_not_know_each_other(app: Face) -> None:
    ask(app, None, at(0))
    ask(app, None, at(30), schedule="another")

    assert ask(app, at(0), at(60), NewJob("work"))
    assert ask(app, at(30), at(60), NewJob("work"), schedule="another")
    assert last_ticks(app) == {"rollup": at(60), "another": at(60)}


def test_the_moment_is_kept_to_the_microsecond(app: Face) -> None:
    ask(app, None, at(0.123457))

    assert last_ticks(app) == {"rollup": at(0.123457)}
    assert ask(app, at(0.123457), at(1))


def test_a_job_whose_unique_key_is_taken_is_not_stored_but_the_tick_is_over(app: Face) -> None:
    ask(app, None, at(0))
    [holder] = app.enqueue(NewJob("work", unique="one at a time"))

    answer = ask(app, at(0), at(60), NewJob("work", unique="one at a time"))

    assert [(row["is_new"], row["holder"]) for row in answer[1:]] == [(False, holder.id)]
    assert [job.id for job in app.find()] == [holder.id]
    assert last_ticks(app) == {"rollup": at(60)}


# -- Many callers -------------------------------------------------------------------------------


@pytest.mark.parametrize("times", range(5))
def test_of_many_who_move_one_tick_exactly_one_stores_its_job(app: Face, times: int) -> None:
    ask(app, None, at(0))

    answers = app.race_to_ask(*(asking(app, at(0), at(60), NewJob("work")) for _ in range(8)))

    assert sorted(map(len, answers)) == [*[0] * 7, 2]
    assert len(app.find()) == 1


def test_of_many_who_begin_a_schedule_one_says_where(app: Face) -> None:
    answers = app.race_to_ask(*(asking(app, None, at(n)) for n in range(8)))

    assert sorted(map(len, answers)) == [*[0] * 7, 1]
    assert last_ticks(app) == {"rollup": at(next(n for n in range(8) if answers[n]))}


@pytest.mark.parametrize("times", range(5))
def test_those_who_know_of_fewer_ticks_store_none_twice(app: Face, times: int) -> None:
    """One catches up on three ticks while another, whose clock is behind, knows of the first only."""
    ask(app, None, at(0))
    behind = asking(app, at(0), at(60), NewJob("work", tags=["1"]))
    ahead = asking(app, at(0), at(180), *(NewJob("work", tags=[str(n)]) for n in (1, 2, 3)))

    app.race_to_ask(behind, ahead, behind, ahead)

    assert len(app.find(tags=["1"])) == 1


# -- The script that asks it --------------------------------------------------------------------


@pytest.fixture
def ticking(app: Face) -> Callable[[datetime], Any]:
    """A job every second, and a look at it at a time of the store's."""
    return _scheduled(app, "* * * * * *")


def _scheduled(app: Face, when: str) -> Callable[[datetime], Any]:
    app.every(when, tags=["ticking"])(app.job(lambda: None, name="work"))
    core = core_of(app.app)
    return lambda now: app.ask(lambda: enqueue_due(core.schedules.definitions, now))


def test_a_first_look_enqueues_nothing_and_knows_the_next_tick(ticking: Any) -> None:
    ticked = ticking(at(0.7))

    assert (ticked.jobs, ticked.next_ticks) == ([], {"work": at(1)})


def test_a_look_at_a_tick_enqueues_its_job_with_its_time(app: Face, ticking: Any) -> None:
    ticking(at(0.7))

    ticked = ticking(at(1.01))

    [job] = ticked.jobs
    assert app.get(job.id) == structs.replace(job, is_new=False)
    assert (job.run_at, job.tags, job.state) == (at(1), ["ticking"], "ready")
    assert job.meta == {"schedule": "work", "tick": "2026-05-01T10:00:01+00:00"}
    assert ticked.next_ticks == {"work": at(2)}


def test_looks_by_clocks_that_differ_enqueue_each_tick_once(app: Face, ticking: Any) -> None:
    for now in [0, 1.2, 0.2, 2.1, 1.1, 2.2, 3.0, 2.0, 4.9, 3.9, 5.1]:
        ticking(at(now))
        for claim in app.claim(limit=10):
            claim.succeed()

    assert sorted(job.meta["tick"][17:19] for job in app.find()) == ["01", "02", "03", "04", "05"]


def test_a_changed_expression_goes_on_from_the_last_tick(app: Face, open_app: Any) -> None:
    needs(app, "shared")
    before, after = _scheduled(open_app(), "* * * * * *"), _scheduled(open_app(), "*/10 * * * * *")

    for second in range(20):
        before(at(second))
    for second in range(20, 40):
        after(at(second))

    assert sorted(int(job.meta["tick"][17:19]) for job in app.find()) == [*range(1, 20), 20, 30]


def test_schedules_are_listed_with_their_ticks(app: Face, ticking: Any) -> None:
    before = app.schedules.list()
    ticking(at(0))
    seen = app.schedules.list()
    ticking(at(1))
    ask(app, None, at(9), schedule="of another app")

    unknown, known = app.schedules.list()

    assert [(one.name, one.last_tick, one.next_tick) for one in before] == [("work", None, None)]
    assert [(one.last_tick, one.next_tick) for one in seen] == [(None, at(1))]
    assert (known.name, known.kind, known.rule, known.origin) == ("work", "work", "* * * * * *", "code")
    assert (known.last_tick, known.next_tick) == (at(1), at(2))
    assert (unknown.name, unknown.kind, unknown.last_tick) == ("of another app", None, at(9))
    assert (unknown.rule, unknown.next_tick) == (None, None)
