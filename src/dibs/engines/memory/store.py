"""The store of one process."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from dibs.engines.hints import Listeners
from dibs.engines.memory.engine import Memory
from dibs.engines.retries import Tries
from dibs.engines.store import Operation, WithoutTables
from dibs.errors import UnsupportedConnection
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step, run

T = TypeVar("T")


class MemoryStore(WithoutTables):
    """A store in this process, for any thread and both faces."""

    traits = Memory.traits

    def __init__(self) -> None:
        self._engine = Memory()
        self._listeners = Listeners()

    def run(self, operation: Operation[T], within: Any = None) -> T:
        self._refuse(within)
        return run(operation(Tries()), self._execute)

    def _execute(self, step: Step) -> Rows:
        rows = self._engine.execute(step)
        self._listeners.announce(step, rows)
        return rows

    async def listen(self, hear: Callable[[str], None]) -> None:
        with self._listeners.listening(hear):
            hear(STOP_HINT)  # jobs may have been asked to stop before we listened
            await asyncio.Event().wait()

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        return self.run(operation, within)

    def close(self) -> None: ...
    async def close_async(self) -> None: ...
    async def leave_loop(self) -> None: ...

    def _refuse(self, within: Any) -> None:
        if within is not None:
            raise UnsupportedConnection(
                "memory:// has no transactions to work within; leave within= out, "
                "or use sqlite:///, postgresql:// or mysql://"
            )
