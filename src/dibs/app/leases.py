"""Renew leases while the work goes on, and report a claim as lost in time when that fails.

One thread watches the clock for all kept claims of an app; another, started for each heartbeat, talks to the
store, so a store that hangs can't keep the first from giving a claim up before its lease ends. Neither runs
on an event loop: a handler that blocks the loop keeps its job.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from dibs.clock import SECOND, monotonic
from dibs.errors import DibsError
from dibs.events import log
from dibs.operations.settle import LateWrite, Renewal, record_refusals, renew

if TYPE_CHECKING:
    from dibs.app.claims import ClaimState
    from dibs.engines.store import Store

# Called, from a thread, with a claim that was lost or asked to stop.
Tell = Callable[["ClaimState"], object]

BEATS_PER_LEASE = 3
MARGIN = 0.1  # of the lease: given up this long before the store may take the job back
LINGER = 1.0  # seconds the watch stays around without work, so short claims don't start threads


class KeptClaim:
    """A claim that is being kept, with the times at which something is due."""

    __slots__ = ("deadline", "held", "lease", "look_since", "next_beat", "tell")

    def __init__(self, held: "ClaimState", lease: int, tell: Tell) -> None:
        self.held = held
        self.lease = lease
        self.tell = tell
        self.look_since = 0.0
        self.beaten(held.asked_at)

    def beaten(self, sent_at: float) -> None:
        self.deadline = self.held.good_until = sent_at + self._seconds * (1 - MARGIN)
        # A renewal that was sent before `look` was called may have missed what it is to find.
        seen = self.look_since <= sent_at
        self.next_beat = sent_at + self._seconds / BEATS_PER_LEASE if seen else sent_at

    def missed(self) -> None:
        self.next_beat = monotonic() + self._seconds / 10

    @property
    def _seconds(self) -> float:
        return self.lease / SECOND


class LeaseKeeper:
    """The claims of an app that are renewed, all due ones of one lease length in one statement."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._kept: dict[tuple[UUID, int], KeptClaim] = {}
        self._newest: dict[UUID, KeptClaim] = {}
        self._watch: threading.Thread | None = None
        self._beat: threading.Thread | None = None
        self._closing = False
        self._wake_at = 0.0

    def keep(self, held: "ClaimState", lease: int, tell: Tell) -> None:
        """Renew this claim from now on; `tell` is called (from a thread) when it is lost or asked to stop."""
        self.keep_all([KeptClaim(held, lease, tell)])

    def keep_all(self, claims: Sequence[KeptClaim]) -> None:
        """Keep many claims: a busy worker keeps and drops thousands of them in a second."""
        if not claims:
            return
        self._mind_fork()
        with self._changed:
            self._closing = False
            for kept in claims:
                self._add(kept)
            if self._watch is None or not self._watch.is_alive():
                self._watch = threading.Thread(target=self._watching, name="dibs-leases", daemon=True)
                self._watch.start()
            elif min(kept.next_beat for kept in claims) < self._wake_at:
                self._changed.notify_all()  # else it wakes early enough; most claims end before that

    def _add(self, kept: KeptClaim) -> None:
        id, kept.held.is_kept = kept.held.job.id, True
        older = self._newest.get(id)
        if older is not None and older.held is not kept.held:
            self._lose(older)  # it was swept, and this is the claim after it
        self._kept[kept.held.key] = self._newest[id] = kept

    def _mind_fork(self) -> None:
        """Start anew in a forked process: it has no threads, and must not keep its parent's claims."""
        if os.getpid() != self._pid:
            self._start_over()

    def drop(self, *claims: "ClaimState") -> None:
        self._mind_fork()
        with self._changed:
            for held in claims:
                held.good_until = float("inf")  # settled, perhaps in an open transaction, which decides now
                kept = self._kept.pop(held.key, None)
                if kept is not None and self._newest.get(held.job.id) is kept:
                    del self._newest[held.job.id]

    def renewed(self, held: "ClaimState", renewal: Renewal) -> None:
        """Note what another statement returned for a claim; pass on a cancel that was asked for."""
        self._mind_fork()
        with self._changed:
            kept = self._kept.get(held.key)
            news = renewal.cancel_reason is not None and held.cancel_reason is None
            held.renewed(renewal)
            if news and kept is not None:
                _tell(kept)

    def lose(self, held: "ClaimState") -> None:
        """Give up a claim that another statement found no longer held."""
        self._mind_fork()
        with self._changed:
            if (kept := self._kept.get(held.key)) is not None:
                self._lose(kept)

    def look(self, helds: Iterable["ClaimState"]) -> None:
        """Renew these claims at once, to learn whether they were asked to stop."""
        self._mind_fork()
        with self._changed:
            for held in helds:
                if (kept := self._kept.get(held.key)) is not None:
                    kept.next_beat = kept.look_since = monotonic()
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in (self._watch, self._beat):
            if thread is not None and thread is not threading.current_thread():
                thread.join(timeout=5)

    def _watching(self) -> None:
        idle_since = monotonic()
        with self._changed:
            while not self._closing:
                now = monotonic()
                idle_since = now if self._kept else idle_since
                if now - idle_since >= LINGER:
                    self._watch = None
                    return
                self._give_up_late_ones(now)
                self._start_beat(now)
                pause = self._pause(now)
                self._wake_at = now + pause
                self._changed.wait(timeout=pause)

    def _pause(self, now: float) -> float:
        if not self._kept:
            return LINGER / 2
        beating = self._beat is not None and self._beat.is_alive()
        due = [
            kept.deadline if beating else min(kept.next_beat, kept.deadline) for kept in self._kept.values()
        ]
        return min(max(min(due) - now, 0.001), 1.0)

    def _give_up_late_ones(self, now: float) -> None:
        for kept in [kept for kept in self._kept.values() if kept.deadline <= now]:
            self._lose(kept)

    def _start_beat(self, now: float) -> None:
        if self._beat is not None and self._beat.is_alive():
            return
        due = [kept for kept in self._kept.values() if kept.next_beat <= now]
        if not due:
            return
        beat = threading.Thread(target=self._beating, args=(due,), name="dibs-beat", daemon=True)
        try:
            beat.start()
        except RuntimeError:
            log.exception("no thread could be started to renew leases; it is tried again")
            for kept in due:
                kept.missed()
        else:
            self._beat = beat

    def _beating(self, due: list[KeptClaim]) -> None:
        by_lease: defaultdict[int, list[KeptClaim]] = defaultdict(list)
        for kept in due:
            by_lease[kept.lease].append(kept)
        for lease, group in by_lease.items():
            self._renew(lease, group)
        with self._changed:
            # Say that this heartbeat is over: the watching thread may wake before this one has really ended
            # (on 3.13 it nearly always does), and would wait for a heartbeat that does not start.
            self._beat = None
            self._changed.notify_all()

    def _renew(self, lease: int, group: list[KeptClaim]) -> None:
        claims = [kept.held.key for kept in group]
        sent_at = monotonic()
        try:
            renewals = self._store.run(lambda _: renew(claims, lease))
        except Exception as error:  # whatever it is: no heartbeat must ever be the last
            if not isinstance(error, DibsError):
                log.exception("leases could not be renewed; they are tried again")
            for kept in group:
                kept.missed()
            return
        with self._changed:
            for kept in group:
                self._note(kept, renewals.get(kept.held.key), sent_at)
        if lost := [kept.held for kept in group if kept.held.lost and kept.held.key not in renewals]:
            self._record(lost)

    def _record(self, lost: "Sequence[ClaimState]") -> None:
        """Record with their jobs that these were not renewed; an error of this ends no heartbeat."""
        writes = [LateWrite(held.job.id, held.token, held.job.worker, "renew") for held in lost]
        with suppress(Exception):
            self._store.run(lambda _: record_refusals(writes))

    def _note(self, kept: KeptClaim, renewal: Renewal | None, sent_at: float) -> None:
        if self._kept.get(kept.held.key) is not kept:
            return
        if renewal is None and kept.held.is_settling:
            kept.missed()  # gone by our own settlement, perhaps: its sender will learn
            return
        if renewal is None:
            self._lose(kept)
            return
        if renewal.lease_until > kept.held.lease_until:
            kept.beaten(sent_at)
        else:  # not renewed, as a transaction had locked the row; or renewed for longer by hand
            kept.missed()
        news = renewal.cancel_reason is not None and kept.held.cancel_reason is None
        kept.held.renewed(renewal)
        if news:
            _tell(kept)

    def _lose(self, kept: KeptClaim) -> None:
        self._kept.pop(kept.held.key, None)
        if self._newest.get(kept.held.job.id) is kept:
            del self._newest[kept.held.job.id]
        kept.held.give_up()
        _tell(kept)


def _tell(kept: KeptClaim) -> None:
    """Report a change of a claim; one that can't be reported, as its loop is closed, costs no other lease."""
    try:
        kept.tell(kept.held)
    except Exception:
        log.exception("a change of the claim on job %s could not be reported", kept.held.job.id)
