"""`dibs schedules …`: schedules with their ticks; pause, resume, run or delete one."""

from typing import Annotated

import typer

from dibs.cli._support.config import look_at, open_store
from dibs.cli._support.options import AsJson, Url, as_typed, hand_on
from dibs.cli._support.printing import note, print_json, print_result, print_table, time_text
from dibs.jobs.payload import check_name
from dibs.log_format import one_line
from dibs.operations.schedules import ScheduleInfo

app = typer.Typer(
    invoke_without_command=True,
    epilog="Example: dibs schedules, or dibs schedules pause nightly",
)

Name = Annotated[
    str,
    typer.Argument(parser=as_typed(check_name, "name"), metavar="NAME", help="The schedule's name."),
]


@app.callback()
def show(context: typer.Context, url: Url = None, json: AsJson = False) -> None:
    """Show the schedules, how often they tick and when next; pause, resume, run or delete one.

    Shown are the ones that were put into the store, and those of @app.every once a worker has run.
    """
    hand_on(context, url, json)
    if context.invoked_subcommand is not None:
        return
    with look_at(context, url) as store:
        found = store.schedules.list()
    if json:
        print_json(found)
    elif found:
        columns = ["schedule", "kind", "queue", "every", "last tick", "next tick"]
        print_table(columns, [_row(schedule) for schedule in found])
    else:
        note("there are no schedules")


@app.command("pause", epilog="Example: dibs schedules pause nightly")
def pause(context: typer.Context, name: Name, url: Url = None, json: AsJson = False) -> None:
    """Let no worker enqueue its ticks until it is resumed."""
    with open_store(context, url) as store:
        schedule = store.schedules.pause(name)
    print_result(schedule, one_line(f"{name} is paused"), json)


@app.command("resume", epilog="Example: dibs schedules resume nightly")
def resume(context: typer.Context, name: Name, url: Url = None, json: AsJson = False) -> None:
    """Let it continue with its next tick; ticks that came while it was paused are left out."""
    with open_store(context, url) as store:
        schedule = store.schedules.resume(name)
    print_result(schedule, one_line(f"resumed {name}, next tick {_at(schedule)}"), json)


@app.command("run", epilog="Example: dibs schedules run nightly")
def run(context: typer.Context, name: Name, url: Url = None, json: AsJson = False) -> None:
    """Enqueue its job at once; its ticks stay as they are."""
    with open_store(context, url) as store:
        job = store.schedules.run_now(name)
    print_result(job, one_line(f"{job.id} {job.state}"), json)


@app.command("delete", epilog="Example: dibs schedules delete nightly")
def delete(context: typer.Context, name: Name, url: Url = None, json: AsJson = False) -> None:
    """Remove a schedule that was put into the store; jobs that it enqueued stay.

    One of @app.every is in the code, and can only be paused here.
    """
    with open_store(context, url) as store:
        store.schedules.delete(name)
    print_result({"name": name, "deleted": True}, one_line(f"deleted {name}"), json)


def _row(schedule: ScheduleInfo) -> list[str | int]:
    last = "-" if schedule.last_tick is None else time_text(schedule.last_tick)
    every = schedule.rule or "-"
    zone = "" if schedule.tz == "UTC" else f" {schedule.tz}"
    return [schedule.name, schedule.kind or "-", schedule.queue or "-", every + zone, last, _at(schedule)]


def _at(schedule: ScheduleInfo) -> str:
    if schedule.paused:
        return "paused"
    return "-" if schedule.next_tick is None else time_text(schedule.next_tick)
