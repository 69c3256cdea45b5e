"""Trains and slots while workers are killed and frozen and handlers fail: in order, and never two at once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from dibs import Dibs, Job, NewJob
from dibs.app.dibs import SyncDibs
from tests.support.workers import Process, Record, Run, boot_time, look, processes, read_record

LITTLE = 40
FULL_SIZE = [pytest.mark.long, pytest.mark.timeout(900)]
SHARED = ["sqlite", "postgresql", "mariadb", "mysql", "redis"]
shared_engines = pytest.mark.parametrize("engine", SHARED, indirect=True)

Start = Callable[..., Process]

JOBS = """
import asyncio, os, random, time
from dibs import Context, Dibs, Retry, Snooze
app = Dibs()
FILE = os.open("record", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(what, ctx):
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(FILE, f"{what} {ctx.job.id} {os.getpid()} {now!r} {ctx.token}\\n".encode())

@app.job(lease=1, max_attempts=1000, retry=Retry.fixed(0.02))
async def work(ctx: Context):
    note("start", ctx)
    try:
        await asyncio.sleep(random.uniform(0, 0.03))
        match random.random():
            case chance if chance < 0.12:
                raise ValueError("unlucky")
            case chance if chance < 0.18:
                return Snooze(0.02)
    finally:
        note("end", ctx)
"""


@pytest.fixture
def store(url: str) -> Iterator[SyncDibs]:
    app = Dibs(url).sync
    yield app
    app.close()


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    (tmp_path / "jobs.py").write_text(JOBS)
    with processes(tmp_path, url) as start:
        yield start


@dataclass
class Load:
    """The work: all of it at first, and the same again whenever little of it is left."""

    store: SyncDibs
    make: Callable[[], list[NewJob]]
    jobs: list[Job] = field(default_factory=list)

    def refill(self) -> Literal[False]:
        if len(self.jobs) - self.store.counts()["succeeded"] < LITTLE:
            self.jobs += self.store.enqueue(*self.make())
        return False

    def is_done(self) -> bool:
        return self.store.counts()["succeeded"] == len(self.jobs)


@dataclass
class Fire:
    """Workers of which one is killed, or frozen and killed later, again and again."""

    start: Start
    file: Path
    workers: int = 3
    ends: dict[int, float] = field(default_factory=dict)  # when each victim could do nothing any more
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def until(self, crashes: int, load: Load, *, seconds: float = 600) -> None:
        """End workers until enough runs were cut off, then finish; until then there is always more work."""
        deadline = time.monotonic() + seconds
        alive = [self._worker() for _ in range(self.workers)]
        while min(self.cut_off(), len(self.ends)) < crashes:
            assert time.monotonic() < deadline, "too few runs were cut off"
            time.sleep(self.chance.uniform(0.1, 0.5))
            victim = look(lambda: load.refill() or self._at_work(alive), seconds=60)
            self._strike(victim)
            alive.remove(victim)
            alive.append(self._worker())
        while not load.is_done():
            assert time.monotonic() < deadline, "the run did not come to its end"
            time.sleep(0.05)

    def cut_off(self) -> int:
        """Count the runs that ended with their process."""
        return sum(run.pid in self.ends for run in read_record(self.file).open())

    def _worker(self) -> Process:
        return self.start("--concurrency", "8")

    def _at_work(self, alive: Sequence[Process]) -> Process | None:
        """Return the oldest worker that runs a job; with few trains another may have no head at all."""
        busy = {run.pid for run in read_record(self.file).open()}
        return next((worker for worker in alive if worker.pid in busy), None)

    def _strike(self, victim: Process) -> None:
        if self.chance.random() < 0.3:
            victim.stop()
            self.ends[victim.pid] = boot_time()
            # Well after its leases ended, but not for ever: it may hold a lock that all others wait for.
            threading.Timer(2.5, victim.kill).start()
        else:
            self.ends[victim.pid] = victim.kill()


def _fire(load: Load, start: Start, folder: Path, crashes: int, workers: int = 3) -> Record:
    fire = Fire(start, folder / "record", workers)
    load.refill()
    fire.until(crashes, load)
    record = read_record(folder / "record")
    print(
        f"{len(load.jobs)} jobs, {len(record.runs()) - len(load.jobs)} runs again, "
        f"{len(fire.ends)} workers ended, {fire.cut_off()} runs cut off"
    )
    record.close(fire.ends)
    counts = load.store.counts()
    assert counts["succeeded"] == sum(counts.values()) == len(load.jobs), "not every job is finished"
    return record


# -- Trains -------------------------------------------------------------------------------------


@shared_engines
@pytest.mark.parametrize(
    ("trains", "length", "retries", "crashes"),
    [
        pytest.param(6, 8, 3, 3, id="small"),
        pytest.param(50, 40, 100, 20, id="full-size", marks=FULL_SIZE),
    ],
)
def test_jobs_of_a_train_start_in_order_and_one_at_a_time_whatever_happens_to_workers(
    store: SyncDibs, start: Start, tmp_path: Path, trains: int, length: int, retries: int, crashes: int
) -> None:
    load = Load(
        store,
        lambda: [NewJob("work", train=f"t{n % trains}", max_attempts=1000) for n in range(trains * length)],
    )

    record = _fire(load, start, tmp_path, crashes)

    place = {str(job.id): (job.train, number) for number, job in enumerate(load.jobs)}
    for train, runs in _by(record, lambda run: place[run.job][0]).items():
        starts = [place[run.job][1] for run in runs]
        assert starts == sorted(starts), f"{train} did not run in order"
        _never_two_at_once(runs, 1)
    again = Counter(run.job for run in record.runs())
    assert sum(times - 1 for times in again.values()) >= retries


# -- Slots --------------------------------------------------------------------------------------


@shared_engines
@pytest.mark.parametrize(
    ("limits", "each", "workers", "crashes"),
    [
        pytest.param([1, 2, 1, 2], 10, 3, 3, id="small"),
        pytest.param([1] * 10, 1000, 4, 20, id="full-size", marks=FULL_SIZE),
    ],
)
def test_never_more_than_its_limit_run_in_a_slot_whatever_happens_to_workers(
    store: SyncDibs,
    start: Start,
    tmp_path: Path,
    limits: list[int],
    each: int,
    workers: int,
    crashes: int,
) -> None:
    limit = {f"s{n}": most for n, most in enumerate(limits)}
    names = [name for _ in range(each) for name in limit]
    load = Load(
        store,
        lambda: [NewJob("work", slot=name, slot_limit=limit[name], max_attempts=1000) for name in names],
    )

    record = _fire(load, start, tmp_path, crashes, workers)

    slot_of = {str(job.id): job.slot for job in load.jobs}
    assert set(Counter(slot_of.values())) == set(limit)
    for slot, runs in _by(record, lambda run: slot_of[run.job]).items():
        _never_two_at_once(runs, limit[str(slot)])


def _by(record: Record, key: Callable[[Run], object]) -> dict[object, list[Run]]:
    """Return the runs of each, in the order in which they began."""
    groups: defaultdict[object, list[Run]] = defaultdict(list)
    for run in sorted(record.runs(), key=lambda run: run.began):
        groups[key(run)].append(run)
    return groups


def _never_two_at_once(runs: Sequence[Run], limit: int) -> None:
    """Assert that never more than `limit` ran at the same time."""
    for run in runs:
        beside = [other for other in runs if other.began <= run.began and (other.ended or 0) > run.began]
        assert len(beside) <= limit, f"{len(beside)} at once: {beside}"
