"""`dibs why`, `dibs schedules` and `dibs doctor`: commands that only read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dibs.app.dibs import Dibs
from dibs.cli._support.config import given, open_store
from dibs.cli._support.options import AsJson, Id, Url, bad_usage
from dibs.cli._support.printing import note, print_json, print_result, print_table, time_text
from dibs.cli.commands.work import load_app
from dibs.doctor import Finding, Level
from dibs.jobs.schedules import Cron, Rule
from dibs.log_format import one_line
from dibs.operations.schedules import ScheduleInfo

WHY_EXAMPLE = "Example: dibs why 01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e"
SCHEDULES_EXAMPLE = "Example: dibs schedules jobs:app"
DOCTOR_EXAMPLE = "Example: dibs doctor --url postgresql://localhost/shop"

LEVEL_STYLES = {Level.ok: "green", Level.note: "blue", Level.warning: "yellow", Level.problem: "bold red"}

Target = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", help="The app that has the schedules, like jobs:app."),
]


def why(context: typer.Context, id: Id, url: Url = None, json: AsJson = False) -> None:
    """Print in one sentence why a job is not running.

    Or which worker runs it and for how long, or how it ended.
    """
    with open_store(context, url) as store:
        why = store.why(id)
    print_result({"code": why.code, "sentence": why.sentence}, one_line(str(why)), json)


# -- schedules ----------------------------------------------------------------------------------


def schedules(context: typer.Context, target: Target = None, url: Url = None, json: AsJson = False) -> None:
    """List the schedules and their last ticks.

    Schedules are made with @app.every. If the app is named: also the job, how often, and the next tick.
    Before the first tick of an interval, or if the app is not named, "last tick" has the time at which the
    schedule was first seen.
    """
    found = _of_store(context, url) if target is None else _of_app(context, url, target)
    if json:
        print_json(found)
    elif found:
        columns = ["schedule", "kind", "every", "last tick", "next tick"]
        print_table(columns, [_row(schedule) for schedule in found])
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
    """Leave out a last tick that the cron expression has not: the schedule was first seen then."""
    if not isinstance(rule, Cron) or info.last_tick is None or rule.ticks_at(info.last_tick):
        return info
    return replace(info, last_tick=None)


def _row(schedule: ScheduleInfo) -> list[str | int]:
    times = ["-" if at is None else time_text(at) for at in (schedule.last_tick, schedule.next_tick)]
    return [schedule.name, schedule.kind or "-", schedule.expression or "-", *times]


# -- doctor -------------------------------------------------------------------------------------


def doctor(context: typer.Context, url: Url = None, json: AsJson = False) -> None:
    """Check a store, and print what to do about what is wrong.

    Is it set up as it should be, and are its jobs being done? Each finding is ok, a note, a warning or a
    problem, and says what to do. The exit code is 1 if there is a problem: something does not work, or
    acknowledged jobs may be lost.
    """
    store = Dibs(**given(context, url)).sync
    try:
        findings = store.doctor()
    finally:
        store.close()
    if json:
        print_json(findings)
    else:
        _print_findings(findings)
    raise typer.Exit(1 if any(one.level == Level.problem for one in findings) else 0)


def _print_findings(findings: list[Finding]) -> None:
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    topics = max(len(one.topic) for one in findings)
    for one in findings:
        line = Text(f"{one.level:<8}", style=LEVEL_STYLES[one.level])
        console.print(line.append(f" {one.topic:<{topics}}  {one_line(one.sentence)}", style="default"))
        if one.advice:
            console.print(Text(f"{'':<{topics + 9}}  → {one_line(one.advice)}", style="dim"))
