"""`dibs prune`: remove jobs that finished long ago."""

from typing import Annotated

import typer

from dibs.cli._support import bulk
from dibs.cli._support.options import AsJson, Url, bad_usage, duration
from dibs.jobs.states import FINISHED, JobState

EXAMPLE = "Example: dibs prune --older-than 7d --state succeeded --yes"

ENDS = [state for state in JobState if state in FINISHED]

Age = Annotated[
    float, typer.Option(parser=duration, metavar="TIME", help="How long they must be finished: 12h, 7d.")
]
Ends = Annotated[
    list[JobState] | None,
    typer.Option(metavar="STATE", help=f"Only in this state; may be given again: {', '.join(ENDS)}."),
]


def command(
    context: typer.Context,
    older_than: Age,
    state: Ends = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask first.")] = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Remove jobs that finished long ago, for good.

    Workers do this too, as the settings `keep` and `keep_for` say.
    """
    for one in state or ():
        if one not in FINISHED:
            bad_usage(f"can't prune {one} jobs, only those that are {', '.join(ENDS)}")
    bulk.prune_all(context, url, older_than, state or ENDS, yes=yes, json=json)
