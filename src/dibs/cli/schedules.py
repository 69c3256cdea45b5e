"""`dibs schedules`: what is enqueued every so often, when it ticked last, and when it ticks next."""

from collections.abc import Sequence
from typing import Annotated

import typer

from dibs.cli.config import open_store
from dibs.cli.options import AsJson, Url, bad_usage
from dibs.cli.printing import moment, note, print_json, print_table
from dibs.cli.work import load_app
from dibs.schedules import ScheduleInfo

EXAMPLE = "Example: dibs schedules jobs:app"

Target = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", help="The app whose schedules they are, like jobs:app."),
]


def command(context: typer.Context, target: Target = None, url: Url = None, json: AsJson = False) -> None:
    """Show what is enqueued every so often, and its last tick.

    That is what @app.every says. If the app is named: also which job, how often, and the next tick.
    """
    schedules = _of_store(context, url) if target is None else _of_app(context, url, target)
    if json:
        print_json(schedules)
    elif schedules:
        columns = ["schedule", "kind", "every", "last tick", "next tick"]
        print_table(columns, [_row(schedule) for schedule in schedules])
    else:
        note("there are no schedules")


def _of_store(context: typer.Context, url: str | None) -> Sequence[ScheduleInfo]:
    with open_store(context, url) as store:
        return store.schedules()


def _of_app(context: typer.Context, url: str | None, target: str) -> Sequence[ScheduleInfo]:
    if url or context.obj:
        bad_usage(f"{target} names its store itself; leave --url out")
    with load_app(target).sync as store:
        return store.schedules()


def _row(schedule: ScheduleInfo) -> list[str | int]:
    times = [schedule.last_tick, schedule.next_tick]
    return [
        schedule.name,
        schedule.kind or "-",
        schedule.expression or "-",
        *("-" if at is None else moment(at) for at in times),
    ]
