"""`dibs doctor`: look a store over, and say what to do about what is found."""

import typer
from rich.console import Console
from rich.text import Text

from dibs.app.dibs import Dibs
from dibs.cli._support.config import given
from dibs.cli._support.options import AsJson, Url
from dibs.cli._support.printing import print_json
from dibs.doctor import Finding, Level
from dibs.log_format import one_line

EXAMPLE = "Example: dibs doctor --url postgresql://localhost/shop"

STYLES = {Level.ok: "green", Level.note: "blue", Level.warning: "yellow", Level.problem: "bold red"}


def command(context: typer.Context, url: Url = None, json: AsJson = False) -> None:
    """Look a store over, and say what to do about what is wrong.

    Is it set up as it should be, and is its work being done? Each finding is ok, a note, a warning or a
    problem, and says what to do. The exit code is 1 if there is a problem: something does not work, or may
    lose what it acknowledged.
    """
    store = Dibs(**given(context, url)).sync
    try:
        findings = store.doctor()
    finally:
        store.close()
    if json:
        print_json(findings)
    else:
        _print(findings)
    raise typer.Exit(1 if any(one.level == Level.problem for one in findings) else 0)


def _print(findings: list[Finding]) -> None:
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    topics = max(len(one.topic) for one in findings)
    for one in findings:
        line = Text(f"{one.level:<8}", style=STYLES[one.level])
        console.print(line.append(f" {one.topic:<{topics}}  {one_line(one.sentence)}", style="default"))
        if one.advice:
            console.print(Text(f"{'':<{topics + 9}}  → {one_line(one.advice)}", style="dim"))
