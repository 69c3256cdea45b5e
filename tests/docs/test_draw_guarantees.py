"""The tables of docs/guarantees.md are drawn from the code; a name that the code has not is an error."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

DRAWING: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "draw_guarantees.py"))
EVERYWHERE = frozenset(DRAWING["STORES"])

PAGE = """# What is guaranteed

<!-- drawn: glance -->
an old table
<!-- end -->

## Nothing is lost
<!-- needs durable -->
<!-- but may_rewind -->

`test_nothing_is_lost`

## What is not promised

<!-- drawn: tests -->
<!-- end -->
"""


def row(page: str, beginning: str) -> list[str]:
    [line] = [line for line in page.splitlines() if line.startswith(f"| {beginning}")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_a_cell_says_what_tests_and_traits_say() -> None:
    drawn = DRAWING["page"](PAGE, {"test_nothing_is_lost": EVERYWHERE - {"redis-cluster"}})

    assert row(drawn, "[Nothing is lost](#nothing-is-lost)") == [
        *("no: not `durable`", "✓", "✓", "✓", "✓", "✓, but `may_rewind`", "as Redis, but `may_rewind`"),
    ]
    assert row(drawn, "Nothing is lost") == ["`test_nothing_is_lost`", "✓", "✓", "✓", "✓", "✓", "✓", ""]
    assert "an old table" not in drawn
    assert DRAWING["page"](drawn, {"test_nothing_is_lost": EVERYWHERE - {"redis-cluster"}}) == drawn


def test_a_test_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(SystemExit, match="there is no test test_nothing_is_lost"):
        DRAWING["page"](PAGE, {"test_something_else": EVERYWHERE})


def test_a_store_without_a_test_is_an_error_unless_it_is_said() -> None:
    where = {"test_nothing_is_lost": EVERYWHERE - {"sqlite"}}

    with pytest.raises(SystemExit, match="names no test that runs on sqlite"):
        DRAWING["page"](PAGE, where)

    said = PAGE.replace("<!-- needs durable -->", "<!-- needs durable -->\n<!-- untested on sqlite -->")
    assert row(DRAWING["page"](said, where), "[Nothing is lost]")[1] == "–"


def test_a_test_runs_where_its_parameters_its_fixtures_or_its_name_say(
    request: pytest.FixtureRequest,
) -> None:
    class Item:
        def __init__(self, name: str, params: str = "", fixtures: tuple[str, ...] = ()) -> None:
            self.originalname, self.fixturenames, self.path = name, fixtures, Path("test_x.py")
            if params:
                self.callspec = type("CallSpec", (), {"id": params})

    items = [
        Item("test_a", "redis-sync"),
        Item("test_a", "sqlite-async"),
        Item("test_b", "redis-cluster-sync"),
        Item("test_c", "1", ("tmp_path", "own_mariadb")),
        Item("test_postgresql_reads"),
    ]

    assert DRAWING["where_tests_run"](items) == {
        "test_a": {"redis", "sqlite"},
        "test_b": {"redis-cluster"},
        "test_c": {"mariadb"},
        "test_postgresql_reads": {"postgresql"},
    }
