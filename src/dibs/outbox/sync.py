"""The blocking face of the outbox: the same names, the same arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, Self
from uuid import UUID

from dibs.outbox.core import DEFAULT_BROKER, Messages, OutboxCore
from dibs.outbox.messages import Message, Standing
from dibs.settings import Duration


class SyncOutbox:
    """What `Outbox` does, for code that does not await."""

    def __init__(self, core: OutboxCore) -> None:
        self._core = core

    def open(self) -> Self:
        """Make sure that the table is there; on SQLite it is made."""
        self._core.home.open()
        return self

    def close(self) -> None:
        """End the connections that the outbox opened by itself; an engine of yours stays open."""
        self._core.home.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

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
    ) -> UUID:
        """Write a message in your transaction, to be published once that is committed; its id.

        Messages of one key are published in the order in which they were written. The same id again writes
        nothing new. Without `within=` the message is committed at once.
        """
        new = self._core.new_message(topic, payload, key, headers, brokers, id, max_attempts)
        self._core.home.run(self._core.publish(new), within)
        return new.id

    def claim_batch(
        self, worker_id: str, limit: int = 50, target_broker: str | None = None, lock_for: Duration = 60
    ) -> list[Message]:
        """Lock up to `limit` messages, oldest first; nobody else gets them until the lock ends.

        Of each key only the oldest ones, in a row, and only while nobody holds the key's oldest.
        """
        operation = self._core.claim(worker_id, limit, target_broker, lock_for)
        return self._core.claimed(self._core.home.run(operation))

    def mark_published(self, messages: Messages) -> None:
        """They reached their broker. `LeaseLost` names those that somebody else holds by now."""
        lost = self._core.home.run(self._core.mark_published(messages))
        self._core.told(lost, "marked as published")

    def mark_failed(self, messages: Messages, error: str | BaseException, *, retry: bool = True) -> None:
        """They are tried again after a back-off, or are abandoned if this was the last attempt."""
        lost: list[Message] = []
        for operation in self._core.mark_failed(messages, error, retry):
            lost += self._core.home.run(operation)
        self._core.told(lost, "marked as failed")

    def renew(self, messages: Messages, lock_for: Duration = 60) -> None:
        """Lock them for so long from now on; `LeaseLost` if one of them is somebody else's."""
        self._core.told(self._core.home.run(self._core.renew(messages, lock_for)), "renewed")

    def release(self, messages: Messages) -> None:
        """Give them back untried: their attempt does not count."""
        self._core.told(self._core.home.run(self._core.release(messages)), "released")

    def get(self, id: UUID | str) -> list[Message]:
        """The message as each of its brokers sees it; nothing if it isn't kept."""
        return self._core.home.run(self._core.get(id))

    def find_unprocessed(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What is still to be published and in nobody's hands, oldest first."""
        return self._find("unprocessed", limit, target_broker, topic, key)

    def find_pending(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What was never tried yet."""
        return self._find("pending", limit, target_broker, topic, key)

    def find_failed(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What waits out a back-off after a failed attempt, or is due again."""
        return self._find("failed", limit, target_broker, topic, key)

    def find_abandoned(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What was tried as often as allowed, and waits for somebody to redrive it."""
        return self._find("abandoned", limit, target_broker, topic, key)

    def find_published(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What was published and is not pruned yet, the latest first."""
        return self._find("published", limit, target_broker, topic, key)

    def find_processing(
        self,
        limit: int = 50,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
    ) -> list[Message]:
        """What relays hold at this moment, those with an expired lock included."""
        return self._find("processing", limit, target_broker, topic, key)

    def _find(
        self, what: str, limit: int, broker: str | None, topic: str | None, key: str | None
    ) -> list[Message]:
        return self._core.home.run(self._core.find(what, limit, broker, topic, key))

    def counts(self, target_broker: str | None = None) -> dict[str, int]:
        """How many messages are in each status."""
        return self._core.home.run(self._core.counts(target_broker))

    def lag(self, target_broker: str | None = None) -> float:
        """For how many seconds the oldest unpublished message has been waiting; 0 if there is none."""
        return self._core.home.run(self._core.oldest(target_broker))

    def standings(self) -> list[Standing]:
        """The same for each broker that has messages: `broker`, `counts`, `lag`."""
        return self._core.home.run(self._core.standings())

    def redrive(self, message: Message | UUID | str, target_broker: str | None = None) -> int:
        """Publish an abandoned message after all, with fresh attempts; for how many brokers."""
        return self._core.home.run(self._core.redrive(message, target_broker))

    def redrive_many(
        self,
        target_broker: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        batch: int = 1000,
    ) -> int:
        """Redrive all abandoned messages that match, in bounded batches; how many."""
        operation = self._core.redrive_many(target_broker, topic, key, batch)
        total = moved = self._core.home.run(operation)
        while moved >= batch:
            moved = self._core.home.run(operation)
            total += moved
        return total

    def prune(
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
            total += (removed := self._core.home.run(operation))
            while removed >= batch:
                total += (removed := self._core.home.run(operation))
        return total
