"""The tables of the outbox and the inbox for SQLAlchemy, for users with migrations of their own.

They equal what `dibs migrate` creates; a test compares the two.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Computed,
    DateTime,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from dibs.outbox.statements import TableNames

_MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */",
}
_MARIADB: dict[str, Any] = {name.replace("mysql", "mariadb"): value for name, value in _MYSQL.items()}
_OPEN_BROKER = "case when status in ('pending', 'processing', 'failed') then broker end"
_OPEN = "open_broker is not null"
_PUBLISHED = "published_at is not null"
_ABANDONED = "open_broker is null and published_at is null"


def outbox_table(metadata: MetaData, names: TableNames) -> Table:
    """Return the outbox as a table of this metadata, described once."""
    name = names.outbox
    if (known := _known(metadata, name, names.schema)) is not None:
        return known
    return Table(
        name,
        metadata,
        Column("position", _number(), Identity(always=False), primary_key=True),
        Column("message_id", String(36), nullable=False),
        Column("broker", String(200), nullable=False),
        Column("topic", String(200), nullable=False),
        Column("message_key", String(200)),
        Column("payload", _long_text(), nullable=False),
        Column("headers", _long_text(), nullable=False),
        Column("status", String(20), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("max_attempts", Integer, nullable=False),
        Column("token", _number()),
        Column("locked_by", String(200)),
        Column("locked_until", _time()),
        Column("available_at", _time(), nullable=False),
        Column("created_at", _time(), nullable=False),
        Column("published_at", _time()),
        Column("error", _long_text()),
        Column("open_broker", String(200), Computed(_OPEN_BROKER, persisted=True)),
        Index(f"{name}_message", "message_id", "broker", unique=True),
        Index(f"{name}_open", "open_broker", "position", **_where(_OPEN)),
        Index(f"{name}_key", "open_broker", "message_key", "position", **_where(_OPEN)),
        Index(f"{name}_published", "published_at", "position", **_where(_PUBLISHED)),
        Index(f"{name}_abandoned", "open_broker", "published_at", "position", **_where(_ABANDONED)),
        schema=names.schema,
        sqlite_autoincrement=True,
        **_MYSQL,
        **_MARIADB,
    )


def inbox_table(metadata: MetaData, names: TableNames) -> Table:
    """Return the inbox as a table of this metadata, described once."""
    if (known := _known(metadata, names.inbox, names.schema)) is not None:
        return known
    return Table(
        names.inbox,
        metadata,
        Column("consumer", String(200), primary_key=True),
        Column("message_id", String(200), primary_key=True),
        Column("mark", String(36), nullable=False),
        Column("seen_at", _time(), nullable=False),
        Index(f"{names.inbox}_seen", "seen_at"),
        schema=names.schema,
        **_MYSQL,
        **_MARIADB,
    )


def sqlite_tables(names: TableNames) -> list[str]:
    """Return the statements that create both tables and their indexes if they do not exist."""
    metadata, dialect = MetaData(), sqlite.dialect()
    tables = [outbox_table(metadata, names), inbox_table(metadata, names)]
    creation: list[Any] = [CreateTable(table, if_not_exists=True) for table in tables]
    indexing: list[Any] = [
        CreateIndex(index, if_not_exists=True)
        for table in tables
        for index in sorted(table.indexes, key=lambda index: str(index.name))
    ]
    return [str(one.compile(dialect=dialect)) for one in (*creation, *indexing)]


def _known(metadata: MetaData, name: str, schema: str | None) -> Table | None:
    return metadata.tables.get(name if schema is None else f"{schema}.{name}")


def _number() -> Any:
    return BigInteger().with_variant(Integer(), "sqlite")


def _time() -> Any:
    return (
        DateTime(timezone=True)
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
        .with_variant(Integer(), "sqlite")
    )


def _long_text() -> Any:
    return Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def _where(condition: str) -> dict[str, Any]:
    """Make an index partial, where the database has partial indexes."""
    return {"postgresql_where": text(condition), "sqlite_where": text(condition)}
