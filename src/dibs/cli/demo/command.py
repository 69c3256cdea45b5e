"""`dibs demo`: several processes share jobs on a SQLite file, one is killed, then all is counted."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Annotated, Self
from urllib.parse import quote
from uuid import UUID

import msgspec
import typer

from dibs.app.dibs import Dibs
from dibs.app.sync import SyncDibs
from dibs.cli._support.options import AsJson
from dibs.cli.demo.records import QUEUE, Counts, Log, Tail, claims_in_hand, count
from dibs.cli.demo.show import Show, choose_show
from dibs.clock import monotonic
from dibs.jobs.job import NewJob

EXAMPLE = "Example: dibs demo --jobs 20000 --workers 8"
BATCH = 10
LOOK = 0.01  # seconds between two looks at what the workers have recorded
PATIENCE = 120  # seconds without any progress, after which the demo gives up and counts
MOST_FOUND = 1000


def command(
    jobs: Annotated[
        int, typer.Option(min=100, max=1_000_000, metavar="N", help="How many jobs to enqueue.")
    ] = 5000,
    workers: Annotated[int, typer.Option(min=2, max=32, metavar="N", help="How many worker processes.")] = 4,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Decides who is killed and how long each job takes.")
    ] = 1,
    json: AsJson = False,
) -> None:
    """Watch processes share jobs while one of them is killed.

    Everything happens in a SQLite file in a temporary folder. The worker processes write down when
    they begin and end each job. In the middle one of them is killed (SIGKILL) while it holds jobs.
    The counts at the end are taken from those records and from the store. The exit code is 1 if a
    job was lost, if a job ran twice at the same time, or if nothing came back after the kill.
    """
    show = choose_show(jobs, workers, silent=json)
    with TemporaryDirectory(prefix="dibs-demo-", ignore_cleanup_errors=True) as folder:
        counts, seconds = perform(Path(folder), jobs, workers, seed, show)
    typer.echo(_as_json(counts, seconds) if json else _as_lines(counts, seconds))
    raise typer.Exit(0 if counts.is_good else 1)


def perform(folder: Path, jobs: int, workers: int, seed: int, show: Show) -> tuple[Counts, float]:
    """The whole play: enqueue, start, kill one, wait for the rest, count."""
    url = f"sqlite:///{quote(str(folder / 'demo.db'))}"
    with Dibs(url).sync as store, Crew(folder, url, workers, seed) as crew, show:
        enqueued = [job.id for job in store.enqueue(*_new_jobs(jobs))]
        began = crew.go()
        _until(crew, show, jobs // 5)
        kill_one(crew, store, random.Random(seed).randrange(workers), show)  # noqa: S311
        crew.wait(show)
        seconds = monotonic() - began
        return count(enqueued, _succeeded(store), crew.logs()), seconds


def _new_jobs(jobs: int) -> Iterator[NewJob]:
    return (NewJob("demo", args={"number": n}, queue=QUEUE, max_attempts=10) for n in range(jobs))


def _until(crew: "Crew", show: Show, settled: int) -> None:
    while sum(crew.look(show)) < settled and crew.is_alive:
        time.sleep(LOOK)


def kill_one(crew: "Crew", store: SyncDibs, victim: int, show: Show) -> None:
    """Kill this worker while it holds jobs, by the store's word and its own: several, if it may be."""
    enough = BATCH // 2
    while crew.is_alive:
        crew.stop(victim)
        held = len(_running(store) & crew.in_hand(victim))
        if held >= enough:
            crew.kill(victim)
            show.killed(victim, held)
            return
        crew.resume(victim)
        enough = max(1, enough - 1)
        crew.look(show)
        time.sleep(LOOK)


def _running(store: SyncDibs) -> set[int | None]:
    return {job.token for job in store.find(state="running", queue=QUEUE, limit=MOST_FOUND)}


def _succeeded(store: SyncDibs) -> Iterator[UUID]:
    after: UUID | None = None
    while page := store.find(state="succeeded", queue=QUEUE, limit=MOST_FOUND, after=after):
        yield from (job.id for job in page)
        after = page[-1].id


class Crew:
    """The worker processes, and what they have recorded so far."""

    def __init__(self, folder: Path, url: str, size: int, seed: int) -> None:
        self._files = [folder / f"worker-{n + 1}.jsonl" for n in range(size)]
        self._commands = [
            [sys.executable, "-m", "dibs.cli.demo.worker", url, self.name(n), str(file), f"{seed}:{n}"]
            for n, file in enumerate(self._files)
        ]
        self._tails = [Tail(file) for file in self._files]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._killed: dict[int, float] = {}

    def __enter__(self) -> Self:
        for command in self._commands:
            # A session of its own: Ctrl-C reaches us alone, and we end the others.
            process = subprocess.Popen(  # noqa: S603
                [*command, str(BATCH)], stdin=subprocess.PIPE, start_new_session=True
            )
            self._processes.append(process)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            with suppress(BrokenPipeError), process:
                pass  # closes its pipe and waits for its end

    @staticmethod
    def name(worker: int) -> str:
        return f"worker-{worker + 1}"

    @property
    def is_alive(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def go(self) -> float:
        """Let all begin together once all are ready; answers when."""
        while not all(tail.look() for tail in self._tails) and self.is_alive:
            time.sleep(LOOK)
        began = monotonic()
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(b"go\n")
                process.stdin.flush()
        return began

    def look(self, show: Show) -> list[int]:
        """How many jobs each worker has settled so far."""
        for tail in self._tails:
            tail.look()
        done = [tail.settled for tail in self._tails]
        show.progress(done)
        return done

    def wait(self, show: Show) -> None:
        """Until all have ended by themselves, or nothing has moved for too long."""
        done, moved_at = self.look(show), monotonic()
        while self.is_alive and monotonic() - moved_at < PATIENCE:
            time.sleep(5 * LOOK)
            before, done = done, self.look(show)
            moved_at = monotonic() if done != before else moved_at

    def in_hand(self, worker: int) -> set[int]:
        """Tokens it wrote down and has not settled: what it got a moment ago it may not have written yet."""
        return set(claims_in_hand(self._tails[worker].look()))

    def stop(self, worker: int) -> None:
        self._processes[worker].send_signal(signal.SIGSTOP)

    def resume(self, worker: int) -> None:
        self._processes[worker].send_signal(signal.SIGCONT)

    def kill(self, worker: int) -> None:
        self._processes[worker].kill()
        self._processes[worker].wait()
        self._killed[worker] = monotonic()

    def logs(self) -> list[Log]:
        return [
            Log(self.name(n), tail.look(), killed_at=self._killed.get(n))
            for n, tail in enumerate(self._tails)
        ]


def _as_lines(counts: Counts, seconds: float) -> str:
    lines = [f"{name.replace('_', ' ')} {value}" for name, value in _fields(counts, seconds).items()]
    return "\n".join(lines).replace("jobs per second", "jobs/s")


def _as_json(counts: Counts, seconds: float) -> str:
    return msgspec.json.encode(_fields(counts, seconds)).decode()


def _fields(counts: Counts, seconds: float) -> dict[str, float]:
    speed = round(counts.succeeded / seconds)
    return {**msgspec.to_builtins(counts), "seconds": round(seconds, 1), "jobs_per_second": speed}
