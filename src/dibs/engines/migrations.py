"""Versioned tables: which migrations a store lacks, and the statements that bring it up to date.

A version is applied whole or not at all, and notes itself in the table `dibs_schema`.
"""

from dibs.engines.sql import Dialect, schema_files, statements


def schema_table(dialect: Dialect) -> tuple[str, str]:
    """The statements that make sure of that table, and that read it."""
    table = dialect.rename("dibs_schema")
    create = f"create table if not exists {table} (version integer not null primary key)"
    return create, f"select version from {table}"  # noqa: S608


def pending(dialect: Dialect, applied: set[int]) -> list[tuple[int, str]]:
    """What is left to run, each statement with its version; a version notes itself when done."""
    table = dialect.rename("dibs_schema")
    steps: list[tuple[int, str]] = []
    for version, text in schema_files(dialect.name):
        if version not in applied:
            steps += [(version, statement) for statement in statements(dialect.rename(text))]
            steps.append((version, f"insert into {table} (version) values ({version})"))  # noqa: S608
    return steps
