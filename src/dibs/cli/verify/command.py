"""`dibs verify`: a torture test on your own database, and a judge of what happened there."""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dibs.app.dibs import Dibs
from dibs.app.sync import SyncDibs
from dibs.cli._support.config import given
from dibs.cli._support.options import AsJson, Url, bad_usage, not_empty
from dibs.cli._support.printing import complain, print_json
from dibs.cli.verify.history import KIND, Verdict, Writer, judge, read_lines
from dibs.cli.verify.late_writes import come_late
from dibs.clock import monotonic
from dibs.errors import Refused
from dibs.jobs.job import NewJob
from dibs.operations.scripts import Script, Step
from dibs.text import numbered

EXAMPLE = "Example: dibs verify postgresql://localhost/shop"
PATIENCE = 120  # seconds without any progress, after which it gives up and judges
LOOK = 0.02
PLENTY = 20  # ready jobs per process
PAGE = 500

Where = Annotated[
    str | None,
    typer.Argument(metavar="URL", callback=not_empty, help="The store; --url and $DIBS_URL work, too."),
]


def command(
    context: typer.Context,
    where: Where = None,
    jobs: Annotated[
        int, typer.Option(min=50, max=1_000_000, metavar="N", help="How many jobs, at least.")
    ] = 2000,
    workers: Annotated[
        int, typer.Option(min=2, max=64, metavar="N", help="How many processes at a time.")
    ] = 4,
    kills: Annotated[int, typer.Option(min=0, max=100, metavar="N", help="How many of them are killed.")] = 3,
    freezes: Annotated[
        int,
        typer.Option(min=0, max=100, metavar="N", help="How many are stopped until their leases are over."),
    ] = 2,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Decides who is hit, and how long each job takes.")
    ] = 1,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Try on your own database what dibs promises.

    Processes share jobs, and some are killed or frozen while they hold some. Every claim and settlement is
    written down, and judged at the end: no job was held by two at once, nobody who came late changed
    anything, none was lost. The jobs are in a queue of their own, which no worker of yours knows, and are
    removed afterwards. The exit code is 1 if a promise was broken, or no fault was met.
    """
    if where and (url or context.obj):
        bad_usage("name one store, not two: leave --url out")
    settings = given(context, where or url)
    app = Dibs(**settings)
    if not app.traits.shared:
        raise Refused("one process alone can use this store: there is nobody to verify it against")
    trial = Trial(app, jobs, workers, kills, freezes, random.Random(seed))  # noqa: S311
    try:
        app.sync.open()
        report = trial.run()
    finally:
        app.sync.close()
    _say(report, json)
    raise typer.Exit(1 if report.problems else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdict, and what the processes went through."""

    jobs: int
    killed: int
    frozen: int
    seconds: float
    verdict: Verdict
    problems: list[str]


def _problems(verdict: Verdict, missed: int, faults: int) -> Iterator[str]:
    if not verdict.is_good:
        yield "a promise was broken here; please report it, with the output of `dibs doctor`"
    if missed or (faults and not verdict.came_back):
        yield "not every fault was met, so this says little: run it again with more --jobs"


class Trial:
    """One run: processes share jobs, some are hit, the rest must cope."""

    LEASE = 1.5  # seconds

    def __init__(
        self, app: Dibs, jobs: int, workers: int, kills: int, freezes: int, dice: random.Random
    ) -> None:
        self._app, self._store = app, app.sync
        self._jobs, self._workers, self._dice = jobs, workers, dice
        self.faults = ["kill"] * kills + ["freeze"] * freezes
        dice.shuffle(self.faults)
        self._queue = f"dibs-verify-{secrets.token_hex(4)}"
        self._late_queue = f"{self._queue}-late"  # of no process: only who comes late and who has its jobs
        self._started = 0
        self._enqueued: list[UUID] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._files: list[Path] = []

    def run(self) -> Report:
        with TemporaryDirectory(prefix="dibs-verify-", ignore_cleanup_errors=True) as folder:
            try:
                return self._play(Path(folder))
            finally:
                self._end_all()
                _remove(self._app, self._queue)
                _remove(self._app, self._late_queue)

    def _play(self, folder: Path) -> Report:
        self._enqueue(self._jobs)
        began, hit = monotonic(), {"kill": 0, "freeze": 0}
        for _ in range(self._workers):
            self._start(folder)
        with _bar(self._jobs) as told:
            for number, fault in enumerate(self.faults, 1):
                self._wait(told, self._jobs * number // (len(self.faults) + 2))
                self._keep_busy()
                hit[fault] += self._hit(fault)
                if fault == "kill":
                    self._start(folder)
            self._wait(told, len(self._enqueued))
        self._files.append(folder / "late.jsonl")
        self._enqueued += come_late(self._store, self._late_queue, Writer(str(self._files[-1])))
        done = [*_succeeded(self._store, self._queue), *_succeeded(self._store, self._late_queue)]
        verdict = judge(self._enqueued, done, read_lines(self._files))
        return Report(
            jobs=len(self._enqueued),
            killed=hit["kill"],
            frozen=hit["freeze"],
            seconds=round(monotonic() - began, 1),
            verdict=verdict,
            problems=list(_problems(verdict, len(self.faults) - sum(hit.values()), len(self.faults))),
        )

    def _enqueue(self, jobs: int) -> None:
        new = [NewJob(KIND, queue=self._queue, max_attempts=100) for _ in range(jobs)]
        for first in range(0, jobs, PAGE):
            self._enqueued += [job.id for job in self._store.enqueue(*new[first : first + PAGE])]

    def _keep_busy(self) -> None:
        """While somebody is still to be hit there is work, however fast the others are."""
        if self._store.counts(self._queue)["ready"] < PLENTY * self._workers:
            self._enqueue(PLENTY * self._workers)

    def _start(self, folder: Path) -> None:
        self._started += 1
        name, file = f"verify-{self._started}", folder / f"{self._started}.jsonl"
        command = [
            sys.executable,
            "-m",
            "dibs.cli.verify.worker",
            self._queue,
            name,
            str(file),
            str(self.LEASE),
        ]
        # A session of its own: Ctrl-C reaches us alone, and we end the others.
        self._processes[name] = subprocess.Popen(command, env=self._environment(), start_new_session=True)  # noqa: S603
        self._files.append(file)

    def _environment(self) -> dict[str, str]:
        settings = self._app._core.settings
        pooled = {} if settings.pooled is None else {"DIBS_POOLED": str(settings.pooled)}
        return {**os.environ, "DIBS_URL": settings.url, "DIBS_PREFIX": settings.prefix, **pooled}

    def _wait(self, told: Callable[[int], None], done: int) -> None:
        """Until so many are done, or nothing has moved for too long."""
        seen, moved_at = -1, monotonic()
        while (now := self._store.counts(self._queue)["succeeded"]) < done:
            told(now)
            if now != seen:
                seen, moved_at = now, monotonic()
            if monotonic() - moved_at > PATIENCE or not self._alive():
                return
            time.sleep(LOOK)
        told(done)

    def _alive(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.poll() is None]

    def _hit(self, fault: str) -> bool:
        """Stop one at a moment at which, by the store's word, it holds a job; kill it, or let it sleep."""
        deadline = monotonic() + 10
        while (alive := self._alive()) and monotonic() < deadline:
            self._keep_busy()
            name = self._dice.choice(alive)
            process = self._processes[name]
            process.send_signal(signal.SIGSTOP)
            if name in self._holders():
                if fault == "kill":
                    process.kill()
                    process.wait()
                else:
                    self._let_sleep(process)
                return True
            process.send_signal(signal.SIGCONT)
            time.sleep(LOOK)
        return False

    def _let_sleep(self, process: "subprocess.Popen[bytes]") -> None:
        """Until its leases are over and others have had the time to take its jobs."""
        awake = monotonic() + 2 * self.LEASE
        while monotonic() < awake:
            self._keep_busy()
            time.sleep(LOOK)
        process.send_signal(signal.SIGCONT)

    def _holders(self) -> set[str | None]:
        return {job.worker for job in self._store.find(state="running", queue=self._queue, limit=PAGE)}

    def _end_all(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def _succeeded(store: SyncDibs, queue: str) -> Iterator[UUID]:
    after: UUID | None = None
    while page := store.find(state="succeeded", queue=queue, limit=PAGE, after=after):
        yield from (job.id for job in page)
        after = page[-1].id


def _remove(app: Dibs, queue: str) -> None:
    """Whatever is left of it; jobs of processes that were ended just now are waited for."""
    store, deadline = app.sync, monotonic() + 10 * Trial.LEASE
    while (page := store.find(queue=queue, limit=PAGE)) and monotonic() < deadline:
        ids = [job.id for job in page]
        if not app._core.store.run(lambda _, ids=ids: _delete(ids)):  # type: ignore[misc]
            store.sweep()
            time.sleep(LOOK)


def _delete(ids: list[UUID]) -> Script[Any]:
    return (yield Step("delete", {"ids": ids}))


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("verify"), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


def _say(report: Report, json: bool) -> None:
    if json:
        print_json(report)
    else:
        for line in _lines(report):
            typer.echo(line)
    for problem in report.problems:
        complain(problem)


def _lines(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield f"{numbered(report.jobs, 'job')}, {numbered(verdict.claims, 'claim')} in {report.seconds} s"
    yield f"processes that held jobs: {report.killed} killed, {report.frozen} frozen past their leases"
    late = numbered(verdict.refused, "late settlement")
    yield f"{numbered(verdict.came_back, 'job')} came back; {late} refused"
    yield f"double claims = {verdict.double_claims}"
    yield f"late writes = {verdict.late_writes}"
    yield f"tokens not growing = {verdict.tokens_not_growing}"
    yield f"lost = {verdict.lost}"
