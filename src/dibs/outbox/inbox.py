"""The inbox: a consumer handles every message once, however often it arrives."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dibs.faces import AsyncFace, Calls, SyncFace, run, run_async, verb
from dibs.jobs import payload
from dibs.jobs.ids import new_id
from dibs.outbox import operations
from dibs.outbox.database import OutboxDatabase, find_database
from dibs.outbox.messages import Message
from dibs.outbox.statements import TableNames
from dibs.settings import Duration, span

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table


class InboxVerbs:
    """The verbs of an inbox, for both faces."""

    def __init__(self, database: OutboxDatabase, consumer: str) -> None:
        self._database = database
        self._consumer = consumer

    @verb
    def prune(self, older_than: Duration, *, batch: int = 5000) -> Calls[int]:
        """Forget messages that were seen that long ago; return how many. A later repetition counts as new."""
        age = span(older_than, what="older_than")
        most = payload.check_whole(batch, "batch", 1, 1_000_000)
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
        id, mark = payload.check_name(str(given), "message_id"), str(new_id())
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
    """

    def __init__(
        self,
        engine_or_url: Any,
        *,
        consumer: str = "default",
        table: str = "dibs_inbox",
        schema: str | None = None,
    ) -> None:
        database = find_database(engine_or_url, TableNames(inbox=table, schema=schema))
        super().__init__(database, payload.check_name(consumer, "consumer"))
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
