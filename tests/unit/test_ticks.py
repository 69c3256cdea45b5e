"""When a schedule ticks: cron expressions, time zones whose clocks are set, intervals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dibs import BadRequest
from dibs.jobs.schedules import Cron, Interval, rule
from tests.support.param_names import named

BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime(2026, 3, 28, 12, tzinfo=BERLIN)  # the clock is set from 2 to 3 on the 29th
AUTUMN = datetime(2026, 10, 24, 12, tzinfo=BERLIN)  # and from 3 to 2 on the 25th of October


def moment(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


def ticks(when: Any, since: datetime, many: int, tz: str = "UTC") -> list[str]:
    found = islice(rule(when, tz).after(since), many)
    return [f"{tick:%d. %H:%M:%S}" for tick in found]


# -- Rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("*/5 * * * *", ["01. 10:05:00", "01. 10:10:00"]),
        ("0 9 * * *", ["02. 09:00:00", "03. 09:00:00"]),
        ("* * * * * *", ["01. 10:02:04", "01. 10:02:05"]),
        ("30 * * * * *", ["01. 10:02:30", "01. 10:03:30"]),
        ("0 0 l * *", ["31. 00:00:00", "30. 00:00:00"]),
        (90, ["01. 10:03:33", "01. 10:05:03"]),
        (timedelta(hours=1), ["01. 11:02:03", "01. 12:02:03"]),
    ],
    ids=named,
)
def test_a_rule_ticks_after_a_moment(when: Any, expected: list[str]) -> None:
    assert ticks(when, moment("2026-05-01T10:02:03"), 2) == expected


def test_a_tick_is_later_than_the_moment_it_is_after() -> None:
    on_the_tick = moment("2026-05-01T10:05:00")

    assert ticks("*/5 * * * *", on_the_tick, 1) == ["01. 10:10:00"]
    assert ticks("*/5 * * * *", on_the_tick - timedelta(microseconds=1), 1) == ["01. 10:05:00"]
    assert ticks("*/5 * * * *", on_the_tick + timedelta(microseconds=1), 1) == ["01. 10:10:00"]


def test_an_expression_is_read_in_its_time_zone() -> None:
    winter, summer = moment("2026-01-10T00:00:00"), moment("2026-07-10T00:00:00")

    assert ticks("0 9 * * *", winter, 1, "Europe/Berlin") == ["10. 08:00:00"]
    assert ticks("0 9 * * *", summer, 1, "Europe/Berlin") == ["10. 07:00:00"]


@pytest.mark.parametrize("when", ["", "* * * *", "61 * * * *", "a b c d e", "* * * * * * *", "0 0 31 2 *"])
def test_what_is_no_expression_is_refused(when: str) -> None:
    with pytest.raises(BadRequest, match="is not a cron expression"):
        rule(when, "UTC")


def test_an_expression_that_never_comes_true_is_refused() -> None:
    with pytest.raises(BadRequest, match="never ticks"):
        rule("0 0 */32 * MON#2", "UTC")


@pytest.mark.parametrize("tz", ["Berlin", "", "America", "../UTC", "/etc/localtime", None, 3, "a\x00b"])
def test_what_is_no_time_zone_is_refused(tz: Any) -> None:
    with pytest.raises(BadRequest, match="is not a time zone"):
        rule("* * * * *", tz)


@pytest.mark.parametrize("when", [0, 0.5, -1, float("nan"), True, None, timedelta(0), ["* * * * *"]])
def test_what_is_no_interval_is_refused(when: Any) -> None:
    with pytest.raises(BadRequest, match="every"):
        rule(when, "UTC")


def test_an_interval_has_no_time_zone() -> None:
    with pytest.raises(BadRequest, match="goes with a cron expression"):
        rule(60, "Europe/Berlin")


# -- Clocks that are set ------------------------------------------------------------------------


def test_a_time_that_is_left_out_in_spring_ticks_when_the_clock_is_past_it() -> None:
    assert ticks("30 2 * * *", SPRING, 2, "Europe/Berlin") == ["29. 01:00:00", "30. 00:30:00"]


def test_a_time_that_comes_twice_in_autumn_ticks_once() -> None:
    assert ticks("30 2 * * *", AUTUMN, 2, "Europe/Berlin") == ["25. 00:30:00", "26. 01:30:00"]


def test_a_schedule_begun_within_the_repeated_hour_does_not_tick_for_the_hour_before() -> None:
    begun = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)

    assert ticks("30 2 * * *", begun, 1, "Europe/Berlin") == ["26. 01:30:00"]


@pytest.mark.parametrize("since", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_every_so_many_minutes_goes_on_evenly_when_the_clock_is_set(since: datetime) -> None:
    found = list(islice(Cron("*/20 * * * *", BERLIN).after(since), 3 * 30))

    assert {later - tick for tick, later in pairwise(found)} == {timedelta(minutes=20)}


# -- The newest ticks of a long time ------------------------------------------------------------

EXPRESSIONS = ["*/5 * * * *", "30 2 * * *", "0,30 2,3 * * *", "15 2-4 * * SUN", "0 0 1 * *", "20 30 2 * * *"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Beirut"]
moments = st.datetimes(datetime(2024, 1, 1), datetime(2026, 12, 31), timezones=st.just(UTC))


@settings(max_examples=60, deadline=None)
@given(
    when=st.sampled_from(EXPRESSIONS),
    zone=st.sampled_from(ZONES),
    since=moments,
    span=st.timedeltas(timedelta(0), timedelta(days=40)),
    most=st.sampled_from([1, 3, 1000]),
)
@example(when="30 2 * * *", zone="Europe/Berlin", since=AUTUMN, span=timedelta(hours=14, minutes=10), most=1)
@example(when="30 2 * * *", zone="Europe/Berlin", since=SPRING, span=timedelta(hours=13), most=1)
def test_the_newest_ticks_are_the_last_of_all_ticks(
    when: str, zone: str, since: datetime, span: timedelta, most: int
) -> None:
    now = (since + span).astimezone(UTC)
    cron = rule(when, zone)

    assert cron.newest(since, now, most) == list(_until(cron.after(since), now))[-most:]


def test_the_newest_tick_of_ten_years_of_seconds_is_found_at_once() -> None:
    now = moment("2026-05-01T10:02:03.5")
    walked = _Counting("* * * * * *")

    assert walked.newest(now - timedelta(days=3652), now, 3) == [
        now - timedelta(seconds=seconds, milliseconds=500) for seconds in (2, 1, 0)
    ]
    assert walked.steps < 100


@pytest.mark.parametrize("seconds", [0, 29, 30, 31, 100, 10_000])
@pytest.mark.parametrize("most", [1, 3, 1000])
def test_the_newest_ticks_of_an_interval(seconds: int, most: int) -> None:
    since, interval = moment("2026-05-01T10:02:03"), Interval(timedelta(seconds=30))
    now = since + timedelta(seconds=seconds)

    assert interval.newest(since, now, most) == list(_until(interval.after(since), now))[-most:]


def test_before_its_last_tick_a_rule_has_no_new_ones() -> None:
    now = moment("2026-05-01T10:02:03")

    assert Cron("* * * * *").newest(now + timedelta(hours=1), now, 1) == []
    assert Interval(timedelta(seconds=1)).newest(now + timedelta(hours=1), now, 1) == []


class _Counting(Cron):
    """Notes how many ticks were looked at."""

    steps = 0

    def after(self, moment: datetime) -> Iterator[datetime]:
        for tick in super().after(moment):
            type(self).steps += 1
            yield tick


def _until(ticks: Iterator[datetime], now: datetime) -> Iterator[datetime]:
    return takewhile(lambda tick: tick <= now, ticks)
