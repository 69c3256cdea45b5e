"""The command line: `dibs …`. Each command is thin; what it does can also be done from Python."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from dibs.cli import demo, migrate
from dibs.errors import DibsError

app = typer.Typer(
    name="dibs",
    help="Many workers, one store of work: no job done twice at once, none lost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.command)
app.command("migrate")(migrate.command)


def main() -> None:
    """Run a command; what dibs refuses or fails to do is one line on stderr and exit code 1."""
    try:
        app()
    except DibsError as error:
        typer.echo(f"dibs: {' '.join(str(error).split())}", err=True)
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dibs {version('dibs')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store; also after the command. Default: $DIBS_URL."),
    ] = None,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """What may be said before the command's name."""
    context.obj = url
