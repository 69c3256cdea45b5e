"""What the doctor found lately: examined once for all browsers, and never while a page waits for it long."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from dibs.app.dibs import Dibs
from dibs.clock import monotonic
from dibs.doctor.facts import Finding, Level
from dibs.errors import DibsError

RECENT = 60.0  # seconds
WAIT = 0.2


class Checkup:
    """The doctor's last findings in one process."""

    def __init__(self, app: Dibs) -> None:
        self._app = app
        self._found: list[Finding] | None = None
        self._at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def recent(self) -> list[Finding] | None:
        """Return findings of the last minute; None while the first examination still goes on."""
        if self._found is None or self._at < monotonic() - RECENT:
            self._begin()
        if self._found is None and self._task is not None:
            await asyncio.wait([self._task], timeout=WAIT)
        return self._found

    async def fresh(self) -> list[Finding]:
        """Return the findings of now."""
        found = await self._app.doctor()
        self._found, self._at = found, monotonic()
        return found

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._at = monotonic()
            self._task = asyncio.create_task(self._examine(), name="dibs-checkup")

    async def _examine(self) -> None:
        with suppress(DibsError):  # the page itself says that the store is away
            await self.fresh()


def icon_of(findings: Sequence[Finding]) -> str:
    levels = {finding.level for finding in findings}
    return "bad" if Level.problem in levels else "warn" if Level.warning in levels else "ok"


def worth_saying(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level in (Level.warning, Level.problem)]
