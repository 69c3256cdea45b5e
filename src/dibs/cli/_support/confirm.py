"""Asking a person before something is changed that can't be taken back. No answer is a no."""

import sys

import typer

from dibs.errors import Refused

YES, NO = ("y", "yes"), ("n", "no", "")


def refuse_unless_agreed(question: str, otherwise: str = "nothing was changed") -> None:
    """Go on only after a clear yes; Ctrl-C, Ctrl-D and a pipe that has nothing to say are none."""
    try:
        agreed = _answer(question)
    except KeyboardInterrupt:
        typer.echo(err=True)
        agreed = False
    if agreed is None:
        typer.echo(err=True)
        raise Refused(f"{otherwise}: there was no answer; add --yes if nobody is there to give one")
    if not agreed:
        raise Refused(f"{otherwise}; answer y, or add --yes")


def _answer(question: str) -> bool | None:
    """Yes or no; None at the end of all answers. On stderr: stdout is for what comes out of it."""
    while True:
        typer.echo(f"{question} [y/N]: ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return None
        if not sys.stdin.isatty():
            typer.echo(err=True)
        said = line.strip().lower()
        if said in (*YES, *NO):
            return said in YES
        typer.echo("please answer y or n", err=True)
