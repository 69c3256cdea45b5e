"""What happens to messages is told here: one seam for log lines, metrics and alerts.

A subscriber is called with an `OutboxEvent` once the database has it; one that raises changes nothing.
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
    """What happened, and to which messages."""

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
        """Hear what happens from now on; call the answer to stop."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def claimed(self, messages: Sequence[Message]) -> None:
        self._tell(logging.DEBUG, OutboxEvent("claimed", messages))

    def published(self, messages: Sequence[Message], took: Sequence[float] = ()) -> None:
        """`took`: for each of them, how many seconds its broker took to accept it."""
        self._tell(logging.DEBUG, OutboxEvent("published", messages, {"took": took}))

    def failed(self, messages: Sequence[Message], error: str, seconds: float | None = None) -> None:
        self._tell(logging.INFO, OutboxEvent("failed", messages, {"error": error, "seconds": seconds}))

    def abandoned(self, messages: Sequence[Message], error: str = "relay died") -> None:
        self._tell(NOTICE, OutboxEvent("abandoned", messages, {"error": error}))

    def lost(self, messages: Sequence[Message]) -> None:
        self._tell(logging.WARNING, OutboxEvent("lost", messages))

    def broker_down(self, broker: str, error: str, pause: float) -> None:
        about = {"broker": broker, "error": error, "seconds": pause}
        self._tell(logging.WARNING, OutboxEvent("broker_down", (), about))

    def store_down(self, broker: str, error: str, pause: float) -> None:
        about = {"broker": broker, "error": error, "seconds": pause}
        self._tell(logging.WARNING, OutboxEvent("store_down", (), about))

    def broker_up(self, broker: str) -> None:
        self._tell(logging.INFO, OutboxEvent("broker_up", (), {"broker": broker}))

    def _tell(self, level: int, event: OutboxEvent) -> None:
        number = len(event.messages)
        if not number and not event.about.get("broker"):
            return
        self.counts[event.name] += number or 1
        if log.isEnabledFor(level):
            log.log(level, "%s", line(event), extra={"fields": _fields(event)})
        for subscriber in list(self._subscribers):
            try:
                subscriber(event)
            except Exception:
                log.exception("a subscriber failed at the event %r", event.name)


def line(event: OutboxEvent) -> str:
    """The event as people like to read it."""
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
            return f"✗ {which}  lock lost: somebody else may publish {'it' if number == 1 else 'them'}, too"
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
    told = {"event": f"outbox_{event.name}", "messages": ids or None, **about}
    return {name: value for name, value in told.items() if value is not None}
