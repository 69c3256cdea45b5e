"""A crowd that works on one store and keeps falling ill: it notes all that it asks and is told.

Workers claim with leases of a few hundred milliseconds, sleep past them, settle late, settle twice, renew
claims they lost long ago. A person cancels and retries, a sweeper sweeps.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from dibs import Dibs, LeaseLost, NewJob, Refused
from dibs.app.claims import SyncClaim
from tests.model.history import History, Told, Took

WORKERS = 6
DRAIN_SECONDS = 20


class Crowd:
    """Everybody who uses the store in one run."""

    def __init__(self, app: Dibs, *, jobs: int, max_attempts: int, seed: int) -> None:
        self.history = History()
        self._face = app.sync
        self._seed = seed
        self._max_attempts = max_attempts
        self._lock = threading.Lock()
        self._newest: dict[UUID, int] = {}
        self._over = threading.Event()
        self._enqueue(jobs)

    def run(self, seconds: float) -> History:
        """Let them all loose, then let one healthy worker finish what is left."""
        roles: list[Callable[[random.Random], None]] = [self._work] * WORKERS + [self._sweep, self._meddle]
        with ThreadPoolExecutor(len(roles)) as pool:
            busy = [pool.submit(role, random.Random(self._seed + n)) for n, role in enumerate(roles)]
            self._over.wait(seconds)
            self._over.set()
            for each in busy:
                each.result()
        self._drain()
        return self.history

    # -- workers

    def _work(self, chance: random.Random) -> None:
        old: list[SyncClaim] = []
        while not self._over.is_set():
            lease = chance.uniform(0.1, 0.3)
            claims = self._face.claim(limit=chance.randint(1, 2), worker=f"w{chance.random()}", lease=lease)
            self._note(*(Told("claim", claim.job.id, claim.token) for claim in claims))
            for claim in claims:
                self._attempt(claim, chance)
            old += claims
            if old and chance.random() < 0.3:
                self._haunt(chance.choice(old), chance)

    def _attempt(self, claim: SyncClaim, chance: random.Random) -> None:
        self._effect(claim)
        time.sleep(chance.choice([0, 0.005, 0.01, 0.02, 0.35]))
        if chance.random() < 0.4:
            self._renew(claim)
        self._effect(claim)
        end = chance.choice(["succeeded", "failed", "failed", "failed", "snoozed", "released", "cancelled"])
        for _ in range(chance.choice([1, 1, 2])):
            self._settle(claim, end)

    def _haunt(self, claim: SyncClaim, chance: random.Random) -> None:
        """A zombie: whatever became of its job, it goes on as if it held it."""
        self._effect(claim)
        self._renew(claim)
        self._settle(claim, chance.choice(["succeeded", "failed", "released"]))

    def _settle(self, claim: SyncClaim, end: str) -> None:
        answer = self._answer(
            {
                "succeeded": lambda: claim.succeed("done"),
                "failed": lambda: claim.fail("it broke"),
                "snoozed": lambda: claim.snooze(0),
                "released": claim.release,
                "cancelled": claim.cancel,
            }[end]
        )
        self._note(Told("settle", claim.job.id, claim.token, end, answer))

    def _renew(self, claim: SyncClaim) -> None:
        answer = self._answer(lambda: claim.renew(0.2))
        self._note(Told("renew", claim.job.id, claim.token, answer=answer))

    def _effect(self, claim: SyncClaim) -> None:
        """The fenced sink: it lets no token through that is older than what it has seen."""
        with self._lock:
            if claim.token >= self._newest.get(claim.job.id, 0):
                self._newest[claim.job.id] = claim.token
                self.history.took.append(Took(claim.job.id, claim.token))

    # -- the others

    def _sweep(self, chance: random.Random) -> None:
        while not self._over.wait(chance.uniform(0.01, 0.05)):
            self._face.sweep()

    def _meddle(self, chance: random.Random) -> None:
        while not self._over.wait(0.01):
            running = self._face.find(state="running", limit=3)
            if running and chance.random() < 0.1:
                self._cancel(chance.choice(running).id)
            elif chance.random() < 0.1:
                self._cancel(chance.choice(list(self.history.max_attempts)))
            else:
                self._retry(chance.choice(list(self.history.max_attempts)))
            self._enqueue(1)

    def _cancel(self, id: UUID) -> None:
        with contextlib.suppress(Refused):
            self._face.cancel(id, "enough")

    def _retry(self, id: UUID) -> None:
        with contextlib.suppress(Refused):
            self._face.retry(id)
            self._note(Told("retry", id))

    def _enqueue(self, jobs: int) -> None:
        new = [NewJob("soon", queue="mail", max_attempts=self._max_attempts) for _ in range(jobs)]
        for job in self._face.enqueue(*new):
            self.history.max_attempts[job.id] = job.max_attempts

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._is_left() and time.monotonic() < deadline:
            self._face.sweep()
            for claim in self._face.claim(limit=50, worker="healthy", lease=60):
                self._note(Told("claim", claim.job.id, claim.token))
                self._settle(claim, "succeeded")
        self.history.final = {job.id: job.state for job in self._everything()}

    def _is_left(self) -> bool:
        counts = self._face.counts()
        return any(counts[state] for state in ("scheduled", "ready", "running"))

    def _everything(self) -> list[Any]:
        jobs = page = self._face.find(limit=1000)
        while page:
            page = self._face.find(limit=1000, after=page[-1].id)
            jobs = [*jobs, *page]
        return jobs

    # -- what they write down

    def _note(self, *told: Told) -> None:
        with self._lock:
            self.history.told += told

    def _answer(self, ask: Callable[[], object]) -> str:
        try:
            ask()
        except LeaseLost:
            return "lost"
        return "ok"
