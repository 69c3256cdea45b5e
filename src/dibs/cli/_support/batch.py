"""The same change for several ids: one that is refused is reported, and does not stop the others."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import typer

from dibs.app.sync import SyncDibs
from dibs.cli._support.config import open_store
from dibs.cli._support.printing import complain, print_json
from dibs.errors import NotFound, Refused
from dibs.log_format import one_line

Name = TypeVar("Name")
T = TypeVar("T")


def change_each(
    context: typer.Context,
    url: str | None,
    ids: Sequence[Name] | None,
    change: Callable[[SyncDibs, Name], tuple[T, str]],
    json: bool,
) -> None:
    """Change one after another, saying each at once; exit code 1 when any was refused.

    `change` gives the answer for programs, and the sentence for people.
    """
    changed: list[T] = []
    ids = ids or []
    with open_store(context, url) as store:
        try:
            for id in ids:
                changed += _attempt(store, id, change, json)
        finally:  # also when the store went away in between: what was done was done
            if json:
                print_json(changed)
    if len(changed) < len(ids):
        raise typer.Exit(1)


def _attempt(
    store: SyncDibs, id: Name, change: Callable[[SyncDibs, Name], tuple[T, str]], json: bool
) -> list[T]:
    try:
        answer, sentence = change(store, id)
    except (NotFound, Refused) as error:
        complain(error)
        return []
    if not json:
        typer.echo(one_line(sentence))
    return [answer]
