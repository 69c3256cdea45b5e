"""What waits for somebody's open transaction, and the task that looks at it until it waits no more.

How long that takes is up to a stranger: the longer it does, the more seldom is a look.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from dibs.clock import monotonic
from dibs.errors import StoreUnavailable

LEAST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between two looks
LONG = 5.0  # seconds after which somebody should hear of it


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Since when it waits, and whether somebody has heard of that."""

    since: float = field(default_factory=monotonic)
    is_told: bool = False

    @property
    def age(self) -> float:
        return monotonic() - self.since

    def is_to_be_told(self) -> bool:
        """Whether it waits for long; true once."""
        if self.is_told or self.age <= LONG:
            return False
        self.is_told = True
        return True


class Vigil:
    """One task at most: it begins with the first that waits, and ends with the last."""

    def __init__(
        self,
        name: str,
        waiting: Callable[[], Collection[Waiting]],
        look: Callable[[], Awaitable[None]],
        ended: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        self._name = name
        self._waiting = waiting
        self._look = look
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self.is_open = True

    def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def begin(self) -> None:
        """Look from now on, unless somebody does or nothing waits."""
        if self._task is None and self.is_open and self._waiting():
            self._task = asyncio.get_running_loop().create_task(self._keep(), name=self._name)
            self._task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        self._ended(task)
        if not task.cancelled() and task.exception() is None:
            self.begin()  # somebody may have come since the last look

    async def _keep(self) -> None:
        while self._waiting():
            with suppress(StoreUnavailable):  # the turns say so
                await self._look()
            if waiting := self._waiting():
                youngest = min(one.age for one in waiting)
                await asyncio.sleep(min(max(youngest / 10, LEAST_PAUSE), LONGEST_PAUSE))
