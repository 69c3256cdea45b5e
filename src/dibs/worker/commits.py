"""Completions that are not known to be committed: `ctx.complete(within=…)`, and the handler has ended.

Its transaction may be rolled back and leave the job to us, or be open still, for as long as its owner likes.
While it is, it has the job's row locked, and nobody waits for that: a renewal passes over locked rows, so one
that pushes the lease says that the job is ours again, and only then is it settled, as every other.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from dibs import operations
from dibs.callbacks import Fate
from dibs.claims import Holding
from dibs.clock import monotonic
from dibs.core import Core
from dibs.errors import DibsError, StoreUnavailable
from dibs.events import log
from dibs.leases import Kept, Tell
from dibs.operations import Settled, Standing
from dibs.running import still_ours
from dibs.states import JobState
from dibs.worker.trips import Done
from dibs.worker.vigils import Vigil, Waiting


@dataclass(slots=True)
class Completion(Waiting):
    """What is to be settled if its transaction comes to nothing."""

    held: Holding
    one: Settled
    lease: int
    until: datetime | None = None
    """When its lease ended at the last look; the holder may not have heard of its last beat."""

    def is_free(self, standing: Standing) -> bool:
        """Its lease could be pushed: nobody has its row locked any more."""
        before, self.until = self.until, standing.lease_until
        return before is not None and before < standing.lease_until


class Commits:
    """Those of one worker. What has come to nothing is handed over, what was committed is told."""

    def __init__(
        self,
        core: Core,
        *,
        hand_over: Callable[[Done], None],
        committed: Callable[[Fate], None],
        tell: Tell,
        ended: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        self._core = core
        self._hand_over = hand_over
        self._committed = committed
        self._tell = tell
        self._open: dict[Holding, Completion] = {}
        self._vigil = Vigil("dibs-commits", self._waiting, self._look, ended)

    def __bool__(self) -> bool:
        return bool(self._open)

    def _waiting(self) -> Collection[Completion]:
        return self._open.values()

    def open(self) -> None:
        self._vigil.open()

    async def mind(self, held: Holding, one: Settled) -> None:
        """See that this is settled, unless the job has succeeded; who calls need not wait for it."""
        completion = Completion(held, one, self._core.lease_of(held.job))
        with suppress(StoreUnavailable, asyncio.CancelledError):  # then it is not known, and looked at again
            if await self._is_over(completion):
                return
        if self._vigil.is_open:
            self._open[held] = completion
            self._vigil.begin()
        else:
            _give_up(completion)

    async def close(self) -> None:
        """Look once more, and give up what is still open."""
        await self._vigil.close()
        with suppress(DibsError):
            await self._look()
        given_up, self._open = self._open, {}
        for completion in given_up.values():
            _give_up(completion)

    # -- looking --------------------------------------------------------------------------------

    async def _look(self) -> None:
        by_lease: defaultdict[int, list[Completion]] = defaultdict(list)
        for completion in self._open.values():
            by_lease[completion.lease].append(completion)
        for lease, group in by_lease.items():
            await self._look_at(group, lease)

    async def _look_at(self, group: list[Completion], lease: int) -> None:
        claims, sent_at = [completion.held.key for completion in group], monotonic()
        standing = await self._core.store.run_async(lambda _: operations.renew(claims, lease))
        for completion in group:
            await self._note(completion, standing.get(completion.held.key), sent_at)

    async def _note(self, completion: Completion, standing: Standing | None, sent_at: float) -> None:
        if standing is not None and not completion.is_free(standing):
            _mention(completion)
        elif standing is not None or await self._is_over(completion):
            is_ours = self._open.pop(completion.held, None) is not None
            if is_ours and standing is not None:
                self._settle(completion, standing, sent_at)

    def _settle(self, completion: Completion, standing: Standing, sent_at: float) -> None:
        """As every other from now on; somebody may have its gate locked, so its lease is kept again."""
        held = completion.held
        held.stands(standing)
        kept = Kept(held, completion.lease, self._tell)
        kept.beaten(sent_at)
        self._core.keeper.keep_all([kept])
        self._hand_over((held, completion.one))

    async def _is_over(self, completion: Completion) -> bool:
        """Whether the job is ours no longer, by our own success or because it was lost."""
        held = completion.held
        job = await self._core.store.run_async(self._core.get(held.job.id))
        if job is None:  # deleted, as a success may be at once: nobody knows
            return True
        if still_ours(job, held):
            completion.until = job.lease_until
            return False
        if (job.state, job.token) == (JobState.succeeded, held.token):
            self._committed(Fate("succeeded", job.id, held.token))
        else:
            held.is_lost()
        return True


def _mention(completion: Completion) -> None:
    if completion.is_to_be_told():
        log.warning(
            "job %s has run and was completed within a transaction that has not ended for %.0f s; until then "
            "its lease can't be kept, and other jobs go on",
            completion.held.job.id,
            completion.age,
        )


def _give_up(completion: Completion) -> None:
    log.warning(
        "job %s was completed within a transaction that is not committed, and its worker ends: should it be "
        "rolled back, the job's lease runs out, as if its worker had died",
        completion.held.job.id,
    )
