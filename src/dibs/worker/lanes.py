"""Handlers run in lanes: tasks that take one claim after another, for as long as there are any.

A task per job is the dearest thing about a short job. So one lane runs all that never wait for anything;
when a handler does wait, the next claim gets a lane of its own, and so all of them run at once. A lane that
was cancelled, or whose handler left something in its context variables, takes no further claim: what one
job did to its surroundings never reaches another.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context

from dibs.claims import Holding


class Lanes:
    """The claims of one worker that wait to be run or are running."""

    def __init__(self, run: Callable[[Holding], Awaitable[None]], ended: Callable[[], None]) -> None:
        self._run = run
        self._ended = ended
        self._waiting: deque[Holding] = deque()
        self._running: dict[Holding, asyncio.Task[None]] = {}
        self._newest: asyncio.Task[None] | None = None  # the loop alone would not keep it alive

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    def start(self, claims: Iterable[Holding]) -> None:
        self._waiting.extend(claims)
        self._open()

    def cancel(self, held: Holding) -> "asyncio.Task[None] | None":
        """Interrupt this claim's handler, if it has begun; the lane that ran it is answered."""
        lane = self._running.get(held)
        if lane is not None:
            lane.cancel()
        return lane

    def running(self) -> "list[tuple[Holding, asyncio.Task[None]]]":
        """The claims whose handlers have begun, each with the lane that runs it."""
        return list(self._running.items())

    def held(self) -> list[Holding]:
        return [*self._running, *self._waiting]

    def take_waiting(self) -> list[Holding]:
        """Those that have not begun; they never will."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def _open(self) -> None:
        """A lane, and when it has made its first step a look whether anybody still waits."""
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._newest = loop.create_task(self._lane(), name="dibs-lane")
            loop.call_soon(self._open)

    async def _lane(self) -> None:
        lane = asyncio.current_task()
        assert lane is not None
        fresh = copy_context()
        while self._waiting:
            held = self._waiting.popleft()
            self._running[held] = lane
            try:
                await self._run(held)
            finally:
                del self._running[held]
                self._ended()
            if lane.cancelling() or copy_context() != fresh:
                return
