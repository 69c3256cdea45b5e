"""Is this store set up as it should be, and is its work being done? One finding per thing worth a look.

`examine` asks and only collects; everything after it is judged from values, without a store or a clock.
"""

import re
from collections.abc import Iterator

from dibs.doctor import backlog, capacity, performance, servers
from dibs.doctor.facts import Backlog, Clock, Echo, Examined, Finding, Level, examine
from dibs.errors import DibsError, SchemaOutdated

__all__ = ["Backlog", "Clock", "Echo", "Examined", "Finding", "Level", "examine", "judge", "unwell"]


def judge(examined: Examined, echo: Echo | None, schema: int) -> list[Finding]:
    """Every finding, in the order in which one would want to read them.

    `echo` is None for a store that has no hints; `schema` is the version of the tables that are there.
    """
    return [
        *_version(examined),
        *_schema(examined, schema),
        *servers.durability(examined),
        *servers.standing(examined),
        *servers.isolation(examined),
        servers.judge_clock(examined.clock),
        *servers.wake_ups(examined, echo),
        *performance.held_back(examined),
        *performance.tables(examined),
        *capacity.file(examined),
        *capacity.memory(examined),
        *capacity.connections(examined),
        *backlog.workers(examined),
        *backlog.waiting(examined),
        *backlog.unknown_kinds(examined),
        *backlog.expired(examined),
        *backlog.paused(examined),
        *backlog.held(examined),
        *backlog.departed(examined),
    ]


def _version(examined: Examined) -> Iterator[Finding]:
    for name, value in examined.about("version"):
        needed = examined.facts.get(("needs", name))
        if needed is not None and _numbers(value or "") < _numbers(needed):
            yield Finding(
                Level.problem, "store", f"{name} {value} is too old: dibs needs {needed}", "upgrade it"
            )
        else:
            yield Finding(Level.ok, "store", f"{name} {value}")


def _numbers(version: str) -> tuple[int, ...]:
    """15.16 of `15.16 (Debian 15.16-0)`."""
    return tuple(map(int, re.findall(r"\d+", version.partition(" ")[0].partition("-")[0])))


def unwell(error: DibsError) -> Finding:
    """What is left to say of a store that can't be examined."""
    return Finding(Level.problem, "schema" if isinstance(error, SchemaOutdated) else "store", str(error))


def _schema(examined: Examined, found: int) -> Iterator[Finding]:
    """Tables that are too old never come this far."""
    needed = examined.number("needs", "schema")
    if needed is not None and found > needed:
        yield Finding(
            Level.note,
            "schema",
            f"the tables have version {found}, this dibs was made for version {needed:.0f}",
            "upgrade dibs here when you can",
        )
    elif needed is not None:
        yield Finding(Level.ok, "schema", f"version {found}, as needed")
