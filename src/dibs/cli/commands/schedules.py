"""`dibs schedules`: what is enqueued every so often, when it ticked last, and when it ticks next."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from dibs.cli._support.config import open_store
from dibs.cli._support.options import AsJson, Url, bad_usage
from dibs.cli._support.printing import moment, note, print_json, print_table
from dibs.cli.commands.work import load_app
from dibs.jobs.schedules import Cron, Rule
from dibs.operations.schedules import ScheduleInfo

EXAMPLE = "Example: dibs schedules jobs:app"

Target = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", help="The app whose schedules they are, like jobs:app."),
]


def command(context: typer.Context, target: Target = None, url: Url = None, json: AsJson = False) -> None:
    """Show what is enqueued every so often, and its last tick.

    That is what @app.every says. If the app is named: also which job, how often, and the next tick. Before
    the first tick of an interval, or if the app is not named, its place has the moment it was first seen.
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
    app = load_app(target)
    rules = {schedule.name: schedule.rule for schedule in app._core.schedules}
    with app.sync as store:
        return [_ticked(info, rules.get(info.name)) for info in store.schedules()]


def _ticked(info: ScheduleInfo, rule: Rule | None) -> ScheduleInfo:
    """Until its first tick a schedule has the moment it was first seen, which a cron expression tells."""
    if not isinstance(rule, Cron) or info.last_tick is None or rule.ticks_at(info.last_tick):
        return info
    return replace(info, last_tick=None)


def _row(schedule: ScheduleInfo) -> list[str | int]:
    times = [schedule.last_tick, schedule.next_tick]
    return [
        schedule.name,
        schedule.kind or "-",
        schedule.expression or "-",
        *("-" if at is None else moment(at) for at in times),
    ]
