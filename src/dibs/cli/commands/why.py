"""`dibs why ID`: why a job is not running."""

import typer

from dibs.cli._support.config import open_store
from dibs.cli._support.options import AsJson, Id, Url
from dibs.cli._support.printing import print_json
from dibs.log_format import one_line

EXAMPLE = "Example: dibs why 01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e"


def command(context: typer.Context, id: Id, url: Url = None, json: AsJson = False) -> None:
    """Say in one sentence why a job is not running.

    Or who runs it and for how long, or how it ended.
    """
    with open_store(context, url) as store:
        why = store.why(id)
    if json:
        print_json({"code": why.code, "sentence": why.sentence})
    else:
        typer.echo(one_line(str(why)))
