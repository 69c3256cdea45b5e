"""Keep leases alive while the work goes on, and say so in time when that fails.

One thread watches the clock for all kept claims of an app; another, started for each beat, talks to
the store, so a store that hangs can't keep the watch from giving a claim up before its lease ends.
Neither lives on an event loop: a handler that blocks the loop keeps its job.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from dibs.clock import SECOND, monotonic
from dibs.errors import DibsError
from dibs.events import log
from dibs.operations.settle import Renewal, renew

if TYPE_CHECKING:
    from dibs.app.claims import ClaimState
    from dibs.engines.store import Store

# Called, from a thread, with the claim whose standing has changed.
Tell = Callable[["ClaimState"], object]

BEATS_PER_LEASE = 3
MARGIN = 0.1  # of the lease: given up this long before the store may take the job back
LINGER = 1.0  # seconds the watch stays around without work, so short claims don't start threads


class KeptClaim:
    """A claim that is being kept, with the times at which something is due."""

    __slots__ = ("good_since", "held", "lease", "look_since", "next_beat", "tell")

    def __init__(self, held: "ClaimState", lease: int, tell: Tell) -> None:
        self.held = held
        self.lease = lease
        self.tell = tell
        self.good_since = held.asked_at
        self.next_beat = self.good_since + self._seconds / BEATS_PER_LEASE
        self.look_since = 0.0

    @property
    def deadline(self) -> float:
        return self.good_since + self._seconds * (1 - MARGIN)

    def beaten(self, sent_at: float) -> None:
        self.good_since = sent_at
        # An answer to what was asked before somebody told us to look may not hold the news yet.
        seen = self.look_since <= sent_at
        self.next_beat = sent_at + self._seconds / BEATS_PER_LEASE if seen else sent_at

    def missed(self) -> None:
        self.next_beat = monotonic() + self._seconds / 10

    @property
    def _seconds(self) -> float:
        return self.lease / SECOND


class LeaseKeeper:
    """Renews what it is told to keep, all due claims of one lease length in one statement."""

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
        """Renew this claim from now on; `tell` is called (from a thread) when its standing changes."""
        self.keep_all([KeptClaim(held, lease, tell)])

    def keep_all(self, claims: Sequence[KeptClaim]) -> None:
        """The same for many: a busy worker keeps and drops thousands of claims in a second."""
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
            self._lose(older)  # it was swept, and this is its successor
        self._kept[kept.held.key] = self._newest[id] = kept

    def _mind_fork(self) -> None:
        """A child has none of its parent's threads, and must not keep its parent's claims."""
        if os.getpid() != self._pid:
            self._start_over()

    def drop(self, *claims: "ClaimState") -> None:
        self._mind_fork()
        with self._changed:
            for held in claims:
                kept = self._kept.pop(held.key, None)
                if kept is not None and self._newest.get(held.job.id) is kept:
                    del self._newest[held.job.id]

    def renewed(self, held: "ClaimState", standing: Renewal) -> None:
        """What another statement heard of a claim; a cancel that was asked for is passed on."""
        self._mind_fork()
        with self._changed:
            kept = self._kept.get(held.key)
            news = standing.cancel_reason is not None and held.cancel_reason is None
            held.renewed(standing)
            if news and kept is not None:
                _tell(kept)

    def lose(self, held: "ClaimState") -> None:
        """Another statement heard that this claim is no longer held."""
        self._mind_fork()
        with self._changed:
            if (kept := self._kept.get(held.key)) is not None:
                self._lose(kept)

    def look(self, helds: Iterable["ClaimState"]) -> None:
        """Renew these at once instead of at their next beat, and so hear how they stand."""
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
            # Over by our own word: the watch that we wake may look before this thread has really ended
            # (on 3.13 it nearly always does), and would then wait for a beat that nobody starts.
            self._beat = None
            self._changed.notify_all()

    def _renew(self, lease: int, group: list[KeptClaim]) -> None:
        claims = [kept.held.key for kept in group]
        sent_at = monotonic()
        try:
            standing = self._store.run(lambda _: renew(claims, lease))
        except Exception as error:  # whatever it is: no beat must ever be the last
            if not isinstance(error, DibsError):
                log.exception("leases could not be renewed; they are tried again")
            for kept in group:
                kept.missed()
            return
        with self._changed:
            for kept in group:
                self._note(kept, standing.get(kept.held.key), sent_at)

    def _note(self, kept: KeptClaim, standing: Renewal | None, sent_at: float) -> None:
        if self._kept.get(kept.held.key) is not kept:
            return
        if standing is None and kept.held.is_settling:
            kept.missed()  # gone by our own settlement, perhaps: whoever sent it will hear
            return
        if standing is None:
            self._lose(kept)
            return
        if standing.lease_until > kept.held.lease_until:
            kept.beaten(sent_at)
        else:  # the row was locked by somebody: it was not pushed, so nothing may rely on it
            kept.missed()
        news = standing.cancel_reason is not None and kept.held.cancel_reason is None
        kept.held.renewed(standing)
        if news:
            _tell(kept)

    def _lose(self, kept: KeptClaim) -> None:
        self._kept.pop(kept.held.key, None)
        if self._newest.get(kept.held.job.id) is kept:
            del self._newest[kept.held.job.id]
        kept.held.is_lost()
        _tell(kept)


def _tell(kept: KeptClaim) -> None:
    """Who can't be told, as its loop is closed, costs nobody else the lease."""
    try:
        kept.tell(kept.held)
    except Exception:
        log.exception("nobody could be told how the claim on job %s stands", kept.held.job.id)
