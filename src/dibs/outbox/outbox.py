"""The outbox as people use it: messages written with their data, published after the commit."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from dibs.jobs.states import Retry
from dibs.outbox.core import DEFAULT_BROKER, Messages, OutboxCore
from dibs.outbox.database import home
from dibs.outbox.events import OutboxEvents
from dibs.outbox.messages import Message, Standing
from dibs.outbox.statements import Place
from dibs.outbox.sync import SyncOutbox
from dibs.settings import Duration

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table

DEFAULT_RETRY = Retry.exponential(base=2, cap=300, jitter=0.1)
DEFAULT_ATTEMPTS = 10


class Outbox:
    """Messages that live and die with your transaction, in a table of your database.

    `engine_or_url` is an SQLAlchemy engine, sync or async, or a URL. Everything here is awaited; the same,
    blocking, is on `sync`.
    """

    def __init__(
        self,
        engine_or_url: Any,
        *,
        table: str = "dibs_outbox",
        schema: str | None = None,
        max_attempts: int = DEFAULT_ATTEMPTS,
        retry: Retry = DEFAULT_RETRY,
    ) -> None:
        place = Place(outbox=table, schema=schema)
        self._core = OutboxCore(home(engine_or_url, place), max_attempts=max_attempts, retry=retry)
        self._place = place
        self.sync = SyncOutbox(self._core)

    @property
    def events(self) -> OutboxEvents:
        """Subscribe here for alerts and metrics."""
        return self._core.events

    @property
    def name(self) -> str:
        """The database for people, without a password."""
        return self._core.home.name

    def table(self, metadata: "MetaData") -> "Table":
        """The table of this outbox, described in your metadata: your migrations make it then."""
        from dibs.outbox.tables import outbox_table

        return outbox_table(metadata, self._place)

    async def open(self) -> Self:
        """Make sure that the table is there; on SQLite it is made."""
        await self._core.home.open_async()
        return self

    async def close(self) -> None:
        """End the connections that the outbox opened by itself; an engine of yours stays open."""
        await self._core.home.close_async()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def publish(
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
    ) -> UUID:
        """Write a message in your transaction, to be published once that is committed; its id.

        Messages of one key are published in the order in which they were written. The same id again writes
        nothing new. Without `within=` the message is committed at once.
        """
        new = self._core.new_message(topic, payload, key, headers, brokers, id, max_attempts)
        await self._core.home.run_async(self._core.publish(new), within)
        return new.id

    async def claim_batch(
        self, worker_id: str, limit: int = 50, target_broker: str | None = None, lock_for: Duration = 60
    ) -> list[Message]:
        """Lock up to `limit` messages, oldest first; nobody else gets them until the lock ends.

        Of each key only the oldest ones, in a row, and only while nobody holds the key's oldest.
        """
        operation = self._core.claim(worker_id, limit, target_broker, lock_for)
        return self._core.claimed(await self._core.home.run_async(operation))

    async def mark_published(self, messages: Messages) -> None:
        """They reached their broker. `LeaseLost` names those that somebody else holds by now."""
        lost = await self._core.home.run_async(self._core.mark_published(messages))
        self._core.told(lost, "marked as published")

    async def mark_failed(
        self, messages: Messages, error: str | BaseException, *, retry: bool = True
    ) -> None:
        """They are tried again after a back-off, or are abandoned if this was the last attempt."""
        lost: list[Message] = []
        for operation in self._core.mark_failed(messages, error, retry):
            lost += await self._core.home.run_async(operation)
        self._core.told(lost, "marked as failed")

    async def renew(self, messages: Messages, lock_for: Duration = 60) -> None:
        """Lock them for so long from now on; `LeaseLost` if one of them is somebody else's."""
        self._core.told(await self._core.home.run_async(self._core.renew(messages, lock_for)), "renewed")

    async def release(self, messages: Messages) -> None:
        """Give them back untried: their attempt does not count."""
        self._core.told(await self._core.home.run_async(self._core.release(messages)), "released")

    async def get(self, id: UUID | str) -> list[Message]:
        """The message as each of its brokers sees it; nothing if it isn't kept."""
        return await self._core.home.run_async(self._core.get(id))

    async def find_unprocessed(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What is still to be published and in nobody's hands, oldest first."""
        return await self._find("unprocessed", limit, target_broker, topic, key)

    async def find_pending(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What was never tried yet."""
        return await self._find("pending", limit, target_broker, topic, key)

    async def find_failed(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What waits out a back-off after a failed attempt, or is due again."""
        return await self._find("failed", limit, target_broker, topic, key)

    async def find_abandoned(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What was tried as often as allowed, and waits for somebody to redrive it."""
        return await self._find("abandoned", limit, target_broker, topic, key)

    async def find_published(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What was published and is not pruned yet, the latest first."""
        return await self._find("published", limit, target_broker, topic, key)

    async def find_processing(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What relays hold at this moment, those with an expired lock included."""
        return await self._find("processing", limit, target_broker, topic, key)

    async def _find(
        self, what: str, limit: int, broker: str | None, topic: str | None, key: str | None
    ) -> list[Message]:
        return await self._core.home.run_async(self._core.find(what, limit, broker, topic, key))

    async def counts(self, target_broker: str | None = None) -> dict[str, int]:
        """How many messages are in each status."""
        return await self._core.home.run_async(self._core.counts(target_broker))

    async def lag(self, target_broker: str | None = None) -> float:
        """For how many seconds the oldest unpublished message has been waiting; 0 if there is none."""
        return await self._core.home.run_async(self._core.oldest(target_broker))

    async def standings(self) -> list[Standing]:
        """The same for each broker that has messages: `broker`, `counts`, `lag`."""
        return await self._core.home.run_async(self._core.standings())

    async def redrive(self, message: Message | UUID | str, target_broker: str | None = None) -> int:
        """Publish an abandoned message after all, with fresh attempts; for how many brokers."""
        return await self._core.home.run_async(self._core.redrive(message, target_broker))

    async def redrive_many(
        self,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        batch: int = 1000,
    ) -> int:
        """Redrive all abandoned messages that match, in bounded batches; how many."""
        operation = self._core.redrive_many(target_broker, topic, key, batch)
        total = moved = await self._core.home.run_async(operation)
        while moved >= batch:
            moved = await self._core.home.run_async(operation)
            total += moved
        return total

    async def prune(
        self,
        published_older_than: Duration,
        *,
        abandoned_older_than: Duration | None = None,
        batch: int = 5000,
    ) -> int:
        """Remove what was published that long ago, in bounded batches; how many.

        Abandoned messages stay, unless an age is given for them, too.
        """
        total = 0
        for operation in self._core.prunes(published_older_than, abandoned_older_than, batch):
            total += (removed := await self._core.home.run_async(operation))
            while removed >= batch:
                total += (removed := await self._core.home.run_async(operation))
        return total
