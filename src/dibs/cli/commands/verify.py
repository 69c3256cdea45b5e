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

import msgspec
import typer

from dibs.app.dibs import Dibs
from dibs.cli._support.config import given
from dibs.cli._support.options import AsJson, Url, bad_usage, not_empty
from dibs.cli._support.printing import complain, print_result, progress_bar
from dibs.cli.trial.processes import PAGE, POLL, WorkerProcesses, succeeded_jobs
from dibs.cli.trial.records import (
    RULES,
    OfCommand,
    Record,
    Recorder,
    RecordFile,
    TrialOptions,
    Verdict,
    judge,
    page,
)
from dibs.cli.trial.worker import KIND, write_late
from dibs.clock import monotonic
from dibs.errors import Refused
from dibs.jobs.job import NewJob
from dibs.operations.scripts import Script, Step
from dibs.text import numbered

EXAMPLE = "Example: dibs verify postgresql://localhost/shop"
LEASE = 1.5  # seconds
READY_PER_WORKER = 20
GATES = 16  # trains, and as many slots; of ten jobs two are in a train and two in a slot
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
    minutes: Annotated[
        float | None, typer.Option(min=0.01, metavar="N", help="Go on with more jobs for this long.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page of HTML: verdict, faults, time lines.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all records as lines of JSON.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Test on your own database what dibs promises.

    Processes share jobs, some in trains and slots, and some processes are killed or frozen while they hold
    jobs. Every claim and settlement is written down and judged at the end: no job was held twice at the same
    time, no late write changed anything, trains kept their order, a slot had one holder, no job was lost. The
    jobs are in a queue of their own, which your workers do not know, and are removed afterwards. The exit
    code is 1 if a promise was broken, or if a fault could not be caused.
    """
    if where and (url or context.obj):
        bad_usage("name one store, not two: leave --url out")
    app = Dibs(**given(context, where or url))
    if not app.traits.shared:
        raise Refused("one process alone can use this store: it has no other process to be verified with")
    for file in (report, history):
        if file is not None:
            _check_writable(file)
    trial = Trial(app, jobs, workers, kills, freezes, seed, (minutes or 0) * 60)
    try:
        app.sync.open()
        found = trial.run()
    finally:
        app.sync.close()
    if history is not None:
        history.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in trial.history))
    if report is not None:
        report.write_text(page(_lines(found), found.problems, trial.history), "utf-8")
    print_result(found, "\n".join(_lines(found)), json)
    for problem in found.problems:
        complain(problem)
    raise typer.Exit(1 if found.problems else 0)


def _check_writable(file: Path) -> None:
    """Refuse a file that can't be written, before the trial begins."""
    try:
        file.touch()
    except OSError as error:
        bad_usage(f"{file} can't be written: {error.strerror}")


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

    def __init__(
        self, app: Dibs, jobs: int, workers: int, kills: int, freezes: int, seed: int, seconds: float
    ) -> None:
        self._app, self._store, self._jobs, self._size = app, app.sync, jobs, workers
        self._dice = random.Random(seed)  # noqa: S311
        self._seconds = seconds
        self.faults = ["kill"] * kills + ["freeze"] * freezes
        self._dice.shuffle(self.faults)
        self._queue = f"dibs-verify-{secrets.token_hex(4)}"
        self._late_queue = f"{self._queue}-late"
        self._options = TrialOptions(
            queue=self._queue, kind=KIND, lease=LEASE, batch=5, longest_work=0.01, seed=seed, renews=False
        )
        self._notes: list[Record] = []
        self.history: list[Record] = []
        """All that was recorded, in the order in which it was noted."""

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
        for id in write_late(self._store, self._late_queue, Recorder(str(late))):
            self._note("enqueued", job=id)
        for queue in (self._queue, self._late_queue):
            for job in succeeded_jobs(self._store, queue):
                self._note("succeeded", job=job.id, token=job.token, worker=job.worker or "")
        records = [
            *self._notes,
            *RecordFile(late).read(),
            *(one for log in workers.logs() for one in log.records),
        ]
        self.history = sorted(records, key=lambda record: record.at)
        verdict = judge(self.history)
        return Report(
            jobs=sum(record.event == "enqueued" for record in self.history),
            killed=met["kill"],
            frozen=met["freeze"],
            seconds=round(monotonic() - began, 1),
            verdict=verdict,
            problems=list(_problems(verdict, len(self.faults) - sum(met.values()), len(self.faults))),
        )

    def _note(self, event: OfCommand, **about: Any) -> None:
        self._notes.append(Record(event, monotonic(), **about))

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

            began = workers.start(self._size)
            for number, fault in enumerate(self.faults, 1):
                part = number / (len(self.faults) + 2)
                workers.wait(settled, round(self._jobs * part))
                self._go_on(workers, began + self._seconds * part)
                met[fault] += self._cause(fault, workers)
            self._go_on(workers, began + self._seconds)
            for _ in range(RESTARTS):
                workers.wait(settled, sum(note.event == "enqueued" for note in self._notes))
                if not self._restart(workers):
                    break
        return met

    def _go_on(self, workers: WorkerProcesses, until: float) -> None:
        """Keep the processes busy with more jobs until then."""
        while monotonic() < until:
            self._keep_busy()
            self._restart(workers)
            workers.settled()
            time.sleep(POLL)

    def _restart(self, workers: WorkerProcesses) -> bool:
        """Start a process if none is left but jobs are: each ends when it finds no more."""
        counts = self._store.counts(self._queue)
        if workers.alive() or not any(counts[state] for state in ("ready", "running")):
            return False
        workers.start(1)
        return True

    def _enqueue(self, jobs: int, *, gated: bool = True) -> None:
        new = [self._new(number if gated else 0) for number in range(1, jobs + 1)]
        for first in range(0, jobs, PAGE):
            for job in self._store.enqueue(*new[first : first + PAGE]):
                self._note("enqueued", job=job.id, train=job.train, slot=job.slot)

    def _new(self, number: int) -> NewJob:
        gate, place = f"{self._queue}-{number // 5 % GATES}", number % 5
        train, slot = gate if place == 1 else None, gate if place == 2 else None
        return NewJob(KIND, queue=self._queue, max_attempts=100, train=train, slot=slot)

    def _keep_busy(self) -> None:
        """Enqueue more jobs if few are left, so that a process can be hit while it holds one."""
        counts, enough = self._store.counts(self._queue), READY_PER_WORKER * self._size
        if counts["ready"] < enough:
            self._enqueue(enough, gated=counts["blocked"] < enough)

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
        worker = caught[0]
        if fault == "kill":
            worker.kill()
            self._note("killed", worker=worker.name)
            workers.start(1)
            return True
        self._note("frozen", worker=worker.name)
        resume_at = monotonic() + 2 * LEASE
        while monotonic() < resume_at:
            self._keep_busy()
            time.sleep(POLL)
        self._note("resumed", worker=worker.name)
        worker.resume()
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


def _lines(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield f"{numbered(report.jobs, 'job')}, {numbered(verdict.claims, 'claim')} in {report.seconds} s"
    yield f"processes that held jobs: {report.killed} killed, {report.frozen} frozen past their leases"
    late = numbered(verdict.refused, "late settlement")
    yield f"{numbered(verdict.came_back, 'job')} came back; {late} refused"
    yield from (f"{rule.replace('_', ' ')} = {getattr(verdict, rule)}" for rule in RULES)
