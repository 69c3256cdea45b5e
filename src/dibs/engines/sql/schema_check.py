"""Compare a store's tables with what they should be: the same migrations, run in a scratch place.

The server words both definitions, so there is no second list of columns to keep up to date. Only this
connection sees the scratch tables, and they leave nothing behind: temporary tables on PostgreSQL and
MariaDB, a database in memory for SQLite.
"""

import re
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dibs.engines.sql.blocks import Dialect, schema_version
from dibs.engines.sql.engine import Query
from dibs.engines.sql.migrations import pending, table_names
from dibs.engines.store import SchemaProblem


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """One table as the database describes it: each column and index with its definition."""

    columns: Mapping[str, str] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)


Definitions = Mapping[str, TableDefinition]


# A script that yields statements, or names of blocks, and is sent their rows.
SchemaCheck = Generator[str | Query, Any, list[SchemaProblem]]

# Statements that create something. MySQL's migrations also prepare statements: it has no `add column if not
# exists`.
_CREATES = re.compile(r"(create|alter|set|prepare|execute|deallocate) ")
_SCRATCH = "dibs_scratch"


def compare(
    found: Definitions,
    expected: Definitions,
    version: int,
    needed: int,
    normal: Callable[[str], str] = str,
) -> list[SchemaProblem]:
    """Return what is missing or different; columns and indexes that a user added are ignored.

    Two definitions are the same if their `normal` forms are: a database may write one thing in two ways.
    """
    old = SchemaProblem(what="version", table="", name="version", expected=str(needed), found=str(version))
    return [*([old] if version < needed else []), *_tables(found, expected, normal)]


def _tables(
    found: Definitions, expected: Definitions, normal: Callable[[str], str]
) -> Iterator[SchemaProblem]:
    for table, definition in sorted(expected.items()):
        if (there := found.get(table)) is None:
            yield SchemaProblem(what="table", table=table, name=table, expected="")
            continue
        yield from _parts("column", table, there.columns, definition.columns, normal)
        yield from _parts("index", table, there.indexes, definition.indexes, normal)


def _parts(
    what: Literal["column", "index"],
    table: str,
    found: Mapping[str, str],
    expected: Mapping[str, str],
    normal: Callable[[str], str],
) -> Iterator[SchemaProblem]:
    for name, definition in sorted(expected.items()):
        there = found.get(name)
        if there is None or normal(there) != normal(definition):
            yield SchemaProblem(what=what, table=table, name=name, expected=definition, found=there)


# -- PostgreSQL ---------------------------------------------------------------------------------

# A dump prints an expression, and the PostgreSQL that restores it places the casts between its types of text
# elsewhere and adds parentheses around what was cast. Neither means anything.
_TEXT_CAST = re.compile(r"::(?:text|character varying)(?:\[\])?")
_AROUND_ONE = re.compile(r"\((\w+|'[^']*'|ARRAY\[[^\]]*\])\)")


def check_postgresql(dialect: Dialect, version: int) -> SchemaCheck:
    """Compare within a transaction that the caller rolls back."""
    names = {"tables": [*table_names(dialect)[1:], dialect.rename("dibs_token")]}
    found = yield from _postgresql_definitions(names)
    yield "set local search_path to pg_temp"
    for _, statement in pending(dialect, ()):
        if _CREATES.match(statement):
            yield statement
    expected = yield from _postgresql_definitions(names)
    return compare(found, expected, version, schema_version(dialect.name), _without_casts)


def _without_casts(definition: str) -> str:
    plain = _TEXT_CAST.sub("", definition)
    while (shorter := _AROUND_ONE.sub(r"\1", plain)) != plain:
        plain = shorter
    return plain


def _postgresql_definitions(names: Mapping[str, Any]) -> Generator[Query, Any, Definitions]:
    tables = [row["name"] for row in (yield Query("schema_tables", names))]
    columns = yield Query("schema_columns", names)
    indexes = yield Query("schema_indexes", names)
    parts: dict[str, tuple[dict[str, str], dict[str, str]]] = {table: ({}, {}) for table in tables}
    for part, rows in enumerate((columns, indexes)):
        for row in rows:
            parts[row["table_name"]][part][row["name"]] = row["definition"]
    return {table: TableDefinition(*both) for table, both in parts.items()}


# -- MySQL and MariaDB --------------------------------------------------------------------------

_DEFINED = re.compile(
    r"(?P<key>(?:[A-Z]+ )*KEY |CONSTRAINT |PRIMARY )?(?:`(?P<name>[^`]+)` ?)?(?P<definition>.*)"
)


def check_mysql(dialect: Dialect, version: int) -> SchemaCheck:
    # Another prefix: a temporary table would hide the real one of its name.
    scratch = Dialect(name=dialect.name, spellings=dialect.spellings, prefix=_SCRATCH)
    pairs = dict(zip(table_names(scratch)[1:], table_names(dialect)[1:], strict=True))
    there = {str(row[0]) for row in (yield f"show tables like '{dialect.prefix}\\_%'")}
    found = {}
    for table in pairs.values():
        if table in there:
            found[table] = _mysql_definition((yield f"show create table {table}"))
    yield f"drop temporary table if exists {', '.join(pairs)}"
    for _, statement in pending(scratch, ()):
        if _CREATES.match(statement):
            yield statement.replace("create table if not exists", "create temporary table")
    expected = {}
    for table, real in pairs.items():
        expected[real] = _mysql_definition((yield f"show create table {table}"), dialect.prefix)
    yield f"drop temporary table if exists {', '.join(pairs)}"
    return compare(found, expected, version, schema_version(dialect.name))


def _mysql_definition(rows: Any, prefix: str = _SCRATCH) -> TableDefinition:
    """Read `show create table`, which has a line for each column and each key."""
    columns: dict[str, str] = {}
    indexes: dict[str, str] = {}
    [(_, text)] = rows
    for line in text.splitlines()[1:-1]:
        match = _DEFINED.match(line.strip().removesuffix(","))
        assert match is not None
        name = re.sub(rf"^{_SCRATCH}_", f"{prefix}_", match["name"] or "primary")
        part = indexes if match["key"] else columns
        # MySQL says the character set only of what was made with a collation by name, as dumps are.
        definition = match["definition"].replace("CHARACTER SET utf8mb4 COLLATE", "COLLATE")
        part[name] = f"{match['key'] or ''}{definition}"
    return TableDefinition(columns, indexes)


# -- SQLite -------------------------------------------------------------------------------------

_TABLE = "select 1 from sqlite_master where type = 'table' and name = ?"
_COLUMNS = 'select name, type, "notnull", dflt_value, pk, hidden from pragma_table_xinfo(?)'
_INDEXES = """
    select list.name, list."unique", list.origin, coalesce(master.sql, '')
    from pragma_index_list(?) list
    left join sqlite_master master on master.type = 'index' and master.name = list.name
"""
_INDEXED = "select name, desc, coll from pragma_index_xinfo(?) where key order by seqno"


def check_sqlite(connection: sqlite3.Connection, dialect: Dialect, version: int) -> list[SchemaProblem]:
    scratch = sqlite3.connect(":memory:")
    try:
        for _, statement in pending(dialect, ()):
            if _CREATES.match(statement):
                scratch.execute(statement)
        names = table_names(dialect)[1:]
        found, expected = _sqlite_definitions(connection, names), _sqlite_definitions(scratch, names)
    finally:
        scratch.close()
    return compare(found, expected, version, schema_version(dialect.name))


def _sqlite_definitions(connection: sqlite3.Connection, tables: Iterable[str]) -> Definitions:
    def rows(sql: str, name: str) -> list[Any]:
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, [name]).fetchall()

    def index(name: str, unique: int, origin: str, sql: str) -> str:
        columns = [
            f"{column}{' desc' if desc else ''}{'' if collation == 'BINARY' else f' collate {collation}'}"
            for column, desc, collation in rows(_INDEXED, name)
        ]
        only = re.search(r"\bwhere\b(.*)", " ".join(sql.split()), re.IGNORECASE)
        kind = {"pk": "primary key ", "u": "unique "}.get(origin, "unique index " if unique else "index ")
        return f"{kind}({', '.join(columns)}){f' where{only[1]}' if only else ''}"

    return {
        table: TableDefinition(
            {name: _sqlite_column(*about) for name, *about in rows(_COLUMNS, table)},
            {name: index(name, *about) for name, *about in rows(_INDEXES, table)},
        )
        for table in tables
        if rows(_TABLE, table)
    }


def _sqlite_column(type: str, required: int, default: str | None, key: int, hidden: int) -> str:
    words = [
        re.sub(r"varchar\(\d+\)", "text", type.lower()),  # SQLAlchemy's word for it; SQLite knows no length
        "not null" if required else "",
        f"default {default}" if default is not None else "",
        "primary key" if key else "",
        "generated" if hidden else "",
    ]
    return " ".join(filter(None, words))
