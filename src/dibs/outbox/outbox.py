"""The outbox: messages stored with the caller's data and published after the commit; and the inbox."""

import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from dibs.errors import LeaseLost
from dibs.faces import AsyncFace, Calls, SyncFace, run, run_async, verb
from dibs.jobs import payload as checks
from dibs.jobs.ids import new_id, parse_id
from dibs.jobs.states import Retry
from dibs.outbox import operations
from dibs.outbox.database import Operation, OutboxDatabase, find_database
from dibs.outbox.events import OutboxEvents
from dibs.outbox.messages import (
    Message,
    Messages,
    Standing,
    after_failure,
    check_attempts,
    check_claimed,
    error_text,
    new_message,
)
from dibs.outbox.operations import BatchRequest
from dibs.outbox.statements import TableNames
from dibs.settings import Duration, lease_micros, span

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table

DEFAULT_BROKER = "default"
DEFAULT_RETRY = Retry.exponential(base=2, cap=300, jitter=0.1)
DEFAULT_ATTEMPTS = 10
MOST_CLAIMED = 10_000
MOST_FOUND = 10_000

Filter = str | None  # None matches all


class OutboxVerbs:
    """The verbs of an outbox, for both faces."""

    def __init__(
        self, database: OutboxDatabase, events: OutboxEvents, *, max_attempts: int, retry: Retry
    ) -> None:
        self._database = database
        self._events = events
        self._max_attempts = check_attempts(max_attempts)
        self._retry = retry

    @verb
    def close(self) -> Calls[None]:
        """Close the connections that the outbox opened by itself; an engine of yours stays open."""
        yield from self._database.close()

    @verb
    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        brokers: Sequence[str] = (DEFAULT_BROKER,),
        id: UUID | str | None = None,
        max_attempts: int | None = None,
        within: Any = None,
    ) -> Calls[UUID]:
        """Store a message in your transaction, to be published once that is committed; return its id.

        Messages of one key are published in the order in which they were stored. The same id again stores
        nothing new. Without `within=` the message is committed at once.
        """
        attempts = self._max_attempts if max_attempts is None else max_attempts
        new = new_message(
            topic, payload, key=key, headers=headers, brokers=brokers, id=id, max_attempts=attempts
        )
        yield from self._database.call(lambda: operations.publish(new.stored, new.brokers), within)
        return new.id

    # -- claim and settle -----------------------------------------------------------------------

    @verb
    def claim_batch(
        self, worker_id: str, limit: int = 50, target_broker: str | None = None, lock_for: Duration = 60
    ) -> Calls[list[Message]]:
        """Lock up to `limit` messages, oldest first; no other worker gets them until the lock ends.

        Of each key only the oldest ones, in a row, and only while no other worker holds the key's oldest.
        """
        request = BatchRequest(
            worker=checks.check_name(worker_id, "worker_id"),
            limit=checks.check_whole(limit, "limit", None, MOST_CLAIMED),
            broker=_optional(target_broker, "target_broker"),
            lock=lease_micros(lock_for),
        )
        claimed = yield from self._database.call(lambda: operations.claim(self._database.statements, request))
        self._events.abandoned(claimed.abandoned)
        self._events.claimed(claimed.messages)
        return claimed.messages

    @verb
    def mark_published(self, messages: Messages) -> Calls[None]:
        """Record that they reached their broker; `LeaseLost` if another worker may hold one by now."""
        claimed = check_claimed(messages)
        yield from self._settle("marked as published", lambda: operations.mark_published(claimed))

    @verb
    def mark_failed(
        self, messages: Messages, error: str | BaseException, *, retry: bool = True
    ) -> Calls[None]:
        """Try them again after a back-off, or abandon them if this was the last attempt."""
        claimed, text = check_claimed(messages), error_text(error)
        policy = self._retry if retry else Retry.never()
        lost: list[Message] = []
        for one in claimed:
            status, delay = after_failure(one, policy, random.random())  # noqa: S311
            failed = partial(operations.mark_failed, [one], status=status, delay=delay, error=text)
            lost += yield from self._database.call(failed)
        _refuse_lost(lost, "marked as failed")

    @verb
    def renew(self, messages: Messages, lock_for: Duration = 60) -> Calls[None]:
        """Lock them for so long from now on; `LeaseLost` if another worker may hold one by now."""
        claimed, lock = check_claimed(messages), lease_micros(lock_for)
        yield from self._settle("renewed", lambda: operations.renew(claimed, lock))

    @verb
    def release(self, messages: Messages) -> Calls[None]:
        """Give them back untried: their attempt does not count."""
        claimed = check_claimed(messages)
        yield from self._settle("released", lambda: operations.release(claimed))

    # -- query ----------------------------------------------------------------------------------

    @verb
    def get(self, id: UUID | str) -> Calls[list[Message]]:
        """Return the message as each of its brokers sees it; nothing if it isn't kept."""
        text = str(parse_id(id, "message"))
        return (yield from self._database.call(lambda: operations.find("get", id=text)))

    @verb
    def find_unprocessed(
        self, limit: int = 50, target_broker: Filter = None, *, topic: Filter = None, key: Filter = None
    ) -> Calls[list[Message]]:
        """Return messages that are still to be published and not locked, oldest first."""
        return (yield from self._find("find_unprocessed", limit, target_broker, topic, key))

    @verb
    def find_pending(
        self, limit: int = 50, target_broker: Filter = None, *, topic: Filter = None, key: Filter = None
    ) -> Calls[list[Message]]:
        """Return messages that were never tried."""
        return (yield from self._find("find_open", limit, target_broker, topic, key, status="pending"))

    @verb
    def find_failed(
        self, limit: int = 50, target_broker: Filter = None, *, topic: Filter = None, key: Filter = None
    ) -> Calls[list[Message]]:
        """Return messages that are in back-off after a failed attempt, or due again."""
        return (yield from self._find("find_open", limit, target_broker, topic, key, status="failed"))

    @verb
    def find_abandoned(
        self, limit: int = 50, target_broker: Filter = None, *, topic: Filter = None, key: Filter = None
    ) -> Calls[list[Message]]:
        """Return messages that are out of attempts and wait for an operator to redrive them."""
        return (yield from self._find("find_abandoned", limit, target_broker, topic, key))

    @verb
    def find_published(
        self, limit: int = 50, target_broker: Filter = None, *, topic: Filter = None, key: Filter = None
    ) -> Calls[list[Message]]:
        """Return published messages that are not pruned yet, the latest first."""
        return (yield from self._find("find_published", limit, target_broker, topic, key))

    @verb
    def find_processing(
        self, limit: int = 50, target_broker: Filter = None, *, topic: Filter = None, key: Filter = None
    ) -> Calls[list[Message]]:
        """Return messages that relays hold now, including messages with an expired lock."""
        return (yield from self._find("find_open", limit, target_broker, topic, key, status="processing"))

    @verb
    def counts(self, target_broker: Filter = None) -> Calls[dict[str, int]]:
        """Return how many messages are in each status."""
        broker = _optional(target_broker, "target_broker")
        return (yield from self._database.call(lambda: operations.counts(broker)))

    @verb
    def lag(self, target_broker: Filter = None) -> Calls[float]:
        """Return for how many seconds the oldest unpublished message has been waiting; 0 if there is none."""
        broker = _optional(target_broker, "target_broker")
        return (yield from self._database.call(lambda: operations.oldest(broker)))

    @verb
    def standings(self) -> Calls[list[Standing]]:
        """Return counts and lag for each broker that has messages: `broker`, `counts`, `lag`."""
        return (yield from self._database.call(operations.standings))

    # -- redrive and prune ----------------------------------------------------------------------

    @verb
    def redrive(self, message: Message | UUID | str, target_broker: str | None = None) -> Calls[int]:
        """Publish an abandoned message after all, with new attempts; return for how many brokers."""
        if isinstance(message, Message):
            target_broker = target_broker or message.broker
            message = message.id
        id, broker = parse_id(message, "message"), _optional(target_broker, "target_broker")
        redrive = partial(operations.redrive, self._database.statements, id, broker)
        return (yield from self._database.call(redrive))

    @verb
    def redrive_many(
        self, target_broker: Filter = None, *, topic: Filter = None, key: Filter = None, batch: int = 1000
    ) -> Calls[int]:
        """Redrive all abandoned messages that match, in bounded batches; return how many."""
        most = _check_batch(batch)
        params = {**_filters(target_broker, topic, key), "batch": most}
        redrive = partial(operations.redrive_many, self._database.statements, **params)
        return (yield from self._database.repeat(redrive, least=most))

    @verb
    def prune(
        self,
        published_older_than: Duration,
        *,
        abandoned_older_than: Duration | None = None,
        batch: int = 5000,
    ) -> Calls[int]:
        """Remove messages that were published that long ago, in bounded batches; return how many.

        Abandoned messages stay, unless an age is given for them, too.
        """
        most = _check_batch(batch)
        prunes = [("prune_published", span(published_older_than, what="published_older_than"))]
        if abandoned_older_than is not None:
            prunes.append(("prune_abandoned", span(abandoned_older_than, what="abandoned_older_than")))
        total = 0
        for block, age in prunes:
            prune = partial(operations.prune, self._database.statements, block, age, most)
            total += yield from self._database.repeat(prune, least=most)
        return total

    # -- shared ---------------------------------------------------------------------------------

    def _settle(self, done: str, operation: Operation[list[Message]]) -> Calls[None]:
        _refuse_lost((yield from self._database.call(operation)), done)

    def _find(
        self, block: str, limit: int, broker: Filter, topic: Filter, key: Filter, **more: Any
    ) -> Calls[list[Message]]:
        most = checks.check_whole(limit, "limit", None, MOST_FOUND)
        params = {**_filters(broker, topic, key), "limit": max(most, 0), **more}
        return (yield from self._database.call(lambda: operations.find(block, **params)))


class SyncOutbox(OutboxVerbs, SyncFace):
    """What `Outbox` does, for code that does not await."""

    def open(self) -> Self:
        """Check that the table is there; on SQLite it is created."""
        run(self._database.open())
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


class Outbox(OutboxVerbs, AsyncFace):
    """Messages that are committed or rolled back with your transaction, in a table of your database.

    `engine_or_url` is an SQLAlchemy engine, sync or async, or a URL. Everything here is async; `sync` has the
    same for code that does not await.
    Example: `await outbox.publish("orders", {"id": 1}, key="order-1", within=session)`"""

    def __init__(
        self,
        engine_or_url: Any,
        *,
        table: str = "dibs_outbox",
        schema: str | None = None,
        max_attempts: int = DEFAULT_ATTEMPTS,
        retry: Retry = DEFAULT_RETRY,
    ) -> None:
        database = find_database(engine_or_url, TableNames(outbox=table, schema=schema))
        super().__init__(database, OutboxEvents(), max_attempts=max_attempts, retry=retry)
        self.sync = SyncOutbox(database, self._events, max_attempts=max_attempts, retry=retry)

    @property
    def events(self) -> OutboxEvents:
        """Subscribe here for alerts and metrics."""
        return self._events

    @property
    def name(self) -> str:
        """The URL of the database, without a password."""
        return self._database.name

    def table(self, metadata: "MetaData") -> "Table":
        """Describe the table of this outbox in your metadata, so that your migrations create it."""
        from dibs.outbox.tables import outbox_table

        return outbox_table(metadata, self._database.names)

    async def open(self) -> Self:
        """Check that the table is there; on SQLite it is created."""
        await run_async(self._database.open())
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _refuse_lost(lost: Sequence[Message], done: str) -> None:
    if lost:
        raise LeaseLost(
            f"{len(lost)} of these messages can't be {done}: their locks ran out, and another worker has or "
            f"had them, the first is {lost[0].id}; nothing was changed, it may be published twice"
        )


def _filters(broker: Filter, topic: Filter, key: Filter) -> dict[str, str | None]:
    return {
        "broker": _optional(broker, "target_broker"),
        "topic": _optional(topic, "topic"),
        "key": _optional(key, "key"),
    }


def _optional(name: str | None, what: str) -> str | None:
    return None if name is None else checks.check_name(name, what)


def _check_batch(batch: int) -> int:
    return checks.check_whole(batch, "batch", 1, 1_000_000)


# -- The inbox: a consumer handles every message once, however often it arrives ------------------


class InboxVerbs:
    """The verbs of an inbox, for both faces."""

    def __init__(self, database: OutboxDatabase, consumer: str) -> None:
        self._database = database
        self._consumer = consumer

    @verb
    def prune(self, older_than: Duration, *, batch: int = 5000) -> Calls[int]:
        """Forget messages that were seen that long ago; return how many. A later repetition counts as new."""
        age = span(older_than, what="older_than")
        most = checks.check_whole(batch, "batch", 1, 1_000_000)
        prune = partial(operations.inbox_prune, self._database.statements, age, most)
        return (yield from self._database.repeat(prune, least=1))

    @verb
    def open(self) -> Calls[None]:
        """Check that the table is there; on SQLite it is created."""
        yield from self._database.open()

    @verb
    def close(self) -> Calls[None]:
        """Close the connections that the inbox opened by itself; an engine of yours stays open."""
        yield from self._database.close()

    def _is_first(self, message_id: Message | UUID | str, within: Any) -> Calls[bool]:
        given = message_id.id if isinstance(message_id, Message) else message_id
        id, mark = checks.check_name(str(given), "message_id"), str(new_id())
        record = partial(operations.first_time, self._database.statements, self._consumer, id, mark)
        return (yield from self._database.call(record, within))


class SyncInbox(InboxVerbs, SyncFace):
    """What `Inbox` does, for code that does not await."""

    @contextmanager
    def once(self, message_id: Message | UUID | str, *, within: Any) -> Iterator[bool]:
        """Enter with `with inbox.sync.once(id, within=session) as first: if first: …`."""
        yield run(self._is_first(message_id, within))


class Inbox(InboxVerbs, AsyncFace):
    """A record, in your database, of the messages that this consumer has handled.

    It is written in your transaction: if that is rolled back, the message counts as never seen. Several
    consumers share a table by their names.
    Example: `async with inbox.once(message.id, within=session) as first: print(first)`"""

    def __init__(
        self,
        engine_or_url: Any,
        *,
        consumer: str = "default",
        table: str = "dibs_inbox",
        schema: str | None = None,
    ) -> None:
        database = find_database(engine_or_url, TableNames(inbox=table, schema=schema))
        super().__init__(database, checks.check_name(consumer, "consumer"))
        self.sync = SyncInbox(database, self._consumer)

    def table(self, metadata: "MetaData") -> "Table":
        """Describe the table of this inbox in your metadata, so that your migrations create it."""
        from dibs.outbox.tables import inbox_table

        return inbox_table(metadata, self._database.names)

    @asynccontextmanager
    async def once(self, message_id: Message | UUID | str, *, within: Any) -> AsyncIterator[bool]:
        """Enter with `async with inbox.once(id, within=session) as first: if first: …`.

        `first` is False for a message that was handled before, in a transaction that was committed. If one
        message arrives twice at the same time, the second waits for the transaction of the first.
        """
        yield await run_async(self._is_first(message_id, within))
