"""The store of a test: an empty one for a while, time that passes at once, a crash at a chosen point.

A store's clock can't be set (ADR 5), so `VirtualClock` makes everything in it older instead. Times that are
read of a job change with it: `run_at` of a job that is due in an hour is fifty minutes ahead after ten.

`crash_at` finds its point among the questions to the store. From there on none reaches the store any more: no
claim is settled or renewed, as after a kill.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, cast

from dibs.app import state
from dibs.app.dibs import Dibs, SyncDibs
from dibs.app.state import AppState
from dibs.engines.retries import Tries
from dibs.engines.store import Operation, Store, connect
from dibs.errors import BadRequest, Refused, StoreUnavailable
from dibs.jobs.ids import worker_name
from dibs.operations import upkeep
from dibs.operations.scripts import Rows, Script, Step
from dibs.operations.upkeep import Swept
from dibs.settings import Duration, micros
from dibs.text import without_password

AnyApp = TypeVar("AnyApp", bound=Dibs | SyncDibs)
T = TypeVar("T")

POINTS = tuple(
    f"{when}_{what}" for what in ("enqueue", "claim", "progress", "settle") for when in ("before", "after")
)
OWN_THREADS = ("dibs-leases", "dibs-beat", "dibs-later")  # threads of dibs itself
CLAIMS = frozenset({"claim", "claim_job", "claim_within_limits", "exchange"})


# -- another store ------------------------------------------------------------------------------


@contextmanager
def fresh_store(app: AnyApp, url: str = "memory://") -> Iterator[AnyApp]:
    """Put this app on an empty store for the time of the block; its registered jobs stay.

    `memory://` needs nothing. Give `sqlite:///…` with a new file where the code under test passes `within=`.
    Example: `with fresh_store(app): await send_receipt.enqueue(42)`"""
    store = connect(replace(app._core.settings, url=url))
    if not store.traits.migrates_itself:
        raise BadRequest(
            f"{url!r} is not for fresh_store: use memory:// or the file of a SQLite. "
            "To test on a server, set $DIBS_URL to a database that only the tests use"
        )
    try:
        with using_store(app._core, store):
            yield app
    finally:
        store.close()


def forbid_stores() -> Callable[[], None]:
    """Let no app made from now on reach the store that it names, unless that is in memory; return the undo.

    On the store of `fresh_store` everything works.
    """
    there = vars(state)
    there["connect"] = lambda settings: cast("Store", _Forbidden(connect(settings), settings.url))

    def undo() -> None:
        there["connect"] = connect

    return undo


class _Forbidden:
    """A store that can be closed, and not be used."""

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url

    def __getattr__(self, name: str) -> Any:
        if self._url.startswith("memory:") or name in ("traits", "close", "close_async", "leave_loop"):
            return getattr(self._store, name)
        raise Refused(
            f"dibs_forbid_store is set, and this test uses {without_password(self._url)}, the store that the "
            "app names: take the fixture dibs_app, or fresh_store(app)"
        )


@contextmanager
def using_store(core: AppState, store: Store) -> Iterator[None]:
    """Let both faces of this app use that store for the time of the block."""
    before = dict(vars(core))
    core.use(store)
    try:
        yield
    finally:
        core.keeper.close()
        vars(core).update(before)


# -- time ---------------------------------------------------------------------------------------


def virtual_time(app: Dibs | SyncDibs) -> "VirtualClock":
    """Return a clock that lets time pass in this app's store. Example: `clock = virtual_time(app)`"""
    return VirtualClock(app._core)


class VirtualClock:
    """The time of one store, advanced by a test. Example: `virtual_time(app).advance(minutes=10)`"""

    def __init__(self, core: AppState) -> None:
        self._core = core

    def advance(
        self,
        duration: Duration = 0,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> Swept:
        """Let this much time pass, do the upkeep that is due then, and return what that changed.

        Refused while workers of other processes use the store: their time would pass as well.
        """
        parts = {"weeks": weeks, "days": days, "hours": hours, "minutes": minutes}
        more = timedelta(**parts, seconds=seconds, milliseconds=milliseconds)
        span = micros(duration, what="duration") + micros(more, what="duration")
        if span <= 0:
            raise BadRequest("time only goes forward: give advance() more than 0, like advance(minutes=10)")
        self._refuse_other_workers()
        self._core.store.run(lambda _: upkeep.age(span))
        return self._core.swept(self._core.store.run(lambda _: upkeep.sweep_and_mend()))

    def _refuse_other_workers(self) -> None:
        here = self._core.store.run(lambda _: upkeep.workers(self._core.silence))
        others = [worker.name for worker in here if not worker.name.startswith(worker_name())]
        if others:
            raise Refused(
                f"{', '.join(others)} works on this store, too, and its time would pass as well: "
                "let time pass only in a store that no other process uses"
            )


# -- crashes ------------------------------------------------------------------------------------


class Crashed(BaseException):
    """The death of the process under test; not an Exception. Example: `except BaseException: raise`"""


@contextmanager
def crash_at(app: Dibs | SyncDibs, point: str, *, nth: int = 1) -> Iterator[None]:
    """Crash what uses the app in this block when it reaches this point for the `nth` time.

    The store is left as by a killed process, and the test continues. A block that never reaches the point
    fails the test.
    Example: `with crash_at(app, "before_settle"): await run_pending(app)`"""
    if point not in POINTS:
        raise BadRequest(f"there is no point {point!r} to crash at; there are {', '.join(POINTS)}")
    crashing = _CrashingStore(app._core.store, point, nth)
    with using_store(app._core, cast(Store, crashing)):
        try:
            yield
        except* Crashed:
            pass
    if not crashing.dead:
        passed = ", ".join(crashing.passed) or "none at all"
        times = "" if nth == 1 else f" {nth} times"
        raise AssertionError(f"nothing reached {point!r}{times}; the points that were passed: {passed}")


class _CrashingStore:
    """A store that fails for good from one point on; before that it passes everything to the real one."""

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
                    self._reach("before", _points(step, None), background)
                    rows = yield step
                    self._reach("after", _points(step, rows), background)
                    step = script.send(rows)
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                script.close()

        return watched

    def _reach(self, when: str, whats: list[str], background: bool) -> None:
        for what in whats:
            self._pass(f"{when}_{what}")
        if self.dead and background:
            # A thread that renews would die with its process; here it has to end without a traceback.
            raise StoreUnavailable(f"this process died at {self._point}, as the test wanted")
        if self.dead:
            raise Crashed(f"the process under test died at {self._point}")

    def _pass(self, point: str) -> None:
        self.passed[point] = None
        if point == self._point:
            self._left -= 1
            self.dead = self.dead or self._left <= 0


def _points(step: Step, rows: Rows | None) -> list[str]:
    """Return the points of a step: an exchange settles and claims; a claim without jobs is no point."""
    whats = [step.question] if step.question in ("enqueue", "progress") else []
    if step.question in ("settle", "exchange") and step.params["settlements"]:
        whats.append("settle")
    if step.question in CLAIMS and (rows is None or any(row["id"] is not None for row in rows)):
        whats.append("claim")
    return whats
