"""The one place where things that happened are reported: no other code logs in the middle of the work.

Code calls `events.claimed(...)`; subscribers turn events into log lines, metrics, spans. What is reported
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
    """The events of one app. An event without subscribers costs next to nothing: it is not even made."""

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Subscriber]] = {name: [] for name in NAMES}

    def subscribe(self, subscriber: Subscriber, names: Sequence[str] = NAMES) -> Callable[[], None]:
        """Call the subscriber with these events, or every one; return a function that ends it."""
        for name in names:
            self._subscribers[name].append(subscriber)

        def stop() -> None:
            for name in names:
                self._subscribers[name].remove(subscriber)

        return stop

    def enqueued(self, jobs: Sequence[Job]) -> None:
        if self._wanted("enqueued"):
            self._report("enqueued", Event("enqueued", jobs))

    def claimed(self, jobs: Sequence[Job]) -> None:
        if jobs and self._wanted("claimed"):
            self._report("claimed", Event("claimed", jobs))

    def settled(
        self,
        job: Job,
        settled_as: str,
        *,
        since: float | None = None,
        delay: int | None = None,
        errors: str | None = None,
    ) -> None:
        """Report a settlement: held `since` (monotonic), due again after `delay` (µs), `errors` in JSON."""
        if not self._wanted(settled_as):
            return
        seconds = None if since is None else monotonic() - since
        about = {"as": settled_as, "seconds": seconds, "delay": delay, "errors": errors}
        self._report(settled_as, Event("settled", [job], about))

    def lost(self, job: Job) -> None:
        self._report("lost", Event("lost", [job]))

    def swept(self, **moved: int) -> None:
        if any(moved.values()):
            self._report("swept", Event("swept", (), dict(moved)))

    def acted(self, verb: str, about: str, by: str | None) -> None:
        """Report an act of an operator, for the audit log. `about` is a job's id or a queue's name."""
        self._report("acted", Event("acted", (), {"verb": verb, "about": about, "by": by}))

    def _wanted(self, name: str) -> bool:
        return bool(self._subscribers[name]) or log.isEnabledFor(LEVELS[name])

    def _report(self, name: str, event: Event) -> None:
        for subscriber in (log_line, *self._subscribers[name]):
            try:
                subscriber(event)
            except Exception:
                log.exception("a subscriber failed at the event %r", event.name)


def log_line(event: Event) -> None:
    """Log one record per job, quiet by default; its `line` has the fields for programs."""
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
        said = line(event.name, job, event.about)
        log.log(level, "%s", said, extra={"line": said})
