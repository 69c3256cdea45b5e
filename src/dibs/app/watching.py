"""One thread per app that polls what is watched, for `app.watch` on both faces, and the polls of `app.wait`.

However many watchers there are, it is one poll, a few times a second while something changes and once a
second while nothing does. It takes a connection only for the poll; a waiting watcher has none.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dibs.clock import id_millis, monotonic
from dibs.errors import DibsError, NotFound, StoreUnavailable
from dibs.events import Event, Events, log
from dibs.jobs.ids import first_id_at, parse_id
from dibs.jobs.job import Job
from dibs.jobs.states import JobState
from dibs.operations.watch import Change, WatchPoll, WatchTarget, changes_of, poll_once

if TYPE_CHECKING:
    from dibs.engines.store import Store


SHORTEST_PAUSE, SHORT_PAUSE, SLOWEST_PAUSE = 0.05, 0.25, 1.0  # seconds between two polls
SHARE, HURRIED_SHARE = 20, 4  # a poll may take one part in so many of the time
MOST_PENDING = 1_000  # changes that wait for a slow watcher
LINGER = 1.0  # seconds the thread stays around without watchers
RECENT = 15_000  # milliseconds: jobs made this long ago are searched among the finished ones, too
HEARD = ("enqueued", "claimed", "succeeded", "retried", "failed", "snoozed", "released", "cancelled", "lost")


class Subscription:
    """One watcher, with the changes that it has not yet taken, of each job only the latest."""

    def __init__(self, target: WatchTarget, wake: Callable[[], object], *, whole: bool = True) -> None:
        self.target = target
        self.whole = whole
        """It gets all jobs as they are first; else only what changes from when it has `begun`."""
        self.is_new = True
        self.begun = False
        """The first poll that included this watcher is done; changes are relative to it."""
        self.fell_behind = False
        """Too many changes waited; they were dropped, and all jobs come again as they are."""
        self.interrupted = False
        """It is over because the app closes, not because all jobs have finished."""
        self._wake = wake
        self._lock = threading.Lock()
        self._pending: dict[UUID, Change] = {}
        self._error: BaseException | None = None
        self._over = False

    def begin(self, changes: Sequence[Change]) -> None:
        """Put the jobs as they are now, if there are any, and wake the watcher."""
        self.put(changes)
        self.begun = True
        self._wake()

    def put(self, changes: Sequence[Change]) -> None:
        with self._lock:
            behind = len(self._pending)
            self._pending |= {change.id: change for change in changes}
            if behind and len(self._pending) > MOST_PENDING:
                self._pending.clear()
                self.fell_behind = self.is_new = True
        if changes:
            self._wake()

    def end(self, error: BaseException | None = None) -> None:
        with self._lock:
            self._over, self._error = True, error
        self._wake()

    def take(self) -> tuple[list[Change], bool]:
        """Return what is new, and whether it is over; raise what ended it once everything was taken."""
        with self._lock:
            changes, self._pending = list(self._pending.values()), {}
            if not changes and self._error is not None:
                raise self._error
            return changes, self._over and self._error is None


class Watching:
    """The watchers of an app, and the thread that polls for them."""

    def __init__(self, store: "Store", events: Events) -> None:
        self._store = store
        self._events = events
        self.polls = 0
        """How often the store was polled so far."""
        self.at_end: set[Callable[[], object]] = set()
        """Called when all watchers end: other streams of this process must end then, too."""
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._subscriptions: set[Subscription] = set()
        self._targets: dict[tuple[str, Any], WatchTarget] = {}
        self._thread: threading.Thread | None = None
        self._closing = self._hurry = self._away = False

    @contextmanager
    def watched(
        self, target: WatchTarget, wake: Callable[[], object], *, whole: bool = True
    ) -> Iterator[Subscription]:
        """Watch until the block ends; `wake` is called, from a thread, when there may be changes to take."""
        self._mind_fork()
        with self._changed:
            self._closing = False
            shared = self._targets.setdefault((target.sort, target.key), target)
            subscription = Subscription(shared, wake, whole=whole)
            self._subscriptions.add(subscription)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="dibs-watching", daemon=True)
                self._thread.start()
            self._wake_up()
        try:
            yield subscription
        finally:
            self._drop(subscription)

    def close(self) -> None:
        """End all watchers and the thread."""
        self._mind_fork()
        self.end_all()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def end_all(self) -> None:
        """End all watchers: this process is about to end."""
        for end in list(self.at_end):
            end()
        for subscription in list(self._subscriptions):
            subscription.interrupted = True
            subscription.end()

    @property
    def watchers(self) -> int:
        return len(self._subscriptions)

    def _drop(self, subscription: Subscription) -> None:
        self._mind_fork()
        with self._changed:
            self._subscriptions.discard(subscription)
            target, key = subscription.target, (subscription.target.sort, subscription.target.key)
            has_watchers = any(each.target is target for each in self._subscriptions)
            if self._targets.get(key) is target and not has_watchers:
                del self._targets[key]
            if not self._subscriptions:
                self._wake_up()

    def _mind_fork(self) -> None:
        """Start anew in a forked process: it has no threads and no watchers."""
        if os.getpid() != self._pid:
            self._start_over()

    # -- in the thread --------------------------------------------------------------------------

    def _watch(self) -> None:
        unsubscribe = self._events.subscribe(self._hear, HEARD)
        pace = PollInterval()
        try:
            while self._is_wanted():
                pace.begin()
                changed = self._poll_once()
                self._rest(*pace.pauses(changed, self._is_busy()))
        except BaseException as error:  # no watcher must wait for ever
            for subscription in list(self._subscriptions):
                subscription.end(error)
        finally:
            unsubscribe()

    def _is_wanted(self) -> bool:
        with self._changed:
            if not self._subscriptions and not self._closing:
                self._changed.wait(LINGER)
            if self._closing or not self._subscriptions:
                self._thread = None
                return False
            self._hurry = False
            return True

    def _poll_once(self) -> bool:
        with self._changed:
            subscriptions = list(self._subscriptions)
            new_watchers = [each for each in subscriptions if each.is_new]
        targets = list({each.target: None for each in subscriptions})
        since = first_id_at(id_millis() - RECENT)
        new_targets = {each.target for each in new_watchers if each.whole}
        try:
            self.polls += 1
            poll = self._store.run(lambda _: poll_once(targets, new_targets, since))
        except StoreUnavailable as error:
            if not self._away:
                log.warning("what is watched can't be read, trying again: %s", error)
            self._away = True
            return False
        except DibsError as error:
            for subscription in subscriptions:
                subscription.end(error)
                self._drop(subscription)
            return False
        self._away = False
        return self._put(subscriptions, set(new_watchers), poll)

    def _put(
        self, subscriptions: Sequence[Subscription], new_watchers: set[Subscription], poll: WatchPoll
    ) -> bool:
        changes = {target: changes_of(target, poll) for target in poll.fingerprints}
        for subscription in subscriptions:
            target = subscription.target
            if subscription in new_watchers:
                subscription.is_new = False
                self._begin(subscription, poll)
            else:
                subscription.put(changes[target])
            if target.sort != "queue" and target.all_finished:
                subscription.end(None if poll.snapshots.get(target, True) else _not_found(target))
                self._drop(subscription)
        return any(changes.values()) or bool(new_watchers)

    def _begin(self, subscription: Subscription, poll: WatchPoll) -> None:
        jobs = poll.snapshots[subscription.target] if subscription.whole else ()
        subscription.begin([Change(name="now", id=job.id, job=job) for job in jobs])

    def _is_busy(self) -> bool:
        """Return whether a watched job runs, and so may report progress at any time."""
        return any(
            fields[0] == JobState.running
            for target in self._targets.copy().values()
            for fields in target.known.values()
        )

    # -- rest and hints -------------------------------------------------------------------------

    def _rest(self, least: float, most: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, least)
            self._changed.wait_for(lambda: self._closing or self._hurry, most - least)

    def _hear(self, event: Event) -> None:
        """Poll at once: something happened to a watched job in this very process."""
        if any(self._is_watched(job.id, job.pipeline_id, job.queue) for job in event.jobs):
            with self._changed:
                self._wake_up()

    def _is_watched(self, id: UUID, pipeline_id: UUID | None, queue: str) -> bool:
        keys = (("job", id), ("pipeline", pipeline_id), ("queue", queue), ("queue", None))
        return any(key in self._targets for key in keys)

    def _wake_up(self) -> None:
        self._hurry = True
        self._changed.notify_all()


def wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    """Wake a watcher on this loop, from another thread."""
    with suppress(RuntimeError):  # the loop has just ended
        loop.call_soon_threadsafe(news.set)


def _not_found(target: WatchTarget) -> NotFound:
    assert isinstance(target.key, UUID)
    return NotFound(target.key, target.sort)


class PollInterval:
    """The pause between two polls: shorter while something changes, longer where polling costs much."""

    def __init__(self) -> None:
        self._began = 0.0
        self._pause = SHORTEST_PAUSE

    def begin(self) -> None:
        self._began = monotonic()

    def pauses(self, changed: bool, busy: bool) -> tuple[float, float]:
        """Return the least seconds to pause, even when woken, and the most."""
        cost = monotonic() - self._began
        longest = SHORT_PAUSE if busy else SLOWEST_PAUSE
        self._pause = SHORTEST_PAUSE if changed else min(self._pause * 1.5, longest)
        least = max(SHORTEST_PAUSE, cost * HURRIED_SHARE)
        return least, max(self._pause, least, cost * SHARE)


FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5  # seconds between two polls


class JobWait:
    """The polls of one `app.wait`."""

    def __init__(self, id: UUID | str, timeout: float | None) -> None:
        self._id = parse_id(id)
        self._deadline = None if timeout is None else monotonic() + timeout
        self._timeout = timeout
        self._pause = FIRST_PAUSE

    def finished(self, job: Job | None) -> Job | None:
        """Return the job once it has finished; `TimeoutError` when it should have by now."""
        if job is None:
            raise NotFound(self._id)
        if job.is_finished:
            return job
        if self._deadline is not None and monotonic() >= self._deadline:
            raise TimeoutError(f"job {job.id} is still {job.state} after {self._timeout} s")
        return None

    def pause(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 1.5, LONGEST_PAUSE)
        return pause if self._deadline is None else max(min(pause, self._deadline - monotonic()), 0)
