"""One worker process of the demo: a hand-rolled loop over the public API, nothing else.

Claim a few jobs, do them one after another, settle each; before a job is begun its lease must be
fresh, so that a slow machine can't make this process work on what is no longer its own.
"""

import os
import random
import sys
import time

from dibs import Dibs, LeaseLost, SyncClaim, SyncDibs
from dibs.cli.demo.records import QUEUE, Recorder
from dibs.clock import monotonic

LEASE = 3.0  # seconds: so soon after a kill the jobs of the dead come back
FRESH = LEASE / 6
LONGEST_WORK = 0.002
PAUSE = 0.05


def main(url: str, worker: str, records: str, seed: str, batch: str) -> None:
    recorder, dice = Recorder(records), random.Random(seed)  # noqa: S311
    with Dibs(url).sync as store:
        recorder.note("waiting")
        parent = os.getppid()
        if not sys.stdin.readline():  # all start together, or not at all
            return
        while os.getppid() == parent and _unfinished(store):
            while claims := store.claim(queues=[QUEUE], limit=int(batch), worker=worker, lease=LEASE):
                _work_off(claims, recorder, dice)
            time.sleep(PAUSE)


def _work_off(claims: list[SyncClaim], recorder: Recorder, dice: random.Random) -> None:
    fresh_until = monotonic() + FRESH
    for claim in claims:
        recorder.note("claimed", claim.job.id, claim.token)
    for claim in claims:
        try:
            if monotonic() > fresh_until:
                claim.renew()
            _work(claim, recorder, dice.uniform(0, LONGEST_WORK))
        except LeaseLost:
            recorder.note("refused", claim.job.id, claim.token)


def _work(claim: SyncClaim, recorder: Recorder, seconds: float) -> None:
    recorder.note("started", claim.job.id, claim.token)
    time.sleep(seconds)
    recorder.note("ended", claim.job.id, claim.token)
    claim.succeed()
    recorder.note("settled", claim.job.id, claim.token)


def _unfinished(store: SyncDibs) -> int:
    counts = store.counts(QUEUE)
    return sum(counts[state] for state in ("scheduled", "blocked", "ready", "running"))


if __name__ == "__main__":
    main(*sys.argv[1:])
