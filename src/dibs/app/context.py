"""What a handler may know and do while it runs: the `Context` that is passed to it, and its progress."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from dibs.clock import monotonic
from dibs.errors import DibsError, LeaseLost
from dibs.faces import AsyncFace, Call, Calls, SyncFace, ask, verb
from dibs.jobs.job import Job, NewJob
from dibs.operations.pipelines import parents_of

if TYPE_CHECKING:
    from dibs.app.claims import Claim, ClaimState
    from dibs.engines.store import Operation, Store
    from dibs.operations.settle import Renewal


class ContextVerbs:
    """The verbs of a context, declared once for both faces."""

    _stops: bool
    """Whether `progress` also raises when the handler should stop."""

    @property
    def _context(self) -> "Context":
        raise NotImplementedError

    @verb
    def parents(self) -> Calls[list[Job]]:
        """Return the jobs that this one waited for, in the order of `after=`, or its chaining job."""
        return (yield from self._context._parents())

    @verb
    def progress(self, fraction: float, message: str | None = None) -> Calls[None]:
        """Record how far the work got; call it as often as you like, the store hears twice a second.

        In plain functions, `ctx.sync.progress(…)` is also a `check()`: it raises when the handler is to stop.
        """
        yield from self._context._notes.note(fraction, message, stops=self._stops)

    @verb
    def complete(self, result: Any = None, *, within: Any) -> Calls[None]:
        """Succeed in your transaction: the job is done exactly when your data is."""
        yield from self._context._complete(result, within)

    @verb
    def fence(
        self, connection: Any, table: str, *, key: Any, column: str = "token", insert: bool = False
    ) -> Calls[None]:
        """Keep stale holders from writing to these rows, from now to the end of your transaction.

        The rows get this claim's token; `LeaseLost` if they have a later claim's already.
        """
        held = self._context._claim._held
        yield from held.fence(connection, table, key=key, column=column, insert=insert)


class Context(ContextVerbs, AsyncFace):
    """Passed to every handler that has a parameter annotated `Context`. Example: `await ctx.progress(0.5)`"""

    _stops = False

    def __init__(self, claim: "Claim", state: Any = None) -> None:
        self._claim = claim
        self._progress: ProgressNotes | None = None
        self.state = state
        self.children: list[NewJob] = []

    @property
    def _context(self) -> "Context":
        return self

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
        """Add jobs in the same commit as this one's success, or never."""
        self.children.extend(new_jobs)

    def _parents(self) -> Calls[list[Job]]:
        return (yield from ask(self._claim._held.core.store, lambda _: parents_of(self.job)))

    def _complete(self, result: Any, within: Any) -> Calls[None]:
        held = self._claim._held
        yield from held.send(held.settled_by(held.succeeded(result), self.children), within)

    @property
    def _notes(self) -> "ProgressNotes":
        """Made when first used: most jobs never say how far they are."""
        if self._progress is None:
            self._progress = ProgressNotes(self._claim._held)
        return self._progress


class SyncContext(ContextVerbs, SyncFace):
    """The sync face of a context, for plain functions. Example: `ctx.sync.progress(0.5)`"""

    _stops = True

    def __init__(self, context: Context) -> None:
        self._context_ = context

    @property
    def _context(self) -> Context:
        return self._context_


EVERY = 0.5  # seconds between two notes of one job
SHORTLY = 0.05  # seconds until another look at whether the note before has arrived
ALL = 1.0  # the fraction that is never made to wait

Note = tuple[float, str | None]


class ProgressNotes:
    """The notes of one claim, as they come in from its handler."""

    def __init__(self, held: "ClaimState") -> None:
        self._held = held
        self._lock = threading.Lock()
        self._waiting: Note | None = None
        self._sent_at = float("-inf")
        self._sent = 0.0
        self._sending = False
        self._over = False

    def note(self, fraction: float, message: str | None, *, stops: bool) -> Calls[None]:
        """Record it now, or soon; raise if the claim is lost or, where it `stops`, the handler is to stop."""
        check = self._held.check_stop if stops else self._held.check
        check()
        checked = self._held.check_progress(fraction, message)
        if (now := self._taken(fraction, checked)) is not None:
            try:
                self._heard((yield from ask(self._held.core.store, self._held.progress(*now))))
            finally:
                self._sending = False
        if stops:
            check()

    def finish(self) -> Calls[None]:
        """Write what still waits, before the job is settled: the handler has ended."""
        if (last := self._last()) is not None:
            store, operation = self._held.core.store, self._held.progress(*last)
            # A cancellation that comes now comes too late: what the handler did stands.
            with suppress(DibsError, asyncio.CancelledError):
                yield Call(store.run, partial(_run_shielded, store), (operation,))

    def _taken(self, fraction: float, message: str | None) -> Note | None:
        """Return the note for the caller to send; None when it waits, in place of the one before it."""
        with self._lock:
            if (
                self._held.settled
            ):  # completed in the handler's own transaction: there is nothing left to report
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
        """Send a note that waited, in a thread. A lost lease is reported as a heartbeat would report it."""
        with self._lock:
            if self._waiting is None or self._over or self._held.settled:
                return
            if self._sending:
                self._held.core.later.call(self._held.key, monotonic() + SHORTLY, self._write_late)
                return
            note = self._send(self._waiting)
        try:
            self._heard(self._held.core.store.run(self._held.progress(*note)))
        except LeaseLost:
            if not self._over:
                self._held.core.keeper.lose(self._held)
        except DibsError:
            pass  # the store is away: the lease is kept by its keeper, and a note may be missing
        finally:
            self._sending = False

    def _heard(self, renewal: "Renewal") -> None:
        self._held.core.keeper.renewed(self._held, renewal)

    def _last(self) -> Note | None:
        with self._lock:
            self._over, last = True, self._waiting
            self._waiting = None
            return None if self._held.settled or self._held.lost else last


async def _run_shielded(store: "Store", operation: "Operation[Renewal]") -> "Renewal":
    return await asyncio.shield(store.run_async(operation))


class DelayedCalls:
    """Functions to be called at a time, one after the other, in a thread that lives while there are any."""

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
        """Drop all calls and end the thread."""
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
