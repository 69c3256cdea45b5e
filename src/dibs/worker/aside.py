"""Settlements that can't be made yet: somebody's open transaction has their train or slot locked.

A caller that enqueues onto a train within a transaction of its own keeps the train until it commits. A turn
waits for nobody there: what it could not settle is put aside, and asked for again until it is settled, apart
from the turns. Meanwhile its lease is kept, and the worker goes on with everything else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from dibs.claims import Holding
from dibs.events import log
from dibs.operations import Patience, Settled
from dibs.worker.trips import Done
from dibs.worker.vigils import Vigil, Waiting


@dataclass(slots=True)
class Parcel(Waiting):
    """All that waits at one gate, in order."""

    gate: str
    done: list[Done] = field(default_factory=list)

    def without(self, sent: Collection[UUID]) -> "Parcel":
        """The same without these settlements, if more has come since they were sent."""
        return replace(self, done=[(held, one) for held, one in self.done if one.id not in sent])


# Sends these settlements: in all "none" of them is waited for, or a "short" time. Answers what is left.
Settle = Callable[[list[Done], Patience], Awaitable[Collection[Settled]]]


class Aside:
    """What one worker has put aside."""

    def __init__(self, settle: Settle, ended: Callable[["asyncio.Task[None]"], None]) -> None:
        self._settle = settle
        self._parcels: dict[str, Parcel] = {}
        self._vigil = Vigil("dibs-aside", self._waiting, self._ask, ended)

    def __bool__(self) -> bool:
        return bool(self._parcels)

    def _waiting(self) -> Collection[Parcel]:
        return self._parcels.values()

    def open(self) -> None:
        self._vigil.open()

    def put(self, done: Sequence[Done], left: Collection[Settled]) -> list[Done]:
        """Keep what is left of a turn; answer the rest of it."""
        if not left:
            return list(done)
        late = {one.id for one in left}
        for held, one in done:
            if one.id in late:
                self._parcel(held).done.append((held, one))
        self._vigil.begin()
        return [(held, one) for held, one in done if one.id not in late]

    def _parcel(self, held: Holding) -> Parcel:
        gate = _gate(held)
        return self._parcels.setdefault(gate, Parcel(gate))

    async def close(self) -> list[Done]:
        """Ask no more; what is left is the caller's."""
        await self._vigil.close()
        return self.take()

    def take(self) -> list[Done]:
        parcels, self._parcels = self._parcels.values(), {}
        return [one for parcel in parcels for one in parcel.done]

    # -- asking again ---------------------------------------------------------------------------

    async def _ask(self) -> None:
        """All of them without waiting, and the first with a little patience: each is that in turn.

        For a gate where many come and go is never free to who does not wait for it; and one that is locked
        for long must not keep us from the others.
        """
        if len(self._parcels) > 1:
            await self._try(list(self._parcels.values()), "none")
        if self._parcels:
            await self._try([next(iter(self._parcels.values()))], "short")

    async def _try(self, parcels: Sequence[Parcel], patience: Patience) -> None:
        done = [one for parcel in parcels for one in parcel.done]
        left = await self._settle(done, patience)
        settled = {one.id for _, one in done} - {one.id for one in left}
        for parcel in parcels:
            del self._parcels[parcel.gate]
            if (rest := parcel.without(settled)).done:
                self._parcels[parcel.gate] = rest  # behind those that were not tried
                _mention(rest)


def _mention(parcel: Parcel) -> None:
    if parcel.is_to_be_told():
        held, _ = parcel.done[0]
        log.warning(
            "job %s has run and can't be settled: for %.0f s somebody's open transaction has locked %s "
            "(or that of a follow-up job); its lease is kept, and other jobs go on",
            held.job.id,
            parcel.age,
            parcel.gate,
        )


def _gate(held: Holding) -> str:
    job = held.job
    if job.train is not None:
        return f"the train {job.train!r}"
    if job.slot is not None:
        return f"the slot {job.slot!r}"
    return f"the gate of job {job.id}" if job.unique is None else f"the unique key {job.unique!r}"
