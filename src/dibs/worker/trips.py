"""The worker's round trips: settle what is done and take what fits, in one commit."""

from collections.abc import Sequence
from typing import NamedTuple

from dibs import operations
from dibs.claims import Holding
from dibs.clock import monotonic
from dibs.contract import Mark
from dibs.core import Core
from dibs.engines.trouble import Tries
from dibs.jobs import Job
from dibs.operations import Patience, Settled, Wish
from dibs.options import DEFAULT_LEASE
from dibs.scripts import Script
from dibs.settings import lease_micros

USUAL_LEASE = lease_micros(DEFAULT_LEASE)

Done = tuple[Holding, Settled]
Line = tuple[str, str]  # a queue and a kind


class Trip(NamedTuple):
    """What came of one."""

    lost: Sequence[Settled] = ()
    """Settlements that were refused: the claim was no longer ours."""
    taken: Sequence[Holding] = ()
    """New claims."""
    left: Sequence[Settled] = ()
    """Settlements that can't be made yet: an open transaction has their gate locked."""


class Trips:
    """One worker's way to the store and back."""

    def __init__(self, core: Core, name: str, queues: list[str] | None) -> None:
        self._core = core
        self._name = name
        self._queues = queues

    async def exchange(
        self,
        settled: Sequence[Settled],
        places: int,
        *,
        line: Line | None = None,
        marks: Sequence[Mark] = (),
    ) -> Trip:
        """Settle these, take up to so many jobs: of all lines or only of this one, from these marks on."""
        wish = self._wish(places, None if settled else line, marks)
        return await self._core.store.run_async(lambda _: self._exchange(settled, wish))

    async def settle(self, settled: Sequence[Settled], patience: Patience) -> Trip:
        """Only settle, as long as no gate is locked for longer than this patience lasts."""

        def script(tries: Tries) -> Script[Trip]:
            if tries.number:  # a lock that was waited for long enough
                return Trip(left=settled)
            left: list[Settled] = []
            lost = yield from operations.settle_if_held(settled, left=left, patience=patience)
            return Trip(lost=lost, left=left)

        return await self._core.store.run_async(script)

    def _exchange(self, settled: Sequence[Settled], wish: Wish) -> Script[Trip]:
        asked_at = monotonic()  # of this try: the lease can't have begun earlier
        lost: list[Settled] = []
        jobs: list[Job] = []
        left: list[Settled] | None = [] if self._core.store.traits.locks_gates else None
        if not wish.limit:
            lost = yield from operations.settle_if_held(settled, left=left)
        elif not settled:
            jobs = yield from operations.take(wish)
        else:
            lost, jobs = yield from operations.exchange(settled, wish, left=left)
        return Trip(lost, self._core.holdings(jobs, asked_at), left or [])

    def _wish(self, places: int, line: Line | None, marks: Sequence[Mark]) -> Wish:
        registry = self._core.registry
        return Wish(
            worker=self._name,
            lease=USUAL_LEASE,
            leases=registry.leases,
            limit=places,
            queues=self._queues if line is None else [line[0]],
            kinds=list(registry.tasks) if line is None else [line[1]],
            marks=marks,
        )
