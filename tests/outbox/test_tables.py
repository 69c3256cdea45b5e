"""The tables of the outbox are the same, by `dibs migrate` and by the user's own migrations."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import MetaData

from dibs import BadRequest, Dibs, outbox
from dibs.outbox import Outbox

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


def _engine(url: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(DRIVERS[url.split(":")[0]] + url[url.index(":") :])


def _described(engine: sqlalchemy.Engine, table: str) -> tuple[Any, Any]:
    """Return what a database reports of a table; lengths left out for SQLite, which ignores them."""
    inspector = sqlalchemy.inspect(engine)
    columns = {
        (
            column["name"],
            type(column["type"].as_generic()).__name__.replace("VARCHAR", "String").replace("Text", "String"),
            column["nullable"],
        )
        for column in inspector.get_columns(table)
    }
    if engine.dialect.name == "sqlite":
        columns = {(name, kind.replace("SmallInteger", "Integer"), null) for name, kind, null in columns}
    indexes = {
        (index["name"].removeprefix("your"), tuple(index["column_names"]), bool(index["unique"]))
        for index in inspector.get_indexes(table)
    }
    return columns, indexes


def test_your_migrations_make_the_same_tables_as_ours(url: str) -> None:
    engine, metadata = _engine(url), MetaData()
    yours = outbox.table(metadata, name="yourdibs_outbox")
    outbox.inbox_table(metadata, name="yourdibs_inbox")
    metadata.drop_all(engine)

    metadata.create_all(engine)

    try:
        assert yours is outbox.table(metadata, name="yourdibs_outbox")
        for name in ("dibs_outbox", "dibs_inbox"):
            assert _described(engine, f"your{name}") == _described(engine, name)
    finally:
        metadata.drop_all(engine)
        engine.dispose()


@pytest.mark.parametrize("by_outbox", [True, False], ids=["first use", "your migrations"])
def test_tables_that_were_there_before_ours_have_no_problems(url: str, by_outbox: bool) -> None:
    engine, metadata = _engine(url), MetaData()
    outbox.table(metadata)
    outbox.inbox_table(metadata)
    metadata.drop_all(engine)
    if by_outbox and engine.dialect.name == "sqlite":
        Outbox(engine).sync.publish("orders", {})
    else:
        metadata.create_all(engine)

    app = Dibs(url)

    assert app.sync.check_schema() == []
    app.sync.close()
    engine.dispose()


def test_an_outbox_works_on_a_table_of_your_metadata(url: str) -> None:
    engine, metadata = _engine(url), MetaData()
    box = Outbox(engine, table="events_out")
    table = box.table(metadata)
    metadata.create_all(engine)

    try:
        with engine.begin() as connection:
            box.sync.publish("orders", {"n": 1}, key="k", within=connection)
        messages = box.sync.claim_batch("w1")
        box.sync.mark_published(messages)

        with engine.connect() as connection:
            assert [row.status for row in connection.execute(table.select())] == ["published"]
    finally:
        metadata.drop_all(engine)
        engine.dispose()


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_an_outbox_may_live_in_a_schema(url: str) -> None:
    engine, metadata = _engine(url), MetaData()
    box = Outbox(engine, schema="events")
    box.table(metadata)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("drop schema if exists events cascade"))
        connection.execute(sqlalchemy.text("create schema events"))
    metadata.create_all(engine)

    with engine.begin() as connection:
        box.sync.publish("orders", {"n": 1}, key="k", within=connection)
    box.sync.mark_published(box.sync.claim_batch("w1"))

    assert box.sync.counts()["published"] == 1
    assert Outbox(engine).sync.counts()["published"] == 0
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("drop schema events cascade"))
    engine.dispose()


def test_a_store_with_a_prefix_has_an_outbox_with_that_prefix(url: str) -> None:
    app = Dibs(url, prefix="shop")
    app.sync.migrate()

    box = Outbox(url, table="shop_outbox")

    assert sum(box.sync.counts().values()) == 0
    box.sync.close()
    app.sync.close()
    engine = _engine(url)
    with engine.begin() as connection:
        for name in sqlalchemy.inspect(engine).get_table_names():
            if name.startswith("shop_"):
                connection.execute(sqlalchemy.text(f"drop table {name}"))
        if engine.dialect.name == "postgresql" or getattr(engine.dialect, "is_mariadb", False):
            connection.execute(sqlalchemy.text("drop sequence if exists shop_token"))
    engine.dispose()


@pytest.mark.parametrize("name", ["a b", "", "x;drop table y", "1st", 'a"b', "a" * 60])
def test_a_name_that_could_end_a_name_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="name a table"):
        outbox.table(MetaData(), name=name)
