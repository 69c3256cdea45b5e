"""Migrations: which versions a store lacks, and the statements that bring it up to date, or back.

A version is applied whole or not at all, and noted in the table `dibs_schema`. Its own statements, reversed,
undo it. A version that can't be reversed in this way has a file of the same name in the folder `down` beside
it (ADR 14).
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from importlib.resources import files

from dibs.clock import monotonic
from dibs.engines.mysql.engine import MySQL
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.retries import TryAgain
from dibs.engines.sql.blocks import Dialect, schema_files, schema_version, statements
from dibs.engines.sqlite.engine import SQLite
from dibs.errors import BadRequest, StoreUnavailable
from dibs.events import log
from dibs.text import spoken

MIGRATION_LOCK = 0x64696273  # "dibs", an advisory lock while tables are made
MIGRATION_TIMEOUT = 3600  # seconds: an index on many millions of finished jobs takes its time
LOCK_SECONDS = 3  # that a migration waits for a table; then other transactions have their turn
LONGEST_WAIT = 60.0  # seconds in all that it waits for the tables
LOCKED_AGAIN = 2.0  # seconds between two tries

_PART = re.compile(r"/\*(M!|!\d+)\s*(.*?)\s*\*/", re.DOTALL)  # what only one of MariaDB and MySQL reads
_TABLE = re.compile(r"create table (?:if not exists )?(\w+)")
_INDEX = re.compile(r"create (?:unique )?index (?:if not exists )?(\w+) on (\w+)")
_SEQUENCE = re.compile(r"create sequence (?:if not exists )?(\w+)")
_ALTER = re.compile(r"alter table (\w+) (.*)", re.DOTALL)
_ADD_KEY = re.compile(r"add (?:unique )?(?:key|index) (?:if not exists )?(\w+)")
_ADD_COLUMN = re.compile(r"add (?:column )?(?:if not exists )?(?!constraint|primary|foreign|check)(\w+)")
_ADDS_ONCE = re.compile(
    r"(?:alter table (?P<table>\w+) add (?P<what>column|(?:unique )?(?:key|index))|create (?:unique )?index)"
    r" /\*M! if not exists \*/ (?P<name>\w+)(?: on (?P<on>\w+))?"
)
_ROWS = re.compile(r"(?:insert|update|delete|do|select)\b")  # go away with the tables they are in


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that keeps a migration waiting, as far as the server shows it."""

    connection: int
    user: str | None
    program: str | None
    seconds: float | None

    def __str__(self) -> str:
        names = ", ".join(name for name in (self.user, self.program) if name)
        since = "" if self.seconds is None else f" for {spoken(self.seconds)}"
        return f"connection {self.connection}{f' ({names})' if names else ''} has a transaction open{since}"


class MigrationWait:
    """The wait of a migration for tables that other transactions use."""

    def __init__(self) -> None:
        self._began = monotonic()

    def pause(self, failure: TryAgain, blocker: Blocker | None) -> float:
        """Log what blocks it; return how long to wait before the next try, or give up."""
        waited = monotonic() - self._began
        what = blocker or "some transaction has them"
        if waited > LONGEST_WAIT:
            raise StoreUnavailable(
                f"{failure.store} can't be migrated: its tables were locked for {spoken(waited)}, {what}; "
                "wait for its end or end it, then migrate again"
            ) from failure.cause
        log.warning("%s: its tables are locked, %s; trying again", failure.store, what)
        return LOCKED_AGAIN


def dialect_named(name: str, prefix: str = "dibs") -> Dialect | None:
    """Return the dialect of a database, by its name in URLs, SQLAlchemy or Django."""
    match name.lower():
        case "sqlite":
            return SQLite(prefix).dialect
        case "postgresql" | "postgres":
            return PostgreSQL(prefix).dialect
        case "mysql" | "mariadb":
            return MySQL(prefix).dialect
        case _:
            return None


def check_version(dialect: Dialect, version: int | None) -> int:
    """Return the version if this dibs knows it; the newest for None, 0 for no tables at all."""
    newest = schema_version(dialect.name)
    if version is None:
        return newest
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= newest:
        raise BadRequest(
            f"there is no schema version {version!r}: this dibs knows 1 to {newest}, and 0 for no tables; "
            "a later version needs a later dibs"
        )
    return version


def schema_table(dialect: Dialect) -> tuple[str, str]:
    """Return the statements that create the table `dibs_schema`, and that read it."""
    table = dialect.rename("dibs_schema")
    create = f"create table if not exists {table} (version integer not null primary key)"
    return create, f"select version from {table}"  # noqa: S608


def pending(dialect: Dialect, applied: Collection[int], to: int | None = None) -> list[tuple[int, str]]:
    """Return the statements left to run, each with its version; the last of a version notes it."""
    table = dialect.rename("dibs_schema")
    last = check_version(dialect, to)
    steps: list[tuple[int, str]] = []
    for version, text in schema_files(dialect.name):
        if version not in applied and version <= last:
            for statement in statements(dialect.rename(text)):
                steps += [(version, part) for part in _unless_there(statement)]
            steps.append((version, f"insert into {table} (version) values ({version})"))  # noqa: S608
    return steps


def _unless_there(statement: str) -> list[str]:
    """Return the statement so that it changes nothing twice; MySQL has no `if not exists` here."""
    if (match := _ADDS_ONCE.match(statement)) is None:
        return [statement]
    table, name = match["table"] or match["on"], match["name"]
    kind, column = ("columns", "column_name") if match["what"] == "column" else ("statistics", "index_name")
    quoted = statement.replace("'", "''")
    change = (
        f"set @change = (select if(count(*) > 0, 'do 0', '{quoted}') "  # noqa: S608 (our own migrations)
        f"from information_schema.{kind} known where known.table_schema = database() "
        f"and known.table_name = '{table}' and known.{column} = '{name}')"
    )
    return [change, "prepare change_it from @change", "execute change_it", "deallocate prepare change_it"]


def undoing(dialect: Dialect, applied: Collection[int], to: int) -> list[tuple[int, str]]:
    """Return the statements that undo all versions after `to`, the newest first; 0 leaves nothing."""
    table = dialect.rename("dibs_schema")
    first = check_version(dialect, to)
    steps: list[tuple[int, str]] = []
    for version, text in reversed(list(schema_files(dialect.name))):
        if version in applied and version > first:
            steps += [(version, statement) for statement in _down(dialect, version, text)]
            steps.append((version, f"delete from {table} where version = {version}"))  # noqa: S608
    if first == 0:
        steps.append((0, f"drop table if exists {table}"))
    return steps


def table_names(dialect: Dialect) -> list[str]:
    """Return all tables of dibs, with the prefix of the store."""
    found = [dialect.rename("dibs_schema")]
    for _, text in schema_files(dialect.name):
        found += [match[1] for one in statements(dialect.rename(text)) if (match := _TABLE.match(one))]
    return found


def _down(dialect: Dialect, version: int, text: str) -> list[str]:
    own = files("dibs.engines").joinpath(dialect.name, "schema", "down")
    if own.is_dir():
        for file in own.iterdir():
            if int(file.name.split("_")[0]) == version:
                return statements(dialect.rename(file.read_text(encoding="utf-8")))
    made = statements(dialect.rename(text))
    return [undone for statement in reversed(made) if (undone := undo(statement, dialect.name))]


def undo(statement: str, dialect: str) -> str | None:
    """Return the statement that undoes this one; None if there is nothing to undo."""
    if statement.startswith("/*"):
        parts = [(reader, undo(inner, dialect) or "do 0") for reader, inner in _PART.findall(statement)]
        return " ".join(f"/*{reader} {undone} */" for reader, undone in parts)
    words = " ".join(statement.split()).replace("/*M! if not exists */ ", "")
    if match := _TABLE.match(words):
        return f"drop table if exists {match[1]}"
    if match := _SEQUENCE.match(words):
        return f"drop sequence if exists {match[1]}"
    if match := _INDEX.match(words):
        if dialect == "mysql":
            return f"drop index /*M! if exists */ {match[1]} on {match[2]}"
        return f"drop index if exists {match[1]}"
    if match := _ALTER.match(words):
        there = "/*M! if exists */ " if dialect == "mysql" else ""
        clauses = [_undo_clause(clause, there, words) for clause in reversed(_split(match[2]))]
        return f"alter table {match[1]} {', '.join(clauses)}"
    if _ROWS.match(words):
        return None
    raise _unreadable(words)


def _undo_clause(clause: str, there: str, statement: str) -> str:
    if match := _ADD_KEY.match(clause):
        return f"drop key {there}{match[1]}"
    if match := _ADD_COLUMN.match(clause):
        return f"drop column {there}{match[1]}"
    raise _unreadable(statement)


def _unreadable(statement: str) -> NotImplementedError:
    return NotImplementedError(
        f"dibs can't tell how to undo {statement[:100]!r}; its migration needs a file of the same name in "
        "the folder `down` beside it"
    )


def _split(clauses: str) -> list[str]:
    """Split at the commas outside parentheses."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(clauses):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(clauses[start:place].strip())
            start = place + 1
    return [*parts, clauses[start:].strip()]
