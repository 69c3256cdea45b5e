"""Whether a store is set up as it should be, and its work is being done.

`examine` asks and only collects; `judge` decides from values, without a store or a clock.
"""

import re
from collections.abc import Iterator

from dibs.doctor import backlog, servers, storage
from dibs.doctor.facts import (
    Backlog,
    ClockDifference,
    Finding,
    HintCheck,
    Level,
    StoreFacts,
    examine,
    note,
    ok,
    problem,
)
from dibs.errors import DibsError, SchemaOutdated

__all__ = [
    "Backlog",
    "ClockDifference",
    "Finding",
    "HintCheck",
    "Level",
    "StoreFacts",
    "examine",
    "judge",
    "unwell",
]


def judge(examined: StoreFacts, hints: HintCheck | None, schema: int) -> list[Finding]:
    """Return all findings, in the order in which they are best read.

    `hints` is None for a store that has none; `schema` is the version of the tables that are there.
    """
    return [
        *_version(examined),
        *_schema(examined, schema),
        *servers.durability(examined),
        *servers.writable(examined),
        *servers.isolation(examined),
        servers.judge_clock(examined.clock),
        *servers.wake_ups(examined, hints),
        *storage.held_back(examined),
        *storage.tables(examined),
        *storage.file(examined),
        *storage.memory(examined),
        *storage.connections(examined),
        *backlog.workers(examined),
        *backlog.waiting(examined),
        *backlog.unknown_kinds(examined),
        *backlog.expired(examined),
        *backlog.paused(examined),
        *backlog.held(examined),
        *backlog.departed(examined),
    ]


def _version(examined: StoreFacts) -> Iterator[Finding]:
    for name, value in examined.about("version"):
        needed = examined.facts.get(("needs", name))
        if needed is not None and _numbers(value or "") < _numbers(needed):
            yield problem("store", f"{name} {value} is too old: dibs needs {needed}", "upgrade it")
        else:
            yield ok("store", f"{name} {value}")


def _numbers(version: str) -> tuple[int, ...]:
    """Return (15, 16) of `15.16 (Debian 15.16-0)`."""
    return tuple(map(int, re.findall(r"\d+", version.partition(" ")[0].partition("-")[0])))


def unwell(error: DibsError) -> Finding:
    """Return the one finding about a store that can't be examined."""
    return problem("schema" if isinstance(error, SchemaOutdated) else "store", str(error))


def _schema(examined: StoreFacts, found: int) -> Iterator[Finding]:
    """Compare the version of the tables; ones that are too old were refused before."""
    needed = examined.number("needs", "schema")
    if needed is not None and found > needed:
        yield note(
            "schema",
            f"the tables have version {found}, this dibs needs version {needed:.0f}",
            "upgrade dibs here when you can",
        )
    elif needed is not None:
        yield ok("schema", f"version {found}, as needed")
