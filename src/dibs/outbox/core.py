"""What both faces of an outbox share: here a call is checked and becomes a script."""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dibs.errors import BadRequest, LeaseLost
from dibs.jobs import payload
from dibs.jobs.ids import new_id, parse_id
from dibs.jobs.states import Retry
from dibs.outbox import operations
from dibs.outbox.database import Home, Operation
from dibs.outbox.events import OutboxEvents
from dibs.outbox.messages import Message, Standing, Status
from dibs.outbox.operations import Claimed, Wish
from dibs.settings import MIB, Duration, lease_micros, span

DEFAULT_BROKER = "default"
MOST_CLAIMED = 10_000
MOST_FOUND = 10_000
MOST_BROKERS = 100

Messages = Message | Sequence[Message]

FINDERS = {
    "unprocessed": "find_unprocessed",
    "pending": "find_open",
    "failed": "find_open",
    "processing": "find_open",
    "abandoned": "find_abandoned",
    "published": "find_published",
}


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message that was checked and can be written."""

    id: UUID
    stored: Mapping[str, Any]
    brokers: Sequence[str]


class OutboxCore:
    """One outbox's inner half. Nothing in here waits for anything."""

    def __init__(self, home: Home, *, max_attempts: int, retry: Retry, max_payload: int = MIB) -> None:
        self.home = home
        self.words = home.statements
        self.events = OutboxEvents()
        self._max_attempts = _attempts(max_attempts)
        self._retry = retry
        self._max_payload = max_payload

    # -- publish --------------------------------------------------------------------------------

    def new_message(
        self,
        topic: str,
        value: Any,
        key: str | None,
        headers: Mapping[str, str] | None,
        brokers: Sequence[str],
        id: UUID | str | None,
        max_attempts: int | None,
    ) -> NewMessage:
        given = [brokers] if isinstance(brokers, str) else brokers
        names = list(dict.fromkeys(given)) if isinstance(given, Collection) else []
        if not 0 < len(names) <= MOST_BROKERS:
            raise BadRequest(f"brokers={brokers!r}: name the 1 to {MOST_BROKERS} brokers that should get it")
        made = new_id() if id is None else parse_id(id, "message")
        stored = {
            "id": str(made),
            "topic": payload.check_name(topic, "topic"),
            "key": None if key is None else payload.check_name(key, "key"),
            "payload": payload.encode(value, "payload", self._max_payload),
            "headers": payload.encode(with_trace(_headers(headers)), "headers", self._max_payload),
            "max_attempts": self._max_attempts if max_attempts is None else _attempts(max_attempts),
        }
        return NewMessage(made, stored, [payload.check_name(name, "broker") for name in names])

    def publish(self, new: NewMessage) -> Operation[None]:
        return lambda: operations.publish(new.stored, new.brokers)

    # -- claim and settle -----------------------------------------------------------------------

    def claim(self, worker: str, limit: int, broker: str | None, lock_for: Duration) -> Operation[Claimed]:
        wish = Wish(
            worker=payload.check_name(worker, "worker_id"),
            limit=payload.check_whole(limit, "limit", -(10**9), MOST_CLAIMED),
            broker=_optional(broker, "target_broker"),
            lock=lease_micros(lock_for),
        )
        return lambda: operations.claim(self.words, wish) if wish.limit > 0 else _nothing()

    def claimed(self, claimed: Claimed) -> list[Message]:
        self.events.abandoned(claimed.abandoned)
        self.events.claimed(claimed.messages)
        return claimed.messages

    def mark_published(self, messages: Messages) -> Operation[list[Message]]:
        return lambda: operations.mark_published(_held(messages))

    def mark_failed(self, messages: Messages, error: Any, retry: bool) -> list[Operation[list[Message]]]:
        return [self.failure(one, said(error), retry)[0] for one in _held(messages)]

    def failure(
        self, message: Message, error: str, retry: bool = True
    ) -> tuple[Operation[list[Message]], Status, int]:
        """How to note a failed attempt, what becomes of the message, and after which delay (µs)."""
        again = retry and self._retry.again and message.attempts < message.max_attempts
        status = Status.failed if again else Status.abandoned
        delay = self._retry.delay(message.attempts, random.random()) if again else 0  # noqa: S311
        return self.settle_failed([message], status=status, delay=delay, error=error), status, delay

    def settle_failed(self, messages: Sequence[Message], **how: Any) -> Operation[list[Message]]:
        return lambda: operations.mark_failed(messages, **how)

    def release(self, messages: Messages) -> Operation[list[Message]]:
        return lambda: operations.release(_held(messages))

    def renew(self, messages: Messages, lock_for: Duration) -> Operation[list[Message]]:
        lock = lease_micros(lock_for)
        return lambda: operations.renew(_held(messages), lock)

    def told(self, lost: Sequence[Message], verb: str) -> None:
        """Nothing was lost, or the caller hears of it."""
        if lost:
            raise LeaseLost(
                f"{len(lost)} of these messages can't be {verb}: their locks ran out, and somebody else "
                f"has or had them, the first is {lost[0].id}; nothing was changed, it may be published twice"
            )

    # -- look and act ---------------------------------------------------------------------------

    def find(
        self, what: str, limit: int, broker: str | None, topic: str | None, key: str | None
    ) -> Operation[list[Message]]:
        most = payload.check_whole(limit, "limit", -(10**9), MOST_FOUND)
        params = {**_filter(broker, topic, key), "limit": max(most, 0), "status": what}
        return lambda: operations.find(FINDERS[what], **params)

    def get(self, id: UUID | str) -> Operation[list[Message]]:
        text = str(parse_id(id, "message"))
        return lambda: operations.find("look", id=text)

    def counts(self, broker: str | None) -> Operation[dict[str, int]]:
        name = _optional(broker, "target_broker")
        return lambda: operations.counts(name)

    def standings(self) -> Operation[list[Standing]]:
        return operations.standings

    def oldest(self, broker: str | None) -> Operation[float]:
        name = _optional(broker, "target_broker")
        return lambda: operations.oldest(name)

    def redrive(self, id: Message | UUID | str, broker: str | None) -> Operation[int]:
        given, name = (
            (id.id, broker or id.broker) if isinstance(id, Message) else (parse_id(id, "message"), broker)
        )
        return lambda: operations.redrive(self.words, given, _optional(name, "target_broker"))

    def redrive_many(
        self, broker: str | None, topic: str | None, key: str | None, batch: int
    ) -> Operation[int]:
        params = {**_filter(broker, topic, key), "batch": _batch(batch)}
        return lambda: operations.redrive_many(self.words, **params)

    def prunes(
        self, published_older_than: Duration, abandoned_older_than: Duration | None, batch: int
    ) -> list[Operation[int]]:
        """The removals of one call, each to be repeated until it removes less than a batch."""
        most = _batch(batch)
        ages = {"prune_published": span(published_older_than, what="published_older_than")}
        if abandoned_older_than is not None:
            ages["prune_abandoned"] = span(abandoned_older_than, what="abandoned_older_than")
        return [_pruning(self, block, age, most) for block, age in ages.items()]


def said(error: Any) -> str:
    """An error as it is kept: what it says, or what it is."""
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return text.replace("\x00", "\\x00")[:LONGEST_ERROR].encode("utf-8", "replace").decode()
    return payload.check_text(error, "error", MIB)


LONGEST_ERROR = 10_000


def _pruning(core: OutboxCore, block: str, age: int, batch: int) -> Operation[int]:
    return lambda: operations.prune(core.words, block, age, batch)


def _held(messages: Messages) -> Sequence[Message]:
    if not isinstance(messages, Message | Iterable):
        raise BadRequest(f"{messages!r} is not a message: pass what claim_batch answered")
    held = [messages] if isinstance(messages, Message) else list(messages)
    for one in held:
        if not isinstance(one, Message):
            raise BadRequest(f"{one!r} is not a message: pass what claim_batch answered")
        if one.token is None:
            raise BadRequest(f"message {one.id} was never claimed: pass what claim_batch answered")
    return held


def _nothing() -> operations.Script[Claimed]:
    yield from ()
    return Claimed([], [])


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(headers, Mapping | None):
        raise BadRequest(f"headers must be a mapping of names to strings, not {headers!r}")
    given = dict(headers or {})
    for name, value in given.items():
        payload.check_name(name, "a header's name")
        if not isinstance(value, str) or any(sign in value for sign in "\r\n\x00"):
            raise BadRequest(f"header {name!r} must be a string on one line, not {value!r}")
        if name.lower().startswith("dibs-"):
            raise BadRequest(f"header {name!r}: names that begin with 'dibs-' are given by dibs")
    return given


def _filter(broker: str | None, topic: str | None, key: str | None) -> dict[str, str | None]:
    return {
        "broker": _optional(broker, "target_broker"),
        "topic": _optional(topic, "topic"),
        "key": _optional(key, "key"),
    }


def _optional(name: str | None, what: str) -> str | None:
    return None if name is None else payload.check_name(name, what)


def _attempts(number: int) -> int:
    return payload.check_whole(number, "max_attempts", 1, payload.MOST_ATTEMPTS)


def _batch(batch: int) -> int:
    return payload.check_whole(batch, "batch", 1, 1_000_000)


def with_trace(headers: dict[str, str]) -> dict[str, str]:
    """The headers with the current trace context, unless the caller gave one."""
    if "traceparent" in headers:
        return headers
    try:
        from opentelemetry.propagate import inject
    except ImportError:
        return headers
    carried: dict[str, str] = {}
    inject(carried)
    return {**carried, **headers}
