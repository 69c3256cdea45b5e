"""`dibs migrate`: bring a store's tables up to date, or print the SQL that would."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from dibs.app.dibs import Dibs
from dibs.cli._support.config import settings_of
from dibs.cli._support.options import AsJson, Url, bad_usage
from dibs.cli._support.printing import print_json
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

    Does nothing when they are up to date. SQLite files are kept up to date without it.
    """
    if sql and check:
        bad_usage("give --sql or --check, not both")
    settings = settings_of(context, url)
    if check:
        return _check(settings, json)
    answer = _look(settings) if sql else _migrate(settings)
    if json:
        print_json(answer)
    elif sql:
        typer.echo(_script(answer["pending"]), nl=False)
    else:
        typer.echo(_sentence(answer))
    return None


def _check(settings: Settings, json: bool) -> None:
    with_store = Dibs(settings.url, prefix=settings.prefix).sync
    try:
        problems = with_store.check_schema()
    finally:
        with_store.close()
    if json:
        print_json([{**asdict(problem), "problem": str(problem)} for problem in problems])
    else:
        typer.echo("\n".join(map(str, problems)) or "the tables are as they should be")
    if problems:
        raise typer.Exit(1)


def _migrate(settings: Settings) -> dict[str, Any]:
    with_store = Dibs(settings.url, prefix=settings.prefix).sync
    try:
        return {"applied": with_store.migrate(), "version": with_store.schema_version()}
    finally:
        with_store.close()


def _look(settings: Settings) -> dict[str, Any]:
    with_store = Dibs(settings.url, prefix=settings.prefix).sync
    try:
        found = with_store.schema_version()
    finally:
        with_store.close()
    return {"version": found, "pending": list(_pending(_dialect(settings), found))}


def _dialect(settings: Settings) -> Dialect | None:
    return dialect_named(settings.url.split("://", 1)[0].split("+", 1)[0], settings.prefix)


def _pending(dialect: Dialect | None, found: int) -> Iterator[dict[str, Any]]:
    """The migrations that the store has not seen, each with the statement that notes it."""
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


def _sentence(answer: dict[str, Any]) -> str:
    if not answer["applied"]:
        return f"nothing to do: the store has schema version {answer['version']}"
    applied = ", ".join(map(str, answer["applied"]))
    return f"applied {applied}: the store has schema version {answer['version']}"
