"""When a schedule ticks (a cron expression in a time zone, or an interval), and which ticks are due.

No clock is read here.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dibs.errors import BadRequest
from dibs.settings import Duration, micros

Missed = Literal["latest", "all", "skip"]

MOST_CAUGHT_UP = 1000  # ticks that missed="all" makes up for; older ones are gone
BATCH = 100  # jobs per question
LATE = timedelta(minutes=1)  # a tick up to this old is late, not missed: a restart costs no tick
SHORTEST_INTERVAL = timedelta(seconds=1)
FIRST_WINDOW, WIDER = timedelta(minutes=1), 8

_SOME_TIME = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cron:
    """Ticks where the local time of a zone matches a cron expression of five fields, or six with seconds."""

    expression: str
    zone: tzinfo = UTC

    def __post_init__(self) -> None:
        try:
            ticks = iter(CronSim(self.expression, _SOME_TIME.astimezone(self.zone)))
        except (CronSimError, AssertionError, TypeError, ValueError) as error:
            raise BadRequest(
                f"{self.expression!r} is not a cron expression: {error or 'it makes no sense'}; "
                "write minute, hour, day, month, weekday, like '*/5 * * * *'; seconds may stand before them"
            ) from None
        if next(ticks, None) is None:
            raise BadRequest(f"{self.expression!r} never ticks: there is no such day in fifty years")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield all ticks after this time, in UTC, each later than the one before."""
        newest = moment
        for local in CronSim(self.expression, moment.astimezone(self.zone)):
            tick = local.astimezone(UTC)
            # Begun within the hour that a clock set back repeats, cronsim first yields a tick of the first
            # time round, which is over.
            if tick > newest:
                newest = tick
                yield tick

    def newest(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        """Return the newest ticks after `since` up to `now`, oldest first.

        They are searched in windows that grow backwards from `now`: after a year off, a schedule of every
        second must not be walked from where it stopped.
        """
        window = FIRST_WINDOW
        while True:
            start = max(since, now - window)
            found = deque(_until(self.after(start), now), maxlen=most)
            if start == since or len(found) == most:
                return [tick for tick in found if tick > since]
            window *= WIDER

    def as_parts(self) -> dict[str, Any]:
        """Return what a store keeps of it beside its zone."""
        return {"cron": self.expression}

    def __str__(self) -> str:
        return self.expression


@dataclass(frozen=True, slots=True)
class Interval:
    """Ticks that are this far apart, counted from the one before."""

    step: timedelta

    def __post_init__(self) -> None:
        if self.step < SHORTEST_INTERVAL:
            raise BadRequest(f"every {self.step.total_seconds():g} seconds is too often: the least is 1")

    def after(self, moment: datetime) -> Iterator[datetime]:
        while True:
            moment += self.step
            yield moment

    def newest(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        count = max((now - since) // self.step, 0)
        return [since + self.step * number for number in range(max(count - most, 0) + 1, count + 1)]

    def as_parts(self) -> dict[str, Any]:
        return {"every": self.step // timedelta(microseconds=1)}

    def __str__(self) -> str:
        return f"every {self.step.total_seconds():g} s"


Rule = Cron | Interval


def rule(when: str | Duration, tz: str) -> Rule:
    """Return the rule that `@app.every` was given, or `BadRequest`."""
    zone = _zone(tz)
    if isinstance(when, str):
        return Cron(when, zone)
    if zone is not UTC:
        raise BadRequest(f"tz={tz!r} goes with a cron expression; an interval has no time zone")
    return Interval(timedelta(microseconds=micros(when, what="every")))


def check_missed(missed: Missed) -> Missed:
    if missed not in ("latest", "all", "skip"):
        raise BadRequest(f"missed={missed!r} is unknown: use 'latest', 'all' or 'skip'")
    return missed


def _zone(name: str) -> tzinfo:
    if name == "UTC":  # also where no time zones are installed
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError, AttributeError):
        raise BadRequest(
            f"tz={name!r} is not a time zone known here: write a name like 'Europe/Berlin'; "
            "a machine without time zones needs: pip install tzdata"
        ) from None


def _until(ticks: Iterator[datetime], now: datetime) -> Iterator[datetime]:
    for tick in ticks:
        if tick > now:
            return
        yield tick


@dataclass(frozen=True, slots=True)
class TickBatch:
    """Ticks that get a job in one step, and the change of the schedule's last tick that goes with it."""

    since: datetime
    tick: datetime
    ticks: Sequence[datetime] = ()


def due(rule: Rule, missed: Missed, last_tick: datetime, now: datetime) -> list[TickBatch]:
    """Return what is to be enqueued for the ticks since the last one.

    If the clock was set back, the last tick lies in the future, and there is nothing to do until then. Ticks
    that are merely late all get their job; `missed` is for ticks at which no worker ran.
    """
    first = next(rule.after(last_tick), None)
    if first is None or first > now:
        return []
    if missed == "all" or now - first <= LATE:
        return _in_batches(last_tick, rule.newest(last_tick, now, MOST_CAUGHT_UP))
    [newest] = rule.newest(last_tick, now, 1)
    dropped = missed == "skip" and now - newest > LATE
    return [TickBatch(last_tick, newest, [] if dropped else [newest])]


def _in_batches(since: datetime, ticks: Sequence[datetime]) -> list[TickBatch]:
    batches: list[TickBatch] = []
    for start in range(0, len(ticks), BATCH):
        batch = ticks[start : start + BATCH]
        batches.append(TickBatch(since, batch[-1], batch))
        since = batch[-1]
    return batches
