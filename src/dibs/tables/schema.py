"""What a table that exists already lacks for leases: the columns, and the index that serves the order."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, ExecutableDDLElement
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList

from dibs.tables.clock import Moment
from dibs.tables.leases import Leases
from dibs.tables.model import Target, target_of, terms


class AddColumn(ExecutableDDLElement):
    """`alter table … add column …`, which SQLAlchemy leaves to its migrations."""

    def __init__(self, column: Column[Any]) -> None:
        self.column = column


@compiles(AddColumn)
def _add_column(element: AddColumn, compiler: Any, **kw: Any) -> str:
    table = compiler.preparer.format_table(element.column.table)
    return " ".join(["ALTER TABLE", table, "ADD COLUMN", compiler.get_column_specification(element.column)])


def statements(
    described: Any, dialect: Dialect, *, columns: Collection[str] = (), indexes: Collection[str] = ()
) -> list[str]:
    """The SQL for a model, a table or `Claims`; without the columns and indexes that are there already."""
    leases: Leases | None = getattr(described, "leases", None)
    target = leases.target if leases is not None else target_of(described)
    ours = target.table.to_metadata(MetaData())
    wanted = [AddColumn(column) for column in _columns(ours) if column.name not in columns]
    index = _index(target, leases, ours)
    ddl = [*wanted, *([CreateIndex(index)] if index.name not in indexes else [])]
    return [" ".join(str(one.compile(dialect=dialect)).split()) for one in ddl]


def missing(described: Any, connection: Connection) -> list[str]:
    """What this database lacks for them."""
    leases: Leases | None = getattr(described, "leases", None)
    table = (leases.target if leases is not None else target_of(described)).table
    found = inspect(connection)
    return statements(
        described,
        connection.dialect,
        columns={one["name"] for one in found.get_columns(table.name, table.schema)},
        indexes={str(one["name"]) for one in found.get_indexes(table.name, table.schema)},
    )


def _columns(table: Table) -> Iterator[Column[Any]]:
    """Those of the mixin, as the model has them, or as it would."""
    for column in (
        Column("locked_by", String(200)),
        Column("locked_until", Moment),
        Column("claim_token", BigInteger, nullable=False, server_default="0"),
        Column("attempts", Integer, nullable=False, server_default="0"),
    ):
        if column.name not in table.c:
            table.append_column(column)
        yield table.c[column.name]


def _index(target: Target, leases: Leases | None, table: Table) -> Index:
    """What `ready` compares with one value, then the order: read as far as needed, and no further."""
    compared = _compared(target, leases.where()) if leases is not None else []
    order = terms(target, leases.order) if leases is not None else []
    by = [(table.c[term.column.key], term.descending) for term in order or []]
    first = [table.c[key] for key in dict.fromkeys(column.key for column in compared)]
    rest = [column.desc() if descending else column for column, descending in by if column not in first]
    return Index(f"ix_{table.name[:50]}_claim", *first, *(rest or [table.c.locked_until]))


def _compared(target: Target, criteria: Iterable[Any]) -> Iterator[Column[Any]]:
    for one in criteria:
        if isinstance(one, BooleanClauseList) and one.operator is operators.and_:
            yield from _compared(target, one.clauses)
        elif isinstance(one, BinaryExpression) and one.operator is operators.eq:
            column = target.found(one.left)
            if column is not None:
                yield column
