"""Look at a store's tables, and at what they should be: the same migrations, run in a scratch place.

So it is the server that says how a definition reads, on both sides, and there is no second list of columns
to keep up to date. The scratch place is seen by this connection alone and leaves nothing behind: temporary
tables on PostgreSQL and MariaDB, a database in memory for SQLite.
"""

import re
import sqlite3
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from dibs.engines.sql.engine import Dialect, Query
from dibs.engines.sql.migrations import pending, table_names
from dibs.engines.sql.schema_files import schema_version
from dibs.engines.sql.schema_problems import Look, SchemaProblem, compare

# Yields a statement of its own, or the name of a block, and is sent the rows.
Looking = Generator[str | Query, Any, list[SchemaProblem]]

# What makes something. MySQL's migrations also prepare statements: it has no `add column if not exists`.
_MADE = re.compile(r"(create|alter|set|prepare|execute|deallocate) ")
_LINE = re.compile(
    r"(?P<key>(?:[A-Z]+ )*KEY |CONSTRAINT |PRIMARY )?(?:`(?P<name>[^`]+)` ?)?(?P<definition>.*)"
)
_SCRATCH = "dibs_scratch"

# A dump has an expression as it reads, and the PostgreSQL that restores it has the casts between its kinds of
# text elsewhere, and parentheses around what was cast. Neither means anything.
_TEXT_CAST = re.compile(r"::(?:text|character varying)(?:\[\])?")
_AROUND_ONE = re.compile(r"\((\w+|'[^']*'|ARRAY\[[^\]]*\])\)")


def look_at_postgresql(dialect: Dialect, version: int) -> Looking:
    """In a transaction that is rolled back."""
    names = {"tables": _relations(dialect)}
    found = yield from _postgresql_looks(names)
    yield "set local search_path to pg_temp"
    for _, statement in pending(dialect, ()):
        if _MADE.match(statement):
            yield statement
    expected = yield from _postgresql_looks(names)
    return compare(found, expected, version, schema_version(dialect.name), _plainly)


def _plainly(definition: str) -> str:
    plain = _TEXT_CAST.sub("", definition)
    while (shorter := _AROUND_ONE.sub(r"\1", plain)) != plain:
        plain = shorter
    return plain


def look_at_mysql(dialect: Dialect, version: int) -> Looking:
    scratch = _for_scratch(dialect)
    pairs = dict(zip(table_names(scratch)[1:], table_names(dialect)[1:], strict=True))
    there = {str(row[0]) for row in (yield f"show tables like '{dialect.prefix}\\_%'")}
    found = {}
    for table in pairs.values():
        if table in there:
            found[table] = _mysql_look((yield f"show create table {table}"))
    yield f"drop temporary table if exists {', '.join(pairs)}"
    for _, statement in pending(scratch, ()):
        if _MADE.match(statement):
            yield statement.replace("create table if not exists", "create temporary table")
    expected = {}
    for table, real in pairs.items():
        expected[real] = _mysql_look((yield f"show create table {table}"), dialect.prefix)
    yield f"drop temporary table if exists {', '.join(pairs)}"
    return compare(found, expected, version, schema_version(dialect.name))


def _for_scratch(dialect: Dialect) -> Dialect:
    """A temporary table would hide the real one of its name."""
    return Dialect(name=dialect.name, spellings=dialect.spellings, prefix=_SCRATCH)


def look_at_sqlite(connection: sqlite3.Connection, dialect: Dialect, version: int) -> list[SchemaProblem]:
    scratch = sqlite3.connect(":memory:")
    try:
        for _, statement in pending(dialect, ()):
            if _MADE.match(statement):
                scratch.execute(statement)
        names = table_names(dialect)[1:]
        found, expected = _sqlite_looks(connection, names), _sqlite_looks(scratch, names)
    finally:
        scratch.close()
    return compare(found, expected, version, schema_version(dialect.name))


def _relations(dialect: Dialect) -> list[str]:
    return [*table_names(dialect)[1:], dialect.rename("dibs_token")]


def _postgresql_looks(names: Mapping[str, Any]) -> Generator[Query, Any, dict[str, Look]]:
    tables = [row["name"] for row in (yield Query("look_for_tables", names))]
    columns = yield Query("look_at_columns", names)
    indexes = yield Query("look_at_indexes", names)
    return _looks(tables, columns, indexes)


def _looks(tables: Iterable[str], columns: Any, indexes: Any) -> dict[str, Look]:
    looks: dict[str, tuple[dict[str, str], dict[str, str]]] = {table: ({}, {}) for table in tables}
    for place, rows in enumerate((columns, indexes)):
        for row in rows:
            looks[row["table_name"]][place][row["name"]] = row["definition"]
    return {table: Look(*parts) for table, parts in looks.items()}


def _mysql_look(rows: Any, prefix: str = _SCRATCH) -> Look:
    """`show create table` has a line for each column and each key, and says all there is to say."""
    columns: dict[str, str] = {}
    indexes: dict[str, str] = {}
    [(_, text)] = rows
    for line in text.splitlines()[1:-1]:
        match = _LINE.match(line.strip().removesuffix(","))
        assert match is not None
        name = re.sub(rf"^{_SCRATCH}_", f"{prefix}_", match["name"] or "primary")
        part = indexes if match["key"] else columns
        part[name] = f"{match['key'] or ''}{match['definition']}"
    return Look(columns, indexes)


_TABLE = "select 1 from sqlite_master where type = 'table' and name = ?"
_COLUMNS = 'select name, type, "notnull", dflt_value, pk, hidden from pragma_table_xinfo(?)'
_INDEXES = """
    select list.name, list."unique", list.origin, coalesce(master.sql, '')
    from pragma_index_list(?) list
    left join sqlite_master master on master.type = 'index' and master.name = list.name
"""
_INDEXED = "select name, desc, coll from pragma_index_xinfo(?) where key order by seqno"


def _sqlite_looks(connection: sqlite3.Connection, tables: Iterable[str]) -> dict[str, Look]:
    def rows(sql: str, name: str) -> list[Any]:
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, [name]).fetchall()

    def index(name: str, unique: int, origin: str, sql: str) -> str:
        columns = [
            f"{column}{' desc' if desc else ''}{'' if collation == 'BINARY' else f' collate {collation}'}"
            for column, desc, collation in rows(_INDEXED, name)
        ]
        only = re.search(r"\bwhere\b.*", " ".join(sql.split()), re.IGNORECASE)
        kind = {"pk": "primary key ", "u": "unique "}.get(origin, "unique index " if unique else "index ")
        return f"{kind}({', '.join(columns)}){f' {only[0]}' if only else ''}"

    return {
        table: Look(
            {name: _sqlite_column(*about) for name, *about in rows(_COLUMNS, table)},
            {name: index(name, *about) for name, *about in rows(_INDEXES, table)},
        )
        for table in tables
        if rows(_TABLE, table)
    }


def _sqlite_column(type: str, required: int, default: str | None, key: int, hidden: int) -> str:
    words = [
        type.lower(),
        "not null" if required else "",
        f"default {default}" if default is not None else "",
        "primary key" if key else "",
        "generated" if hidden else "",
    ]
    return " ".join(filter(None, words))
