"""The round trip of a turn: settle the attempts that ended and claim new jobs, in one transaction."""

from collections.abc import Sequence
from typing import NamedTuple

from dibs.app.claims import ClaimState, hold
from dibs.app.state import AppState
from dibs.clock import monotonic
from dibs.engines.retries import Tries
from dibs.jobs.job import Job
from dibs.jobs.options import DEFAULT_LEASE
from dibs.operations.claim import ClaimRequest, take
from dibs.operations.questions import Cursor
from dibs.operations.scripts import Script
from dibs.operations.settle import NotSettled, Patience, SettleRequest, exchange, settle_if_held
from dibs.settings import lease_micros
from dibs.worker.state import QueueKind

USUAL_LEASE = lease_micros(DEFAULT_LEASE)

EndedAttempt = tuple[ClaimState, SettleRequest]


class Exchanged(NamedTuple):
    """The result of one round trip."""

    lost: Sequence[SettleRequest] = ()
    """Settlements that changed nothing: the claim no longer held its job."""
    claimed: Sequence[ClaimState] = ()
    jobs: Sequence[Job] = ()
    """The jobs of these claims."""
    locked: Sequence[SettleRequest] = ()
    """Settlements that can't be made yet: an open transaction has their gate locked."""
    may_be_more: bool = False
    """Whether more jobs may be ready: the claim was full, or did not begin at the first job."""


class Exchange:
    """The round trips of one worker."""

    def __init__(self, core: AppState, name: str, queues: list[str] | None) -> None:
        self._core = core
        self._name = name
        self._queues = queues
        self._cursor = ClaimCursor(pays=core.store.traits.goes_on)

    async def settle_and_claim(
        self, settlements: Sequence[SettleRequest], limit: int, pair: QueueKind | None = None
    ) -> Exchanged:
        """Settle, and claim up to `limit` jobs; only of this queue-kind pair if nothing is to be settled."""
        began = monotonic()
        cursor = self._cursor.get() if settlements else []
        request = self._request(limit, None if settlements else pair, cursor)
        exchanged = await self._core.store.run_async(lambda _: self._script(settlements, request))
        if limit:
            is_full, seconds = len(exchanged.jobs) >= limit, monotonic() - began
            self._cursor.advance(exchanged.jobs, is_full=is_full, used=bool(cursor), seconds=seconds)
        return exchanged

    async def settle(self, settlements: Sequence[SettleRequest], wait: Patience) -> Exchanged:
        """Settle without a claim, with this wait for locked gates."""

        def script(tries: Tries) -> Script[Exchanged]:
            if tries.number:  # the wait for a lock has ended the try before
                return Exchanged(locked=settlements)
            lost, locked = yield from settle_if_held(settlements, patience=wait)
            return Exchanged(lost=lost, locked=locked)

        return await self._core.store.run_async(script)

    def _script(self, settlements: Sequence[SettleRequest], request: ClaimRequest) -> Script[Exchanged]:
        asked_at = monotonic()  # of this try: the lease can't have begun earlier
        not_settled, jobs = NotSettled(), list[Job]()
        patience: Patience | None = "none" if self._core.store.traits.locks_gates else None
        if not request.limit:
            not_settled = yield from settle_if_held(settlements, patience=patience)
        elif not settlements:
            jobs = yield from take(request)
        else:
            not_settled, jobs = yield from exchange(settlements, request, patience=patience)
        may_be_more = len(jobs) >= request.limit or bool(request.marks)
        held = hold(self._core, jobs, asked_at)
        return Exchanged(not_settled.lost, held, jobs, not_settled.locked, may_be_more)

    def _request(self, limit: int, pair: QueueKind | None, cursor: Sequence[Cursor]) -> ClaimRequest:
        registry = self._core.registry
        return ClaimRequest(
            worker=self._name,
            lease=USUAL_LEASE,
            leases=registry.leases,
            limit=limit,
            queues=self._queues if pair is None else [pair[0]],
            kinds=list(registry.tasks) if pair is None else [pair[1]],
            marks=cursor,
        )


SHARE = 10  # times as long as the claim that began at the first job took, a cursor may be used
LONGEST = 1.0  # seconds


class ClaimCursor:
    """The last job claimed from each queue-kind pair; a full claim is soon continued there.

    While an old snapshot is open, a claim that begins at the first job reads every row that left the queue
    since. With a cursor, jobs that have come in front of it are not seen. So it is dropped after a short
    time, and when a claim finds less than it had room for.
    """

    def __init__(self, *, pays: bool) -> None:
        self._pays = pays
        self._last: dict[QueueKind, Cursor] = {}
        self._until = 0.0

    def get(self) -> list[Cursor]:
        """Return where to continue; nothing when it is time to claim from the first job on."""
        return list(self._last.values()) if monotonic() < self._until else []

    def advance(self, jobs: Sequence[Job], *, is_full: bool, used: bool, seconds: float) -> None:
        """Continue behind these jobs, which a claim returned in this order after so many seconds."""
        if not is_full or not self._pays:
            self._until = 0.0
            return
        if not used:
            self._last, self._until = {}, monotonic() + min(SHARE * seconds, LONGEST)
        for pair, job in {(job.queue, job.kind): job for job in jobs}.items():
            self._last[pair] = Cursor(*pair, job.priority, job.run_at, job.id)
