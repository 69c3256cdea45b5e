"""`dibs demo`: several processes share jobs on a SQLite file, one is killed, then all is counted."""

import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dibs.app.dibs import Dibs
from dibs.cli._support.options import AsJson
from dibs.cli.trial.processes import WorkerProcesses, succeeded_ids
from dibs.cli.trial.records import Counts, TrialOptions, count
from dibs.clock import monotonic
from dibs.jobs.job import NewJob
from dibs.text import numbered

EXAMPLE = "Example: dibs demo --jobs 20000 --workers 8"
QUEUE = "demo"
BATCH = 10
LEASE = 3.0  # seconds: so soon after the kill its jobs come back


def command(
    jobs: Annotated[
        int, typer.Option(min=100, max=1_000_000, metavar="N", help="How many jobs to enqueue.")
    ] = 5000,
    workers: Annotated[int, typer.Option(min=2, max=32, metavar="N", help="How many worker processes.")] = 4,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Decides which worker is killed and how long each job takes.")
    ] = 1,
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep sample jobs going instead, and show them on the page.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="Of the page; 0: any.")] = 8000,
    json: AsJson = False,
) -> None:
    """Watch processes share jobs while one of them is killed.

    Everything happens in a SQLite file in a temporary folder. The worker processes write down when
    they begin and end each job. In the middle one of them is killed (SIGKILL) while it holds jobs.
    The counts at the end are taken from these records and from the store. The exit code is 1 if a
    job was lost, if a job ran twice at the same time, or if no job came back after the kill.

    With --serve workers run sample jobs until Ctrl-C: trains, slots, a pipeline, failures, workers that are
    killed or frozen; and the page shows them.
    """
    if serve:
        serve_samples(port)
        return
    display = choose_display(jobs, workers, silent=json)
    with TemporaryDirectory(prefix="dibs-demo-", ignore_cleanup_errors=True) as folder:
        display.begin()
        try:
            counts, seconds = _run(Path(folder), jobs, workers, seed, display)
        finally:
            display.end()
    fields = {**msgspec.to_builtins(counts), "seconds": round(seconds, 1)}
    fields["jobs_per_second"] = round(counts.succeeded / seconds)
    typer.echo(msgspec.json.encode(fields) if json else _as_lines(fields))
    if not json:
        typer.echo("\nto see jobs on a page: dibs demo --serve")
    raise typer.Exit(0 if counts.is_good else 1)


def serve_samples(port: int) -> None:
    """Run sample jobs and show them on the page, until a signal."""
    from dibs.cli.commands.serve import serve_page

    with TemporaryDirectory(prefix="dibs-demo-", ignore_cleanup_errors=True) as folder:
        os.environ["DIBS_URL"] = (
            f"sqlite:///{quote(str(Path(folder) / 'demo.db'))}"  # the workers' store, too
        )
        from dibs.cli.trial.samples import SampleWorkers, app

        with app.sync, SampleWorkers():
            typer.echo("sample jobs run until Ctrl-C")
            serve_page(app, port)


def _run(folder: Path, jobs: int, number: int, seed: int, display: "Display") -> tuple[Counts, float]:
    """Enqueue, start the workers, kill one, wait for the others, count."""
    app = Dibs(f"sqlite:///{quote(str(folder / 'demo.db'))}")
    options = TrialOptions(
        queue=QUEUE, kind="demo", lease=LEASE, batch=BATCH, longest_work=0.002, seed=seed, renews=True
    )
    with app.sync as store, WorkerProcesses(app, folder, "worker", options) as workers:
        new = (NewJob("demo", args={"number": n}, queue=QUEUE, max_attempts=10) for n in range(jobs))
        enqueued = [job.id for job in store.enqueue(*new)]
        began = workers.start(number)
        workers.wait(lambda: _settled(workers, display), jobs // 5)
        kill_one(workers, random.Random(seed).randrange(number), display)  # noqa: S311
        workers.wait(lambda: _settled(workers, display))
        seconds = monotonic() - began
        return count(enqueued, succeeded_ids(store, QUEUE), workers.logs()), seconds


def _settled(workers: WorkerProcesses, display: "Display") -> int:
    settled = workers.settled()
    display.progress(settled)
    return sum(settled)


def kill_one(workers: WorkerProcesses, number: int, display: "Display") -> None:
    """Kill this worker while it holds jobs: half a batch if possible, one at least."""
    victim = workers.all[number]
    caught = workers.freeze_while_holding(lambda _: victim, lambda: _settled(workers, display), BATCH // 2)
    if caught is not None:
        victim.kill()
        display.killed(number, caught[1])


def _as_lines(fields: dict[str, float]) -> str:
    lines = [f"{name.replace('_', ' ')} {value}" for name, value in fields.items()]
    return "\n".join(lines).replace("jobs per second", "jobs/s")


# -- what is shown meanwhile --------------------------------------------------------------------


def choose_display(jobs: int, workers: int, *, silent: bool) -> "Display":
    if silent:
        return Display()
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return TextDisplay(jobs, workers) if plain else BarDisplay(jobs, workers)


class Display:
    """What the demo shows while it runs; this one shows nothing."""

    def begin(self) -> None: ...
    def end(self) -> None: ...
    def progress(self, done: Sequence[int]) -> None: ...
    def killed(self, worker: int, held: int) -> None: ...


class TextDisplay(Display):
    """A line for each thing that happens, for pipes and logs."""

    def __init__(self, jobs: int, workers: int) -> None:
        self._opening = f"{workers} processes share {numbered(jobs, 'job')} on a SQLite file"

    def begin(self) -> None:
        typer.echo(self._opening)

    def killed(self, worker: int, held: int) -> None:
        typer.echo(f"worker-{worker + 1} was killed while it held {numbered(held, 'job')}")


class BarDisplay(Display):
    """One bar per worker and one for all."""

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

    def begin(self) -> None:
        self._progress.start()

    def end(self) -> None:
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
