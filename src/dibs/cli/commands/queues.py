"""`dibs queues …`: the queues with their counts, and how one is paused, resumed or limited."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from dibs.app.dibs import SyncDibs
from dibs.cli._support.config import look_at, open_store, store_name
from dibs.cli._support.options import AsJson, Url, as_typed, bad_usage, hand_on
from dibs.cli._support.printing import note, print_json, print_table, some
from dibs.jobs.payload import check_name
from dibs.jobs.states import FINISHED, JobState
from dibs.log_format import one_line
from dibs.operations.queries import Queue

app = typer.Typer(
    invoke_without_command=True,
    epilog="Example: dibs queues, or dibs queues pause mail",
)

MOST_NAMED = 5  # known queues, in case the name was mistyped

LIVE = [state.value for state in JobState if state not in FINISHED]

Name = Annotated[
    str,
    typer.Argument(parser=as_typed(check_name, "queue"), metavar="NAME", help="The queue's name."),
]


@app.callback()
def show(context: typer.Context, url: Url = None, json: AsJson = False) -> None:
    """Show the queues; pause, resume or limit one.

    Only queues that have live jobs or a setting are shown.
    """
    hand_on(context, url, json)
    if context.invoked_subcommand is not None:
        return
    with look_at(context, url) as store:
        queues, counts = [_filled(queue) for queue in store.queues()], store.counts()
    if json:
        print_json(queues)
    else:
        _print(queues, counts, store_name(context, url))


@app.command("pause", epilog="Example: dibs queues pause mail")
def pause(context: typer.Context, name: Name, url: Url = None, json: AsJson = False) -> None:
    """Stop workers from claiming jobs of this queue; running jobs continue."""
    _change(context, url, name, lambda store: store.pause(name), lambda _: f"{name} is paused", json)


@app.command("resume", epilog="Example: dibs queues resume mail")
def resume(context: typer.Context, name: Name, url: Url = None, json: AsJson = False) -> None:
    """Let workers claim the jobs of a paused queue again."""
    _change(context, url, name, lambda store: store.resume(name), _resumed, json)


@app.command("limit", epilog="Example: dibs queues limit mail 5")
def limit(
    context: typer.Context,
    name: Name,
    most: Annotated[str, typer.Argument(metavar="N|none", help="How many at a time; none lifts the limit.")],
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Let at most N jobs of this queue run at a time."""
    number = _number(most)
    said = f"{name} has no limit" if number is None else f"{name} runs at most {number} at a time"
    _change(context, url, name, lambda store: store.limit(name, number), lambda _: said, json)


def _number(text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not (text.isascii() and text.isdigit()):
        bad_usage(f"{text!r} is no limit: write a whole number, or none to lift it")
    return int(text)


def _change(
    context: typer.Context,
    url: str | None,
    name: str,
    change: Callable[[SyncDibs], None],
    said: Callable[[Queue], str],
    json: bool,
) -> None:
    """Change a queue and print what changed."""
    with open_store(context, url) as store:
        if json:
            change(store)
            print_json(_current(store, name))
            return
        before, hint = _current(store, name), _hint(store, name)
        change(store)
    typer.echo(one_line(said(before)))
    if hint is not None:
        note(hint)


def _resumed(before: Queue) -> str:
    return f"resumed {before.name}" if before.paused else f"{before.name} was not paused"


def _hint(store: SyncDibs, name: str) -> str | None:
    """Return a note if the queue is unknown: it may not have had a job yet, or its name was mistyped."""
    known = [queue.name for queue in store.queues()]
    served = any(name in (worker.queues or ()) for worker in store.workers())
    if name in known or served or store.find(queue=name, limit=1):
        return None
    others = f"; known are {some(known, MOST_NAMED)}" if known else ""
    return f"no job of the queue {name!r} is there yet{others}"


def _current(store: SyncDibs, name: str) -> Queue:
    """Return the queue as it is now, also if it has no jobs and settings and so is not listed."""
    found = (queue for queue in store.queues() if queue.name == name)
    return _filled(next(found, Queue(name=name, paused=False, limit=None, counts={})))


def _filled(queue: Queue) -> Queue:
    return replace(queue, counts={state: queue.counts.get(state, 0) for state in LIVE})


def _print(queues: list[Queue], counts: dict[str, int], name: str) -> None:
    if queues:
        print_table(["queue", "paused", "limit", *LIVE], [_row(queue) for queue in queues])
    else:
        note(f"no queue has live jobs or a setting in {name}")
    total = ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)
    typer.echo(f"total: {total or 'no jobs'}")


def _row(queue: Queue) -> list[str | int]:
    most = "-" if queue.limit is None else str(queue.limit)
    return [queue.name, "paused" if queue.paused else "-", most, *queue.counts.values()]
