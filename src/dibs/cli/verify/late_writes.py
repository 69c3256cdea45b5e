"""The part of `dibs verify` that leaves nothing to chance: who lost jobs to another tries everything on them.

A process that was frozen mostly finds its jobs done when it wakes up. Here another holds them while it tries,
so that nothing but the token tells the two claims apart.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from uuid import UUID

from dibs.app.claims import SyncClaim
from dibs.app.sync import SyncDibs
from dibs.cli.verify.history import KIND, Event, Line, Writer
from dibs.clock import monotonic
from dibs.errors import DibsError, LeaseLost
from dibs.jobs.job import NewJob

LATE, HEIR = "verify-late", "verify-heir"
SHORT_LEASE, LEASE = 0.3, 30.0  # seconds
PATIENCE = 30.0  # seconds for a claim that must come
LOOK = 0.02

Deed = Callable[[SyncClaim], object]

SETTLES: list[Deed] = [
    lambda claim: claim.succeed("too late"),
    lambda claim: claim.fail("too late"),
    lambda claim: claim.snooze(3600),
    lambda claim: claim.release(),
    lambda claim: claim.cancel("too late"),
]
WRITES: list[Deed] = [lambda claim: claim.renew(3600), lambda claim: claim.progress(0.5, "too late")]


def come_late(store: SyncDibs, queue: str, writer: Writer) -> list[UUID]:
    """Lose some jobs to another, try to change them, let the other finish them; which jobs these were."""
    deeds: list[tuple[Event, Deed]] = [
        *(("settled", one) for one in SETTLES),
        *(("wrote", one) for one in WRITES),
    ]
    ids = [job.id for job in store.enqueue(*(NewJob(KIND, queue=queue, max_attempts=100) for _ in deeds))]
    lost = _claim_all(store, queue, ids, LATE, SHORT_LEASE, writer)
    held = _claim_all(store, queue, ids, HEIR, LEASE, writer)
    try:
        for id, (event, deed) in zip(ids, deeds, strict=True):
            if id in lost and id in held:
                _try_late(store, deed, event, lost[id], writer)
        for claim in held.values():
            writer.note(_line(_tried(SETTLES[0], "settled", claim), HEIR, claim))
    finally:
        _let_go(held.values())
    return ids


def _claim_all(
    store: SyncDibs, queue: str, ids: Sequence[UUID], worker: str, lease: float, writer: Writer
) -> dict[UUID, SyncClaim]:
    """All of them, as soon as they are to be had."""
    claims: dict[UUID, SyncClaim] = {}
    deadline = monotonic() + PATIENCE
    while len(claims) < len(ids) and monotonic() < deadline:
        for claim in store.claim(queues=[queue], kinds=[KIND], limit=len(ids), worker=worker, lease=lease):
            job = claim.job
            writer.note(Line("claimed", worker, job.id, claim.token, job.claimed_at, job.lease_until))
            claims[job.id] = claim
        if len(claims) < len(ids):
            store.sweep()
            time.sleep(LOOK)
    return claims


def _try_late(store: SyncDibs, deed: Deed, event: Event, claim: SyncClaim, writer: Writer) -> None:
    """Being refused is not enough: the job must be as it was."""
    before = store.get(claim.job.id)
    event = _tried(deed, event, claim)
    changed = store.get(claim.job.id) != before
    writer.note(_line("wrote" if changed and event == "refused" else event, LATE, claim))


def _tried(deed: Deed, event: Event, claim: SyncClaim) -> Event:
    try:
        deed(claim)
    except LeaseLost:
        return "refused"
    return event


def _line(event: Event, worker: str, claim: SyncClaim) -> Line:
    return Line(event, worker, claim.job.id, claim.token)


def _let_go(claims: Iterable[SyncClaim]) -> None:
    """Whatever came in between: what is still held would be in the way of who removes it."""
    for claim in claims:
        if not claim._held.settled:
            with suppress(DibsError):
                claim.release()
