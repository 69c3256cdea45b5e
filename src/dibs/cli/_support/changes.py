"""Changes of jobs by an operator: one after another by id, or all that match, after a question."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import typer

from dibs.app.dibs import SyncDibs
from dibs.cli._support.config import open_store
from dibs.cli._support.ids import whole_id, with_whole_ids
from dibs.cli._support.options import bad_usage
from dibs.cli._support.printing import complain, print_json, print_result, progress_bar
from dibs.errors import DibsError, NotFound, Refused
from dibs.jobs.states import FINISHED, JobState
from dibs.log_format import one_line
from dibs.text import numbered, spoken

COUNT_EVERY = 0.5  # seconds
YES, NO = ("y", "yes"), ("n", "no", "")

Name = TypeVar("Name")
T = TypeVar("T")
Change = Callable[[SyncDibs, Name], tuple[T, str]]


# -- one after another --------------------------------------------------------------------------


def change_each(
    context: typer.Context, url: str | None, ids: Sequence[Name] | None, change: Change[Name, T], json: bool
) -> None:
    """Change one after another and report each at once; exit with code 1 when any was refused.

    `change` returns the result for programs, and the sentence for people.
    """
    changed: list[T] = []
    ids = ids or []
    with open_store(context, url) as store:
        try:
            for id in ids:
                changed += _attempt(store, id, change, json)
        finally:  # also when the connection was lost in between: some changes may have been made
            if json:
                print_json(changed)
    if len(changed) < len(ids):
        raise typer.Exit(1)


def _attempt(store: SyncDibs, id: Name, change: Change[Name, T], json: bool) -> list[T]:
    try:
        result, sentence = change(store, whole_id(store, id))
    except (NotFound, Refused) as error:
        complain(error)
        return []
    if not json:
        typer.echo(one_line(sentence))
    return [result]


# -- all that match -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BulkChange:
    """A change of many jobs at once, and the states of jobs that allow it."""

    name: Literal["retry", "cancel", "delete"]
    past: str
    states: Sequence[JobState]
    change: Callable[..., int]


RETRY = BulkChange(
    "retry", "retried", (JobState.failed, JobState.cancelled, JobState.scheduled), SyncDibs.retry_many
)
CANCEL = BulkChange(
    "cancel", "cancelled", [state for state in JobState if state not in FINISHED], SyncDibs.cancel_many
)

DELETE = BulkChange(
    "delete", "deleted", [state for state in JobState if state != JobState.running], SyncDibs.delete_many
)


def change_all(
    context: typer.Context,
    url: str | None,
    bulk: BulkChange,
    filter: dict[str, Any],
    *,
    yes: bool,
    json: bool,
    **more: Any,
) -> None:
    """Ask, change all that match, print how many; `more` is what the change takes beside the filter."""
    states: list[JobState] = filter.get("state") or list(bulk.states)
    refuse_states(bulk.name, states, bulk.states)
    with open_store(context, url) as store:
        filter = with_whole_ids(store, filter)
        left = _countable(store, states, filter)
        before = left()
        if before != {} and not yes:
            refuse_unless_agreed(
                f"{bulk.name} {_how_many(store, bulk, states, before, filter)}{_where(filter)}?"
            )
        with _bar(bulk.name, _sum(before), left):
            changed = bulk.change(store, **filter, **more)
    _print_number(bulk.past, changed, json)


def prune_all(
    context: typer.Context,
    url: str | None,
    older_than: float,
    states: Sequence[JobState],
    *,
    yes: bool,
    json: bool,
) -> None:
    """Ask, prune, print how many. It is not known before how many are old enough."""
    with open_store(context, url) as store:
        left = _countable(store, states, {})
        if left() != {} and not yes:
            age = f" that finished more than {spoken(older_than)} ago" if older_than else ""
            refuse_unless_agreed(f"prune all {_and(states)} jobs{age}?")
        with _bar("prune", None, left):
            pruned = store.prune(older_than, state=states)
    _print_number("pruned", pruned, json)


def refuse_states(verb: str, states: Sequence[JobState], allowed: Sequence[JobState]) -> None:
    for state in states:
        if state not in allowed:
            bad_usage(f"can't {verb} {state} jobs, only {', '.join(allowed)} ones")


def _print_number(past: str, number: int, json: bool) -> None:
    print_result({past: number}, f"{past} {numbered(number, 'job')}", json)


# How many jobs are left to change, by state; None where the store can't count by that filter.
Left = Callable[[], dict[str, int] | None]


def _countable(store: SyncDibs, states: Sequence[JobState], filter: dict[str, Any]) -> Left:
    if not filter.keys() <= {"state", "queue"}:
        return lambda: None

    def left() -> dict[str, int]:
        counts = store.counts(filter.get("queue"))
        return {state: counts[state] for state in states if counts[state]}

    return left


def _sum(counts: dict[str, int] | None) -> int | None:
    return None if counts is None else sum(counts.values())


@contextmanager
def _bar(name: str, total: int | None, left: Left) -> Iterator[None]:
    """Show a bar while the body runs; a thread counts what is left."""
    with progress_bar(name, total) as update:
        if update is None:
            yield
            return
        over, before = threading.Event(), _sum(left()) if total is None else total

        def count() -> None:
            while not over.wait(COUNT_EVERY):
                with suppress(DibsError):  # the change itself meets the same error and reports it
                    now = _sum(left())
                    if before is not None and now is not None:
                        update(max(0, before - now))

        counter = threading.Thread(target=count, name="dibs-progress", daemon=True)
        counter.start()
        try:
            yield
        finally:
            over.set()
            counter.join()


# -- asking first -------------------------------------------------------------------------------


def refuse_unless_agreed(question: str, otherwise: str = "nothing was changed") -> None:
    """Continue only after a clear yes. Ctrl-C, Ctrl-D and an empty pipe are a no."""
    try:
        agreed = _ask(question)
    except KeyboardInterrupt:
        typer.echo(err=True)
        agreed = False
    if agreed is None:
        typer.echo(err=True)
        raise Refused(f"{otherwise}: there was no answer; add --yes to run this without a question")
    if not agreed:
        raise Refused(f"{otherwise}; answer y, or add --yes")


def _ask(question: str) -> bool | None:
    """Return yes or no, or None at the end of the input. Ask on stderr: stdout is for results."""
    while True:
        typer.echo(f"{question} [y/N]: ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return None
        if not sys.stdin.isatty():
            typer.echo(err=True)
        said = line.strip().lower()
        if said in (*YES, *NO):
            return said in YES
        typer.echo("please answer y or n", err=True)


def _how_many(
    store: SyncDibs,
    bulk: BulkChange,
    states: Sequence[JobState],
    counts: dict[str, int] | None,
    filter: dict[str, Any],
) -> str:
    if counts is None and "q" in filter:
        return numbered(store.change_matching(bulk.name, preview=True, **filter).matched, "job")
    return f"{_what(states, counts)} {'job' if _sum(counts) == 1 else 'jobs'}"


def _what(states: Sequence[JobState], counts: dict[str, int] | None) -> str:
    if counts is None:
        return f"all {_and(states)}"
    return _and([f"{number:,} {state}" for state, number in counts.items()])


def _where(filter: dict[str, Any]) -> str:
    names = {"queue": "of queue", "kind": "of kind", "train": "of train", "slot": "of slot"}
    names |= {"tags": "with tags", "pipeline_id": "of pipeline", "worker": "of worker"}
    names |= {"since": "enqueued in the last", "q": "matching"}
    said = {name: filter[name] for name in names if name in filter}
    said |= {"since": spoken(filter["since"])} if "since" in filter else {}
    return "".join(
        f" {names[name]} {', '.join(value) if name == 'tags' else value}" for name, value in said.items()
    )


def _and(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else str(last)
