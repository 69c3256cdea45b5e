"""One process of `dibs verify`: claim a few jobs, settle each, and write everything down."""

import os
import random
import sys
import time

from dibs import Dibs, LeaseLost, StoreUnavailable, SyncClaim, SyncDibs
from dibs.cli.verify.history import KIND, Line, Writer

BATCH = 5
LONGEST_WORK = 0.01  # seconds
PAUSE = 0.05


def main(queue: str, worker: str, file: str, lease: str) -> None:
    """Which store is said by the environment: others may read the command line, and a URL has a password."""
    writer, dice = Writer(file), random.Random(worker)  # noqa: S311
    parent = os.getppid()
    with Dibs().sync as store:
        writer.note(Line("waiting", worker))
        while os.getppid() == parent and _unfinished(store, queue):
            for claim in _claim(store, queue, worker, float(lease), writer):
                time.sleep(dice.uniform(0, LONGEST_WORK))
                _settle(claim, worker, writer)
            time.sleep(dice.uniform(0, PAUSE))


def _claim(store: SyncDibs, queue: str, worker: str, lease: float, writer: Writer) -> list[SyncClaim]:
    claims = store.claim(queues=[queue], kinds=[KIND], limit=BATCH, worker=worker, lease=lease)
    for claim in claims:
        job = claim.job
        writer.note(Line("claimed", worker, job.id, claim.token, job.claimed_at, job.lease_until))
    return claims


def _settle(claim: SyncClaim, worker: str, writer: Writer) -> None:
    try:
        claim.succeed(worker)
        writer.note(Line("settled", worker, claim.job.id, claim.token))
    except LeaseLost:
        writer.note(Line("refused", worker, claim.job.id, claim.token))
    except StoreUnavailable:
        return  # nobody knows; the job comes back, or it is done


def _unfinished(store: SyncDibs, queue: str) -> int:
    counts = store.counts(queue)
    return sum(counts[state] for state in ("scheduled", "blocked", "ready", "running"))


if __name__ == "__main__":
    main(*sys.argv[1:])
