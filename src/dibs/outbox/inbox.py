"""The other end: a consumer that deals with every message once, however often it arrives."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dibs.jobs import payload
from dibs.jobs.ids import new_id
from dibs.outbox import operations
from dibs.outbox.database import Home, Operation, home
from dibs.outbox.messages import Message
from dibs.outbox.statements import Place
from dibs.settings import Duration, span

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table


class Inbox:
    """Remembers, in your database, which messages this consumer has dealt with.

    The note is written in your transaction: if that is rolled back, the message counts as never seen. Several
    consumers share a table by their names.
    """

    def __init__(
        self,
        engine_or_url: Any,
        *,
        consumer: str = "default",
        table: str = "dibs_inbox",
        schema: str | None = None,
    ) -> None:
        self._place = Place(inbox=table, schema=schema)
        self._home = home(engine_or_url, self._place)
        self._consumer = payload.check_name(consumer, "consumer")
        self.sync = SyncInbox(self._home, self._consumer)

    def table(self, metadata: "MetaData") -> "Table":
        """The table of this inbox, described in your metadata."""
        from dibs.outbox.tables import inbox_table

        return inbox_table(metadata, self._place)

    @asynccontextmanager
    async def once(self, message_id: Message | UUID | str, *, within: Any) -> AsyncIterator[bool]:
        """`async with inbox.once(id, within=session) as first: if first: …`

        `first` is False for a message that was dealt with before, in a transaction that was committed. Of two
        that come at the same time the second waits for the first one's transaction.
        """
        yield await self._home.run_async(_first(self._home, self._consumer, message_id), within)

    async def prune(self, older_than: Duration, *, batch: int = 5000) -> int:
        """Forget messages that were seen that long ago; how many. Later repetitions would count as new."""
        operation, total = _pruning(self._home, older_than, batch), 0
        while removed := await self._home.run_async(operation):
            total += removed
        return total

    async def open(self) -> None:
        await self._home.open_async()

    async def close(self) -> None:
        await self._home.close_async()


class SyncInbox:
    """The same, blocking."""

    def __init__(self, home: Home, consumer: str) -> None:
        self._home = home
        self._consumer = consumer

    @contextmanager
    def once(self, message_id: Message | UUID | str, *, within: Any) -> Iterator[bool]:
        yield self._home.run(_first(self._home, self._consumer, message_id), within)

    def prune(self, older_than: Duration, *, batch: int = 5000) -> int:
        operation, total = _pruning(self._home, older_than, batch), 0
        while removed := self._home.run(operation):
            total += removed
        return total

    def open(self) -> None:
        self._home.open()

    def close(self) -> None:
        self._home.close()


def _first(home: Home, consumer: str, message_id: Message | UUID | str) -> Operation[bool]:
    given = message_id.id if isinstance(message_id, Message) else message_id
    id, mark = payload.check_name(str(given), "message_id"), str(new_id())
    return lambda: operations.first_time(home.statements, consumer, id, mark)


def _pruning(home: Home, older_than: Duration, batch: int) -> Operation[int]:
    age = span(older_than, what="older_than")
    most = payload.check_whole(batch, "batch", 1, 1_000_000)
    return lambda: operations.inbox_prune(home.statements, age, most)
