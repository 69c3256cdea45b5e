"""Messages live and die with the caller's transaction, through every connection that `within=` takes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from dibs import SchemaOutdated, UnsupportedConnection
from dibs.outbox import Inbox, Outbox
from tests.conformance.test_within import CONNECTIONS, Yours
from tests.support.faces import Face, open_face
from tests.support.outboxes import Box, beside, statements_of
from tests.support.servers import PostgreSQL

KINDS = list(CONNECTIONS)

every_connection = pytest.mark.parametrize(
    ("engine", "face", "yours"),
    [(engine, face, (engine, face, kind)) for engine, face, kind in KINDS],
    ids=[f"{kind}-{engine}-{face}" for engine, face, kind in KINDS],
    indirect=True,
)


@pytest.fixture
def app(url: str, face: str) -> Iterator[Face]:
    with open_face(face, url) as app:
        app.open()
        yield app


@pytest.fixture
def yours(request: pytest.FixtureRequest, app: Face, url: str) -> Iterator[Yours]:
    with CONNECTIONS[request.param](app, url) as yours:
        yield yours


def _publish(app: Face, outbox: Outbox, yours: Yours, n: int, **more: Any) -> Any:
    """On the loop that the connection belongs to."""
    if app.colour == "sync":
        return outbox.sync.publish("orders", {"n": n}, key="k", within=yours.given, **more)
    return app.wait_for(outbox.publish("orders", {"n": n}, key="k", within=yours.given, **more))


@every_connection
def test_a_message_shares_the_fate_of_the_transaction(app: Face, url: str, yours: Yours) -> None:
    outbox = Outbox(url)
    id = uuid4()

    _publish(app, outbox, yours, 0, brokers=["a", "b"])
    yours.rollback()
    _begin_again(yours)
    _publish(app, outbox, yours, 1, id=id, brokers=["a", "b"], headers={"tenant": "ä"})
    _publish(app, outbox, yours, 1, id=id, brokers=["a"])
    assert _stored(url) == []
    yours.execute("commit")

    assert _stored(url) == [(str(id), "a"), (str(id), "b")]
    messages = outbox.sync.claim_batch("w1")
    assert [(one.payload, one.key, dict(one.headers)) for one in messages] == [
        ({"n": 1}, "k", {"tenant": "ä"})
    ] * 2
    outbox.sync.mark_published(messages)
    outbox.sync.close()


def _begin_again(yours: Yours) -> None:
    """Begin a transaction where the driver does not do it by itself."""
    begun = ("asyncpg.", "pymysql.")
    if type(yours.given).__module__.startswith(begun):
        yours.execute("begin")


def _stored(url: str) -> list[tuple[str, str]]:
    with contextlib.closing(beside(url)) as connection:
        cursor = connection.cursor()
        cursor.execute("select message_id, broker from dibs_outbox order by position")
        return [tuple(row) for row in cursor.fetchall()]


@every_connection
def test_an_inbox_notes_a_message_with_the_transaction(app: Face, url: str, yours: Yours) -> None:
    inbox, other = Inbox(url), Inbox(url, consumer="other")

    assert _once(app, inbox, yours, "m1") is True
    assert _once(app, inbox, yours, "m1") is False
    assert _once(app, other, yours, "m1") is True
    yours.rollback()
    _begin_again(yours)
    assert _once(app, inbox, yours, "m1") is True


def _once(app: Face, inbox: Inbox, yours: Yours, id: str) -> bool:
    if app.colour == "sync":
        with inbox.sync.once(id, within=yours.given) as first:
            return first

    async def once() -> bool:
        async with inbox.once(id, within=yours.given) as first:
            return first

    result: bool = app.wait_for(once())
    return result


def test_what_an_inbox_noted_stays_noted_until_it_is_pruned(box: Box) -> None:
    inbox, driver = Inbox(box.url), {"sqlite": "sqlite", "mysql": "mysql+pymysql"}
    scheme = driver.get(statements_of(box.outbox).database, "postgresql+psycopg")
    engine = sqlalchemy.create_engine(f"{scheme}{box.url[box.url.index(':') :]}")
    with engine.begin() as connection, inbox.sync.once("m1", within=connection) as first:
        assert first
    with engine.begin() as connection, inbox.sync.once("m1", within=connection) as first:
        assert not first

    prune = inbox.sync.prune if box.face == "sync" else lambda *age: box.run(inbox.prune(*age))
    assert prune(60) == 0
    assert prune(0) == 1

    with engine.begin() as connection, inbox.sync.once("m1", within=connection) as first:
        assert first
    engine.dispose()
    box.run(inbox.close())


def test_what_does_not_fit_is_refused(box: Box) -> None:
    with pytest.raises(UnsupportedConnection, match="not a connection"):
        box.publish("orders", 1, within=object())
    with pytest.raises(UnsupportedConnection, match="not a connection"):
        box.run(box.outbox.publish("orders", 1, within=object()))


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_connection_without_a_transaction_is_refused(box: Box) -> None:
    engine = sqlalchemy.create_engine(f"postgresql+psycopg{box.url[10:]}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(UnsupportedConnection, match="no transaction"):
        box.outbox.sync.publish("orders", 1, within=connection)
    engine.dispose()


# -- Engines of yours ---------------------------------------------------------------------------

DRIVERS = {
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
    "postgresql": ("postgresql+psycopg", "postgresql+asyncpg"),
    "mysql": ("mysql+pymysql", "mysql+asyncmy"),
}


def test_an_outbox_is_made_of_an_engine_of_either_colour(url: str) -> None:
    database = url.split(":")[0]
    rest = url[url.index(":") :]
    blocking = sqlalchemy.create_engine(DRIVERS[database][0] + rest)
    awaited = create_async_engine(DRIVERS[database][1] + rest)

    async def both_ways(outbox: Outbox) -> int:
        await outbox.publish("orders", 1)
        await asyncio.to_thread(outbox.sync.publish, "orders", 2)
        messages = await outbox.claim_batch("w1")
        await asyncio.to_thread(outbox.sync.mark_published, messages)
        await outbox.close()
        return len(messages)

    async def go() -> list[int]:
        numbers = [await both_ways(Outbox(blocking)), await both_ways(Outbox(awaited))]
        await awaited.dispose()
        return numbers

    assert asyncio.run(go()) == [2, 2]
    blocking.dispose()


# -- Without tables ------------------------------------------------------------------------------


@pytest.fixture
def fresh_file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fresh.db"


@pytest.mark.parametrize("wrote", [True, False], ids=["wrote before", "wrote nothing"])
def test_a_transaction_of_yours_makes_the_tables_of_a_fresh_file(fresh_file: str, wrote: bool) -> None:
    yours, outbox = sqlalchemy.create_engine(fresh_file), Outbox(fresh_file)
    with yours.begin() as connection:
        connection.execute(sqlalchemy.text("create table orders (id integer)"))

    for n in (1, 2, 3):
        with Session(yours) as session:
            if wrote:
                session.execute(sqlalchemy.text("insert into orders values (1)"))
            outbox.sync.publish("orders", n, within=session)
            outbox.sync.publish("orders", n, within=session)
            session.commit() if n > 1 else session.rollback()

    assert [message.payload for message in outbox.sync.claim_batch("w1")] == [2, 2, 3, 3]
    yours.dispose()
    outbox.sync.close()


def test_an_awaited_transaction_of_yours_makes_them_too(fresh_file: str) -> None:
    async def go() -> list[Any]:
        yours = create_async_engine(fresh_file.replace("sqlite:", "sqlite+aiosqlite:"))
        outbox = Outbox(yours)
        async with AsyncSession(yours) as session, session.begin():
            await outbox.publish("orders", 1, within=session)
        messages = await outbox.claim_batch("w1")
        await outbox.close()
        await yours.dispose()
        return [message.payload for message in messages]

    assert asyncio.run(go()) == [1]


def test_an_inbox_is_made_by_a_transaction_of_yours(fresh_file: str) -> None:
    inbox = Inbox(fresh_file)
    with contextlib.closing(sqlite3.connect(fresh_file.removeprefix("sqlite:///"))) as yours:
        with inbox.sync.once("m1", within=yours) as first:
            assert first
        yours.commit()
        with inbox.sync.once("m1", within=yours) as first:
            assert not first
    inbox.sync.close()


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_another_file_than_the_outbox_has_is_refused(box: Box, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as yours:
        with pytest.raises(UnsupportedConnection, match=r"other\.db.*jobs\.db"):
            box.outbox.sync.publish("orders", 1, within=yours)
        assert yours.execute("select count(*) from sqlite_master").fetchone() == (0,)


@pytest.mark.parametrize("server", ["postgresql", "mariadb", "mysql"])
def test_a_database_without_the_tables_says_how_to_make_them(
    server: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(server).fresh_database()
    scheme, rest = url.split(":")[0], url[url.index(":") :]
    blocking, awaited = (name + rest for name in DRIVERS[scheme])

    def sync() -> None:
        yours, outbox = sqlalchemy.create_engine(blocking), Outbox(url)
        with pytest.raises(SchemaOutdated, match="dibs migrate"), yours.begin() as connection:
            outbox.sync.publish("orders", 1, within=connection)
        outbox.sync.close()
        yours.dispose()

    async def both() -> None:
        yours, outbox = create_async_engine(awaited), Outbox(url)
        with pytest.raises(SchemaOutdated, match="dibs migrate"):
            async with yours.begin() as connection:
                await outbox.publish("orders", 1, within=connection)
        await outbox.close()
        await yours.dispose()

    sync()
    asyncio.run(both())


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_connection_that_leads_elsewhere_is_refused(box: Box, postgresql: PostgreSQL) -> None:
    elsewhere = psycopg.connect(postgresql.fresh_database())
    with contextlib.closing(elsewhere), pytest.raises(UnsupportedConnection, match="another database"):
        box.outbox.sync.publish("orders", 1, within=elsewhere)
