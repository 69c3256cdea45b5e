"""The worker processes of a trial, seen from outside: started together, frozen, killed, waited for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self
from uuid import UUID

import msgspec

from dibs.app.dibs import Dibs, SyncDibs
from dibs.cli.trial.records import ProcessLog, RecordFile, TrialOptions, claims_in_hand
from dibs.clock import monotonic
from dibs.jobs.job import Job
from dibs.settings import Settings

POLL = 0.02  # seconds between two reads of the records
STUCK = 120  # seconds without any progress, after which a trial gives up and counts
CATCH_LIMIT = 30  # seconds to find a worker that holds jobs
PAGE = 500
RUN_WORKER = "import sys; from dibs.cli.trial import worker; worker.main(*sys.argv[1:])"


class WorkerProcess:
    """One process, and what it has recorded so far."""

    def __init__(self, name: str, folder: Path, options: TrialOptions, environment: dict[str, str]) -> None:
        self.name = name
        self._file = folder / f"{name}.jsonl"
        self.records = RecordFile(self._file)
        self.killed_at: float | None = None
        encoded = msgspec.json.encode(options).decode()
        # A session of its own: Ctrl-C reaches the command alone, and the command ends its processes.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", RUN_WORKER, name, str(self._file), encoded],
            env=environment,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_up(self) -> bool:
        return bool(self.records.read()) or not self.is_alive

    def begin(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"begin\n")
            self._process.stdin.flush()

    def tokens_in_hand(self) -> set[int]:
        """Return the tokens that it recorded and has not settled; a claim of just now may be missing."""
        return set(claims_in_hand(self.records.read()))

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.end()
        self.killed_at = monotonic()

    def end(self) -> None:
        if self.is_alive:
            self._process.kill()
        with suppress(BrokenPipeError), self._process:
            pass  # closes its pipe and waits for its end


class WorkerProcesses:
    """All worker processes of a trial; they end with the body of `with`."""

    def __init__(self, app: Dibs, folder: Path, prefix: str, options: TrialOptions) -> None:
        self._store, self._folder, self._prefix, self._options = app.sync, folder, prefix, options
        self._environment = _environment(app._core.settings)
        self.all: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.all:
            worker.end()

    def start(self, number: int) -> float:
        """Start some more, let them begin together once all are up, and return when that was."""
        first = len(self.all)
        for place in range(first + 1, first + number + 1):
            name = f"{self._prefix}-{place}"
            self.all.append(WorkerProcess(name, self._folder, self._options, self._environment))
        while not all(worker.is_up for worker in self.all[first:]):
            time.sleep(POLL)
        began = monotonic()
        for worker in self.all[first:]:
            worker.begin()
        return began

    def alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.all if worker.is_alive]

    def settled(self) -> list[int]:
        """Return how many jobs each process has settled so far."""
        for worker in self.all:
            worker.records.read()
        return [worker.records.settled for worker in self.all]

    def wait(self, settled: Callable[[], int], enough: float = float("inf")) -> None:
        """Wait until enough jobs are settled, all processes have ended, or nothing changes for too long."""
        last, changed_at = -1, monotonic()
        while (now := settled()) < enough and self.alive() and monotonic() - changed_at < STUCK:
            if now != last:
                last, changed_at = now, monotonic()
            time.sleep(POLL)

    def freeze_while_holding(
        self,
        choose: Callable[[list[WorkerProcess]], WorkerProcess],
        meanwhile: Callable[[], object],
        enough: int,
    ) -> tuple[WorkerProcess, int] | None:
        """Freeze a process while it holds jobs, by its records and by the store; return it and how many.

        Accept fewer jobs after every failed try. Return None if no process held jobs in time.
        """
        deadline = monotonic() + CATCH_LIMIT
        while (alive := self.alive()) and monotonic() < deadline:
            meanwhile()
            worker = choose(alive)
            worker.freeze()
            held = len(worker.tokens_in_hand() & _running_tokens(self._store, self._options.queue))
            if held >= enough:
                return worker, held
            worker.resume()
            enough = max(1, enough - 1)
            time.sleep(POLL)
        return None

    def logs(self) -> list[ProcessLog]:
        return [ProcessLog(worker.records.read(), worker.killed_at) for worker in self.all]


def _environment(settings: Settings) -> dict[str, str]:
    pooled = {} if settings.pooled is None else {"DIBS_POOLED": str(settings.pooled)}
    return {**os.environ, "DIBS_URL": settings.url, "DIBS_PREFIX": settings.prefix, **pooled}


def _running_tokens(store: SyncDibs, queue: str) -> set[int | None]:
    return {job.token for job in store.find(state="running", queue=queue, limit=PAGE)}


def succeeded_ids(store: SyncDibs, queue: str) -> Iterator[UUID]:
    return (job.id for job in succeeded_jobs(store, queue))


def succeeded_jobs(store: SyncDibs, queue: str) -> Iterator[Job]:
    after: UUID | None = None
    while page := store.find(state="succeeded", queue=queue, limit=PAGE, after=after):
        yield from page
        after = page[-1].id
