"""Sample jobs that keep going, for `dibs demo --serve`: a bit of everything that the page can show.

Worker processes import this module as `dibs.cli.trial.samples:app`; the store is the one of `$DIBS_URL`.
"""

import asyncio
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Self

from dibs.app.claims import SyncClaim
from dibs.app.context import Context
from dibs.app.dibs import Dibs
from dibs.errors import DibsError
from dibs.jobs.job import NewJob
from dibs.jobs.states import Retry

WORKERS = 3
PAUSE = 1.0  # seconds between two portions of new jobs
KILL_EVERY, FREEZE_EVERY = 45, 60  # portions
LEASE = 5.0  # seconds: so soon the jobs of a dead worker come back
CUSTOMERS = ("ann", "bea", "cem", "dov", "eva")

app = Dibs()
chance = random.Random()  # noqa: S311


@app.job(queue="mail", retry=Retry.fixed(20), max_attempts=3)
async def send_receipt(order_id: int, to: str) -> dict[str, str]:
    await asyncio.sleep(chance.uniform(0.05, 0.6))
    if chance.random() < 0.08:
        raise ConnectionError(f"smtp.example.org refused the receipt of order {order_id}")
    return {"sent": f"{to}@example.org"}


@app.job(queue="reports", lease=LEASE, slot=("report", "{year}"))
async def build_report(ctx: Context, year: int, rows: int = 120) -> dict[str, int]:
    for row in range(rows):
        await asyncio.sleep(0.1)
        await ctx.progress((row + 1) / rows, f"row {row + 1} of {rows}")
    return {"rows": rows}


@app.job(train="deploy_{target}", on_failed="hold", max_attempts=1, lease=LEASE)
async def deploy(ctx: Context, target: str, version: str) -> None:
    for step, name in enumerate(("upload", "migrate", "switch"), 1):
        await ctx.progress(step / 4, name)
        await asyncio.sleep(chance.uniform(0.5, 1.5))
    if chance.random() < 0.15:
        raise RuntimeError(f"health check of {target} failed after switching to {version}")


@app.job(queue="imports", lease=LEASE)
async def import_part(source: str, part: int) -> int:
    await asyncio.sleep(chance.uniform(1, 5))
    if chance.random() < 0.05:
        raise ValueError(f"{source}, line {chance.randrange(9000)}: amount is not a number")
    return chance.randrange(1000)


@app.every(20)
@app.job(queue="mail")
async def sync_prices() -> str:
    await asyncio.sleep(1)
    return "up to date"


def portion(number: int) -> list[NewJob]:
    """Return the new jobs of one second."""
    customer = chance.choice(CUSTOMERS)
    jobs = [send_receipt.using(tags=[customer]).new(1000 + number, customer)]
    if number % 6 == 0:
        jobs.append(build_report.new(2020 + number // 6 % 7))
    if number % 9 == 0:
        jobs.append(deploy.new(chance.choice(("north", "south")), f"1.{number // 9}"))
    if number % 25 == 0:
        jobs.append(NewJob("legacy_export", args={"table": "orders"}, queue="exports"))
    if number % 15 == 0:
        jobs.append(send_receipt.using(delay=600).new(9000 + number, customer))
    return jobs


class SampleWorkers:
    """Worker processes for the sample jobs, and the thread that feeds, kills and freezes them."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._thread = threading.Thread(target=self._feed, name="dibs-samples", daemon=True)

    def __enter__(self) -> Self:
        self._processes = [self._start() for _ in range(WORKERS)]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "dibs.cli", "work", "dibs.cli.trial.samples:app", "--concurrency", "4"]
        return subprocess.Popen(  # noqa: S603
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _feed(self) -> None:
        number = 0
        while not self._over.wait(PAUSE):
            with suppress(DibsError):  # the file is busy: the next portion comes in a second
                app.sync.enqueue(*portion(number))
                if number % 20 == 1:
                    self._enqueue_pipeline(number)
            if number % KILL_EVERY == 15:
                self._kill_one()
            if number % FREEZE_EVERY == 30:
                self._freeze_one()
            number += 1

    def _enqueue_pipeline(self, number: int) -> None:
        pipeline = app.sync.pipeline(f"import {number}")
        first = pipeline.add(import_part.new("orders.csv", 0))
        parts = [pipeline.add(import_part.new("orders.csv", part), after=[first]) for part in (1, 2, 3)]
        pipeline.add(build_report.new(2019, 40), after=parts)
        pipeline.enqueue()

    def _kill_one(self) -> None:
        victim = self._processes.pop(0)
        victim.kill()
        victim.wait()
        self._processes.append(self._start())

    def _freeze_one(self) -> None:
        """Stop a worker for longer than its leases; a claim by hand settles as late, and is refused."""
        victim = self._processes[0]
        victim.send_signal(signal.SIGSTOP)
        late = self._claim_by_hand()
        self._over.wait(LEASE + 3)
        victim.send_signal(signal.SIGCONT)
        with suppress(DibsError):  # the lost lease, above all
            if late is not None:
                late.succeed("too late")

    def _claim_by_hand(self) -> SyncClaim | None:
        for _ in range(5):  # a worker may be quicker
            with suppress(DibsError):
                [job] = app.sync.enqueue(import_part.new("late.csv", 1))
                if (claim := app.sync.claim_job(job.id, worker="claimed-by-hand", lease=1)) is not None:
                    return claim
        return None
