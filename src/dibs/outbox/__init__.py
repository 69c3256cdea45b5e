"""Publish events with your data: a transactional outbox, its relays, and an inbox for consumers."""

from typing import TYPE_CHECKING

from dibs.outbox.brokers import Broker, BrokerUnavailable, Rejected
from dibs.outbox.events import OutboxEvent
from dibs.outbox.messages import Message, Standing, Status
from dibs.outbox.outbox import Inbox, Outbox
from dibs.outbox.relay import Relay
from dibs.outbox.statements import TableNames

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table

__all__ = [
    "Broker",
    "BrokerUnavailable",
    "Inbox",
    "Message",
    "Outbox",
    "OutboxEvent",
    "Rejected",
    "Relay",
    "Standing",
    "Status",
    "inbox_table",
    "table",
]


def table(metadata: "MetaData", name: str = "dibs_outbox", schema: str | None = None) -> "Table":
    """Describe an outbox's table in your metadata, for your migrations. Example: `table(Base.metadata)`"""
    from dibs.outbox.tables import outbox_table

    return outbox_table(metadata, TableNames(outbox=name, schema=schema))


def inbox_table(metadata: "MetaData", name: str = "dibs_inbox", schema: str | None = None) -> "Table":
    """Describe an inbox's table in your metadata, for migrations. Example: `inbox_table(Base.metadata)`"""
    from dibs.outbox.tables import inbox_table

    return inbox_table(metadata, TableNames(inbox=name, schema=schema))
