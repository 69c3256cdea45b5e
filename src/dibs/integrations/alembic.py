"""Alembic runs the migrations of dibs: `op.dibs_upgrade(to=8)` in a revision, `op.dibs_downgrade(to=0)` back.

Importing this module (in `env.py`) adds both operations, and keeps autogenerate from proposing to drop the
tables of dibs. The statements are the same as of `dibs migrate`, from the same files.
"""

import importlib.util

if importlib.util.find_spec("alembic") is None:
    raise ModuleNotFoundError(
        "dibs.integrations.alembic needs Alembic: pip install 'dibs[alembic]'", name="alembic"
    )


from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic.autogenerate import comparators
from alembic.operations import MigrateOperation, Operations
from alembic.operations import ops as alembic_ops
from sqlalchemy import inspect, text

from dibs.engines.sql.blocks import Dialect, schema_files
from dibs.engines.sql.migrations import (
    MIGRATION_LOCK,
    check_version,
    dialect_named,
    pending,
    schema_table,
    table_names,
    undoing,
)
from dibs.errors import UnknownEngine
from dibs.settings import read_settings

__all__ = ["DibsDowngrade", "DibsUpgrade", "include_name"]

# The version that the revisions of one offline script have reached, by prefix: there is no store to ask.
_REACHED = "dibs_versions_reached"
# Tables of every store of dibs, whatever its prefix, by which autogenerate recognises them.
_ALWAYS = ("schema", "jobs", "finished")


@Operations.register_operation("dibs_upgrade")
class DibsUpgrade(MigrateOperation):
    """The operation that brings the tables of dibs to a version; applied versions are skipped."""

    def __init__(self, to: int | None, since: int | None, prefix: str | None) -> None:
        self.to, self.since, self.prefix = to, since, prefix

    @classmethod
    def dibs_upgrade(
        cls,
        operations: Operations,
        *,
        to: int | None = None,
        since: int | None = None,
        prefix: str | None = None,
    ) -> None:
        """Create or change the tables of dibs up to version `to`; up to the newest without `to`.

        Offline (`--sql`) there is no store to ask for its version: it is `since`, else what earlier revisions
        of the same script reached.
        """
        operations.invoke(cls(to, since, prefix))

    def reverse(self) -> MigrateOperation:
        return DibsDowngrade(self.since or 0, self.to, self.prefix)


@Operations.register_operation("dibs_downgrade")
class DibsDowngrade(MigrateOperation):
    """The operation that undoes versions, the newest first, and drops the data that only they can keep."""

    def __init__(self, to: int, since: int | None, prefix: str | None) -> None:
        self.to, self.since, self.prefix = to, since, prefix

    @classmethod
    def dibs_downgrade(
        cls, operations: Operations, *, to: int, since: int | None = None, prefix: str | None = None
    ) -> None:
        """Undo all versions after `to`. 0 drops every table of dibs, and the jobs in them.

        Offline (`--sql`) it begins at `since`, else at the newest version that this dibs knows.
        """
        operations.invoke(cls(to, since, prefix))

    def reverse(self) -> MigrateOperation:
        return DibsUpgrade(self.since, self.to, self.prefix)


@Operations.implementation_for(DibsUpgrade)
def _upgrade(operations: Operations, asked: DibsUpgrade) -> None:
    dialect = _dialect(operations, asked.prefix)
    to = check_version(dialect, asked.to)
    create, _ = schema_table(dialect)
    with _alone(operations, dialect):
        if not _has_versions(operations, dialect):
            _execute(operations, create)
        applied = _applied(operations, dialect, 0 if asked.since is None else asked.since)
        for _, statement in pending(dialect, applied, to):
            _execute(operations, statement)
    _reach(operations, dialect, max(to, *applied, 0))


@Operations.implementation_for(DibsDowngrade)
def _downgrade(operations: Operations, asked: DibsDowngrade) -> None:
    dialect = _dialect(operations, asked.prefix)
    to = check_version(dialect, asked.to)
    with _alone(operations, dialect):
        applied = _applied(operations, dialect, check_version(dialect, asked.since))
        for _, statement in undoing(dialect, applied, to):
            _execute(operations, statement)
    _reach(operations, dialect, to)


def _dialect(operations: Operations, prefix: str | None) -> Dialect:
    name = operations.get_context().dialect.name
    dialect = dialect_named(name, read_settings({"prefix": prefix}).prefix)
    if dialect is None:
        raise UnknownEngine(f"dibs has no tables for {name}; use PostgreSQL, MariaDB, MySQL or SQLite")
    return dialect


def _applied(operations: Operations, dialect: Dialect, offline: int) -> set[int]:
    """Return the versions that the store has; offline, what the script has reached, or `offline`."""
    context = operations.get_context()
    if context.as_sql:
        reached = context.opts.get(_REACHED, {}).get(dialect.prefix, offline)
        return {version for version, _ in schema_files(dialect.name) if version <= reached}
    if not _has_versions(operations, dialect):
        return set()
    _, versions = schema_table(dialect)
    return {version for (version,) in operations.get_bind().execute(text(versions))}


def _has_versions(operations: Operations, dialect: Dialect) -> bool:
    offline: bool = operations.get_context().as_sql
    return not offline and bool(inspect(operations.get_bind()).has_table(dialect.rename("dibs_schema")))


def _reach(operations: Operations, dialect: Dialect, version: int) -> None:
    operations.get_context().opts.setdefault(_REACHED, {})[dialect.prefix] = version


@contextmanager
def _alone(operations: Operations, dialect: Dialect) -> Iterator[None]:
    """Lock out other migrations while the body runs."""
    before, after = _lock(operations, dialect)
    _execute(operations, before)
    yield
    if after is not None:
        _execute(operations, after)


def _lock(operations: Operations, dialect: Dialect) -> tuple[str, str | None]:
    """Return the statement that locks and, where the lock outlives the transaction, the one that unlocks."""
    if dialect.name == "postgresql":
        return f"select pg_advisory_xact_lock({MIGRATION_LOCK})", None
    if dialect.name == "mysql":
        lock = f"concat(database(), '.{dialect.rename('dibs_migrate')}')"
        return f"do get_lock({lock}, 60)", f"do release_lock({lock})"
    bound: Any = operations.get_bind()
    if operations.get_context().as_sql or bound.connection.driver_connection.in_transaction:
        return "savepoint dibs_migrate", "release dibs_migrate"
    # The driver would begin late, and a reader that turns writer is refused while workers write.
    return "begin immediate", None


def _execute(operations: Operations, statement: str) -> None:
    operations.execute(text(statement.replace(":", "\\:")))


# -- Autogenerate -------------------------------------------------------------------------------


def include_name(name: str | None, type_: str, parent_names: Any = None, *, prefix: str = "dibs") -> bool:
    """Return False for tables of dibs; for `context.configure(include_name=…)`.

    Autogenerate does not need it: importing this module is enough for it to leave the tables alone.
    """
    return not (type_ == "table" and name in _names(prefix))


def _names(prefix: str) -> set[str]:
    dialects = [dialect_named(name, prefix) for name in ("sqlite", "postgresql", "mysql")]
    return {table for dialect in dialects if dialect is not None for table in table_names(dialect)}


def _leave_ours_alone(context: Any, upgrade_ops: Any, schemas: Any) -> None:
    """Remove the tables of dibs from the tables that autogenerate proposes to drop."""
    dropped = {op.table_name for op in upgrade_ops.ops if isinstance(op, alembic_ops.DropTableOp)}
    ours = _ours(dropped)
    upgrade_ops.ops[:] = [op for op in upgrade_ops.ops if getattr(op, "table_name", None) not in ours]


try:  # after Alembic's own comparison; before 1.18 the order of registration decided
    from alembic.util import DispatchPriority
except ImportError:
    comparators.dispatch_for("schema")(_leave_ours_alone)
else:
    comparators.dispatch_for("schema", priority=DispatchPriority.LAST)(_leave_ours_alone)


def _ours(tables: set[str]) -> set[str]:
    prefixes = {name.removesuffix("_schema") for name in tables if name.endswith("_schema")}
    whole = [prefix for prefix in prefixes if all(f"{prefix}_{name}" in tables for name in _ALWAYS)]
    return {name for prefix in whole for name in _names(prefix)}
