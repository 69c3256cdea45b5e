"""The two stores of a move: scripts asked of either, on both faces, and the lock that lets one move run.

Two moves of one store would deliver, from each other's notes, jobs that are done and pruned already. So a
move holds a job of the target that is named after the source, under a lease like any other. A second move
waits until that lease has run out, and gives up when it is renewed.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import UUID

from dibs.app.claims import ClaimState
from dibs.app.dibs import Dibs
from dibs.clock import SECOND
from dibs.errors import DibsError, Refused
from dibs.faces import Call, Calls, ask, sleep
from dibs.jobs.job import Job, NewJob
from dibs.operations import queries
from dibs.operations.scripts import Rows, Script, Step

T = TypeVar("T")
Side = Literal["source", "target"]

MOST_AT_ONCE = 1000  # jobs in one question

KIND = "dibs-move"  # and the name of its queue
LEASE = 3.0  # seconds
POLL = 0.1
MOST_ATTEMPTS = 30_000


class Stores:
    """The source and the target of a move, and the lease under which it runs."""

    def __init__(self, source: Dibs, target: Dibs) -> None:
        self.target = target
        self.held: ClaimState | None = None
        self._stores = {"source": source._core.store, "target": target._core.store}

    def ask(self, side: Side, script: Callable[[], Script[T]]) -> Calls[T]:
        """Run a script on one of the stores; `Refused` if another move may have taken over."""
        if self.held is not None and self.held.lost:
            raise Refused("this move was held up, and another may have taken over by now; run it again")
        return (yield from ask(self._stores[side], lambda _: script()))

    def question(self, side: Side, name: str, **params: Any) -> Calls[Rows]:
        return (yield from self.ask(side, lambda: _step(name, params)))

    def departed(self, side: Side) -> Calls[Rows]:
        return (yield from self.question(side, "departed", limit=MOST_AT_ONCE))

    def counts(self, side: Side) -> Calls[dict[str, int]]:
        return (yield from self.ask(side, lambda: queries.counts(None)))


def _step(name: str, params: dict[str, Any]) -> Script[Rows]:
    return (yield Step(name, params))


# -- One move at a time -------------------------------------------------------------------------


def lock_move(source: UUID, stores: Stores) -> Calls[Any]:
    """Claim the job that stands for this move and keep its lease; `Refused` if another move is alive."""
    target, seen = stores.target, None
    new = NewJob(KIND, queue=KIND, unique=f"{KIND} {source}", max_attempts=MOST_ATTEMPTS)
    while True:
        [job] = yield Call(target.sync.enqueue, target.enqueue, (new,))
        claiming = partial(target.sync.claim_job, lease=LEASE), partial(target.claim_job, lease=LEASE)
        claim = yield Call(*claiming, (job.id,))
        if claim is not None:
            break
        seen = yield from _watch_other(target, job.id, seen)
        yield from sleep(POLL)
    stores.held = claim._held
    target._core.keeper.keep(claim._held, round(LEASE * SECOND), lambda _: None)
    return claim


def _watch_other(target: Dibs, id: UUID, seen: object) -> Calls[object]:
    """Return the claim of the other move; `Refused` once it differs from what was seen before."""
    yield Call(target.sync.sweep, target.sweep)
    job: Job | None = yield Call(target.sync.get, target.get, (id,))
    if job is None or job.lease_until is None:
        return seen
    if seen is not None and seen != (job.token, job.lease_until):
        raise Refused(
            f"{job.worker} is moving the same store already: nothing was changed; wait until it is done"
        )
    return job.token, job.lease_until


def unlock_move(claim: Any, stores: Stores) -> Calls[None]:
    target = stores.target
    target._core.keeper.drop(claim._held)
    with suppress(DibsError):
        yield Call(claim.release, claim.release)
        yield Call(target.sync.delete, target.delete, (claim.job.id,))
