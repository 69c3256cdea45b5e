"""`dibs top`: queues, rates, workers and running jobs, live.

A `Frame` is what was seen at one moment. It is drawn from values alone; a store that goes away is drawn, too.
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

from dibs.app.dibs import Dibs
from dibs.app.sync import SyncDibs
from dibs.cli._support.config import given, store_name
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

SHORTEST = 0.1  # seconds between two frames
SHARE = 4  # a store that takes long to answer is left alone four times as long
LONG = 0.1  # seconds to count what is finished; if it takes longer,
RARELY = 50  # that is done in 2 % of the time
LONGEST_COUNT = 2.0  # seconds after which no more queues are asked for their failed jobs
OLD = 5.0  # seconds after which a number is said to be of then
MOST_QUEUES = 20  # whose failed jobs are counted
MOST_RUNNING = 200
WIDE = 200  # columns of a frame in a pipe
ROOM_FOR_ALL = 110  # on less there is no bar, and not who runs a job: what and which is said whole
CHOSEN = {"queue", "worker", "running job", "message", "at"}  # columns of text that may be long
LIVE = [JobState.ready, JobState.running, JobState.scheduled, JobState.blocked]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What was seen at one moment, by the store's clock; `rate` is finished jobs/s between two counts.

    What is finished was counted at `counted_at`, which may be earlier: there may be millions of them.
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
        float, typer.Option(parser=duration, metavar="TIME", help="Between two frames.")
    ] = "2s",  # type: ignore[assignment]
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Watch queues, rates, workers and running jobs. q ends it.

    Where there are so many finished jobs that it takes long to count them, that is done less often, and said.

    In a pipe one frame is printed, as with --once. With --json every frame is one JSON object on a line of
    its own, also in a pipe, until it is ended; with --once there is one.
    """
    pause = max(interval, SHORTEST)
    store = Dibs(**given(context, url)).sync
    name = store_name(context, url)
    try:
        if once or (not json and not sys.stdout.isatty()):
            _print_once(look(store.open(), name), json)
        elif json:
            _print_for_ever(store.open(), name, pause)
        else:
            _watch(store.open(), name, pause)
    except KeyboardInterrupt:
        pass
    finally:
        store.close()


def _print_once(frame: Frame, json: bool) -> None:
    if json:
        print_json(frame)
    else:
        width = None if sys.stdout.isatty() else WIDE
        console = Console(markup=False, highlight=False, emoji=False, width=width)
        console.print(draw(frame, console.width))


def _print_for_ever(store: SyncDibs, name: str, pause: float) -> None:
    last: Frame | None = None
    counting = Counting(store)
    while True:
        began = monotonic()
        try:
            last = look(store, name, last, counting.tally())
            typer.echo(msgspec.json.encode(last))
        except StoreUnavailable as error:
            typer.echo(msgspec.json.encode({"store": name, "error": one_line(str(error))}))
        time.sleep(max(pause, SHARE * (monotonic() - began)))


def _watch(store: SyncDibs, name: str, pause: float) -> None:
    """Until somebody presses q. A store that is away is said to be, and asked again."""
    last: Frame | None = None
    counting = Counting(store)
    console = Console(markup=False, highlight=False, emoji=False)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = monotonic()
            try:
                last = look(store, name, last, counting.tally())
                live.update(draw(last, console.width), refresh=True)
            except StoreUnavailable as error:
                live.update(draw_away(last, name, str(error), console.width), refresh=True)
            if pressed(max(pause, SHARE * (monotonic() - began))):
                return


@contextmanager
def _keys() -> Iterator[Any]:
    """Answers a function that waits so long for a key and says whether it was q."""
    if not sys.stdin.isatty():
        yield time.sleep  # which answers None: nobody pressed anything
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


# -- looking ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tally:
    """How many jobs there were, and how many had failed in each queue that was asked."""

    at: datetime
    counts: dict[str, int]
    failed: dict[str, int]


class Counting:
    """The last tally, and a new one when it is worth its time."""

    def __init__(self, store: SyncDibs) -> None:
        self._store = store
        self._last: Tally | None = None
        self._due = 0.0

    def tally(self) -> Tally:
        began = monotonic()
        if self._last is None or began >= self._due:
            self._last = count(self._store, LONGEST_COUNT)
            took = monotonic() - began
            self._due = monotonic() + (RARELY * took if took > LONG else 0)
        return self._last


def count(store: SyncDibs, patience: float = math.inf) -> Tally:
    """Reads every finished job, and again for each queue; which is not asked after `patience` seconds."""
    began = monotonic()
    counts, at = store.counts(), store._core.store.run(lambda _: _now())
    failed: dict[str, int] = {}
    for place, queue in enumerate(store.queues()):
        if not counts[JobState.failed]:
            failed[queue.name] = 0
        elif place < MOST_QUEUES and monotonic() - began < patience:
            failed[queue.name] = store.counts(queue.name)[JobState.failed]
    return Tally(at, counts, failed)


def look(store: SyncDibs, name: str, last: Frame | None = None, tally: Tally | None = None) -> Frame:
    """The next frame; the last one is what rates are measured from. Without a tally all is counted now."""
    earlier, tally = tally, tally or count(store)
    queues = store.queues()
    live = {state.value: sum(queue.counts.get(state, 0) for queue in queues) for state in LIVE}
    return Frame(
        store=name,
        at=store._core.store.run(lambda _: _now()),
        counted_at=tally.at,
        rate=_rate(last, tally),
        counts=tally.counts if earlier is None else {**tally.counts, **live},
        queues=[_queue(queue, tally.failed.get(queue.name)) for queue in queues],
        workers=store.workers(),
        running=store.find(state=JobState.running, limit=MOST_RUNNING),
    )


def _now() -> Script[datetime]:
    [row] = yield Step("now", {})
    now: datetime = row["now"]
    return now


def _rate(last: Frame | None, tally: Tally) -> float | None:
    """Finished jobs per second; what was pruned in between makes it less, never negative."""
    if last is None or (seconds := (tally.at - last.counted_at).total_seconds()) <= 0:
        return None if last is None else last.rate
    finished = sum(tally.counts[state] for state in FINISHED)
    return max(finished - last.finished, 0) / seconds


def _queue(queue: Queue, failed: int | None) -> dict[str, Any]:
    live = {state.value: queue.counts.get(state, 0) for state in LIVE}
    return {"name": queue.name, "paused": queue.paused, "limit": queue.limit, **live, "failed": failed}


# -- drawing ------------------------------------------------------------------------------------


def draw(frame: Frame, width: int) -> RenderableType:
    queues, workers, running = _queues(frame.queues), _workers(frame), _running(frame, width >= ROOM_FOR_ALL)
    return Group(_headline(frame), Text(), queues, Text(), workers, Text(), running)


def draw_away(last: Frame | None, name: str, error: str, width: int) -> RenderableType:
    away = Text(f"{name} is away, trying again: {one_line(error)}", style="bold red")
    return away if last is None else Group(away, Text(), draw(last, width))


def _headline(frame: Frame) -> Text:
    rate = "" if frame.rate is None else f"{frame.rate:,.1f} jobs/s  "
    line = Text(f"{frame.store}  {frame.at.astimezone(UTC):%H:%M:%S} UTC  {rate}", style="bold")
    for state in JobState:
        if frame.counts[state]:
            line.append(f" {frame.counts[state]:,} {state.value} ", style=STYLES[state])
    if (age := (frame.at - frame.counted_at).total_seconds()) >= OLD:
        line.append(f" (finished and failed ones counted {spoken(age)} ago)", style="dim")
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


def _workers(frame: Frame) -> RenderableType:
    if not frame.workers:
        return Text("no worker was heard of lately", style="dim")
    table = _table("worker", "busy", "seen")
    for worker in frame.workers:
        busy = Text(f"{worker.running}/{worker.concurrency}", "yellow" if worker.running else "dim")
        seen = spoken((frame.at - worker.seen_at).total_seconds())
        table.add_row(_short(worker.name), busy, f"{seen} ago")
    return table


def _running(frame: Frame, with_all: bool) -> RenderableType:
    if not frame.running:
        return Text("no job is running", style="dim")
    table = _table("running job", "for", *(["progress", "message", "at"] if with_all else ["message"]), "id")
    for job in sorted(frame.running, key=lambda job: job.claimed_at or frame.at):
        since = spoken((frame.at - (job.claimed_at or frame.at)).total_seconds())
        bar: RenderableType = ProgressBar(total=1, completed=job.progress, width=12) if job.progress else ""
        told = _short(" ".join(filter(None, [f"{job.progress:.0%}" if job.progress else "", job.message])))
        about = [bar, told, _short(job.worker or "")] if with_all else [told]
        table.add_row(_short(job.kind), since, *about, str(job.id))
    return table


def _short(text: str) -> Text:
    """Text that people chose: it may be long, and gives way to what must be whole."""
    return Text(one_line(text), no_wrap=True, overflow="ellipsis")


def _table(*names: str) -> Table:
    """A table that fits: what people chose is cut short, and then the rest, if it must be."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numbers = {"for", "seen", "busy", "failed", *(state.value for state in LIVE)}
    for name in names:
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        table.add_column(_short(name), justify=justify, overflow="ellipsis", no_wrap=name not in CHOSEN)
    return table
