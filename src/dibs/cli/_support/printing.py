"""How answers look: coloured tables for people, aligned columns for pipes, JSON for programs.

Whatever comes from a store passes `safe`: text that somebody put into a job must not move the
cursor of the person who looks at it.
"""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dibs.jobs.states import JobState
from dibs.log_format import one_line

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
ROOM_FOR_TABLES = 80  # columns of a terminal; on less the terminal may wrap the plain lines
ROOM_FOR_ABOUT = 100  # on less `about` would be a heap of syllables
LONGEST_CELL = 200


# -- lines --------------------------------------------------------------------------------------


def complain(what: object) -> None:
    """One line on stderr."""
    typer.echo(f"dibs: {one_line(str(what))}", err=True)


def note(line: str) -> None:
    """A remark for people, on stderr, where it disturbs no pipe."""
    typer.echo(one_line(line), err=True)


def moment(at: datetime) -> str:
    """The store's times are in UTC; a reader whose clock shows another must see that."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def without_password(url: str) -> str:
    """A URL that may be shown to anybody: who, where and which database, nothing more."""
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    where = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    return f"{parts.scheme}://{user}{where}{parts.path}"


def some(names: Sequence[str], most: int) -> str:
    """The first of these names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


# -- JSON ---------------------------------------------------------------------------------------


def print_json(answer: Any) -> None:
    """On one line for programs, indented on a terminal; always UTF-8, whatever the locale."""
    text = msgspec.json.encode(answer)
    typer.echo(msgspec.json.format(text, indent=2) if sys.stdout.isatty() else text)


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# -- tables -------------------------------------------------------------------------------------


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """The rows under the names of their columns; numbers to the right."""
    console = Console(markup=False, highlight=False, emoji=False)
    if console.is_terminal and console.width >= ROOM_FOR_TABLES:
        console.print(_rich(columns, rows, console.width))
    else:
        typer.echo("\n".join(_aligned([columns, *rows])))


def _rich(columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> Table:
    shown = [place for place, name in enumerate(columns) if name != "about" or width >= ROOM_FOR_ABOUT]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place in shown:
        _add_column(table, columns[place], [row[place] for row in rows])
    for row in rows:
        table.add_row(*(_styled(row[place]) for place in shown))
    return table


def _add_column(table: Table, name: str, cells: Sequence[Cell]) -> None:
    """Ids and the like stay whole on a narrow terminal, names are folded there."""
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
