"""Of two busy workers one is frozen at random, again and again: the other goes on, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from dibs import Dibs, NewJob
from tests.support.fault_stores import Place, Places, wait_until

LEASE = 1.0
SOON = LEASE + 5
STORES = ["postgresql", "mariadb", "mysql", "redis"]


class Line(NamedTuple):
    """One line of a worker: what became of which job, when."""

    what: str
    job: str
    token: int
    gate: str
    at: float


def test_a_frozen_worker_holds_up_no_other(places: Places, tmp_path: Path, kind: str) -> None:
    _freeze_again_and_again(places(kind), tmp_path, times=2)


@pytest.mark.long
def test_a_worker_frozen_fifty_times_holds_up_no_other(places: Places, tmp_path: Path, kind: str) -> None:
    _freeze_again_and_again(places(kind), tmp_path, times=50)


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _freeze_again_and_again(place: Place, folder: Path, times: int) -> None:
    app = place.app()
    app.sync.counts()
    with _producing(app) as enqueued, ExitStack() as stack:
        healthy, victim = (
            stack.enter_context(_worker(place.url, folder / name)) for name in ("healthy", "victim")
        )
        wait_until(lambda: all(len(_lines(folder / name)) > 50 for name in ("healthy", "victim")))
        for _ in range(times):
            time.sleep(random.uniform(0.2, 1.0))
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(3 * LEASE)
            os.kill(victim.pid, signal.SIGCONT)
        until = time.monotonic()
        assert healthy.poll() is None
        assert victim.poll() is None
        enqueued.ended.set()
        wait_until(lambda: _is_done(app), seconds=60)

    lines = [line for line in _lines(folder / "healthy") if line.at <= until]
    everything = sorted((*_lines(folder / "healthy"), *_lines(folder / "victim")), key=lambda line: line.at)
    assert _longest_pause(lines) <= SOON
    assert _late_gates(everything, until) == {}
    assert _lost_or_doubled(app, enqueued.ids, everything) == []


def _is_done(app: Dibs) -> bool:
    counts = app.sync.counts()
    return not any(counts.get(state) for state in ("ready", "running", "blocked"))


class Producer:
    """Plain jobs, and jobs of a few trains and slots, faster than they can be done."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.ended = threading.Event()

    def run(self, app: Dibs) -> None:
        while not self.ended.wait(0.1):
            trains = [NewJob("busy", train=f"t{n}") for n in range(4)]
            slots = [NewJob("busy", slot=f"s{n}") for n in range(4)]
            plain = [NewJob("busy") for _ in range(8)]
            self.ids += [str(job.id) for job in app.sync.enqueue(*trains, *slots, *plain)]


@contextmanager
def _producing(app: Dibs) -> Iterator[Producer]:
    producer = Producer()
    thread = threading.Thread(target=producer.run, args=(app,))
    thread.start()
    try:
        yield producer
    finally:
        producer.ended.set()
        thread.join()


@contextmanager
def _worker(url: str, file: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.support.busy_worker", url, str(LEASE), str(file)]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(30)


def _lines(file: Path) -> list[Line]:
    if not file.exists():
        return []
    with closing(file.open()) as text:
        words = [line.split() for line in text if line.endswith("\n")]
    return [Line(what, job, int(token), gate, float(at)) for what, job, token, gate, at in words]


def _longest_pause(lines: list[Line]) -> float:
    ends = [line.at for line in lines if line.what == "end"]
    return max(after - before for before, after in pairwise(ends))


def _late_gates(lines: list[Line], until: float) -> dict[str, float]:
    """Return the trains and slots in which nothing ended for too long, with the seconds."""
    ends: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line.what == "end" and line.gate != "-":
            ends[line.gate].append(line.at)
    pauses = {gate: max(b - a for a, b in pairwise((*at, until))) for gate, at in ends.items()}
    assert len(pauses) == 8
    return {gate: pause for gate, pause in pauses.items() if pause > SOON}


def _lost_or_doubled(app: Dibs, ids: list[str], lines: list[Line]) -> list[str]:
    """Return jobs that did not succeed, or that began once more after the claim that counts had ended."""
    runs: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        runs[line.job].append(line)
    found = []
    for id in ids:
        job = app.sync.get(id)
        if job is None or job.state != "succeeded":
            found.append(f"lost: {job}")
            continue
        ended = [line.at for line in runs[id] if (line.what, line.token) == ("end", job.token)]
        later = [line for line in runs[id] if line.what == "start" and ended and line.at > ended[0]]
        if not ended or later:
            found.append(f"doubled: {job}")
    return found
