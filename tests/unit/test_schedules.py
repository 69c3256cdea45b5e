"""What is decided about schedules: which ticks get a job, and what `@app.every` takes and refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import BadRequest, Context, Dibs, Task
from dibs.jobs.schedules import BATCH, MOST_CAUGHT_UP, Cron, Interval, TickBatch, due
from tests.support.internals import core_of

HOURLY = Cron("0 * * * *")
EVERY_SECOND = Cron("* * * * * *")
SEEN = datetime(2026, 5, 1, 10, tzinfo=UTC)


def after(**time: float) -> datetime:
    return SEEN + timedelta(**time)


policies = pytest.mark.parametrize("missed", ["latest", "all", "skip"])


# -- Which ticks get a job ----------------------------------------------------------------------


@policies
def test_before_the_next_tick_nothing_is_due(missed: Any) -> None:
    assert due(HOURLY, missed, SEEN, after(minutes=59, seconds=59, microseconds=999_999)) == []


@policies
@pytest.mark.parametrize("seconds", [0, 0.02, 30, 60])
def test_a_tick_gets_its_job_on_time_or_a_little_late(missed: Any, seconds: float) -> None:
    assert due(HOURLY, missed, SEEN, after(hours=1, seconds=seconds)) == [
        TickBatch(SEEN, after(hours=1), [after(hours=1)])
    ]


@policies
def test_ticks_that_are_merely_late_all_get_their_job(missed: Any) -> None:
    late = [after(seconds=1), after(seconds=2), after(seconds=3)]

    assert due(EVERY_SECOND, missed, SEEN, after(seconds=3.7)) == [TickBatch(SEEN, late[-1], late)]


def test_of_missed_ticks_the_latest_gets_a_job() -> None:
    assert due(HOURLY, "latest", SEEN, after(hours=3, minutes=30)) == [
        TickBatch(SEEN, after(hours=3), [after(hours=3)])
    ]


def test_missed_ticks_may_be_skipped() -> None:
    assert due(HOURLY, "skip", SEEN, after(hours=3, minutes=30)) == [TickBatch(SEEN, after(hours=3), [])]


def test_a_tick_that_is_on_time_is_not_skipped_with_those_before_it() -> None:
    assert due(HOURLY, "skip", SEEN, after(hours=3, seconds=5)) == [
        TickBatch(SEEN, after(hours=3), [after(hours=3)])
    ]


def test_all_missed_ticks_may_be_made_up_for() -> None:
    missed = [after(hours=1), after(hours=2), after(hours=3)]

    assert due(HOURLY, "all", SEEN, after(hours=3, minutes=30)) == [TickBatch(SEEN, after(hours=3), missed)]


def test_many_missed_ticks_are_made_up_for_in_batches_without_a_gap() -> None:
    moves = due(EVERY_SECOND, "all", SEEN, after(seconds=250))

    assert [len(move.ticks) for move in moves] == [BATCH, BATCH, 50]
    assert [move.since for move in moves] == [SEEN, after(seconds=100), after(seconds=200)]
    assert [tick for move in moves for tick in move.ticks] == [after(seconds=n) for n in range(1, 251)]
    assert all(move.tick == move.ticks[-1] for move in moves)


def test_of_very_many_missed_ticks_the_newest_are_made_up_for() -> None:
    moves = due(EVERY_SECOND, "all", SEEN, after(days=30))

    assert sum(len(move.ticks) for move in moves) == MOST_CAUGHT_UP
    assert (moves[0].since, moves[-1].tick) == (SEEN, after(days=30))


@policies
@pytest.mark.parametrize("rule", [HOURLY, EVERY_SECOND, Interval(timedelta(seconds=5))], ids=str)
def test_a_clock_that_was_set_back_repeats_no_tick(rule: Any, missed: Any) -> None:
    """Whatever the clock does, no tick is dealt with twice, and it goes on once the clock caught up."""
    clock = [0, 1, 2, -600, -599, 3, 2.5, -3600, 4, 3599, 3601, 3590, 3602, 90_000, 3603, 90_003.5]
    last_tick, seen = SEEN, list[datetime]()

    for seconds in clock:
        for move in due(rule, missed, last_tick, after(seconds=seconds)):
            assert move.since == last_tick < move.tick
            seen += move.ticks
            last_tick = move.tick

    assert len(seen) == len(set(seen)) > 0
    assert seen == sorted(seen)


def test_an_interval_keeps_its_rhythm_after_a_pause() -> None:
    interval = Interval(timedelta(minutes=10))

    assert due(interval, "latest", SEEN, after(minutes=47)) == [
        TickBatch(SEEN, after(minutes=40), [after(minutes=40)])
    ]


# -- The decorator ------------------------------------------------------------------------------


@pytest.fixture
def app() -> Dibs:
    return Dibs("memory://")


def scheduled(app: Dibs) -> dict[str, tuple[str | None, str | None]]:
    return {one.name: (one.kind, one.rule) for one in app.sync.schedules.list()}


def test_every_goes_above_job(app: Dibs) -> None:
    @app.every("*/5 * * * *")
    @app.job(name="rollup", queue="slow")
    async def count() -> None: ...

    assert isinstance(count, Task)
    assert count.options.queue == "slow"
    assert scheduled(app) == {"rollup": ("rollup", "*/5 * * * *")}


def test_every_goes_below_job(app: Dibs) -> None:
    @app.job(name="rollup", queue="slow")
    @app.every("*/5 * * * *")
    @app.every(60, name="often")
    async def count() -> None: ...

    assert count.options.queue == "slow"
    assert list(core_of(app).registry.tasks.values()) == [count]
    assert scheduled(app) == {"often": ("rollup", "every 60 s"), "rollup": ("rollup", "*/5 * * * *")}
    assert {schedule.task for schedule in core_of(app).schedules} == {count}


def test_every_makes_a_job_of_a_plain_function(app: Dibs) -> None:
    @app.every(30)
    def count(ctx: Context) -> None: ...

    assert isinstance(count, Task)
    assert scheduled(app) == {"count": ("count", "every 30 s")}


def test_a_job_may_have_several_schedules_with_arguments_of_their_own(app: Dibs) -> None:
    @app.every("0 6 * * MON-FRI", name="report early", args={"to": "staff"})
    @app.every("0 18 * * *", args={"to": "boss"}, queue="slow", tags=["daily"], meta={"by": "cron"})
    @app.job
    async def report(to: str) -> None: ...

    late, early = core_of(app).schedules
    job = late.new()
    assert (early.name, early.new().args) == ("report early", {"to": "staff"})
    assert (late.name, job.args, job.queue, job.tags) == ("report", {"to": "boss"}, "slow", ["daily"])
    assert job.meta == {"by": "cron"}


def test_a_task_put_on_a_schedule_can_still_be_called_and_enqueued(app: Dibs) -> None:
    @app.every("* * * * *", args={"n": 1})
    @app.job
    def double(n: int) -> int:
        return 2 * n

    assert double(21) == 42
    assert double.sync.enqueue(3).meta == {}


def work(n: int) -> None: ...


def test_a_job_whose_arguments_are_not_given_is_refused(app: Dibs) -> None:
    with pytest.raises(BadRequest, match=r"the arguments of 'work' don't fit.*n"):
        app.every("* * * * *")(app.job(work))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"args": {"n": "three"}}, "don't fit"),
        ({"args": {"n": 1, "m": 2}}, "don't fit"),
        ({"args": {"n": float("nan")}}, "not JSON"),
        ({"missed": "some"}, "missed='some' is unknown: use 'latest', 'all' or 'skip'"),
        ({"name": ""}, "name must have 1 to 200 characters"),
        ({"name": "a\nb"}, "control character"),
        ({"delay": 5}, "delay"),
        ({"run_at": SEEN}, "run_at"),
        ({"colour": "red"}, "using\\(colour='red'\\) is unknown"),
        ({"tz": "Mars"}, "not a time zone"),
        ({"priority": 10**6}, "priority"),
        ({"meta": 3}, "meta must be a mapping"),
        ({"args": [1]}, "args must be a mapping"),
        ({"args": {1: 1}}, "args must be a mapping"),
    ],
    ids=str,
)
def test_what_a_schedule_can_not_have_is_refused_when_it_is_written(
    app: Dibs, options: dict[str, Any], message: str
) -> None:
    task = app.job(work)

    with pytest.raises(BadRequest, match=message):
        app.every("* * * * *", **{"args": {"n": 1}, **options})(task)

    assert scheduled(app) == {}


def test_a_second_schedule_needs_a_name_of_its_own(app: Dibs) -> None:
    task = app.every(60)(app.job(lambda: None, name="work"))

    with pytest.raises(BadRequest, match="there is a schedule 'work' already; give this one a name="):
        app.every(90)(task)


def test_a_job_of_another_app_is_refused(app: Dibs) -> None:
    other = Dibs("memory://").job(lambda: None, name="work")

    with pytest.raises(BadRequest, match="'work' is not a job of this app"):
        app.every(60)(other)


def test_what_is_no_function_is_refused(app: Dibs) -> None:
    with pytest.raises(BadRequest, match="goes on a function"):
        app.every(60)(3)  # type: ignore[call-overload]


def test_a_job_is_not_made_a_job_twice(app: Dibs) -> None:
    task = app.job(lambda: None, name="work")

    with pytest.raises(BadRequest, match="'work' is a job already"):
        app.job(task)
