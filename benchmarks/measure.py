"""Rounds, medians and the table: dibs and the raw statements alternate, so that noise affects both."""

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """Jobs per second of one benchmark, by dibs and by the bare statements."""

    engine: str
    what: str
    dibs: float
    raw: float

    @property
    def share(self) -> float:
        return self.dibs / self.raw


Measured = Callable[[], Awaitable[float]]


async def side_by_side(engine: str, what: str, dibs: Measured, raw: Measured, rounds: int) -> Result:
    """Alternate the two; report the median of each."""
    pairs = [(await raw(), await dibs()) for _ in range(rounds)]
    ours = statistics.median(mine for _, mine in pairs)
    bare = statistics.median(theirs for theirs, _ in pairs)
    print(f"  {what}: {', '.join(f'{mine:,.0f}/{theirs:,.0f}' for theirs, mine in pairs)}", flush=True)
    return Result(engine, what, ours, bare)


def rates_table(rates: dict[str, list[float]], heading: str) -> str:
    """Return jobs per second of each side in each round, and dibs' median as a multiple of another's."""
    medians = {name: statistics.median(all) for name, all in rates.items()}
    lines = [heading, "", "| | jobs/s (median) | rounds | dibs is |", "|---|---:|---|---:|"]
    lines += [
        f"| {name} | {median:,.0f} | {', '.join(f'{one:,.0f}' for one in rates[name])} | "
        f"{medians['dibs'] / median:.2f}× |"
        for name, median in medians.items()
    ]
    return "\n".join(lines)


def last_round(rates: dict[str, list[float]]) -> str:
    return "  drain: " + ", ".join(f"{name} {all[-1]:,.0f}/s" for name, all in rates.items())


def table(results: list[Result]) -> str:
    lines = ["| engine | what | dibs jobs/s | raw jobs/s | share |", "|---|---|---:|---:|---:|"]
    lines += [
        f"| {one.engine} | {one.what} | {one.dibs:,.0f} | {one.raw:,.0f} | {one.share:.0%} |"
        for one in results
    ]
    return "\n".join(lines)
