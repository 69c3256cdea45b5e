"""Many jobs at once: retry, cancel or prune all that match, after asking, with a bar while it lasts."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dibs.app.sync import SyncDibs
from dibs.cli._support.config import open_store
from dibs.cli._support.confirm import refuse_unless_agreed
from dibs.cli._support.options import bad_usage
from dibs.cli._support.printing import print_json
from dibs.errors import DibsError
from dibs.jobs.states import FINISHED, JobState
from dibs.text import numbered, spoken

LOOK = 0.5  # seconds between two looks at how many are left


@dataclass(frozen=True, slots=True)
class Verb:
    """What is done to many jobs at once, and to jobs in which states."""

    name: str
    past: str
    states: Sequence[JobState]
    change: Callable[..., int]


RETRY = Verb(
    "retry", "retried", (JobState.failed, JobState.cancelled, JobState.scheduled), SyncDibs.retry_many
)
CANCEL = Verb(
    "cancel", "cancelled", [state for state in JobState if state not in FINISHED], SyncDibs.cancel_many
)


def change_all(
    context: typer.Context,
    url: str | None,
    verb: Verb,
    filter: dict[str, Any],
    *,
    yes: bool,
    json: bool,
    **more: Any,
) -> None:
    """Ask, change them all, say how many; `more` is what the verb takes beside the filter."""
    states = _states(verb, filter)
    with open_store(context, url) as store:
        left = _countable(store, states, filter)
        before = left()
        if before != {} and not yes:
            _confirm(verb, states, before, filter)
        with _bar(verb.name, _sum(before), left):
            changed = verb.change(store, **filter, **more)
    if json:
        print_json({verb.past: changed})
    else:
        typer.echo(f"{verb.past} {numbered(changed, 'job')}")


def _states(verb: Verb, filter: dict[str, Any]) -> list[JobState]:
    states: list[JobState] = filter.get("state") or list(verb.states)
    for state in states:
        if state not in verb.states:
            bad_usage(f"can't {verb.name} {state} jobs, only those that are {', '.join(verb.states)}")
    return states


def prune_all(
    context: typer.Context,
    url: str | None,
    older_than: float,
    states: Sequence[JobState],
    *,
    yes: bool,
    json: bool,
) -> None:
    """Ask, remove them, say how many. How many are old enough is not known before."""
    with open_store(context, url) as store:
        left = _countable(store, states, {})
        if left() != {} and not yes:
            age = f" that finished more than {spoken(older_than)} ago" if older_than else ""
            refuse_unless_agreed(f"prune all {_and(states)} jobs{age}?")
        with _bar("prune", None, left):
            pruned = store.prune(older_than, state=states)
    if json:
        print_json({"pruned": pruned})
    else:
        typer.echo(f"pruned {numbered(pruned, 'job')}")


# -- how many -----------------------------------------------------------------------------------


# How many jobs are left to change, by state; None where the store can't count by that filter.
Left = Callable[[], dict[str, int] | None]


def _countable(store: SyncDibs, states: Sequence[JobState], filter: dict[str, Any]) -> Left:
    if not filter.keys() <= {"state", "queue"}:
        return lambda: None

    def left() -> dict[str, int]:
        counts = store.counts(filter.get("queue"))
        return {state: counts[state] for state in states if counts[state]}

    return left


# -- asking -------------------------------------------------------------------------------------


def _confirm(
    verb: Verb, states: Sequence[JobState], counts: dict[str, int] | None, filter: dict[str, Any]
) -> None:
    jobs = "job" if _sum(counts) == 1 else "jobs"
    refuse_unless_agreed(f"{verb.name} {_what(states, counts)} {jobs}{_where(filter)}?")


def _what(states: Sequence[JobState], counts: dict[str, int] | None) -> str:
    if counts is None:
        return f"all {_and(states)}"
    return _and([f"{number:,} {state}" for state, number in counts.items()])


def _where(filter: dict[str, Any]) -> str:
    names = {"queue": "of queue", "kind": "of kind", "train": "of train", "slot": "of slot"}
    names |= {"tags": "with tags", "pipeline_id": "of pipeline"}
    said = {name: filter[name] for name in names if name in filter}
    return "".join(
        f" {names[name]} {', '.join(value) if name == 'tags' else value}" for name, value in said.items()
    )


def _and(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else str(last)


# -- watching -----------------------------------------------------------------------------------


@contextmanager
def _bar(name: str, total: int | None, left: Left) -> Iterator[None]:
    """A bar on stderr, for people; a thread of its own looks how far the work has come."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn(name), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    before = _sum(left()) if total is None else total
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        with _looking(lambda: _update(progress, task, before, left)):
            yield


@contextmanager
def _looking(look: Callable[[], None]) -> Iterator[None]:
    """Look again and again, beside the body, until it is over."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            look()

    watcher = threading.Thread(target=watch, name="dibs-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _update(progress: Progress, task: TaskID, before: int | None, left: Left) -> None:
    with suppress(DibsError):  # the work itself will say it better
        now = _sum(left())
        if before is not None and now is not None:
            progress.update(task, completed=max(0, before - now))


def _sum(counts: dict[str, int] | None) -> int | None:
    return None if counts is None else sum(counts.values())
