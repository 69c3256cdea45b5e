"""Versions of the tables of dibs as Django migrations, with the SQL of `dibs migrate`."""

from typing import Any

from django.db import router
from django.db.migrations import Migration
from django.db.migrations.operations.base import Operation

from dibs.engines.sql.blocks import Dialect
from dibs.engines.sql.migrations import MIGRATION_LOCK, dialect_named, pending, schema_table, undoing
from dibs.integrations.django import store
from dibs.integrations.django.models import described


class DibsVersion(Operation):  # type: ignore[misc]
    """The step to one version of the tables of dibs, from the version before it."""

    reduces_to_sql = True
    reversible = True

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: there are no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if (dialect := _dialect(app_label, schema_editor)) is None:
            return
        create, _ = schema_table(dialect)
        schema_editor.execute(create, params=None)
        _lock_migrations(schema_editor, dialect)
        applied = _applied(schema_editor, dialect, self.version - 1)
        for _, statement in pending(dialect, applied, self.version):
            schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if (dialect := _dialect(app_label, schema_editor)) is None:
            return
        _lock_migrations(schema_editor, dialect)
        applied = _applied(schema_editor, dialect, self.version)
        for _, statement in undoing(dialect, applied, self.version - 1):
            schema_editor.execute(statement, params=None)

    def describe(self) -> str:
        return f"Bring the tables of dibs to version {self.version}"

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [self.version], {}


def version(number: int) -> type[Any]:
    """Return the migration of one version."""
    before = [] if number == 1 else [("dibs", _name(number - 1))]
    operations = [DibsVersion(number), *([described()] if number == 1 else [])]
    about = {"operations": operations, "dependencies": before, "initial": number == 1}
    return type("Migration", (Migration,), about)


def _name(number: int) -> str:
    return f"{number:04}_version"


def _dialect(app_label: str, schema_editor: Any) -> Dialect | None:
    """Return the dialect of this database, or None if it keeps no jobs."""
    connection = schema_editor.connection
    if not store.in_database() or connection.alias != store.alias():
        return None
    if not router.allow_migrate(connection.alias, app_label):
        return None
    return dialect_named(connection.vendor, store.app._core.settings.prefix)


def _lock_migrations(schema_editor: Any, dialect: Dialect) -> None:
    """Lock out other migrations; on SQLite, write first: a reader that turns writer may be refused."""
    match dialect.name:
        case "postgresql":
            schema_editor.execute(f"select pg_advisory_xact_lock({MIGRATION_LOCK})", params=None)
        case "sqlite":
            none = f"delete from {dialect.rename('dibs_schema')} where version < 0"  # noqa: S608
            schema_editor.execute(none, params=None)


def _applied(schema_editor: Any, dialect: Dialect, printed: int) -> set[int]:
    """Return the applied versions; while SQL is only printed, all up to `printed`."""
    if schema_editor.collect_sql:
        return set(range(1, printed + 1))
    table, (_, versions) = dialect.rename("dibs_schema"), schema_table(dialect)
    with schema_editor.connection.cursor() as cursor:
        if table not in schema_editor.connection.introspection.table_names(cursor):
            return set()
        cursor.execute(versions)
        return {number for (number,) in cursor.fetchall()}
