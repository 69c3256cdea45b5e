"""`dibs why` and `dibs doctor`: commands that only read."""

import typer
from rich.console import Console
from rich.text import Text

from dibs.app.dibs import Dibs
from dibs.cli._support.config import given, look_at, refuse_missing_file
from dibs.cli._support.ids import whole_id
from dibs.cli._support.options import AsJson, Id, Url
from dibs.cli._support.printing import print_json, print_result
from dibs.doctor import Finding, Level
from dibs.log_format import one_line

WHY_EXAMPLE = "Example: dibs why 01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e"
DOCTOR_EXAMPLE = "Example: dibs doctor --url postgresql://localhost/shop"

LEVEL_STYLES = {Level.ok: "green", Level.note: "blue", Level.warning: "yellow", Level.problem: "bold red"}


def why(context: typer.Context, id: Id, url: Url = None, json: AsJson = False) -> None:
    """Print in one sentence why a job is not running.

    Or which worker runs it and for how long, or how it ended.
    """
    with look_at(context, url) as store:
        why = store.why(whole_id(store, id))
    print_result({"code": why.code, "sentence": why.sentence}, one_line(str(why)), json)


# -- doctor -------------------------------------------------------------------------------------


def doctor(context: typer.Context, url: Url = None, json: AsJson = False) -> None:
    """Check a store, and print what to do about what is wrong.

    Is it set up as it should be, and are its jobs being done? Each finding is ok, a note, a warning or a
    problem, and says what to do. The exit code is 1 if there is a problem: something does not work, or
    acknowledged jobs may be lost.
    """
    refuse_missing_file(context, url)
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
