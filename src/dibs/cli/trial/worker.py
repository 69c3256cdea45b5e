"""One worker process of a trial: a loop over the public API that claims, settles and records both."""

import os
import random
import sys
import time

import msgspec

from dibs import Dibs, LeaseLost, StoreUnavailable, SyncClaim, SyncDibs
from dibs.cli.trial.records import Record, Recorder, TrialOptions
from dibs.clock import monotonic

PAUSE = 0.05  # seconds


def main(name: str, file: str, encoded: str) -> None:
    """Work until no job is left. The store is in the environment: a command line would show its password."""
    options = msgspec.json.decode(encoded, type=TrialOptions)
    recorder, dice = Recorder(file), random.Random(f"{options.seed}:{name}")  # noqa: S311
    parent = os.getppid()
    with Dibs().sync as store:
        recorder.write(Record("waiting", monotonic()))
        if not sys.stdin.readline():  # all start together, or not at all
            return
        while os.getppid() == parent:
            claims = store.claim(
                queues=[options.queue],
                kinds=[options.kind],
                limit=options.batch,
                worker=name,
                lease=options.lease,
            )
            _work_off(claims, options, recorder, dice)
            if not claims and not _unfinished(store, options.queue):
                return
            time.sleep(0 if claims else dice.uniform(0, PAUSE))


def _work_off(
    claims: list[SyncClaim], options: TrialOptions, recorder: Recorder, dice: random.Random
) -> None:
    fresh_until = monotonic() + options.lease / 6
    for claim in claims:
        recorder.note("claimed", claim)
    for claim in claims:
        try:
            if options.renews and monotonic() > fresh_until:
                claim.renew()
            _work(claim, recorder, dice.uniform(0, options.longest_work))
        except LeaseLost:
            recorder.note("refused", claim)
        except StoreUnavailable:
            continue  # settled or not: the store decides, and the job may come back


def _work(claim: SyncClaim, recorder: Recorder, seconds: float) -> None:
    recorder.note("started", claim)
    time.sleep(seconds)
    recorder.note("ended", claim)
    claim.succeed()
    recorder.note("settled", claim)


def _unfinished(store: SyncDibs, queue: str) -> int:
    counts = store.counts(queue)
    return sum(counts[state] for state in ("scheduled", "blocked", "ready", "running"))


if __name__ == "__main__":
    main(*sys.argv[1:])
