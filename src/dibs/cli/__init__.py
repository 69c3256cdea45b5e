"""The command line: `dibs …`. Each command is thin; all it does can also be done from Python."""

import os
import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dibs.cli._support.options import Url, mistakes_in_one_line
from dibs.cli._support.printing import complain
from dibs.cli.commands import (
    demo,
    enqueue,
    jobs,
    lists,
    migrate,
    move,
    outbox,
    queries,
    queues,
    schedules,
    serve,
    tables,
    top,
    trains,
    verify,
    work,
)
from dibs.errors import DibsError

PANELS = {
    "Run jobs": ["work", "enqueue", "serve"],
    "See and change": [
        *("jobs", "why", "queues", "trains", "slots", "pipelines", "schedules", "workers", "top"),
    ],
    "Maintain the store": ["doctor", "migrate", "prune", "move", "tables", "outbox"],
    "Try it": ["demo", "verify"],
}
ORDER = [name for names in PANELS.values() for name in names]


class Commands(TyperGroup):
    """All commands. An error is one line on stderr; exit code 1, or 2 for a mistake in what was typed."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        for panel, names in PANELS.items():
            for name in self.commands.keys() & set(names):
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return them in the order of `PANELS`; typer would list all groups last."""
        rest = [name for name in super().list_commands(ctx) if name not in ORDER]
        return [*(name for name in ORDER if name in self.commands), *rest]

    def make_context(self, *args: Any, **more: Any) -> Any:
        with mistakes_in_one_line():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            with mistakes_in_one_line():
                return super().invoke(ctx)
        except DibsError as error:
            complain(error)
            raise typer.Exit(1) from None


app = typer.Typer(
    name="dibs",
    cls=Commands,
    help="Many workers share one store of jobs: no job runs twice at once, none is lost.",
    epilog="The store is named by --url, else $DIBS_URL, else tool.dibs.url in the nearest pyproject.toml, "
    "else it is the file dibs.db here. Exit code 0: done; 1: refused or failed; 2: bad usage. "
    "To see it at work: dibs demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("work", epilog=work.EXAMPLE)(work.command)
app.command("enqueue", epilog=enqueue.EXAMPLE)(enqueue.command)
app.add_typer(jobs.app, name="jobs")
app.command("top", epilog=top.EXAMPLE)(top.command)
app.command("why", epilog=queries.WHY_EXAMPLE)(queries.why)
app.add_typer(queues.app, name="queues")
app.add_typer(trains.app, name="trains")
app.add_typer(schedules.app, name="schedules")
app.command("workers", epilog=lists.WORKERS_EXAMPLE)(lists.workers)
app.command("slots", epilog=lists.SLOTS_EXAMPLE)(lists.slots)
app.add_typer(lists.pipelines, name="pipelines")
app.command("prune", epilog=jobs.PRUNE_EXAMPLE)(jobs.prune)
app.add_typer(outbox.app, name="outbox")
app.command("migrate", epilog=migrate.EXAMPLE)(migrate.command)
app.add_typer(tables.app, name="tables")
app.command("move", epilog=move.EXAMPLE)(move.command)
app.command("doctor", epilog=queries.DOCTOR_EXAMPLE)(queries.doctor)
app.command("serve", epilog=serve.EXAMPLE)(serve.command)
app.command("verify", epilog=verify.EXAMPLE)(verify.command)
app.command("demo", epilog=demo.EXAMPLE)(demo.command)


def main() -> None:
    """Run the `dibs` script. A bug is one line, too, unless $DIBS_TRACEBACK asks for more."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without UTF-8 gets \xfc for ü, not an error
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="dibs")
    except Exception as error:
        if os.environ.get("DIBS_TRACEBACK"):
            raise
        complain(
            f"unexpected {type(error).__name__}: {error}; DIBS_TRACEBACK=1 shows where, please report it"
        )
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dibs {version('dibs')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    url: Url = None,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Read the options before the command's name."""
    context.obj = url
