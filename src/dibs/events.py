"""The one seam where things that happened are told: nobody logs in the middle of the work.

Code calls `events.claimed(...)`; subscribers turn events into log lines, metrics, spans. What is told
here has happened in the store already, and a subscriber that raises changes nothing of it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dibs.jobs import Job

log = logging.getLogger("dibs")

NAMES = ("enqueued", "claimed", "settled", "lost", "swept")


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, and to which jobs."""

    name: str
    jobs: Sequence[Job] = ()
    about: dict[str, Any] = field(default_factory=dict)


Subscriber = Callable[[Event], None]


class Events:
    """The events of one app."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = [log_line]

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Hear every event from now on; call the answer to stop."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def enqueued(self, jobs: Sequence[Job]) -> None:
        self._tell(Event("enqueued", jobs))

    def claimed(self, jobs: Sequence[Job]) -> None:
        if jobs:
            self._tell(Event("claimed", jobs))

    def settled(self, job: Job, settled_as: str) -> None:
        self._tell(Event("settled", [job], {"as": settled_as}))

    def lost(self, job: Job) -> None:
        self._tell(Event("lost", [job]))

    def swept(self, **moved: int) -> None:
        if any(moved.values()):
            self._tell(Event("swept", (), dict(moved)))

    def _tell(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                log.exception("a subscriber failed at the event %r", event.name)


def log_line(event: Event) -> None:
    """Quiet by default: losing a lease is a warning, everything else is for debugging."""
    level = logging.WARNING if event.name == "lost" else logging.DEBUG
    if not log.isEnabledFor(level):
        return
    for job in event.jobs:
        about = "".join(f"  {name}={value}" for name, value in event.about.items())
        log.log(level, "%s %s  %s  job=%s%s", _SIGNS[event.name], job.queue, job.kind, job.id, about)
    if not event.jobs:
        log.log(level, "%s %s", _SIGNS[event.name], event.about)


_SIGNS = {"enqueued": "+", "claimed": "→", "settled": "✓", "lost": "✗ lease lost", "swept": "↻"}
