"""The columns and the index that an existing table lacks for leases."""

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

from dibs.tables.claims import ClaimsVerbs
from dibs.tables.clock import Moment
from dibs.tables.leases import Leases
from dibs.tables.model import UserTable, order_columns, user_table


class AddColumn(ExecutableDDLElement):
    """The statement `alter table … add column …`, which SQLAlchemy does not have."""

    def __init__(self, column: Column[Any]) -> None:
        self.column = column


@compiles(AddColumn)
def _add_column(element: AddColumn, compiler: Any, **kw: Any) -> str:
    table = compiler.preparer.format_table(element.column.table)
    return " ".join(["ALTER TABLE", table, "ADD COLUMN", compiler.get_column_specification(element.column)])


def statements(
    described: Any, dialect: Dialect, *, columns: Collection[str] = (), indexes: Collection[str] = ()
) -> list[str]:
    """Return the SQL for a model, a table or `Claims`, without the columns and indexes that exist."""
    leases, target = _leases_and_table(described)
    ours = target.table.to_metadata(MetaData())
    wanted = [AddColumn(column) for column in _columns(ours) if column.name not in columns]
    index = _index(target, leases, ours)
    ddl = [*wanted, *([CreateIndex(index)] if index.name not in indexes else [])]
    return [" ".join(str(one.compile(dialect=dialect)).split()) for one in ddl]


def missing(described: Any, connection: Connection) -> list[str]:
    """Return the SQL for what this database lacks."""
    table, found = _leases_and_table(described)[1].table, inspect(connection)
    return statements(
        described,
        connection.dialect,
        columns={one["name"] for one in found.get_columns(table.name, table.schema)},
        indexes={str(one["name"]) for one in found.get_indexes(table.name, table.schema)},
    )


def _leases_and_table(described: Any) -> tuple[Leases | None, UserTable]:
    if isinstance(described, ClaimsVerbs):
        return described.leases, described.leases.target
    return None, user_table(described)


def _columns(table: Table) -> Iterator[Column[Any]]:
    """Yield the columns of `Claimable`, as the model has them or as the mixin would add them."""
    for column in (
        Column("locked_by", String(200)),
        Column("locked_until", Moment),
        Column("claim_token", BigInteger, nullable=False, server_default="0"),
        Column("attempts", Integer, nullable=False, server_default="0"),
    ):
        if column.name not in table.c:
            table.append_column(column)
        yield table.c[column.name]


def _index(target: UserTable, leases: Leases | None, table: Table) -> Index:
    """Return an index on the columns that `ready` compares with one value, then on the order."""
    compared = _compared(target, leases.where()) if leases is not None else []
    order = order_columns(target, leases.order) if leases is not None else []
    by = [(table.c[one.column.key], one.descending) for one in order or []]
    first = [table.c[key] for key in dict.fromkeys(column.key for column in compared)]
    rest = [column.desc() if descending else column for column, descending in by if column not in first]
    return Index(f"ix_{table.name[:50]}_claim", *first, *(rest or [table.c.locked_until]))


def _compared(target: UserTable, criteria: Iterable[Any]) -> Iterator[Column[Any]]:
    for one in criteria:
        if isinstance(one, BooleanClauseList) and one.operator is operators.and_:
            yield from _compared(target, one.clauses)
        elif isinstance(one, BinaryExpression) and one.operator is operators.eq:
            column = target.find(one.left)
            if column is not None:
                yield column
