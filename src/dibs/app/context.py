"""What a handler may know and do while it runs: the `Context` that is handed to it, and its progress."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dibs.clock import monotonic
from dibs.errors import DibsError, LeaseLost
from dibs.jobs.job import Job, NewJob

if TYPE_CHECKING:
    from dibs.app.claims import Claim, Holding
    from dibs.operations.settle import Renewal


class Context:
    """Handed to every handler that has a parameter annotated `Context`."""

    def __init__(self, claim: "Claim", state: Any = None) -> None:
        self._claim = claim
        self._progress: Progress | None = None
        self.state = state
        self.children: list[NewJob] = []

    @cached_property
    def sync(self) -> "SyncContext":
        """The same for plain functions, which can't await."""
        return SyncContext(self)

    @property
    def job(self) -> Job:
        return self._claim.job

    @property
    def token(self) -> int:
        """Greater for every later claim: pass it along to whatever must refuse a stale writer."""
        return self._claim.token

    @property
    def lost(self) -> bool:
        """True once this claim can no longer be sure to hold the job."""
        return self._claim.lost

    def check(self) -> None:
        """Raise when the handler should stop: `LeaseLost`, a cancel, its timeout, the end of its worker.

        Async handlers are cancelled at their next await; plain functions, which run in threads, call this.
        """
        self._claim._held.check_stop()

    def chain(self, *new_jobs: NewJob) -> None:
        """Jobs to be added in the same commit as this one's success, or never."""
        self.children.extend(new_jobs)

    async def parents(self) -> list[Job]:
        """The jobs that this one waited for, in the order of `after=`, or the one that chained it."""
        core = self._claim._held.core
        return await core.store.run_async(core.parents(self.job))

    def _parents_sync(self) -> list[Job]:
        core = self._claim._held.core
        return core.store.run(core.parents(self.job))

    async def progress(self, fraction: float, message: str | None = None) -> None:
        """Note how far the work got; call it as often as you like, the store hears twice a second."""
        await self._notes.note(fraction, message)

    async def complete(self, result: Any = None, *, within: Any) -> None:
        """Succeed in your transaction: the job is done exactly when your data is."""
        await self._claim.succeed(result, then=self.children, within=within)

    async def fence(
        self, connection: Any, table: str, *, key: Any, column: str = "token", insert: bool = False
    ) -> None:
        """Keep stale holders from writing to these rows, from now to the end of your transaction.

        The rows get this claim's token; `LeaseLost` if they have a later claim's already.
        """
        await self._claim.fence(connection, table, key=key, column=column, insert=insert)

    @property
    def _notes(self) -> "Progress":
        """Made when first used: most jobs never say how far they are."""
        if self._progress is None:
            self._progress = Progress(self._claim._held)
        return self._progress


class SyncContext:
    """The blocking face of a context: `ctx.sync.progress(…)` in a plain function."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def progress(self, fraction: float, message: str | None = None) -> None:
        """The same, and a `check()`: it raises when the handler should stop."""
        self._context._notes.note_sync(fraction, message)

    def parents(self) -> list[Job]:
        """The jobs that this one waited for, in the order of `after=`, or the one that chained it."""
        return self._context._parents_sync()

    def complete(self, result: Any = None, *, within: Any) -> None:
        """Succeed in your transaction: the job is done exactly when your data is."""
        claim = self._context._claim._blocking()
        claim.succeed(result, then=self._context.children, within=within)

    def fence(
        self, connection: Any, table: str, *, key: Any, column: str = "token", insert: bool = False
    ) -> None:
        """The same, through a connection that blocks."""
        claim = self._context._claim._blocking()
        claim.fence(connection, table, key=key, column=column, insert=insert)


EVERY = 0.5  # seconds between two notes of one job
SHORTLY = 0.05  # seconds until another look at whether the note before has arrived
ALL = 1.0  # the fraction that is never made to wait

Note = tuple[float, str | None]


class Progress:
    """The notes of one claim, as they come in from its handler."""

    def __init__(self, held: "Holding") -> None:
        self._held = held
        self._lock = threading.Lock()
        self._waiting: Note | None = None
        self._sent_at = float("-inf")
        self._sent = 0.0
        self._sending = False
        self._over = False

    async def note(self, fraction: float, message: str | None) -> None:
        """Note it now, or soon; `LeaseLost` once the claim is known to be lost."""
        self._held.check()
        checked = self._held.core.check_progress(fraction, message)
        if (now := self._taken(fraction, checked)) is not None:
            try:
                operation = self._held.core.progress(self._held, *now)
                self._heard(await self._held.core.store.run_async(operation))
            finally:
                self._sending = False

    def note_sync(self, fraction: float, message: str | None) -> None:
        """The same, blocking; it also raises when the handler should stop, as `ctx.check()` does."""
        self._held.check_stop()
        checked = self._held.core.check_progress(fraction, message)
        if (now := self._taken(fraction, checked)) is not None:
            try:
                operation = self._held.core.progress(self._held, *now)
                self._heard(self._held.core.store.run(operation))
            finally:
                self._sending = False
        self._held.check_stop()

    async def finish(self) -> None:
        """The handler has ended: write what still waits, before the job is settled."""
        if (last := self._last()) is not None:
            operation = self._held.core.progress(self._held, *last)
            # A cancellation that comes now comes too late: what the handler did stands.
            with suppress(DibsError, asyncio.CancelledError):
                await asyncio.shield(self._held.core.store.run_async(operation))

    def finish_sync(self) -> None:
        if (last := self._last()) is not None:
            with suppress(DibsError):
                self._held.core.store.run(self._held.core.progress(self._held, *last))

    def _taken(self, fraction: float, message: str | None) -> Note | None:
        """The note to be sent by the caller; None when it waits, in place of the one before it."""
        with self._lock:
            if self._held.settled:  # completed in the handler's own transaction: nothing is left to note
                return None
            earlier = None if self._waiting is None else self._waiting[1]
            note = (float(fraction), earlier if message is None else message)
            at = monotonic() if fraction == ALL and self._sent != ALL else self._sent_at + EVERY
            if self._sending or at > monotonic():
                self._waiting = note
                self._held.core.later.call(self._held.key, at, self._write_late)
                return None
            return self._send(note)

    def _send(self, note: Note) -> Note:
        self._waiting, self._sending = None, True
        self._sent, self._sent_at = note[0], monotonic()
        return note

    def _write_late(self) -> None:
        """In a thread. Nobody waits for it, so a lost lease is told as a failed heartbeat would tell it."""
        with self._lock:
            if self._waiting is None or self._over or self._held.settled:
                return
            if self._sending:
                self._held.core.later.call(self._held.key, monotonic() + SHORTLY, self._write_late)
                return
            note = self._send(self._waiting)
        try:
            operation = self._held.core.progress(self._held, *note)
            self._heard(self._held.core.store.run(operation))
        except LeaseLost:
            if not self._over:
                self._held.core.keeper.lose(self._held)
        except DibsError:
            pass  # the store is away: the keeper minds the lease, and a note may be missing
        finally:
            self._sending = False

    def _heard(self, standing: "Renewal") -> None:
        self._held.core.keeper.stands(self._held, standing)

    def _last(self) -> Note | None:
        with self._lock:
            self._over, last = True, self._waiting
            self._waiting = None
            return None if self._held.settled or self._held.lost else last


class Later:
    """Calls things at their time, one after the other, in a thread that lives while there are any."""

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._calls: dict[object, tuple[float, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None

    def call(self, key: object, at: float, call: Callable[[], None]) -> None:
        """Call this at that time, instead of what was to be called for the same key."""
        if os.getpid() != self._pid:
            self._start_over()
        with self._changed:
            self._calls[key] = (at, call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._calling, name="dibs-later", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """What was to be called is not called any more."""
        with self._changed:
            self._calls.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _calling(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next one that is due; None when there is none left."""
        with self._changed:
            while self._calls:
                key, (at, call) = min(self._calls.items(), key=lambda item: item[1][0])
                if (pause := at - monotonic()) <= 0:
                    del self._calls[key]
                    return call
                self._changed.wait(pause)
            self._thread = None
            return None
