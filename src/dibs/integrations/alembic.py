"""Alembic runs the migrations of dibs: `op.dibs_upgrade(to=8)` in a revision, `op.dibs_downgrade(to=0)` back.

Importing this module (in `env.py`) adds both operations, and keeps autogenerate from proposing to drop the
tables of dibs. The statements are those of `dibs migrate`, read from the same files.
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

# How far the revisions of one offline script have got, by prefix: there is no store to ask.
_REACHED = "dibs_versions_reached"
# What every store of dibs has, whatever its prefix: how autogenerate tells our tables from those of others.
_MARKS = ("schema", "jobs", "finished")


@Operations.register_operation("dibs_upgrade")
class DibsUpgrade(MigrateOperation):
    """Bring the tables of dibs to a version. Applied versions are left alone."""

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
        """Make the tables of dibs, columns and indexes of a version together; the newest without `to`.

        Offline (`--sql`) there is no store to ask what it has: `since` says it, else nothing but what earlier
        revisions of the same script did.
        """
        operations.invoke(cls(to, since, prefix))

    def reverse(self) -> MigrateOperation:
        return DibsDowngrade(self.since or 0, self.to, self.prefix)


@Operations.register_operation("dibs_downgrade")
class DibsDowngrade(MigrateOperation):
    """Take versions away, the newest first, with the rows that only they have a place for."""

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
            _say(operations, create)
        applied = _applied(operations, dialect, 0 if asked.since is None else asked.since)
        for _, statement in pending(dialect, applied, to):
            _say(operations, statement)
    _reach(operations, dialect, max(to, *applied, 0))


@Operations.implementation_for(DibsDowngrade)
def _downgrade(operations: Operations, asked: DibsDowngrade) -> None:
    dialect = _dialect(operations, asked.prefix)
    to = check_version(dialect, asked.to)
    with _alone(operations, dialect):
        applied = _applied(operations, dialect, check_version(dialect, asked.since))
        for _, statement in undoing(dialect, applied, to):
            _say(operations, statement)
    _reach(operations, dialect, to)


def _dialect(operations: Operations, prefix: str | None) -> Dialect:
    name = operations.get_context().dialect.name
    dialect = dialect_named(name, read_settings({"prefix": prefix}).prefix)
    if dialect is None:
        raise UnknownEngine(f"dibs has no tables for {name}; use PostgreSQL, MariaDB, MySQL or SQLite")
    return dialect


def _applied(operations: Operations, dialect: Dialect, offline: int) -> set[int]:
    """Which versions the store has; offline, what the script so far, or the caller, says."""
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
    """Nobody else migrates meanwhile."""
    before, after = _turn(operations, dialect)
    _say(operations, before)
    yield
    if after is not None:
        _say(operations, after)


def _turn(operations: Operations, dialect: Dialect) -> tuple[str, str | None]:
    """How it begins and, where it does not end with the transaction, how it ends."""
    if dialect.name == "postgresql":
        return f"select pg_advisory_xact_lock({MIGRATION_LOCK})", None
    if dialect.name == "mysql":
        lock = f"concat(database(), '.{dialect.rename('dibs_migrate')}')"
        return f"do get_lock({lock}, 60)", f"do release_lock({lock})"
    if operations.get_context().as_sql or _has_begun(operations.get_bind()):
        return "savepoint dibs_migrate", "release dibs_migrate"
    # The driver would begin late, and a reader that turns writer is refused while workers write.
    return "begin immediate", None


def _has_begun(connection: Any) -> bool:
    return bool(connection.connection.driver_connection.in_transaction)


def _say(operations: Operations, statement: str) -> None:
    operations.execute(text(statement.replace(":", "\\:")))


# -- Autogenerate -------------------------------------------------------------------------------


def include_name(name: str | None, type_: str, parent_names: Any = None, *, prefix: str = "dibs") -> bool:
    """For `context.configure(include_name=…)`, where Alembic should not even read the tables of dibs.

    Not needed for autogenerate to leave them alone: importing this module is enough.
    """
    return not (type_ == "table" and name in _names(prefix))


def _names(prefix: str) -> set[str]:
    dialects = [dialect_named(name, prefix) for name in ("sqlite", "postgresql", "mysql")]
    return {table for dialect in dialects if dialect is not None for table in table_names(dialect)}


def _leave_ours_alone(context: Any, upgrade_ops: Any, schemas: Any) -> None:
    """Tables that no model of the user's describes are proposed to be dropped; ours are not."""
    dropped = {op.table_name for op in upgrade_ops.ops if isinstance(op, alembic_ops.DropTableOp)}
    ours = _ours(dropped)
    upgrade_ops.ops[:] = [op for op in upgrade_ops.ops if getattr(op, "table_name", None) not in ours]


try:  # after Alembic's own comparison; before 1.18 it did those first that were registered first
    from alembic.util import DispatchPriority
except ImportError:
    comparators.dispatch_for("schema")(_leave_ours_alone)
else:
    comparators.dispatch_for("schema", priority=DispatchPriority.LAST)(_leave_ours_alone)


def _ours(tables: set[str]) -> set[str]:
    prefixes = {name.removesuffix("_schema") for name in tables if name.endswith("_schema")}
    whole = [prefix for prefix in prefixes if all(f"{prefix}_{mark}" in tables for mark in _MARKS)]
    return {name for prefix in whole for name in _names(prefix)}
