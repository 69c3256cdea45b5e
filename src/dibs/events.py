"""The one seam where things that happened are told: nobody logs in the middle of the work.

Code calls `events.claimed(...)`; subscribers turn events into log lines, metrics, spans. What is told
here has happened in the store already, and a subscriber that raises changes nothing of it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dibs.clock import monotonic
from dibs.jobs.job import Job
from dibs.log_format import LEVELS, acted_line, line, swept_line

log = logging.getLogger("dibs")

# What one can subscribe to. An event named `settled` says in `about["as"]` which of the middle ones it was.
NAMES = (
    *("enqueued", "claimed"),
    *("succeeded", "retried", "failed", "snoozed", "released", "cancelled"),
    *("lost", "swept"),
    "acted",
)


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, and to which jobs."""

    name: str
    jobs: Sequence[Job] = ()
    about: dict[str, Any] = field(default_factory=dict)


Subscriber = Callable[[Event], None]


class Events:
    """The events of one app. An event that nobody wants costs next to nothing: it is not even made."""

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Subscriber]] = {name: [] for name in NAMES}

    def subscribe(self, subscriber: Subscriber, names: Sequence[str] = NAMES) -> Callable[[], None]:
        """Hear these events from now on, or every one; call the answer to stop."""
        for name in names:
            self._subscribers[name].append(subscriber)

        def stop() -> None:
            for name in names:
                self._subscribers[name].remove(subscriber)

        return stop

    def enqueued(self, jobs: Sequence[Job]) -> None:
        if self._wanted("enqueued"):
            self._tell("enqueued", Event("enqueued", jobs))

    def claimed(self, jobs: Sequence[Job]) -> None:
        if jobs and self._wanted("claimed"):
            self._tell("claimed", Event("claimed", jobs))

    def settled(
        self,
        job: Job,
        settled_as: str,
        *,
        since: float | None = None,
        delay: int | None = None,
        errors: str | None = None,
    ) -> None:
        """`since` when it was held (monotonic), after which `delay` it runs (µs), its `errors` (JSON)."""
        if not self._wanted(settled_as):
            return
        seconds = None if since is None else monotonic() - since
        about = {"as": settled_as, "seconds": seconds, "delay": delay, "errors": errors}
        self._tell(settled_as, Event("settled", [job], about))

    def lost(self, job: Job) -> None:
        self._tell("lost", Event("lost", [job]))

    def swept(self, **moved: int) -> None:
        if any(moved.values()):
            self._tell("swept", Event("swept", (), dict(moved)))

    def acted(self, verb: str, about: str, by: str | None) -> None:
        """A person did this by hand: for the audit log. `about` is a job's id or a queue's name."""
        self._tell("acted", Event("acted", (), {"verb": verb, "about": about, "by": by}))

    def _wanted(self, name: str) -> bool:
        return bool(self._subscribers[name]) or log.isEnabledFor(LEVELS[name])

    def _tell(self, name: str, event: Event) -> None:
        for subscriber in (log_line, *self._subscribers[name]):
            try:
                subscriber(event)
            except Exception:
                log.exception("a subscriber failed at the event %r", event.name)


def log_line(event: Event) -> None:
    """One record per job, quiet by default; its `line` has the fields for those who want more than text."""
    if event.name == "swept":
        level, words = swept_line(event.about)
        log.log(level, "%s", words, extra={"fields": {"event": "swept", **event.about}})
        return
    if event.name == "acted":
        fields = {"event": "acted", **event.about}
        log.log(LEVELS["acted"], "%s", acted_line(event.about), extra={"fields": fields})
        return
    level = LEVELS[event.about.get("as", event.name)]
    if not log.isEnabledFor(level):
        return
    for job in event.jobs:
        told = line(event.name, job, event.about)
        log.log(level, "%s", told, extra={"line": told})
