"""What a store says about itself, collected for `judge`.

The facts that an engine may answer to the question `examine`, as (fact, about): value

    version, needs (name of the engine)         what runs there, and the oldest that will do
    needs (schema)                              the version of the tables that this dibs is made for
    kept (jobs): nowhere                        nothing survives the process
    setting (name)                              how durable it is set to be, see SETTINGS
    isolation (own connections, by default)     what keeps transactions of ours apart, and those of others
    standby (server): on                        it copies another server and can't be written to
    transaction, prepared, thread (who): seconds  how long it has been open
    unseen (transactions): privilege            what one needs to see them
    slot (name): transactions                   how far back a replication slot holds dead rows
    connections (used, most)                    how many
    live rows, dead rows, bytes (table)         how big a table is
    vacuumed (table): seconds                   how long ago dead rows were last removed; None for never
    pages (all, free)                           of a file
    file (path, bytes, log bytes, file system)  where it lies
    disk (free bytes)                           what room it has left
    memory (used, most): bytes                  of a store that keeps everything in memory
    failing (what)                              what it could not write to disk
    hints (commits of others): looked for       new jobs are found by looking, many times a second
    hints (new jobs): looked for                the same, at least once a second
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from dibs.clock import wall
from dibs.operations.queries import Queue, queues
from dibs.operations.scripts import Row, Script, Step
from dibs.operations.upkeep import WorkerInfo, workers

MOST_DEPARTED = 1000  # one batch of a move; there are hardly ever more
MOST_HELD = 1000  # trains; whoever has more than that knows
CLOCK_LOOKS = 5  # the quickest of so many answers says most about the clock
HELD_TRAINS = {"sort": "train", "names": None, "held": True, "after": None, "limit": MOST_HELD}


class Level(StrEnum):
    """How much a finding matters."""

    ok = "ok"
    note = "note"
    """Worth knowing."""
    warning = "warning"
    """Works, but not as it should."""
    problem = "problem"
    """Does not work, or may lose what it acknowledged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, what was found, and what to do about it."""

    level: Level
    topic: str
    sentence: str
    advice: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}: {self.sentence}" + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True, slots=True)
class Clock:
    """How far the store's clock is ahead of ours, in seconds, give or take `unsure`."""

    ahead: float
    unsure: float


@dataclass(frozen=True, slots=True)
class Echo:
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
class Examined:
    """All that was collected."""

    facts: Mapping[tuple[str, str], str | None]
    clock: Clock
    now: datetime
    next_due: datetime | None = None
    next_lease: datetime | None = None
    lines: Sequence[tuple[str, str]] = ()
    backlog: Sequence[Backlog] = ()
    queues: Sequence[Queue] = ()
    workers: Sequence[WorkerInfo] = ()
    held: Sequence[tuple[str, int]] = ()
    """Trains that wait for a person, and how many jobs are on each."""
    departed: int = 0
    """Jobs on their way to another store."""

    def about(self, fact: str) -> list[tuple[str, str | None]]:
        """(about, value) of every row of this fact."""
        return [(about, value) for (name, about), value in self.facts.items() if name == fact]

    def number(self, fact: str, about: str) -> float | None:
        value = self.facts.get((fact, about))
        return None if value is None else float(value)


def examine(silence: int) -> Script[Examined]:
    """Ask the store about itself; a worker silent for longer than that (in microseconds) does not count."""
    facts = yield Step("examine", {})
    clock = yield from _clock()
    [upcoming] = yield Step("upcoming", {})
    return Examined(
        facts={(row["fact"], row["about"]): row["value"] for row in facts},
        clock=clock,
        now=upcoming["now"],
        next_due=upcoming["next_due"],
        next_lease=upcoming["next_lease"],
        lines=[(row["queue"], row["kind"]) for row in (yield Step("ready_lines", {"queues": None}))],
        backlog=[_backlog(row) for row in (yield Step("backlog", {}))],
        queues=(yield from queues()),
        workers=(yield from workers(silence)),
        held=[(row["name"], row["length"]) for row in (yield Step("gates", HELD_TRAINS))],
        departed=len((yield Step("departed", {"limit": MOST_DEPARTED}))),
    )


def _clock() -> Script[Clock]:
    """The store read its clock between our question and its answer: halfway, give or take half."""
    looks = []
    for _ in range(CLOCK_LOOKS):
        asked = wall()
        [row] = yield Step("now", {})
        half = max(wall() - asked, 0) / 2
        looks.append(Clock(row["now"].timestamp() - asked - half, half))
    return min(looks, key=lambda look: look.unsure)


def _backlog(row: Row) -> Backlog:
    return Backlog(row["queue"], row["jobs"], row["since"])
