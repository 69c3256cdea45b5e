"""One move of a store at a time: two would deliver from each other's notes what is done and gone already.

Who moves holds a job of the target that is named after the source, under a lease like any other. A mover that
died is waited for until its lease is over; one that lives is seen to renew it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from uuid import UUID

from dibs.app.claims import ClaimState
from dibs.app.dibs import Dibs
from dibs.clock import SECOND
from dibs.errors import DibsError, Refused
from dibs.jobs.job import Job, NewJob

KIND = "dibs-move"  # and the name of its queue
LEASE = 3.0  # seconds
GLANCE = 0.1
MOST_ATTEMPTS = 30_000

Alive = Callable[[], None]
"""Raises `Refused` if another may have taken over."""


@contextmanager
def alone_sync(source: UUID, target: Dibs) -> Iterator[Alive]:
    """Nobody else moves from this source to this target while the body runs; `Refused` if somebody does."""
    store, watch = target.sync, _watching()
    [job] = store.enqueue(_job(source))
    while (claim := store.claim_job(job.id, lease=LEASE)) is None:
        store.sweep()
        watch.send(store.get(job.id))
        time.sleep(GLANCE)
        [job] = store.enqueue(_job(source))  # who had it may have ended and removed it
    try:
        yield _kept(target, claim._held)
    finally:
        target._core.keeper.drop(claim._held)
        with suppress(DibsError):
            claim.release()
            store.delete(job.id)


@asynccontextmanager
async def alone(source: UUID, target: Dibs) -> AsyncIterator[Alive]:
    """The same, awaited."""
    watch = _watching()
    [job] = await target.enqueue(_job(source))
    while (claim := await target.claim_job(job.id, lease=LEASE)) is None:
        await target.sweep()
        watch.send(await target.get(job.id))
        await asyncio.sleep(GLANCE)
        [job] = await target.enqueue(_job(source))
    try:
        yield _kept(target, claim._held)
    finally:
        target._core.keeper.drop(claim._held)
        with suppress(DibsError):
            await claim.release()
            await target.delete(job.id)


def _job(source: UUID) -> NewJob:
    return NewJob(KIND, queue=KIND, unique=f"{KIND} {source}", max_attempts=MOST_ATTEMPTS)


def _kept(target: Dibs, held: ClaimState) -> Alive:
    target._core.keeper.keep(held, round(LEASE * SECOND), lambda _: None)

    def alive() -> None:
        if held.lost:
            raise Refused("this move was held up, and another may have taken over by now; run it again")

    return alive


def _watching() -> Generator[None, Job | None, None]:
    """Is sent the job of the other mover, look after look; `Refused` as soon as that one is seen to live."""
    watch = _look_for_life()
    next(watch)
    return watch


def _look_for_life() -> Generator[None, Job | None, None]:
    seen: tuple[int | None, datetime | None] | None = None
    while True:
        job = yield
        if job is None or job.lease_until is None:
            continue
        if seen is not None and seen != (job.token, job.lease_until):
            raise Refused(
                f"{job.worker} is moving the same store already: nothing was changed; wait until it is done"
            )
        seen = (job.token, job.lease_until)
