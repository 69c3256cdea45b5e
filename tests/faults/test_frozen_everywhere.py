"""A process stopped at the end of any transaction of ours holds nothing up for longer than lease + 5 s."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from dibs import Dibs, NewJob
from dibs.engines.sql.engine import READS
from tests.support.fault_stores import Place, wait_until, working
from tests.support.freezing import LEASE
from tests.support.internals import engine_of

SOON = LEASE + 5
# No transaction, on every store; and `age`, by which tests let time pass.
SINGLE = {"tick", "leave", "add_to_minute", "forget_minutes", "refuse", "forget_refusals", "age"}
SINGLE_ON = {
    "postgresql": {
        *("claim", "claim_job", "renew", "progress", "set_queue"),
        *("identify", "landed", "delete_schedule"),
    },
    "mariadb": set[str](),
    "mysql": set[str](),
}


class Healthy:
    """A worker of all kinds that it is told of, and the longest time in which it finished nothing."""

    def __init__(self, app: Dibs) -> None:
        self.app = app
        self.done: list[float] = []
        app.job(name="beat", queue="beat")(self._beat)

    async def _beat(self) -> None:
        self.done.append(time.monotonic())

    async def _follow(self) -> None: ...

    def serves(self, kind: str) -> None:
        self.app.job(name=kind, queue=kind)(self._follow)

    @property
    def longest_pause(self) -> float:
        return max(after - before for before, after in zip(self.done, self.done[1:], strict=False))


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "mysql"])
def test_a_process_frozen_in_any_transaction_holds_nothing_up(kind: str, places: Any) -> None:
    place: Place = places(kind)
    app = place.app(poll=1, pool_size=30)
    app.sync.counts()
    questions = sorted(set(engine_of(app).answers) - READS - SINGLE - SINGLE_ON[kind])
    healthy, producer = Healthy(app), place.app(pool_size=40)
    waited: dict[str, float] = {}
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.05):
            producer.sync.enqueue(NewJob("beat", queue="beat"))

    def follow(question: str, frozen_at: float) -> None:
        name = f"at_{question}"
        gates: list[dict[str, Any]] = [{}, {"train": name}, {"slot": name}, {"unique": f"{name}-2"}]
        jobs = producer.sync.enqueue(*[NewJob(name, queue=name, **gate) for gate in gates])
        for job in jobs:
            wait_until(lambda id=job.id: _is_done(producer, id))
        waited[question] = time.monotonic() - frozen_at

    threads = [threading.Thread(target=beat)]
    threads[0].start()
    command = [sys.executable, "-m", "tests.support.freezing", place.url, *questions]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with working(app, concurrency=20):
            for question in questions:
                assert process.stdout.readline() == f"{question}\n"
                healthy.serves(f"at_{question}")
                threads.append(threading.Thread(target=follow, args=(question, time.monotonic())))
                threads[-1].start()
                process.stdin.write("\n")
                process.stdin.flush()
            for thread in threads[1:]:
                thread.join()
            ended.set()
            threads[0].join()
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.wait(60) == 0  # its session is gone: it went on with another
    finally:
        ended.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its stopped children, too
        process.stdin.close()
        process.stdout.close()
        process.wait()

    late = {question: seconds for question, seconds in waited.items() if seconds > SOON}
    assert set(waited) == set(questions)
    assert late == {}
    assert healthy.longest_pause <= SOON


def _is_done(app: Dibs, id: Any) -> bool:
    job = app.sync.get(id)
    return job is not None and job.state in ("succeeded", "cancelled")
