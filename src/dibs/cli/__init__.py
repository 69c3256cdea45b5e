"""The command line: `dibs …`. Each command is thin; what it does can also be done from Python."""

import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dibs.cli import demo, enqueue, jobs, migrate, queues, why, work
from dibs.cli.options import Url
from dibs.cli.printing import complain
from dibs.errors import DibsError


class Commands(TyperGroup):
    """All commands; what dibs refuses or fails to do is one line on stderr and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DibsError as error:
            complain(error)
            raise typer.Exit(1) from None


app = typer.Typer(
    name="dibs",
    cls=Commands,
    help="Many workers, one store of work: no job done twice at once, none lost.",
    epilog="The store is named by --url, else $DIBS_URL, else tool.dibs.url in the nearest pyproject.toml, "
    "else it is the file dibs.db here. Exit code 0: done; 1: refused or failed; 2: bad usage.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("work", epilog=work.EXAMPLE)(work.command)
app.command("enqueue", epilog=enqueue.EXAMPLE)(enqueue.command)
app.add_typer(jobs.app, name="jobs")
app.command("why", epilog=why.EXAMPLE)(why.command)
app.add_typer(queues.app, name="queues")
app.command("migrate", epilog=migrate.EXAMPLE)(migrate.command)
app.command("demo", epilog=demo.EXAMPLE)(demo.command)


def main() -> None:
    """What the `dibs` script runs. A bug is one line, too, unless $DIBS_TRACEBACK asks for more."""
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
    """What may be said before the command's name."""
    context.obj = url
