"""Die at a chosen point, as a process that is killed does, and see what becomes of the jobs.

The point is found by looking at the questions that are put to the store. From then on nothing reaches it any
more: nobody settles, nobody renews.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from dibs.app.dibs import Dibs
from dibs.app.sync import SyncDibs
from dibs.engines.retries import Tries
from dibs.engines.store import Operation, Store
from dibs.errors import BadRequest, StoreUnavailable
from dibs.operations.scripts import Rows, Script, Step
from dibs.testing.stores import placed

T = TypeVar("T")

POINTS = tuple(
    f"{when}_{what}" for what in ("enqueue", "claim", "progress", "settle") for when in ("before", "after")
)
OWN_THREADS = ("dibs-leases", "dibs-beat", "dibs-later")  # where dibs itself talks to the store
CLAIMS = frozenset({"claim", "claim_job", "claim_within_limits", "exchange"})


class Crashed(BaseException):
    """The process under test died here. Not an Exception, which code could take for a failed attempt."""


@contextmanager
def crash_at(app: Dibs | SyncDibs, point: str, *, nth: int = 1) -> Iterator[None]:
    """Whatever uses the app in this block dies the `nth` time it comes to this point; the test goes on.

    The store is left as by a killed process. A block that never comes to the point fails the test.
    """
    if point not in POINTS:
        raise BadRequest(f"there is no point {point!r} to crash at; there are {', '.join(POINTS)}")
    doomed = _Doomed(app._core.store, point, nth)
    with placed(app._core, cast(Store, doomed)):
        try:
            yield
        except* Crashed:
            pass
    if not doomed.dead:
        passed = ", ".join(doomed.passed) or "none at all"
        times = "" if nth == 1 else f" {nth} times"
        raise AssertionError(f"nothing came to {point!r}{times}; the points that were passed: {passed}")


class _Doomed:
    """A store that stops answering for good at one point. All else is left to the store it stands for."""

    def __init__(self, store: Store, point: str, nth: int) -> None:
        self._store = store
        self._point = point
        self._left = nth
        self.passed: dict[str, None] = {}
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def run(self, operation: Operation[T], within: Any = None) -> T:
        background = threading.current_thread().name in OWN_THREADS
        return self._store.run(self._watched(operation, background), within)

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        return await self._store.run_async(self._watched(operation), within)

    def _watched(self, operation: Operation[T], background: bool = False) -> Operation[T]:
        def watched(tries: Tries) -> Script[T]:
            script = operation(tries)
            try:
                step = next(script)
                while True:
                    self._meet("before", _points(step, None), background)
                    rows = yield step
                    self._meet("after", _points(step, rows), background)
                    step = script.send(rows)
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                script.close()

        return watched

    def _meet(self, when: str, whats: list[str], background: bool) -> None:
        for what in whats:
            self._pass(f"{when}_{what}")
        if self.dead and background:
            # A thread that renews dies with its process; here it must end without a report of its own.
            raise StoreUnavailable(f"this process died at {self._point}, as the test wanted")
        if self.dead:
            raise Crashed(f"the process under test died at {self._point}")

    def _pass(self, point: str) -> None:
        self.passed[point] = None
        if point == self._point:
            self._left -= 1
            self.dead = self.dead or self._left <= 0


def _points(step: Step, rows: Rows | None) -> list[str]:
    """What a step is called here: an exchange settles and claims; a claim that got nothing was none."""
    whats = [step.question] if step.question in ("enqueue", "progress") else []
    if step.question in ("settle", "exchange") and step.params["settlements"]:
        whats.append("settle")
    if step.question in CLAIMS and (rows is None or any(row["id"] is not None for row in rows)):
        whats.append("claim")
    return whats
