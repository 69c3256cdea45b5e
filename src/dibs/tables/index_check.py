"""The check of `claims.check()`: whether an index serves the order of a claim, by the database's query plans.

A planner reads a small table whole, whatever its indexes. So each database is asked whether an index *could*
serve the order, not what it would do today.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Select, inspect, select, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ClauseElement, Executable

from dibs.doctor import Finding, Level
from dibs.tables.leases import Leases
from dibs.tables.model import row_claim

TOPIC = "claim"


class Explain(Executable, ClauseElement):
    """A statement with `explain` before it, in the words of one database."""

    inherit_cache = False

    def __init__(self, statement: Any, words: str) -> None:
        self.statement = statement
        self.words = words


@compiles(Explain)
def _explain(element: Explain, compiler: Any, **kw: Any) -> str:
    return " ".join([element.words, compiler.process(element.statement, **kw)])


def check_index(connection: Connection, leases: Leases) -> list[Finding]:
    """Return one finding: whether an index serves the order in which rows are claimed."""
    if not leases.order:
        return [Finding(Level.ok, TOPIC, f"rows of {leases.target.name} are claimed in no order")]
    sorts = SORTS.get(connection.dialect.name)
    if sorts is None:
        return [Finding(Level.note, TOPIC, f"dibs can't read the query plans of {connection.dialect.name}")]
    return [_finding(leases, served=not sorts(connection, leases))]


def _finding(leases: Leases, *, served: bool) -> Finding:
    name = leases.target.table.fullname
    if served:
        return Finding(Level.ok, TOPIC, f"an index of {name} serves the order")
    return Finding(
        Level.warning,
        TOPIC,
        f"no index of {name} serves the order: a claim reads, and on MySQL locks, every row that is ready",
        "create the index that `dibs tables sql` prints",
    )


def _statement(leases: Leases) -> Select[Any]:
    claim = row_claim(leases.model, leases.where(), leases.renewing(None), 1, leases.order)
    return select(*claim.target.key).where(claim.where).order_by(*claim.order_by).limit(1)


# -- does it sort? ----------------------------------------------------------------------------------


def _postgresql_sorts(connection: Connection, leases: Leases) -> bool:
    connection.execute(text("set local enable_seqscan = off"))
    connection.execute(text("set local enable_bitmapscan = off"))
    connection.execute(text("set local enable_sort = off"))
    found = connection.execute(Explain(_statement(leases), "explain (format json)")).scalar_one()
    connection.rollback()
    return "Sort" in {node["Node Type"] for node in _nodes(found[0]["Plan"])}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _sqlite_sorts(connection: Connection, leases: Leases) -> bool:
    plan = connection.execute(Explain(_statement(leases), "explain query plan")).all()
    return any("USE TEMP B-TREE FOR ORDER BY" in row[-1] for row in plan)


def _mysql_sorts(connection: Connection, leases: Leases) -> bool:
    table, statement = leases.target.table, _statement(leases)
    names = [index["name"] for index in inspect(connection).get_indexes(table.name, table.schema)]
    quoted = [connection.dialect.identifier_preparer.quote(name) for name in ["primary", *names] if name]
    hints = ["".join(["force index (", name, ")"]) for name in quoted]
    return all(_filesort(connection, statement.with_hint(table, hint)) for hint in hints)


def _filesort(connection: Connection, statement: Select[Any]) -> bool:
    plan = connection.execute(Explain(statement, "explain format = traditional")).mappings().all()
    return any("filesort" in (row["Extra"] or "") for row in plan)


SORTS = {
    "postgresql": _postgresql_sorts,
    "sqlite": _sqlite_sorts,
    "mysql": _mysql_sorts,
    "mariadb": _mysql_sorts,
}
