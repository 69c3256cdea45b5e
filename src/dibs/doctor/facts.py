"""What a store reports about itself, collected for `judge`.

The facts that an engine may return for the question `examine`, as (fact, about): value

    version, needs (name of the engine)         what runs there, and the oldest that will do
    needs (schema)                              the version of the tables that this dibs needs
    kept (jobs): nowhere                        nothing survives the process
    setting (name)                              how durable it is set to be, see SETTINGS
    isolation (own connections, by default)     isolation level of our transactions, and of others
    standby (server): on                        it copies another server and can't be written to
    transaction, prepared, thread (name): seconds  how long it has been open
    unseen (transactions): privilege            the privilege that is needed to see them
    slot (name): transactions                   how far back a replication slot holds dead rows
    connections (used, most)                    how many
    live rows, dead rows, bytes (table)         how big a table is
    vacuumed (table): seconds                   how long ago dead rows were last removed; None for never
    pages (all, free)                           of a file
    file (path, bytes, log bytes, file system)  where it is
    disk (free bytes)                           how much is left
    memory (used, most): bytes                  of a store that keeps everything in memory
    failing (what)                              what it could not write to disk
    hints (commits of others): looked for       new jobs are found by polling, many times a second
    hints (new jobs): looked for                the same, at least once a second
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial

from dibs.clock import wall
from dibs.operations.queries import Queue, queues
from dibs.operations.scripts import Script, Step
from dibs.operations.upkeep import WorkerInfo, workers

MOST_DEPARTED = 1000  # one batch of a move; there are hardly ever more
MOST_HELD = 1000  # trains
CLOCK_READS = 5  # the quickest of so many answers says most about the clock
HELD_TRAINS = {"sort": "train", "names": None, "held": True, "after": None, "limit": MOST_HELD}


class Level(StrEnum):
    """How much a finding matters. Example: `Level.problem in [one.level for one in await app.doctor()]`"""

    ok = "ok"
    note = "note"
    """Worth knowing."""
    warning = "warning"
    """Works, but not as it should."""
    problem = "problem"
    """Does not work, or may lose what it acknowledged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked, what was found, and what to do about it. Example: `await app.doctor()`"""

    level: Level
    topic: str
    sentence: str
    advice: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}: {self.sentence}" + (f"; {self.advice}" if self.advice else "")


ok, note, warning, problem = (partial(Finding, level) for level in Level)


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """How far the store's clock is ahead of ours, in seconds, give or take `unsure`."""

    ahead: float
    unsure: float


@dataclass(frozen=True, slots=True)
class HintCheck:
    """Whether a hint that was sent came back, and after how many seconds."""

    seconds: float | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The ready jobs of one queue."""

    queue: str
    jobs: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """All that was collected about a store."""

    facts: Mapping[tuple[str, str], str | None]
    clock: ClockDifference
    now: datetime
    next_due: datetime | None = None
    next_lease: datetime | None = None
    pairs: Sequence[tuple[str, str]] = ()
    """Queue-kind pairs that have ready jobs."""
    backlog: Sequence[Backlog] = ()
    queues: Sequence[Queue] = ()
    workers: Sequence[WorkerInfo] = ()
    held: Sequence[tuple[str, int]] = ()
    """Held trains, and how many jobs are on each."""
    departed: int = 0
    """Jobs on their way to another store."""

    def about(self, fact: str) -> list[tuple[str, str | None]]:
        """Return (about, value) of every row of this fact."""
        return [(about, value) for (name, about), value in self.facts.items() if name == fact]

    def number(self, fact: str, about: str) -> float | None:
        value = self.facts.get((fact, about))
        return None if value is None else float(value)


def examine(silence: int) -> Script[StoreFacts]:
    """Ask the store about itself; a worker silent for longer than this (in microseconds) does not count."""
    facts = yield Step("examine", {})
    clock = yield from _clock()
    [upcoming] = yield Step("upcoming", {})
    return StoreFacts(
        facts={(row["fact"], row["about"]): row["value"] for row in facts},
        clock=clock,
        now=upcoming["now"],
        next_due=upcoming["next_due"],
        next_lease=upcoming["next_lease"],
        pairs=[(row["queue"], row["kind"]) for row in (yield Step("ready_lines", {"queues": None}))],
        backlog=[Backlog(**row) for row in (yield Step("backlog", {}))],
        queues=(yield from queues()),
        workers=(yield from workers(silence)),
        held=[(row["name"], row["length"]) for row in (yield Step("gates", HELD_TRAINS))],
        departed=len((yield Step("departed", {"limit": MOST_DEPARTED}))),
    )


def _clock() -> Script[ClockDifference]:
    """Compare clocks: the store read its own halfway between question and answer, give or take half."""
    reads = []
    for _ in range(CLOCK_READS):
        asked = wall()
        [row] = yield Step("now", {})
        half = max(wall() - asked, 0) / 2
        reads.append(ClockDifference(row["now"].timestamp() - asked - half, half))
    return min(reads, key=lambda read: read.unsure)
