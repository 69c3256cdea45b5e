"""Charts as values, from the counts by the minute: bars of what ended, lines of how long jobs waited."""

from collections.abc import Sequence
from dataclasses import dataclass

from dibs.operations.minutes import MinuteStats
from dibs.text import spoken

WIDTH, HEIGHT = 600, 110
SPANS = {"hour": 3600, "day": 86_400, "3 days": 3 * 86_400}  # seconds
PERCENTILES = (0.5, 0.95)


@dataclass(frozen=True, slots=True)
class ChartBar:
    """What ended in one stretch of time."""

    x: float
    width: float
    done: float
    """Heights."""
    failed: float
    says: str


@dataclass(frozen=True, slots=True)
class ActivityCharts:
    """Throughput and latency over one span of time."""

    bars: Sequence[ChartBar]
    lines: Sequence[tuple[str, str]]
    """Name and path of each percentile of the latency."""
    most: str
    longest: str
    done: int
    failed: int


def activity(stats: Sequence[MinuteStats]) -> ActivityCharts | None:
    """Return the charts of these stretches; None if nothing ended in them."""
    most = max((one.done + one.failed for one in stats), default=0)
    if not most:
        return None
    step = WIDTH / len(stats)
    latencies = {share: [one.latency.percentile(share) for one in stats] for share in PERCENTILES}
    longest = max(
        (value for values in latencies.values() for value in values if value is not None), default=0.0
    )
    per_minute = max(one.done + one.failed for one in stats) * 60 / stats[0].seconds
    return ActivityCharts(
        bars=[_bar(number, one, step, HEIGHT / most) for number, one in enumerate(stats)],
        lines=[(f"{share:.0%}", _path(values, step, longest)) for share, values in latencies.items()],
        most=f"{per_minute:,.0f} per minute" if per_minute >= 10 else f"{per_minute:.1f} per minute",
        longest=spoken(longest),
        done=sum(one.done for one in stats),
        failed=sum(one.failed for one in stats),
    )


def _bar(number: int, one: MinuteStats, step: float, scale: float) -> ChartBar:
    says = f"{one.at:%Y-%m-%d %H:%M} UTC: {one.done:,} done, {one.failed:,} attempts failed"
    width = max(step - 1, 0.8)
    return ChartBar(
        round(number * step, 1),
        round(width, 1),
        round(one.done * scale, 1),
        round(one.failed * scale, 1),
        says,
    )


def _path(values: Sequence[float | None], step: float, longest: float) -> str:
    """Return a line as wide as each stretch, with a gap where nothing was measured."""
    path, pen_down = [], False
    for number, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        y = HEIGHT - 2 - (value / longest if longest else 0) * (HEIGHT - 4)
        path.append(f"{'L' if pen_down else 'M'}{number * step:.1f} {y:.1f}h{step:.1f}")
        pen_down = True
    return "".join(path)
