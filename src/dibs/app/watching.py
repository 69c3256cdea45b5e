"""One thread per app that looks at what is watched, and tells all who watch: `app.watch`, on both faces.

However many watch, it is one look, a few times a second while something goes on and once a second while
nothing does. It takes a connection for the moment of the look; those who wait hold none.
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
from dibs.operations.watch import Change, WatchPoll, WatchTarget, look, tell

if TYPE_CHECKING:
    from dibs.engines.store import Store


QUICKEST_LOOK, QUICK_LOOK, SLOWEST_LOOK = 0.05, 0.25, 1.0  # seconds between two looks
SHARE, HURRIED_SHARE = 20, 4  # a look may take one part in so many of the time
MOST_PENDING = 1_000  # jobs that wait for a slow reader
LINGER = 1.0  # seconds the thread stays around when nobody watches
RECENT = 15_000  # milliseconds: jobs made this long ago are looked for among the finished ones, too
HEARD = ("enqueued", "claimed", "succeeded", "retried", "failed", "snoozed", "released", "cancelled", "lost")


class Subscription:
    """One who watches: what was not yet taken waits here, of each job only the latest."""

    def __init__(self, topic: WatchTarget, wake: Callable[[], object], *, whole: bool = True) -> None:
        self.topic = topic
        self.whole = whole
        """It wants to be told how things stand; else only what changes from when it has `begun`."""
        self.is_new = True
        self.begun = False
        """What is told from now on is seen against a look that this one was there for."""
        self.fell_behind = False
        """Too much was waiting; it was dropped, and how things stand is told anew."""
        self.interrupted = False
        """It is over because the app closes, not because nothing more will happen."""
        self._wake = wake
        self._lock = threading.Lock()
        self._pending: dict[UUID, Change] = {}
        self._error: BaseException | None = None
        self._over = False

    def begin(self, changes: Sequence[Change]) -> None:
        """How things stand, be it that there is nothing."""
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
        """What is new, and whether that was all; raises what ended it once everything was taken."""
        with self._lock:
            changes, self._pending = list(self._pending.values()), {}
            if not changes and self._error is not None:
                raise self._error
            return changes, self._over and self._error is None


class Watching:
    """Who watches what."""

    def __init__(self, store: "Store", events: Events) -> None:
        self._store = store
        self._events = events
        self.looks = 0
        """How often the store was looked at so far."""
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._subscriptions: set[Subscription] = set()
        self._topics: dict[tuple[str, Any], WatchTarget] = {}
        self._thread: threading.Thread | None = None
        self._closing = self._hurry = self._away = False

    @contextmanager
    def watched(
        self, topic: WatchTarget, wake: Callable[[], object], *, whole: bool = True
    ) -> Iterator[Subscription]:
        """`wake` is called, from a thread, whenever there may be something to take."""
        self._mind_fork()
        with self._changed:
            self._closing = False
            shared = self._topics.setdefault((topic.sort, topic.key), topic)
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
        """All who watch are told that it is over."""
        self._mind_fork()
        self.end_all()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def end_all(self) -> None:
        """All who watch now are told that it is over: this process is about to end."""
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
            topic = subscription.topic
            if self._topics.get(key := (topic.sort, topic.key)) is topic and not self._has_watchers(topic):
                del self._topics[key]
            if not self._subscriptions:
                self._wake_up()

    def _has_watchers(self, topic: WatchTarget) -> bool:
        return any(each.topic is topic for each in self._subscriptions)

    def _mind_fork(self) -> None:
        """A child has none of its parent's threads, and nobody who watches."""
        if os.getpid() != self._pid:
            self._start_over()

    # -- in the thread --------------------------------------------------------------------------

    def _watch(self) -> None:
        deaf = self._events.subscribe(self._hear, HEARD)
        pace = PollInterval()
        try:
            while self._is_wanted():
                pace.looks()
                changed = self._look_once()
                self._rest(*pace.pauses(changed, self._is_busy()))
        except BaseException as error:  # whoever waits must not wait for ever
            for subscription in list(self._subscriptions):
                subscription.end(error)
        finally:
            deaf()

    def _is_wanted(self) -> bool:
        with self._changed:
            if not self._subscriptions and not self._closing:
                self._changed.wait(LINGER)
            if self._closing or not self._subscriptions:
                self._thread = None
                return False
            self._hurry = False
            return True

    def _look_once(self) -> bool:
        with self._changed:
            subscriptions = list(self._subscriptions)
            newcomers = [each for each in subscriptions if each.is_new]
        topics = list({each.topic: None for each in subscriptions})
        since = first_id_at(id_millis() - RECENT)
        new_ones = {each.topic for each in newcomers if each.whole}
        try:
            self.looks += 1
            seen = self._store.run(lambda _: look(topics, new_ones, since))
        except StoreUnavailable as error:
            if not self._away:
                log.warning("what is watched can't be looked at, trying again: %s", error)
            self._away = True
            return False
        except DibsError as error:
            for subscription in subscriptions:
                subscription.end(error)
                self._drop(subscription)
            return False
        self._away = False
        return self._tell(subscriptions, set(newcomers), seen)

    def _tell(
        self, subscriptions: Sequence[Subscription], newcomers: set[Subscription], seen: WatchPoll
    ) -> bool:
        changes = {topic: tell(topic, seen) for topic in seen.marks}
        for subscription in subscriptions:
            topic = subscription.topic
            if subscription in newcomers:
                subscription.is_new = False
                self._welcome(subscription, seen)
            else:
                subscription.put(changes[topic])
            if topic.sort != "queue" and topic.all_finished:
                subscription.end(None if seen.snapshots.get(topic, True) else _not_found(topic))
                self._drop(subscription)
        return any(changes.values()) or bool(newcomers)

    def _welcome(self, subscription: Subscription, seen: WatchPoll) -> None:
        jobs = seen.snapshots[subscription.topic] if subscription.whole else ()
        subscription.begin([Change(name="now", id=job.id, job=job) for job in jobs])

    def _is_busy(self) -> bool:
        """Something that runs may tell how far it got at any time."""
        return any(
            mark[0] == JobState.running
            for topic in self._topics.copy().values()
            for mark in topic.known.values()
        )

    # -- rest and hints -------------------------------------------------------------------------

    def _rest(self, least: float, most: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, least)
            self._changed.wait_for(lambda: self._closing or self._hurry, most - least)

    def _hear(self, event: Event) -> None:
        """Something happened in this very process: no need to wait for the next look."""
        if any(self._is_watched(job.id, job.pipeline_id, job.queue) for job in event.jobs):
            with self._changed:
                self._wake_up()

    def _is_watched(self, id: UUID, pipeline_id: UUID | None, queue: str) -> bool:
        keys = (("job", id), ("pipeline", pipeline_id), ("queue", queue), ("queue", None))
        return any(key in self._topics for key in keys)

    def _wake_up(self) -> None:
        self._hurry = True
        self._changed.notify_all()


def wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    """From a thread: somebody on this loop has something to take."""
    with suppress(RuntimeError):  # the loop has just ended
        loop.call_soon_threadsafe(news.set)


def _not_found(topic: WatchTarget) -> NotFound:
    assert isinstance(topic.key, UUID)
    return NotFound(topic.key, topic.sort)


class PollInterval:
    """How long to rest between two looks: less while something happens, more where looking costs much."""

    def __init__(self) -> None:
        self._began = 0.0
        self._pause = QUICKEST_LOOK

    def looks(self) -> None:
        self._began = monotonic()

    def pauses(self, changed: bool, busy: bool) -> tuple[float, float]:
        """The least seconds, whoever is in a hurry, and the most."""
        cost = monotonic() - self._began
        longest = QUICK_LOOK if busy else SLOWEST_LOOK
        self._pause = QUICKEST_LOOK if changed else min(self._pause * 1.5, longest)
        least = max(QUICKEST_LOOK, cost * HURRIED_SHARE)
        return least, max(self._pause, least, cost * SHARE)


FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5  # seconds between two looks


class JobWait:
    """The looks of one call."""

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
