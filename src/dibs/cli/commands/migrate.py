"""`dibs migrate`: bring a store's tables up to date, or print the SQL that would."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from dibs.app.dibs import Dibs, SyncDibs
from dibs.cli._support.config import settings_of
from dibs.cli._support.options import AsJson, Url, bad_usage
from dibs.cli._support.printing import print_json, print_result
from dibs.engines.sql.blocks import Dialect, schema_files
from dibs.engines.sql.migrations import dialect_named
from dibs.settings import Settings

EXAMPLE = "Example: dibs migrate --url postgresql://localhost/shop"


def command(
    context: typer.Context,
    url: Url = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL, run nothing.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Change nothing: exit code 1 if a column or an index is missing or wrong."
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Create or update the tables of a store.

    It does nothing when they are up to date. SQLite files are kept up to date without it.
    """
    if sql and check:
        bad_usage("give --sql or --check, not both")
    settings = settings_of(context, url)
    if check:
        return _check(settings, json)
    result = _pending_of(settings) if sql else _migrate(settings)
    if json:
        print_json(result)
    elif sql:
        typer.echo(_script(result["pending"]), nl=False)
    else:
        typer.echo(_sentence(result))
    return None


@contextmanager
def _unopened(settings: Settings) -> Iterator[SyncDibs]:
    """Yield the store and close it after the body; opening it would refuse missing tables."""
    store = Dibs(settings.url, prefix=settings.prefix).sync
    try:
        yield store
    finally:
        store.close()


def _check(settings: Settings, json: bool) -> None:
    with _unopened(settings) as store:
        problems = store.check_schema()
    print_result(
        [{**asdict(problem), "problem": str(problem)} for problem in problems],
        "\n".join(map(str, problems)) or "the tables are as they should be",
        json,
    )
    if problems:
        raise typer.Exit(1)


def _migrate(settings: Settings) -> dict[str, Any]:
    with _unopened(settings) as store:
        return {"applied": store.migrate(), "version": store.schema_version()}


def _pending_of(settings: Settings) -> dict[str, Any]:
    with _unopened(settings) as store:
        found = store.schema_version()
    return {"version": found, "pending": list(_pending(_dialect(settings), found))}


def _dialect(settings: Settings) -> Dialect | None:
    return dialect_named(settings.url.split("://", 1)[0].split("+", 1)[0], settings.prefix)


def _pending(dialect: Dialect | None, found: int) -> Iterator[dict[str, Any]]:
    """Yield the migrations that the store lacks, each with the statement that records it."""
    for version, text in schema_files(dialect.name) if dialect is not None else ():
        if version > found:
            note = f"insert into dibs_schema (version) values ({version});"  # noqa: S608
            assert dialect is not None
            yield {"version": version, "sql": dialect.rename(f"{_NOTES}\n\n{text.strip()}\n\n{note}")}


_NOTES = "create table if not exists dibs_schema (version integer not null primary key);"


def _script(pending: list[dict[str, Any]]) -> str:
    if not pending:
        return "-- nothing to do: the tables are up to date\n"
    parts = [f"-- version {one['version']}\n{one['sql']}" for one in pending]
    return "\n\n".join(["begin;", *parts, "commit;"]) + "\n"


def _sentence(result: dict[str, Any]) -> str:
    if not result["applied"]:
        return f"nothing to do: the store has schema version {result['version']}"
    applied = ", ".join(map(str, result["applied"]))
    return f"applied {applied}: the store has schema version {result['version']}"
