"""Helpers of the worker tests: apps on one store, a worker beside the test, and ways to wait."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import asyncmy
import asyncpg
import pytest

from dibs import Dibs, Job, Worker
from dibs.operations import upkeep
from tests.support.internals import core_of, store_of

WAIT_SECONDS = 30.0
SOON = 6.0  # seconds: well before the poll of 10, and enough on a busy machine


class Apps:
    """Apps on one store, like the ones of several processes; memory has only one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: list[Dibs] = []

    def __call__(self, **settings: Any) -> Dibs:
        if self.url == "memory://" and self._made:
            return self._made[0]
        self._made.append(Dibs(self.url, **settings))
        return self._made[-1]

    def adopt(self, app: Dibs) -> None:
        """Close this app, which a module made, with the others."""
        self._made.append(app)

    async def close(self) -> None:
        for app in self._made:
            await app.close()


@asynccontextmanager
async def working(app: Dibs, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker beside the body and stop it at once at the end; raise its errors."""
    async with running(Worker(app, **options)) as worker:
        yield worker


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Run this worker beside the body and stop it at once at the end; raise its errors."""
    run = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        await run


async def drain(app: Dibs, **options: Any) -> None:
    await Worker(app, **options).run(until_idle=True)


async def wait_until(
    holds: Callable[[], Any] | Callable[[], Awaitable[Any]], *, seconds: float = WAIT_SECONDS
) -> Any:
    """Wait until `holds()` is true, and return its value."""
    deadline = time.monotonic() + seconds
    while True:
        answer = holds()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{holds} did not come true within {seconds} s"
        await asyncio.sleep(0.01)


async def is_idle(app: Dibs, *, workers: int = 1) -> None:
    """Wait until that many workers are listed, and give their listeners time to open."""
    await wait_until(lambda: _as_many(app, workers))
    await asyncio.sleep(0.15)


async def _as_many(app: Dibs, workers: int) -> bool:
    return len(await app.workers()) >= workers


def take_back(app: Dibs, job: UUID) -> None:
    """Let the job's lease run out and sweep it; repeat that if the holder renews it just then."""
    store = store_of(app)

    def holder() -> int | None:
        found = app.sync.get(job)
        assert found is not None
        return found.token if found.state == "running" else None

    token = holder()
    while token is not None and holder() == token:
        store.run(lambda _: upkeep.age(100_000_000))
        store.run(lambda _: upkeep.sweep())


def ignore_stop_hints(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no hint cause a renewal, neither a cancel nor the start of a listener."""
    monkeypatch.setattr(core_of(app).keeper, "look", lambda _: None)


async def finished(app: Dibs, job: Job, *, seconds: float = WAIT_SECONDS) -> Job:
    return await app.wait(job.id, timeout=seconds)


async def state_of(app: Dibs, job: Job) -> str:
    found = await app.get(job.id)
    assert found is not None
    return found.state


async def holds_for(seconds: float, holds: Callable[[], Awaitable[bool]]) -> None:
    """Assert that this stays true for that long; nothing signals that nothing happened."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert await holds()
        await asyncio.sleep(0.02)


class transaction:
    """A transaction of a caller, at the end committed or rolled back."""

    def __init__(self, url: str, *, commit: bool = True) -> None:
        self._url, self._commit = url, commit

    async def __aenter__(self) -> Any:
        if self._url.startswith("sqlite"):
            path = self._url.removeprefix("sqlite:///")
            self._connection: Any = sqlite3.connect(path, isolation_level=None)
            self._connection.execute("begin immediate")
        elif self._url.startswith("mysql"):
            place = urlsplit(self._url)
            self._connection = await asyncmy.connect(
                host=place.hostname, port=place.port, user="root", database=place.path.lstrip("/")
            )
        else:
            self._connection = await asyncpg.connect(self._url)
            await self._connection.execute("begin")
        return self._connection

    async def __aexit__(self, *raised: object) -> None:
        end = "commit" if self._commit and raised[0] is None else "rollback"
        if self._url.startswith("mysql"):
            await getattr(self._connection, end)()
            await self._connection.ensure_closed()
            return
        ending = self._connection.execute(end)
        if not self._url.startswith("sqlite"):
            await ending
        closing = self._connection.close()
        if closing is not None:
            await closing


# -- Real `dibs work` processes -----------------------------------------------------------------


class Process:
    """One process of `dibs work`, with its log in a file."""

    def __init__(
        self, folder: Path, url: str, *words: str, name: str = "worker", group: bool = False
    ) -> None:
        self.url = url
        self.log = folder / f"{name}-{time.monotonic_ns()}.log"
        environment = {**os.environ, "DIBS_URL": url, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dibs.cli", "work", "jobs:app", *words],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0 if group else None,
            )
        self.pid = self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """Send SIGSTOP and wait until the process has stopped."""
        self.send(signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        look(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def freeze(self) -> None:
        """Stop it while it has no lock on an SQLite file, for which all others would wait."""
        self.stop()
        while self._locks_file():
            self.send(signal.SIGCONT)
            time.sleep(0.01)
            self.stop()

    def _locks_file(self) -> bool:
        if not self.url.startswith("sqlite:"):
            return False
        with closing(sqlite3.connect(self.url.partition("///")[2], timeout=0)) as connection:
            try:
                connection.execute("begin immediate")
            except sqlite3.OperationalError:
                return True
        return False

    def kill(self) -> float:
        """Send SIGKILL; return when the process was surely gone, by CLOCK_BOOTTIME."""
        self._process.kill()
        self._process.wait()
        return boot_time()

    def ended(self, seconds: float = WAIT_SECONDS) -> int:
        return self._process.wait(seconds)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def children(self) -> list[int]:
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def said(self) -> str:
        return self.log.read_text()

    def end(self) -> None:
        """Kill it in whatever state it is; the children of a supervisor first."""
        family = self.children if self.is_running else []
        for pid in [*family, self.pid] if self.is_running else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def processes(folder: Path, url: str) -> Iterator[Callable[..., Process]]:
    """Yield a function that starts `dibs work`; at the end, kill the processes that still run."""
    started: list[Process] = []

    def start(*words: str, **options: Any) -> Process:
        started.append(Process(folder, url, *words, **options))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.end()
            print(process.said())  # shown if the test fails


def look(holds: Callable[[], Any], *, seconds: float = WAIT_SECONDS) -> Any:
    """Wait until `holds()` is true, in a test without a loop."""
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"{holds} did not come true within {seconds} s"
        time.sleep(0.01)
    return answer


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# -- The record of the handlers -----------------------------------------------------------------


@dataclass
class Run:
    """One run of a handler, and its end if there was one."""

    job: str
    pid: int
    began: float
    ended: float | None = None


@dataclass
class Record:
    """Every run of every job, in the order of the record."""

    by_job: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))

    def close(self, deaths: dict[int, float]) -> None:
        """Note that the runs of killed processes ended with them."""
        for run in self.runs():
            if run.ended is None and run.pid in deaths:
                run.ended = deaths[run.pid]

    def runs(self) -> list[Run]:
        return [run for runs in self.by_job.values() for run in runs]

    def open(self) -> list[Run]:
        return [run for run in self.runs() if run.ended is None]

    def overlaps(self) -> list[tuple[Run, Run]]:
        pairs = []
        for runs in self.by_job.values():
            ordered = sorted(runs, key=lambda run: run.began)
            pairs += [
                (one, other)
                for one, other in itertools.pairwise(ordered)
                if one.ended is None or other.began < one.ended
            ]
        return pairs

    def recoveries(self, deaths: dict[int, float]) -> list[float]:
        """Return, for each run that a kill ended, the seconds from the kill to the job's next start."""
        waits = []
        for runs in self.by_job.values():
            ordered = sorted(runs, key=lambda run: run.began)
            waits += [
                other.began - deaths[one.pid]
                for one, other in itertools.pairwise(ordered)
                if one.pid in deaths and one.ended == deaths[one.pid]
            ]
        return waits


def read_record(file: Path) -> Record:
    record, running = Record(), {}
    text = file.read_text() if file.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():  # the last one may be half written just now
        what, job, pid, at, token = line.split()
        if what == "start":
            running[job, token] = Run(job, int(pid), float(at))
            record.by_job[job].append(running[job, token])
        else:
            running[job, token].ended = float(at)
    return record


JOBS = """
import asyncio, os, random, time
from dibs import Dibs, Context, Retry
app = Dibs(poll={poll})
FILE = os.open("record", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(what, ctx):
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(FILE, f"{{what}} {{ctx.job.id}} {{os.getpid()}} {{now!r}} {{ctx.token}}\\n".encode())

@app.job(lease={lease}, max_attempts=50)
async def quick(ctx: Context, seconds: float = 0.0):
    note("start", ctx)
    try:
        await asyncio.sleep(seconds)
    finally:  # also when its lease was lost and it is cancelled
        note("end", ctx)

@app.job(lease={lease}, max_attempts=50)
def threaded(ctx: Context, seconds: float = 0.0):
    note("start", ctx)
    time.sleep(seconds)
    note("end", ctx)

@app.job(lease={lease}, max_attempts=50)
async def first_time_long(ctx: Context, seconds: float):
    note("start", ctx)
    if ctx.job.attempts == 1:
        await asyncio.sleep(seconds)
    note("end", ctx)
"""


def write_jobs(folder: Path, *, lease: float = 1, poll: float = 10) -> Path:
    """Write a jobs module into that folder; return the file where its handlers record their runs."""
    (folder / "jobs.py").write_text(JOBS.format(lease=lease, poll=poll))
    return folder / "record"


async def count_is(app: Dibs, state: str, many: int) -> bool:
    """Return whether that many jobs are in this state."""
    return (await app.counts()).get(state, 0) == many


async def is_in_state(app: Dibs, job: Any, state: str) -> bool:
    """Return whether this job is in this state."""
    return await state_of(app, job) == state
