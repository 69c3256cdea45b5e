"""What workers of a trial do: the loop of one process over the public API, and writes that come too late."""

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

import msgspec

from dibs import Dibs, DibsError, LeaseLost, NewJob, StoreUnavailable, SyncClaim, SyncDibs
from dibs.cli.trial.records import Record, RecordedEvent, Recorder, TrialOptions
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


# -- dibs verify: a worker that lost its jobs tries to change them ------------------------------

# A frozen process mostly finds its jobs done when it resumes. Here another worker holds them at that time, so
# that nothing but the token tells the two claims apart.
KIND = "dibs-verify"
SHORT_LEASE, LEASE = 0.3, 30.0  # seconds
CLAIM_LIMIT = 30.0  # seconds within which a job must be claimable
POLL = 0.02

Write = Callable[[SyncClaim], object]

SETTLES: list[Write] = [
    lambda claim: claim.succeed("too late"),
    lambda claim: claim.fail("too late"),
    lambda claim: claim.snooze(3600),
    lambda claim: claim.release(),
    lambda claim: claim.cancel("too late"),
]
WRITES: list[Write] = [lambda claim: claim.renew(3600), lambda claim: claim.progress(0.5, "too late")]


def write_late(store: SyncDibs, queue: str, recorder: Recorder) -> list[UUID]:
    """Lose some jobs to another worker, try to change them, let that worker settle them; return their ids."""
    writes: list[tuple[RecordedEvent, Write]] = [
        *(("settled", one) for one in SETTLES),
        *(("wrote", one) for one in WRITES),
    ]
    ids = [job.id for job in store.enqueue(*(NewJob(KIND, queue=queue, max_attempts=100) for _ in writes))]
    lost = _claim_all(store, queue, ids, "verify-late", SHORT_LEASE, recorder)
    held = _claim_all(store, queue, ids, "verify-heir", LEASE, recorder)
    try:
        for id, (event, write) in zip(ids, writes, strict=True):
            if id in lost and id in held:
                _try_late(store, write, event, lost[id], recorder)
        for claim in held.values():
            recorder.note(_tried(SETTLES[0], "settled", claim), claim)
    finally:  # a job that is still held could not be removed
        for claim in held.values():
            if not claim._held.settled:
                with suppress(DibsError):
                    claim.release()
    return ids


def _claim_all(
    store: SyncDibs, queue: str, ids: Sequence[UUID], worker: str, lease: float, recorder: Recorder
) -> dict[UUID, SyncClaim]:
    """Claim each of these jobs as soon as it can be claimed."""
    claims: dict[UUID, SyncClaim] = {}
    deadline = monotonic() + CLAIM_LIMIT
    while len(claims) < len(ids) and monotonic() < deadline:
        for claim in store.claim(queues=[queue], kinds=[KIND], limit=len(ids), worker=worker, lease=lease):
            recorder.note("claimed", claim)
            claims[claim.job.id] = claim
        if len(claims) < len(ids):
            store.sweep()
            time.sleep(POLL)
    return claims


def _try_late(
    store: SyncDibs, write: Write, event: RecordedEvent, claim: SyncClaim, recorder: Recorder
) -> None:
    """Record whether the write was refused; a refused write that changed the job counts as accepted."""
    before = store.get(claim.job.id)
    event = _tried(write, event, claim)
    changed = store.get(claim.job.id) != before
    recorder.note("wrote" if changed and event == "refused" else event, claim)


def _tried(write: Write, event: RecordedEvent, claim: SyncClaim) -> RecordedEvent:
    try:
        write(claim)
    except LeaseLost:
        return "refused"
    return event
