"""Events of an outbox: one seam for log lines, metrics and alerts.

A subscriber is called with an `OutboxEvent` after the commit; an exception of a subscriber is only logged.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dibs.log_format import NOTICE, one_line
from dibs.outbox.messages import Message
from dibs.text import spoken

log = logging.getLogger("dibs.outbox")

NAMES = ("claimed", "published", "failed", "abandoned", "lost", "broker_down", "broker_up", "store_down")


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """Something that happened, and the messages it concerns. Example: `outbox.events.subscribe(print)`"""

    name: str
    messages: Sequence[Message] = ()
    about: dict[str, Any] = field(default_factory=dict)


Subscriber = Callable[[OutboxEvent], None]


class OutboxEvents:
    """The events of one outbox, counted by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event from now on; return a function that ends this."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def claimed(self, messages: Sequence[Message]) -> None:
        self._report(logging.DEBUG, OutboxEvent("claimed", messages))

    def published(self, messages: Sequence[Message], took: Sequence[float] = ()) -> None:
        """Report messages and, in `took`, the seconds that the broker needed for each."""
        self._report(logging.DEBUG, OutboxEvent("published", messages, {"took": took}))

    def failed(self, messages: Sequence[Message], error: str, seconds: float | None = None) -> None:
        self._report(logging.INFO, OutboxEvent("failed", messages, {"error": error, "seconds": seconds}))

    def abandoned(self, messages: Sequence[Message], error: str = "relay died") -> None:
        self._report(NOTICE, OutboxEvent("abandoned", messages, {"error": error}))

    def lost(self, messages: Sequence[Message]) -> None:
        self._report(logging.WARNING, OutboxEvent("lost", messages))

    def broker_down(self, broker: str, error: str, pause: float) -> None:
        self._away("broker_down", broker, error, pause)

    def store_down(self, broker: str, error: str, pause: float) -> None:
        self._away("store_down", broker, error, pause)

    def broker_up(self, broker: str) -> None:
        self._report(logging.INFO, OutboxEvent("broker_up", (), {"broker": broker}))

    def _away(self, name: str, broker: str, error: str, pause: float) -> None:
        about = {"broker": broker, "error": error, "seconds": pause}
        self._report(logging.WARNING, OutboxEvent(name, (), about))

    def _report(self, level: int, event: OutboxEvent) -> None:
        number = len(event.messages)
        if not number and not event.about.get("broker"):
            return
        self.counts[event.name] += number or 1
        if log.isEnabledFor(level):
            log.log(level, "%s", log_line(event), extra={"fields": _fields(event)})
        for subscriber in list(self._subscribers):
            try:
                subscriber(event)
            except Exception:
                log.exception("a subscriber failed at the event %r", event.name)


def log_line(event: OutboxEvent) -> str:
    """Return the log line of an event."""
    about, number = event.about, len(event.messages)
    which = f"{number:,} messages" if number > 1 else "".join(_named(one) for one in event.messages)
    match event.name:
        case "broker_down":
            again = spoken(about["seconds"])
            return f"✗ broker {about['broker']}: {one_line(about['error'])}; again in {again}"
        case "broker_up":
            return f"● broker {about['broker']} is served again"
        case "store_down":
            return f"✗ {one_line(about['error'])}; again in {spoken(about['seconds'])}"
        case "failed":
            again = "" if about["seconds"] is None else f"again in {spoken(about['seconds'])}, "
            return f"↻ {which}  {again}{_attempts(event)}: {one_line(about['error'])}"
        case "abandoned":
            return f"✗ {which}  abandoned, {_attempts(event)}: {one_line(about['error'])}"
        case "lost":
            return f"✗ {which}  lock lost: another relay may publish {'it' if number == 1 else 'them'}, too"
        case "claimed":
            return f"→ {which}"
        case _:
            return f"✓ {which}"


def _named(message: Message) -> str:
    return f"{message.topic:<20} {message.broker:<8}  {message.id}"


def _attempts(event: OutboxEvent) -> str:
    first = event.messages[0]
    return f"attempt {first.attempts} of {first.max_attempts}"


def _fields(event: OutboxEvent) -> dict[str, Any]:
    ids = [str(one.id) for one in event.messages]
    about = {name: value for name, value in event.about.items() if name != "took"}
    fields = {"event": f"outbox_{event.name}", "messages": ids or None, **about}
    return {name: value for name, value in fields.items() if value is not None}
