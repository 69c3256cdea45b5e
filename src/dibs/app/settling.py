"""Settlements that are asked for at the same moment go to the store together.

`await asyncio.gather(*(claim.succeed() for claim in claims))` is one statement and one commit, not
one per claim: whatever is asked for in one turn of the event loop is sent when that turn ends.
"""

import asyncio
from typing import TYPE_CHECKING

from dibs.operations.settle import SettleRequest, lease_lost, settle_if_held

if TYPE_CHECKING:
    from dibs.engines.store import Store

Waiting = list[tuple[SettleRequest, "asyncio.Future[None]"]]


class Settler:
    """Gathers the settlements of one turn of a loop, and sends them as one operation."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._waiting: dict[asyncio.AbstractEventLoop, Waiting] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def settle(self, one: SettleRequest) -> None:
        """Settle if the claim still holds its job, else `LeaseLost`."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        if loop not in self._waiting:
            self._waiting[loop] = []
            loop.call_soon(self._send, loop)
        self._waiting[loop].append((one, answered))
        await answered

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        task = loop.create_task(self._settle_together(self._waiting.pop(loop)))
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits has it already; asyncio need not print it, too

    async def _settle_together(self, waiting: Waiting) -> None:
        settlements = [one for one, _ in waiting]
        try:
            lost = await self._store.run_async(lambda _: settle_if_held(settlements))
        except BaseException as error:
            for _, answered in waiting:
                if not answered.done():
                    answered.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for one, answered in waiting:
            if answered.done():
                continue
            if any(one is other for other in lost):
                answered.set_exception(lease_lost(one.id, one.token))
            else:
                answered.set_result(None)
