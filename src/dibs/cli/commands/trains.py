"""`dibs trains …`: trains with their heads, and the release of held ones."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from dibs.app.dibs import SyncDibs
from dibs.cli._support.changes import change_each
from dibs.cli._support.config import look_at
from dibs.cli._support.options import (
    MOST_LISTED,
    PAGE_LIMIT,
    AsJson,
    Limit,
    Url,
    as_typed,
    hand_on,
    next_page,
)
from dibs.cli._support.printing import note, print_json, print_result, print_table
from dibs.cli.commands.jobs import about
from dibs.errors import NotFound, Refused
from dibs.jobs.job import Job
from dibs.jobs.payload import check_name
from dibs.jobs.states import JobState
from dibs.log_format import one_line
from dibs.operations.queries import Train

app = typer.Typer(
    invoke_without_command=True,
    epilog="Example: dibs trains --held, or dibs trains release dest_123",
)

named = as_typed(check_name, "train")
Name = Annotated[str, typer.Argument(parser=named, metavar="NAME", help="The train's name.")]
Names = Annotated[
    list[str], typer.Argument(parser=named, metavar="NAME", help="The names of one or more trains.")
]


@app.callback()
def list_(
    context: typer.Context,
    held: Annotated[
        bool, typer.Option("--held", help="Only held trains, which wait for an operator.")
    ] = False,
    limit: Limit = PAGE_LIMIT,
    after: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only trains with names after this one.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """List the trains that jobs are on, by name; show one, or release one that is held."""
    hand_on(context, url, json)
    if context.invoked_subcommand is not None:
        return
    with look_at(context, url) as store:
        found = store.trains.list(held=held, limit=min(limit + 1, MOST_LISTED), after=after)
    page, more = found[:limit], len(found) > limit or len(found) == MOST_LISTED
    if json:
        print_json([_builtins(train) for train in page])
        return
    _print(page, held=held)
    if more:
        words = ["dibs", "trains", *(["--held"] if held else [])]
        note(f"next page: {next_page(words, context.obj, limit, page[-1].name)}")


@app.command("show", epilog="Example: dibs trains show dest_123")
def show(context: typer.Context, name: Name, url: Url = None, json: AsJson = False) -> None:
    """Show one train: its head, the worker that runs it, how many jobs follow, and why it waits."""
    with look_at(context, url) as store:
        train = store.trains.get(name)
    if train is None:
        raise NotFound(name)
    print_result(_builtins(train), "\n".join(_lines(train)), json)


@app.command("release", epilog="Example: dibs trains release dest_123")
def release(context: typer.Context, names: Names, url: Url = None, json: AsJson = False) -> None:
    """Let held trains continue with their next job; the job that held a train stays as it ended."""
    change_each(context, url, names, _release, json)


def _release(store: SyncDibs, name: str) -> tuple[dict[str, object], str]:
    if not store.trains.release(name):
        raise Refused(f"the train {name!r} is not held: there is nothing to release")
    train = store.trains.get(name) or Train(name=name, head=None, length=0, held=False)
    return _builtins(train), f"released {name}: {train.length} to go"


# -- printing -----------------------------------------------------------------------------------


def _print(page: Sequence[Train], *, held: bool) -> None:
    if page:
        print_table(["train", "held", "jobs", "head", "state", "kind", "about"], [_row(one) for one in page])
    else:
        note("no train is held" if held else "no job is on a train")


def _row(train: Train) -> list[str | int]:
    head = train.head
    about = ["-", "-", "-", "-"] if head is None else [str(head.id), head.state, head.kind, _about(head)]
    return [train.name, "held" if train.held else "-", train.length, *about]


def _lines(train: Train) -> Iterator[str]:
    yield f"{'train':<8}{one_line(train.name)}"
    yield f"{'jobs':<8}{train.length}"
    if train.head is not None:
        head = train.head
        yield f"{'head':<8}{head.id} ({one_line(head.kind)}), {head.state} {one_line(_about(head))}"
    if train.held:
        yield f"{'held':<8}it waits for an operator: dibs jobs retry its head, or dibs trains release it"


def _about(head: Job) -> str:
    return f"at {head.worker}" if head.state == JobState.running else about(head)


def _builtins(train: Train) -> dict[str, object]:
    builtins: dict[str, object] = msgspec.to_builtins(train)
    return builtins
