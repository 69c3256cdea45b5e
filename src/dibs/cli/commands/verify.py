"""`dibs verify`: a torture test on your own database, and a verdict on what happened there."""

import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from uuid import UUID

import typer

from dibs.app.dibs import Dibs
from dibs.cli._support.config import given
from dibs.cli._support.options import AsJson, Url, bad_usage, not_empty
from dibs.cli._support.printing import complain, print_result, progress_bar
from dibs.cli.trial.late_writes import KIND, write_late
from dibs.cli.trial.processes import PAGE, POLL, WorkerProcesses, succeeded_ids
from dibs.cli.trial.records import Recorder, RecordFile, TrialOptions, Verdict, judge
from dibs.clock import monotonic
from dibs.errors import Refused
from dibs.jobs.job import NewJob
from dibs.operations.scripts import Script, Step
from dibs.text import numbered

EXAMPLE = "Example: dibs verify postgresql://localhost/shop"
LEASE = 1.5  # seconds
READY_PER_WORKER = 20
RESTARTS = 5  # times that processes are started again which ended because no job was left

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
        typer.Option(
            min=0, max=100, metavar="N", help="How many are frozen until their leases have run out."
        ),
    ] = 2,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Decides which processes are hit, and how long each job takes.")
    ] = 1,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Test on your own database what dibs promises.

    Processes share jobs, and some are killed or frozen while they hold jobs. Every claim and settlement is
    written down and judged at the end: no job was held twice at the same time, no late write changed
    anything, no job was lost. The jobs are in a queue of their own, which your workers do not know, and are
    removed afterwards. The exit code is 1 if a promise was broken, or if a fault could not be caused.
    """
    if where and (url or context.obj):
        bad_usage("name one store, not two: leave --url out")
    app = Dibs(**given(context, where or url))
    if not app.traits.shared:
        raise Refused("one process alone can use this store: it has no other process to be verified with")
    trial = Trial(app, jobs, workers, kills, freezes, seed)
    try:
        app.sync.open()
        report = trial.run()
    finally:
        app.sync.close()
    _print(report, json)
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
        yield "not every fault could be caused, so this says little: run it again with more --jobs"


class Trial:
    """One run: processes share jobs, some are killed or frozen, the others do their jobs."""

    def __init__(self, app: Dibs, jobs: int, workers: int, kills: int, freezes: int, seed: int) -> None:
        self._app, self._store, self._jobs, self._size = app, app.sync, jobs, workers
        self._dice = random.Random(seed)  # noqa: S311
        self.faults = ["kill"] * kills + ["freeze"] * freezes
        self._dice.shuffle(self.faults)
        self._queue = f"dibs-verify-{secrets.token_hex(4)}"
        self._late_queue = f"{self._queue}-late"
        self._options = TrialOptions(
            queue=self._queue, kind=KIND, lease=LEASE, batch=5, longest_work=0.01, seed=seed, renews=False
        )
        self._enqueued: list[UUID] = []

    def run(self) -> Report:
        with TemporaryDirectory(prefix="dibs-verify-", ignore_cleanup_errors=True) as folder:
            try:
                with WorkerProcesses(self._app, Path(folder), "verify", self._options) as workers:
                    return self._report(workers, Path(folder, "late.jsonl"))
            finally:
                _remove(self._app, self._queue)
                _remove(self._app, self._late_queue)

    def _report(self, workers: WorkerProcesses, late: Path) -> Report:
        began = monotonic()
        met = self._work(workers)
        self._enqueued += write_late(self._store, self._late_queue, Recorder(str(late)))
        done = [*succeeded_ids(self._store, self._queue), *succeeded_ids(self._store, self._late_queue)]
        records = [record for log in workers.logs() for record in log.records]
        verdict = judge(self._enqueued, done, [*records, *RecordFile(late).read()])
        return Report(
            jobs=len(self._enqueued),
            killed=met["kill"],
            frozen=met["freeze"],
            seconds=round(monotonic() - began, 1),
            verdict=verdict,
            problems=list(_problems(verdict, len(self.faults) - sum(met.values()), len(self.faults))),
        )

    def _work(self, workers: WorkerProcesses) -> dict[str, int]:
        """Let the processes do all jobs, cause the faults meanwhile, and return how many met a process."""
        self._enqueue(self._jobs)
        met = {"kill": 0, "freeze": 0}
        with progress_bar("verify", self._jobs) as update:

            def settled() -> int:
                done = sum(workers.settled())
                if update is not None:
                    update(done)
                return done

            workers.start(self._size)
            for number, fault in enumerate(self.faults, 1):
                workers.wait(settled, self._jobs * number // (len(self.faults) + 2))
                met[fault] += self._cause(fault, workers)
            for _ in range(RESTARTS):
                workers.wait(settled, len(self._enqueued))
                if not self._restart(workers):
                    break
        return met

    def _restart(self, workers: WorkerProcesses) -> bool:
        """Start a process if none is left but jobs are: each ends when it finds no more."""
        counts = self._store.counts(self._queue)
        if workers.alive() or not any(counts[state] for state in ("ready", "running")):
            return False
        workers.start(1)
        return True

    def _enqueue(self, jobs: int) -> None:
        new = [NewJob(KIND, queue=self._queue, max_attempts=100) for _ in range(jobs)]
        for first in range(0, jobs, PAGE):
            self._enqueued += [job.id for job in self._store.enqueue(*new[first : first + PAGE])]

    def _keep_busy(self) -> None:
        """Enqueue more jobs if few are left, so that a process can be hit while it holds one."""
        if self._store.counts(self._queue)["ready"] < READY_PER_WORKER * self._size:
            self._enqueue(READY_PER_WORKER * self._size)

    def _cause(self, fault: str, workers: WorkerProcesses) -> bool:
        """Kill a process that holds jobs and start another, or freeze it until others have its jobs."""
        for _ in range(RESTARTS):
            self._keep_busy()
            self._restart(workers)
            caught = workers.freeze_while_holding(self._dice.choice, self._keep_busy, 1)
            if caught is not None:
                break
        else:
            return False
        if fault == "kill":
            caught[0].kill()
            workers.start(1)
            return True
        resume_at = monotonic() + 2 * LEASE
        while monotonic() < resume_at:
            self._keep_busy()
            time.sleep(POLL)
        caught[0].resume()
        return True


def _remove(app: Dibs, queue: str) -> None:
    """Delete what is left of a queue; wait for the leases of processes that were ended just now."""
    store, deadline = app.sync, monotonic() + 10 * LEASE
    while (page := store.find(queue=queue, limit=PAGE)) and monotonic() < deadline:
        ids = [job.id for job in page]
        if not app._core.store.run(lambda _, ids=ids: _delete(ids)):  # type: ignore[misc]
            store.sweep()
            time.sleep(POLL)


def _delete(ids: list[UUID]) -> Script[Any]:
    return (yield Step("delete", {"ids": ids}))


def _print(report: Report, json: bool) -> None:
    print_result(report, "\n".join(_lines(report)), json)
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
