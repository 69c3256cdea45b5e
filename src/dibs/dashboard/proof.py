"""A run of `dibs verify` from the page: one at a time, and its lines are kept for all browsers."""

import asyncio
from collections.abc import AsyncIterator, Callable

from dibs.errors import Refused

MOST_LINES = 200
Verify = Callable[[], AsyncIterator[str]]
"""Run the check and yield what it prints, line by line."""


class Proof:
    """The last run of the check in this process."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._task: asyncio.Task[None] | None = None
        self.lines: list[str] = []

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self) -> None:
        """Start a run; `Refused` while there is one."""
        if self.is_running:
            raise Refused("the check is running already")
        self.lines = []
        self._task = asyncio.create_task(self._run(), name="dibs-verify")

    async def _run(self) -> None:
        try:
            async for line in self._verify():
                self.lines = [*self.lines, line][-MOST_LINES:]
        except OSError as error:
            self.lines = [*self.lines, f"it could not be run: {error}"]
