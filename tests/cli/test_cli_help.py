"""What `--help` says, on a terminal of 80 columns."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer

from dibs.cli import PANELS, app
from tests.support.commands import dibs, lines


def commands(path: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands([*path, name], child)


EVERY = list(commands([], typer.main.get_command(app)))


def helped(*words: str) -> str:
    done = dibs(*words, "--help", COLUMNS="80", TERM="dumb")
    assert done.exit_code == 0
    return done.stdout


def test_commands_are_listed_by_what_they_are_for() -> None:
    said = helped()

    known = dict(EVERY[0][1].commands)
    for panel, names in PANELS.items():
        assert f"─ {panel} ─" in said
        places = [said.index(f"│ {name} ") for name in names if name in known]
        assert places == sorted(places) != []


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) or "dibs" for path, _ in EVERY])
def test_help_reads_well_on_eighty_columns(path: list[str], command: Any) -> None:
    said = helped(*path)

    assert max(map(len, lines(said))) <= 80
    words = " ".join(said.split())
    for paragraph in inspect.cleandoc(command.help).split("\n\n"):
        assert " ".join(paragraph.replace("`", "").split()) in words
    assert_paragraphs_flow(said)
    assert not re.search(r"int range|<(read|bool|boolean)>", said)
    for param in command.params:
        assert "Default:" not in (param.help or "") or param.default is None, f"{param.name} says it twice"


def assert_paragraphs_flow(said: str) -> None:
    """Assert that no line ends early: the first word of the next one would not have fitted."""
    told = [line.strip() for line in lines(said.partition("╭")[0])]
    for line, after in pairwise(told):
        if line and after:
            assert len(f"{line} {after.split()[0]}") > 76, f"{line!r} is followed by {after!r}"


def test_every_command_can_be_completed() -> None:
    for path, command in EVERY:
        if not hasattr(command, "commands"):
            continue
        done = dibs(
            _DIBS_COMPLETE="complete_bash",
            COMP_WORDS=" ".join(["dibs", *path, ""]),
            COMP_CWORD=str(len(path) + 1),
        )
        assert lines(done.stdout) == command.list_commands(None)
