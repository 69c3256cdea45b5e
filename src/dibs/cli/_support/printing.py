"""How output looks: coloured tables for people, aligned columns for pipes, JSON for programs, log lines.

Text from a store passes `safe`, so that nothing in a job can move the cursor of a terminal.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dibs.jobs.states import JobState
from dibs.log_format import DONE, NOTICE, SIGNS, LogLine, current_job, one_line, safe, safe_json

Cell = str | int

STYLES = {
    JobState.scheduled: "blue",
    JobState.blocked: "magenta",
    JobState.ready: "cyan",
    JobState.running: "yellow",
    JobState.succeeded: "green",
    JobState.failed: "bold red",
    JobState.cancelled: "dim",
    "paused": "yellow",
}

FOLDED = ("queue", "kind", "about")
ROOM_FOR_TABLES = 80  # columns of a terminal; a narrower one gets plain lines, which it may wrap
ROOM_FOR_ABOUT = 100  # in less room `about` would be folded into syllables
LONGEST_CELL = 200

SIGN_COLOURS = {"→": "36", "✓": "32", "↻": "33", "✗": "31", "+": "34", "●": "35"}
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


# -- lines --------------------------------------------------------------------------------------


def complain(what: object) -> None:
    """Print one line on stderr."""
    typer.echo(f"dibs: {one_line(str(what))}", err=True)


def note(line: str) -> None:
    """Print a remark for people on stderr, where it disturbs no pipe."""
    typer.echo(one_line(line), err=True)


def time_text(at: datetime) -> str:
    """Return a time of the store with its zone: a reader's own clock may show another."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def some(names: Sequence[str], most: int) -> str:
    """Return the first of these names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


# -- JSON ---------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print it on one line for programs, indented on a terminal; always in UTF-8, whatever the locale.

    On a terminal, characters that it would obey are escaped.
    """
    text = msgspec.json.encode(value)
    if sys.stdout.isatty():
        text = safe_json(msgspec.json.format(text, indent=2).decode()).encode()
    typer.echo(text)


def print_result(value: Any, text: str, json: bool) -> None:
    """Print the value as JSON, or the text for people."""
    if json:
        print_json(value)
    else:
        typer.echo(text)


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# -- tables -------------------------------------------------------------------------------------


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print the rows under the names of their columns; numbers to the right."""
    console = Console(markup=False, highlight=False, emoji=False)
    if console.is_terminal and console.width >= ROOM_FOR_TABLES:
        console.print(_rich(columns, rows, console.width))
    else:
        typer.echo("\n".join(_aligned([columns, *rows])))


def _rich(columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> Table:
    shown = [index for index, name in enumerate(columns) if name != "about" or width >= ROOM_FOR_ABOUT]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index in shown:
        _add_column(table, columns[index], [row[index] for row in rows])
    for row in rows:
        table.add_row(*(_styled(row[index]) for index in shown))
    return table


def _add_column(table: Table, name: str, cells: Sequence[Cell]) -> None:
    """Add a column; on a narrow terminal names are folded, ids and the like stay whole."""
    numbers = all(isinstance(cell, int) for cell in cells)
    table.add_column(
        name, no_wrap=name not in FOLDED, overflow="fold", justify="right" if numbers else "left"
    )


def _styled(cell: Cell) -> Text:
    return Text(_cell(cell), style=STYLES.get(str(cell), ""))


def _cell(cell: Cell) -> str:
    text = one_line(str(cell))
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"


def _aligned(rows: Sequence[Sequence[Cell]]) -> list[str]:
    texts = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
    return ["  ".join(map(_padded, row, widths)).rstrip() for row in texts]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


# -- progress -----------------------------------------------------------------------------------


@contextmanager
def progress_bar(
    name: str, total: int | None = None, counter: ProgressColumn | None = None
) -> Iterator[Callable[..., None] | None]:
    """Show a bar on stderr while the body runs, and yield what updates it; None where no terminal is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    counter = counter or TextColumn("{task.completed:,.0f}")
    columns = (TextColumn(name), BarColumn(), counter, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done, **more: progress.update(task, completed=done, **more)


# -- the log of a worker, a relay or a service --------------------------------------------------


def log_level(verbose: bool, quiet: bool, every_job: bool | None = None) -> int:
    """Return the level of the log: with a line for every job that ends if asked for, or on a terminal."""
    if verbose or quiet:
        return logging.DEBUG if verbose else NOTICE
    return DONE if (sys.stderr.isatty() if every_job is None else every_job) else logging.INFO


def set_up_log(level: int, *, json: bool, stream: TextIO | None = None) -> None:
    """Send the log of this process to stderr, from this level on."""
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if json else PlainFormatter(coloured=_wants_colour(stream)))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger().setLevel(max(level, logging.INFO))
    logging.getLogger("dibs").setLevel(level)
    current_job.is_wanted = True


def _wants_colour(stream: TextIO) -> bool:
    """Decide as rich does for the other commands."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


class PlainFormatter(logging.Formatter):
    """Log lines for people: `12:30:59 ✓ send_receipt …`; exceptions below, indented.

    What handlers log has its level and logger before it, and its job after it.
    """

    def __init__(self, *, coloured: bool) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")
        self._coloured = coloured

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.name.partition(".")[0] == "dibs":
            return super().formatMessage(record)
        job = current_job.get()
        about = "" if job is None else f"  ({job.kind} {job.id})"
        return f"{record.asctime} {record.levelname} {record.name}: {record.message}{about}"

    def format(self, record: logging.LogRecord) -> str:
        text = safe(super().format(record)).replace("\n", "\n         ")
        return self._painted(text) if self._coloured else text

    def _painted(self, text: str) -> str:
        time, _, rest = text.partition(" ")
        sign, _, words = rest.partition(" ")
        colour = SIGN_COLOURS.get(sign)
        painted = rest if colour is None else f"\x1b[{colour}m{sign}{PLAIN} {words}"
        return f"{DIM}{time}{PLAIN} {painted}"


class JsonFormatter(logging.Formatter):
    """Log lines for programs, a JSON object each: time, level, event, and what the event is about."""

    def format(self, record: logging.LogRecord) -> str:
        return msgspec.json.encode({**self._header(record), **self._fields(record)}, enc_hook=str).decode()

    def _header(self, record: logging.LogRecord) -> dict[str, Any]:
        at = datetime.fromtimestamp(record.created, UTC)
        return {"time": at.isoformat(timespec="milliseconds"), "level": record.levelname.lower()}

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        line: LogLine | None = record.__dict__.get("line")
        if line is not None:
            return line.fields()
        fields = record.__dict__.get("fields") or {"event": "log", "logger": record.name, **_job_fields()}
        trace = {"error": self.formatException(record.exc_info)} if record.exc_info else {}
        return {**fields, "message": _without_sign(record.getMessage()), **trace}


def _job_fields() -> dict[str, str]:
    job = current_job.get()
    return {} if job is None else {"job": str(job.id), "kind": job.kind}


def _without_sign(text: str) -> str:
    sign, _, words = text.partition(" ")
    return words if sign in {*SIGNS.values(), "●"} else text
