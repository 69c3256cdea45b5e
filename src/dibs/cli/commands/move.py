"""`dibs move`: transfer everything of one store to another."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from dibs.app.dibs import Dibs
from dibs.cli._support.changes import refuse_unless_agreed
from dibs.cli._support.config import file_of, given
from dibs.cli._support.options import AsJson, bad_usage, duration, not_empty
from dibs.cli._support.printing import (
    complain,
    note,
    print_json,
    print_result,
    progress_bar,
    some,
)
from dibs.errors import Refused, SchemaOutdated
from dibs.moving import MovePreview, MoveReport, Told, give_back_sync, look_sync, move_sync
from dibs.text import numbered, split_url, without_password

EXAMPLE = "Example: dibs move --from sqlite:///jobs.db --to postgresql://localhost/shop"


class RunningJobs(StrEnum):
    """What the move does with running jobs."""

    wait = "wait"
    leave = "leave"


From = Annotated[
    str,
    typer.Option(
        "--from",
        envvar="DIBS_FROM",
        metavar="URL",
        show_envvar=False,
        callback=not_empty,
        help="The store to empty. Default: $DIBS_FROM, which `ps` does not show.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="URL", callback=not_empty, help="The store to move to; its tables must be there."
    ),
]
OfRunning = Annotated[
    RunningJobs,
    typer.Option(
        "--running",
        metavar="wait|leave",
        help="Wait for running jobs and move them, too, or leave them in the source.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        parser=duration, metavar="TIME", help="Wait no longer than this for running jobs: 30s, 10m."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be moved, change nothing.")]
FromPrefix = Annotated[
    str | None, typer.Option(metavar="NAME", help="The prefix of the source's tables. Default: $DIBS_PREFIX.")
]
ToPrefix = Annotated[
    str | None, typer.Option(metavar="NAME", help="The prefix of the target's tables. Default: $DIBS_PREFIX.")
]
GiveBack = Annotated[
    bool,
    typer.Option(
        "--give-back",
        help="Instead of moving: let the source's workers claim the jobs again that an interrupted move "
        "took out. Only if its target is gone for good.",
    ),
]


def command(
    context: typer.Context,
    from_: From,
    to: To = None,
    running: OfRunning = RunningJobs.wait,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    from_prefix: FromPrefix = None,
    to_prefix: ToPrefix = None,
    give_back: GiveBack = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --give-back: don't ask first.")] = False,
    json: AsJson = False,
) -> None:
    """Move all jobs to another store.

    They keep their ids, attempts, tokens, keys, errors and results. Settings of queues and last ticks of
    schedules are copied. Both stores may be in use meanwhile: a job can be claimed in only one of them at a
    time. It is safe to interrupt: the same command again continues the move. The exit code is 1 if jobs were
    left behind or the counts differ.
    """
    if give_back and (to is not None or dry_run):
        bad_usage(f"--give-back moves nothing: leave {'--dry-run' if to is None else '--to'} out")
    if give_back:
        _give_back(context, from_, from_prefix, yes=yes, json=json)
    elif to is None:
        bad_usage("name the store to move to: --to URL")
    elif dry_run:
        with _both(context, (from_, from_prefix), (to, to_prefix)) as (source, target):
            _say_planned(look_sync(source, target), json)
    else:
        with _both(context, (from_, from_prefix), (to, to_prefix)) as (source, target), _bar() as report:
            moved = move_sync(source, target, running=running.value, timeout=timeout, told=report)
        _say_moved(moved, json)


# -- The stores ---------------------------------------------------------------------------------

Address = tuple[str, str | None]  # URL and prefix


@contextmanager
def _both(context: typer.Context, source: Address, target: Address) -> Iterator[tuple[Dibs, Dibs]]:
    _refuse_missing_file(source[0])
    with _opened(context, *source) as from_app, _opened(context, *target) as to_app:
        yield from_app, to_app


@contextmanager
def _opened(context: typer.Context, url: str, prefix: str | None) -> Iterator[Dibs]:
    if split_url(url).scheme == "memory":
        raise Refused("memory:// ends with its process: there is nothing to move to it or from it")
    app = Dibs(**{**given(context, url), **({} if prefix is None else {"prefix": prefix})})
    try:
        app.sync.open()
        yield app
    except SchemaOutdated as error:
        raise Refused(f"{without_password(url)}: {_instead(error, url)}") from None
    finally:
        app.sync.close()


def _instead(error: SchemaOutdated, url: str) -> str:
    """Return the message with the whole command to run."""
    return str(error).replace("`dibs migrate`", f"`dibs migrate --url {without_password(url)}`")


def _refuse_missing_file(url: str) -> None:
    """Refuse a source that would only be created, empty, when it is opened."""
    if (file := file_of(url)) is not None and not file.is_file():
        raise Refused(f"there is no file {file} to move from")


# -- Output -------------------------------------------------------------------------------------


@contextmanager
def _bar() -> Iterator[Told | None]:
    """Show a bar; explain after Ctrl-C how to continue."""
    try:
        with progress_bar("move", counter=MofNCompleteColumn()) as update:
            yield None if update is None else lambda done, total: update(done, total=total)
    except KeyboardInterrupt:
        complain("interrupted; nothing is lost: run the same move again, and it continues")
        raise typer.Exit(130) from None


def _say_planned(planned: MovePreview, json: bool) -> None:
    if json:
        print_json(planned)
        return
    typer.echo(f"would move {_counted(planned.jobs)}{_along(planned.queues, planned.schedules)}")
    if planned.running:
        note(f"{numbered(planned.running, 'job')} running now: waited for, or left with --running leave")
    for queue, number in planned.staying.items():
        note(
            f"{numbered(number, 'job')} of the queue {queue!r} would stay, in trains or for slots: "
            "pause it first with `dibs queues pause`"
        )
    for sentence in planned.held:
        note(sentence)


def _say_moved(moved: MoveReport, json: bool) -> None:
    if json:
        print_json(moved)
    else:
        typer.echo(f"moved {_counted(moved.jobs)}{_along(moved.queues, moved.schedules)}")
        if moved.known:
            note(f"{numbered(moved.known, 'job')} had been there already")
        if left := moved.source["running"]:
            note(f"{numbered(left, 'job')} still running in the source: run the move again later")
        if moved.paused:
            names = some(moved.paused, 5)
            note(f"paused in the target: {names}; `dibs queues resume NAME` there lets them go on")
    for problem in moved.problems:
        complain(problem)
    if moved.problems:
        raise typer.Exit(1)


def _counted(jobs: Mapping[str, int]) -> str:
    states = ", ".join(f"{number:,} {state}" for state, number in jobs.items())
    return f"{numbered(sum(jobs.values()), 'job')}{f': {states}' if states else ''}"


def _along(queues: int, schedules: int) -> str:
    said = [numbered(queues, "queue setting")] if queues else []
    said += [numbered(schedules, "schedule")] if schedules else []
    return f"; and {' and '.join(said)}" if said else ""


# -- Give back ------------------------------------------------------------------------------------


def _give_back(context: typer.Context, url: str, prefix: str | None, *, yes: bool, json: bool) -> None:
    _refuse_missing_file(url)
    question = "jobs that have arrived in the other store would be in both: is that store gone for good?"
    if not yes:
        refuse_unless_agreed(question, "nothing was changed; the same move again continues where it stopped")
    with _opened(context, url, prefix) as app:
        back = give_back_sync(app)
    print_result({"given_back": back}, f"gave back {numbered(back, 'job')}", json)
