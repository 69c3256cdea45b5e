"""Settlements of a worker, from the end of an attempt until the store has it and subscribers know of it."""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from dibs.app.callbacks import CallbackQueue, PendingEvent
from dibs.app.claims import ClaimState
from dibs.app.state import AppState
from dibs.clock import SECOND
from dibs.jobs.states import Released
from dibs.operations.settle import Patience, SettleRequest
from dibs.worker.exchange import EndedAttempt, Exchange, Exchanged
from dibs.worker.open_transactions import LockedSettlements, OpenCompletions
from dibs.worker.state import WorkerState
from dibs.worker.upkeep import MinuteCounters


class Settlements:
    """The attempts that have ended: not sent yet, or waiting for an open transaction."""

    def __init__(
        self, core: AppState, worker: str, exchange: Exchange, state: WorkerState, minutes: MinuteCounters
    ) -> None:
        self._core = core
        self._minutes = minutes
        self._worker = worker
        self._exchange = exchange
        self._state = state
        self._ended: list[EndedAttempt] = []
        self._locked = LockedSettlements(self._send_locked, state.task_ended)
        self.completions = OpenCompletions(
            core, rolled_back=self._add_and_wake, committed=self._committed, task_ended=state.task_ended
        )
        self.count = 0

    def open(self) -> None:
        self.callbacks = CallbackQueue(self._core.callbacks, self._core.store)
        self._unsubscribe: Callable[[], None] = lambda: None
        if self._core.callbacks.want("lost"):  # claims are lost in other threads, too
            subscriber = self.callbacks.listen_for(self._worker)
            self._unsubscribe = self._core.events.subscribe(subscriber, ["lost"])
        self._locked.open()
        self.completions.open()

    # -- before they are sent -------------------------------------------------------------------

    def add(self, held: ClaimState, settlement: SettleRequest) -> None:
        self._ended.append((held, settlement))

    def release(self, claims: Iterable[ClaimState]) -> None:
        """Give back jobs that were never begun."""
        self._ended += [(held, held.settled_by(Released())) for held in claims]

    @property
    def unsent(self) -> int:
        return len(self._ended)

    @property
    def are_waiting(self) -> bool:
        """Whether some wait for an open transaction."""
        return bool(self._locked or self.completions)

    def take(self) -> list[EndedAttempt]:
        """Return all that are to be sent now."""
        ended, self._ended = self._ended, []
        for held, _ in ended:
            held.is_settling = True
        return ended

    def put_back(self, ended: list[EndedAttempt]) -> None:
        """Send these again in the next turn: the store could not be reached."""
        self._ended = ended + self._ended

    # -- after they are sent --------------------------------------------------------------------

    def sent(self, ended: Sequence[EndedAttempt], result: Exchanged) -> bool:
        """Note what became of these; return whether their follow-up jobs may be ready."""
        if not ended:
            return False
        over = self._locked.add(ended, result.locked)
        self._note(over, result.lost)
        return any(one.children for _, one in over)

    def _note(self, over: Sequence[EndedAttempt], lost: Sequence[SettleRequest]) -> None:
        self._core.keeper.drop(*(held for held, _ in over))
        lost_ones = set(map(id, lost))
        self._minutes.count([each for each in over if id(each[1]) not in lost_ones] if lost else over)
        self.count += len(over) - len(lost)
        for held, one in over:
            if id(one) in lost_ones:
                held.give_up()
            else:
                held.note_settled(one)
                if one.delay is not None:
                    self._state.upkeep.within(one.delay / SECOND)  # it is due then, without a hint
        if self._core.callbacks.are_there:
            self.callbacks.tell(held.event(one) for held, one in over if id(one) not in lost_ones)

    async def _send_locked(self, ended: list[EndedAttempt], wait: Patience) -> Sequence[SettleRequest]:
        """Settle outside a turn what a turn found locked; return what is still locked."""
        result = await self._exchange.settle([one for _, one in ended], wait)
        locked = {one.id for one in result.locked}
        self._note([(held, one) for held, one in ended if one.id not in locked], result.lost)
        if len(locked) < len(ended):
            self._expect_work()
        return result.locked

    def _add_and_wake(self, held: ClaimState, settlement: SettleRequest) -> None:
        self.add(held, settlement)
        self._state.changed()

    def _committed(self, held: ClaimState, otherwise: SettleRequest) -> None:
        self._minutes.count([(held, replace(otherwise, settled_as="succeeded"))])
        self.callbacks.tell([PendingEvent("succeeded", held.job.id, held.token)])
        self._expect_work()

    def _expect_work(self) -> None:
        """Claim again: no hint announced the jobs that a gate has let go since."""
        self._state.work.expect()
        self._state.changed()

    # -- the end --------------------------------------------------------------------------------

    async def stop_waiting(self) -> None:
        """Wait for open transactions no longer: what is still locked is sent once more in the next turn."""
        await self.completions.close()
        self._ended = await self._locked.close() + self._ended

    def drop_locked(self) -> None:
        """Renew the leases of what is still locked no longer; a sweep takes these jobs back."""
        self._core.keeper.drop(*(held for held, _ in self._locked.take()))

    async def close(self) -> None:
        self._unsubscribe()
        await self.stop_waiting()

    def drop_all(self) -> None:
        """Renew the leases of what could not be settled no longer."""
        self._core.keeper.drop(*(held for held, _ in self._ended))
