"""When a schedule ticks: a cron expression in a time zone, or an interval. No clock is read here."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dibs.errors import BadRequest
from dibs.settings import Duration, micros

SHORTEST_INTERVAL = timedelta(seconds=1)
FIRST_WINDOW, WIDER = timedelta(minutes=1), 8

_SOME_MOMENT = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cron:
    """Ticks where the local time of a zone matches a cron expression of five fields, or six with seconds."""

    expression: str
    zone: tzinfo = UTC

    def __post_init__(self) -> None:
        try:
            ticks = iter(CronSim(self.expression, _SOME_MOMENT.astimezone(self.zone)))
        except (CronSimError, AssertionError, TypeError, ValueError) as error:
            raise BadRequest(
                f"{self.expression!r} is not a cron expression: {error or 'it makes no sense'}; "
                "write minute, hour, day, month, weekday, like '*/5 * * * *'; seconds may stand before them"
            ) from None
        if next(ticks, None) is None:
            raise BadRequest(f"{self.expression!r} never ticks: there is no such day in fifty years")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """All ticks after this moment, in UTC, each later than the one before."""
        newest = moment
        for local in CronSim(self.expression, moment.astimezone(self.zone)):
            tick = local.astimezone(UTC)
            # Begun within the hour that a clock set back repeats, cronsim first answers a tick of
            # its first round, which is over.
            if tick > newest:
                newest = tick
                yield tick

    def ticks_at(self, moment: datetime) -> bool:
        """Whether this very moment is a tick."""
        return next(self.after(moment - timedelta(microseconds=1)), None) == moment

    def newest(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        """The newest ticks after `since` up to `now`, oldest first.

        Looked for in windows that grow backwards from `now`: after a year off, a schedule of every second
        must not be walked from where it stopped.
        """
        window = FIRST_WINDOW
        while True:
            start = max(since, now - window)
            found = deque(_until(self.after(start), now), maxlen=most)
            if start == since or len(found) == most:
                return [tick for tick in found if tick > since]
            window *= WIDER

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

    def __str__(self) -> str:
        return f"every {self.step.total_seconds():g} s"


Rule = Cron | Interval


def rule(when: str | Duration, tz: str) -> Rule:
    """What `@app.every` was given, or `BadRequest`."""
    zone = _zone(tz)
    if isinstance(when, str):
        return Cron(when, zone)
    if zone is not UTC:
        raise BadRequest(f"tz={tz!r} goes with a cron expression; an interval has no time zone")
    return Interval(timedelta(microseconds=micros(when, what="every")))


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
