"""`dibs top`: queues, rates, workers and running jobs, live.

A `Snapshot` is what was read at one time. Drawing takes values alone; a lost connection is drawn, too.
"""

import math
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dibs.app.dibs import Dibs, SyncDibs
from dibs.cli._support.config import given, refuse_missing_file, store_name
from dibs.cli._support.options import AsJson, Url, duration
from dibs.cli._support.printing import STYLES, print_json
from dibs.clock import monotonic
from dibs.errors import StoreUnavailable
from dibs.jobs.job import Job
from dibs.jobs.states import FINISHED, JobState
from dibs.log_format import one_line
from dibs.operations.queries import Queue
from dibs.operations.scripts import Script, Step
from dibs.operations.upkeep import WorkerInfo
from dibs.text import spoken

EXAMPLE = "Example: dibs top --interval 1s, or dibs top --once --json"

SHORTEST = 0.1  # seconds between two snapshots
PAUSE_FACTOR = 4  # a slow store gets a pause of four times its response time
LONG_COUNT = 0.1  # seconds to count finished jobs; a longer count
RARELY = 50  # takes at most 2 % of the time
LONGEST_COUNT = 2.0  # seconds after which no more queues are asked for their failed jobs
OLD = 5.0  # seconds after which the age of a count is shown
MOST_QUEUES = 20  # queues with counted failures
MOST_RUNNING = 200
PIPE_WIDTH = 200  # columns
ROOM_FOR_ALL = 110  # columns; a narrower screen has no bars and no workers of jobs
CUT_FIRST = {"queue", "worker", "running job", "message", "at"}
LIVE = [JobState.ready, JobState.running, JobState.scheduled, JobState.blocked]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was read at one time of the store's clock; `rate` is finished jobs/s between two counts.

    Finished jobs were counted at `counted_at`, which may be earlier: there may be millions of them.
    """

    store: str
    at: datetime
    counted_at: datetime
    rate: float | None
    counts: dict[str, int]
    queues: list[dict[str, Any]]
    workers: list[WorkerInfo]
    running: list[Job]

    @property
    def finished(self) -> int:
        return sum(self.counts[state] for state in FINISHED)


def command(
    context: typer.Context,
    interval: Annotated[
        float, typer.Option(parser=duration, metavar="TIME", help="Between two snapshots.")
    ] = "2s",  # type: ignore[assignment]
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and end.")] = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Watch queues, rates, workers and running jobs. q ends it.

    If it takes long to count the finished jobs, they are counted less often, and the screen says when.

    In a pipe it prints one snapshot, as with --once. With --json it prints a JSON object per line for every
    snapshot, also in a pipe, until Ctrl-C; with --once just one.
    """
    pause = max(interval, SHORTEST)
    refuse_missing_file(context, url)
    store = Dibs(**given(context, url)).sync
    name = store_name(context, url)
    try:
        if once or (not json and not sys.stdout.isatty()):
            _print_once(read_snapshot(store.open(), name), json)
        elif json:
            _print_for_ever(store.open(), name, pause)
        else:
            _watch(store.open(), name, pause)
    except KeyboardInterrupt:
        pass
    finally:
        store.close()


def _print_once(snapshot: Snapshot, json: bool) -> None:
    if json:
        print_json(snapshot)
    else:
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        console = Console(markup=False, highlight=False, emoji=False, width=width)
        console.print(draw(snapshot, console.width))


def _print_for_ever(store: SyncDibs, name: str, pause: float) -> None:
    last: Snapshot | None = None
    cache = CountCache(store)
    while True:
        began = monotonic()
        try:
            last = read_snapshot(store, name, last, cache.counts())
            typer.echo(msgspec.json.encode(last))
        except StoreUnavailable as error:
            typer.echo(msgspec.json.encode({"store": name, "error": one_line(str(error))}))
        time.sleep(max(pause, PAUSE_FACTOR * (monotonic() - began)))


def _watch(store: SyncDibs, name: str, pause: float) -> None:
    """Redraw until q is pressed. Show a lost connection, and try again."""
    last: Snapshot | None = None
    cache = CountCache(store)
    console = Console(markup=False, highlight=False, emoji=False)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = monotonic()
            try:
                last = read_snapshot(store, name, last, cache.counts())
                live.update(draw(last, console.width), refresh=True)
            except StoreUnavailable as error:
                live.update(draw_unavailable(last, name, str(error), console.width), refresh=True)
            if pressed(max(pause, PAUSE_FACTOR * (monotonic() - began))):
                return


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits some seconds for a key and returns whether it was q."""
    if not sys.stdin.isatty():
        yield time.sleep  # returns None: no key was pressed
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield _quits_within
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _quits_within(seconds: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and sys.stdin.read(1) in ("q", "Q", "\x04")


# -- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateCounts:
    """The number of jobs in each state, and of failed jobs in the queues that were counted."""

    at: datetime
    counts: dict[str, int]
    failed: dict[str, int]


class CountCache:
    """The last count, and a new one when it is worth its time."""

    def __init__(self, store: SyncDibs) -> None:
        self._store = store
        self._last: StateCounts | None = None
        self._due = 0.0

    def counts(self) -> StateCounts:
        began = monotonic()
        if self._last is None or began >= self._due:
            self._last = count(self._store, LONGEST_COUNT)
            took = monotonic() - began
            self._due = monotonic() + (RARELY * took if took > LONG_COUNT else 0)
        return self._last


def count(store: SyncDibs, limit: float = math.inf) -> StateCounts:
    """Count all jobs, and the failed ones queue by queue, for at most `limit` seconds."""
    began = monotonic()
    counts, at = store.counts(), store._core.store.run(lambda _: _now())
    failed: dict[str, int] = {}
    for index, queue in enumerate(store.queues()):
        if not counts[JobState.failed]:
            failed[queue.name] = 0
        elif index < MOST_QUEUES and monotonic() - began < limit:
            failed[queue.name] = store.counts(queue.name)[JobState.failed]
    return StateCounts(at, counts, failed)


def read_snapshot(
    store: SyncDibs, name: str, last: Snapshot | None = None, counted: StateCounts | None = None
) -> Snapshot:
    """Return the next snapshot, with the rate since the last one. Without `counted` all is counted now."""
    earlier, counted = counted, counted or count(store)
    queues = store.queues()
    live = {state.value: sum(queue.counts.get(state, 0) for queue in queues) for state in LIVE}
    return Snapshot(
        store=name,
        at=store._core.store.run(lambda _: _now()),
        counted_at=counted.at,
        rate=_rate(last, counted),
        counts=counted.counts if earlier is None else {**counted.counts, **live},
        queues=[_queue(queue, counted.failed.get(queue.name)) for queue in queues],
        workers=store.workers(),
        running=store.find(state=JobState.running, limit=MOST_RUNNING),
    )


def _now() -> Script[datetime]:
    [row] = yield Step("now", {})
    now: datetime = row["now"]
    return now


def _rate(last: Snapshot | None, counted: StateCounts) -> float | None:
    """Return finished jobs per second; pruning in between makes it less, never negative."""
    if last is None or (seconds := (counted.at - last.counted_at).total_seconds()) <= 0:
        return None if last is None else last.rate
    finished = sum(counted.counts[state] for state in FINISHED)
    return max(finished - last.finished, 0) / seconds


def _queue(queue: Queue, failed: int | None) -> dict[str, Any]:
    live = {state.value: queue.counts.get(state, 0) for state in LIVE}
    return {"name": queue.name, "paused": queue.paused, "limit": queue.limit, **live, "failed": failed}


# -- drawing ------------------------------------------------------------------------------------


def draw(snapshot: Snapshot, width: int) -> RenderableType:
    queues, workers = _queues(snapshot.queues), _workers(snapshot)
    running = _running(snapshot, width >= ROOM_FOR_ALL)
    return Group(_headline(snapshot), Text(), queues, Text(), workers, Text(), running)


def draw_unavailable(last: Snapshot | None, name: str, error: str, width: int) -> RenderableType:
    line = Text(f"{name} is unavailable, trying again: {one_line(error)}", style="bold red")
    return line if last is None else Group(line, Text(), draw(last, width))


def _headline(snapshot: Snapshot) -> Text:
    rate = "" if snapshot.rate is None else f"{snapshot.rate:,.1f} jobs/s  "
    line = Text(f"{snapshot.store}  {snapshot.at.astimezone(UTC):%H:%M:%S} UTC  {rate}", style="bold")
    for state in JobState:
        if snapshot.counts[state]:
            line.append(f" {snapshot.counts[state]:,} {state.value} ", style=STYLES[state])
    if (age := (snapshot.at - snapshot.counted_at).total_seconds()) >= OLD:
        line.append(f" (finished and failed jobs counted {spoken(age)} ago)", style="dim")
    return line


def _queues(queues: Sequence[dict[str, Any]]) -> RenderableType:
    if not queues:
        return Text("no queue has live jobs", style="dim")
    table = _table("queue", *(state.value for state in LIVE), "failed", "")
    for queue in queues:
        numbers = [Text(f"{queue[state]:,}", STYLES[state] if queue[state] else "dim") for state in LIVE]
        failed = Text("?" if queue["failed"] is None else f"{queue['failed']:,}", _failed_style(queue))
        table.add_row(_short(queue["name"]), *numbers, failed, _switches(queue))
    return table


def _failed_style(queue: dict[str, Any]) -> str:
    return STYLES[JobState.failed] if queue["failed"] else "dim"


def _switches(queue: dict[str, Any]) -> Text:
    limit = "" if queue["limit"] is None else f"limit {queue['limit']}"
    return Text(" ".join(word for word in ("paused" if queue["paused"] else "", limit) if word), "yellow")


def _workers(snapshot: Snapshot) -> RenderableType:
    if not snapshot.workers:
        return Text("no worker was seen lately", style="dim")
    table = _table("worker", "busy", "seen")
    for worker in snapshot.workers:
        busy = Text(f"{worker.running}/{worker.concurrency}", "yellow" if worker.running else "dim")
        seen = spoken((snapshot.at - worker.seen_at).total_seconds())
        table.add_row(_short(worker.name), busy, f"{seen} ago")
    return table


def _running(snapshot: Snapshot, with_all: bool) -> RenderableType:
    if not snapshot.running:
        return Text("no job is running", style="dim")
    table = _table("running job", "for", *(["progress", "message", "at"] if with_all else ["message"]), "id")
    for job in sorted(snapshot.running, key=lambda job: job.claimed_at or snapshot.at):
        since = spoken((snapshot.at - (job.claimed_at or snapshot.at)).total_seconds())
        bar: RenderableType = ProgressBar(total=1, completed=job.progress, width=12) if job.progress else ""
        words = _short(" ".join(filter(None, [f"{job.progress:.0%}" if job.progress else "", job.message])))
        about = [bar, words, _short(job.worker or "")] if with_all else [words]
        table.add_row(_short(job.kind), since, *about, str(job.id))
    return table


def _short(text: str) -> Text:
    """Return text of any length, cut where there is no room for it."""
    return Text(one_line(text), no_wrap=True, overflow="ellipsis")


def _table(*names: str) -> Table:
    """Return a table that fits the screen: long text is cut first, then the rest."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numbers = {"for", "seen", "busy", "failed", *(state.value for state in LIVE)}
    for name in names:
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        table.add_column(_short(name), justify=justify, overflow="ellipsis", no_wrap=name not in CUT_FIRST)
    return table
