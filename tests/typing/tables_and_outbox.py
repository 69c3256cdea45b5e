"""What a type checker sees of `dibs.outbox` and `dibs.tables`, on both faces; checked, never executed."""

from typing import Any, assert_type
from uuid import UUID

from sqlalchemy import MetaData, Row, Table, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dibs import tables
from dibs.outbox import Inbox, Message, Outbox, Standing
from dibs.tables import sync

outbox, inbox = Outbox("sqlite:///shop.db"), Inbox("sqlite:///shop.db")


class Report(DeclarativeBase):
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str]


async def verbs_of_an_outbox() -> None:
    assert_type(await outbox.publish("orders", {"id": 1}, key="a", within=object()), UUID)
    assert_type(outbox.sync.publish("orders", {"id": 1}), UUID)
    assert_type(await outbox.claim_batch("w1", limit=50), list[Message])
    assert_type(outbox.sync.find_failed(5, topic="orders"), list[Message])
    assert_type(await outbox.standings(), list[Standing])
    assert_type(outbox.sync.lag(), float)
    outbox.sync.publish(1, {})  # type: ignore[arg-type]
    await outbox.publish("orders", 1, colour="red")  # type: ignore[call-arg]
    async with outbox as opened:
        assert_type(opened, Outbox)


async def verbs_of_an_inbox() -> None:
    async with inbox.once("id", within=object()) as first:
        assert_type(first, bool)
    with inbox.sync.once("id", within=object()) as first:
        assert_type(first, bool)
    assert_type(inbox.sync.prune(3600), int)
    await inbox.prune("long")  # type: ignore[arg-type]


async def rows_of_tables() -> None:
    async_engine, engine = create_async_engine(""), create_engine("")
    ready, task = Report.status == "ready", Table("task", MetaData())
    assert_type(await tables.claim_rows(async_engine, task, ready, {"state": "taken"}, 1), list[Row[Any]])
    assert_type(sync.claim_rows(engine, Report, ready, {"status": "taken"}, 1), list[Report])
    claims = sync.Claims(Report, engine, ready=ready)
    assert_type(claims.claim(10, worker="w1"), list[Report])
    assert_type(list(claims.stream(until_idle=True)), list[Report])
    claims.done(claims.claim())  # type: ignore[call-arg]
    sync.Claims(Report, async_engine, ready=ready)  # type: ignore[arg-type]
    tables.Claims(Report, engine, ready=ready)  # type: ignore[arg-type]
