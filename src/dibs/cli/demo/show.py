"""What the demo lets you see while it runs: bars on a terminal, plain lines elsewhere, or nothing."""

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dibs.text import numbered


class Show(Protocol):
    def __enter__(self) -> object: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def progress(self, done: Sequence[int]) -> None: ...
    def killed(self, worker: int, held: int) -> None: ...


def choose_show(jobs: int, workers: int, *, silent: bool) -> Show:
    if silent:
        return Silent()
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Plain(jobs, workers) if plain else Bars(jobs, workers)


class Silent:
    """Nothing to see."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def progress(self, done: Sequence[int]) -> None: ...
    def killed(self, worker: int, held: int) -> None: ...


class Plain(Silent):
    """One line for what happens, for pipes and logs."""

    def __init__(self, jobs: int, workers: int) -> None:
        self._opening = f"{workers} processes share {numbered(jobs, 'job')} on a SQLite file"

    def __enter__(self) -> Self:
        typer.echo(self._opening)
        return self

    def killed(self, worker: int, held: int) -> None:
        typer.echo(f"worker-{worker + 1} was killed while it held {numbered(held, 'job')}")


class Bars(Silent):
    """One bar per worker and one for all, redrawn as the records grow."""

    def __init__(self, jobs: int, workers: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=40),
            TextColumn("{task.completed:>7.0f}"),
            TextColumn("{task.fields[note]}"),
            console=Console(),
        )
        self._workers = [self._add(f"worker-{n + 1}", jobs / workers * 1.5) for n in range(workers)]
        self._all = self._add("all", jobs)
        self._progress.columns = (*self._progress.columns, TimeElapsedColumn())

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def progress(self, done: Sequence[int]) -> None:
        for worker, number in zip(self._workers, done, strict=True):
            self._progress.update(worker, completed=number)
        self._progress.update(self._all, completed=sum(done))

    def killed(self, worker: int, held: int) -> None:
        note = f"[red]killed, held {numbered(held, 'job')}[/red]"
        self._progress.update(self._workers[worker], note=note)

    def _add(self, name: str, total: float) -> TaskID:
        return self._progress.add_task(name, total=total, note="")
