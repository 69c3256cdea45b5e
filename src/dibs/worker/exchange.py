"""The worker's round trips: settle what is done and take what fits, in one commit."""

from collections.abc import Sequence
from typing import NamedTuple

from dibs.app.claims import Holding
from dibs.app.verbs import Core
from dibs.clock import monotonic
from dibs.engines.retries import Tries
from dibs.jobs.job import Job
from dibs.jobs.options import DEFAULT_LEASE
from dibs.operations.claim import ClaimRequest, take
from dibs.operations.questions import Mark
from dibs.operations.scripts import Script
from dibs.operations.settle import Patience, SettleRequest, exchange, settle_if_held
from dibs.settings import lease_micros

USUAL_LEASE = lease_micros(DEFAULT_LEASE)

Done = tuple[Holding, SettleRequest]
Line = tuple[str, str]  # a queue and a kind


class Trip(NamedTuple):
    """What came of one."""

    lost: Sequence[SettleRequest] = ()
    """Settlements that were refused: the claim was no longer ours."""
    taken: Sequence[Holding] = ()
    """New claims."""
    left: Sequence[SettleRequest] = ()
    """Settlements that can't be made yet: an open transaction has their gate locked."""


class Trips:
    """One worker's way to the store and back."""

    def __init__(self, core: Core, name: str, queues: list[str] | None) -> None:
        self._core = core
        self._name = name
        self._queues = queues

    async def exchange(
        self,
        settled: Sequence[SettleRequest],
        places: int,
        *,
        line: Line | None = None,
        marks: Sequence[Mark] = (),
    ) -> Trip:
        """Settle these, take up to so many jobs: of all lines or only of this one, from these marks on."""
        wish = self._wish(places, None if settled else line, marks)
        return await self._core.store.run_async(lambda _: self._exchange(settled, wish))

    async def settle(self, settled: Sequence[SettleRequest], patience: Patience) -> Trip:
        """Only settle, as long as no gate is locked for longer than this patience lasts."""

        def script(tries: Tries) -> Script[Trip]:
            if tries.number:  # a lock that was waited for long enough
                return Trip(left=settled)
            left: list[SettleRequest] = []
            lost = yield from settle_if_held(settled, left=left, patience=patience)
            return Trip(lost=lost, left=left)

        return await self._core.store.run_async(script)

    def _exchange(self, settled: Sequence[SettleRequest], wish: ClaimRequest) -> Script[Trip]:
        asked_at = monotonic()  # of this try: the lease can't have begun earlier
        lost: list[SettleRequest] = []
        jobs: list[Job] = []
        left: list[SettleRequest] | None = [] if self._core.store.traits.locks_gates else None
        if not wish.limit:
            lost = yield from settle_if_held(settled, left=left)
        elif not settled:
            jobs = yield from take(wish)
        else:
            lost, jobs = yield from exchange(settled, wish, left=left)
        return Trip(lost, self._core.holdings(jobs, asked_at), left or [])

    def _wish(self, places: int, line: Line | None, marks: Sequence[Mark]) -> ClaimRequest:
        registry = self._core.registry
        return ClaimRequest(
            worker=self._name,
            lease=USUAL_LEASE,
            leases=registry.leases,
            limit=places,
            queues=self._queues if line is None else [line[0]],
            kinds=list(registry.tasks) if line is None else [line[1]],
            marks=marks,
        )


SHARE = 10
LONGEST = 1.0  # seconds


class Marks:
    """The last job claimed in each line, while that is worth knowing."""

    def __init__(self, *, pay: bool) -> None:
        self._pay = pay
        self._lines: dict[tuple[str, str], Mark] = {}
        self._until = 0.0

    def get(self) -> list[Mark]:
        """What the next claim may be told; nothing when it is time to look from the beginning."""
        return list(self._lines.values()) if monotonic() < self._until else []

    def ended(self, jobs: Sequence[Job], *, full: bool, told: Sequence[Mark], took: float) -> None:
        """A claim took these jobs, in this order, in so many seconds; `full` when there may be more."""
        if not full or not self._pay:
            self._until = 0.0
            return
        if not told:
            self._lines, self._until = {}, monotonic() + min(SHARE * took, LONGEST)
        for line, job in {(job.queue, job.kind): job for job in jobs}.items():
            self._lines[line] = Mark(*line, job.priority, job.run_at, job.id)
