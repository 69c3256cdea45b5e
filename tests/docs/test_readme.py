"""What the documents show is run, and what they draw and name is compared with the code."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.matrix import all_tests
from tests.support.servers import MariaDB, PostgreSQL

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

SNIPPET = re.compile(
    r"^<!-- runnable(.*) -->\n```python\n((?:.*\n)*?)```\n(?:```text\n((?:.*\n)*?)```)?", re.MULTILINE
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
PLACE = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAMED_TEST = re.compile(r"`(?:[\w/]+\.py::)?(test_\w+)`")


def _snippets() -> list[object]:
    found = []
    for document in DOCUMENTS:
        for number, (where, code, output) in enumerate(SNIPPET.findall(document.read_text()), 1):
            stores = where.split() or ["sqlite"]
            name = f"{document.relative_to(ROOT)}-{number}"
            found += [pytest.param(store, code, output, id=f"{name}-{store}") for store in stores]
    return found


def _run(code: str, folder: Path, url: str | None) -> str:
    (folder / "snippet.py").write_text(code)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    done = subprocess.run(
        [sys.executable, "snippet.py"],
        cwd=folder,
        env=kept if url is None else {**kept, "DIBS_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("store", "code", "output"), _snippets())
def test_a_snippet_prints_what_its_page_says(
    store: str, code: str, output: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = None
    if store in ("postgresql", "mariadb", "mysql"):
        server: PostgreSQL | MariaDB = request.getfixturevalue(store)
        url = server.fresh_database()
    if store == "redis":
        url = request.getfixturevalue("empty_redis")("redis")

    assert _run(code, tmp_path, url) == output


def test_the_readme_example_is_tried_on_every_store() -> None:
    wheres = [where.split() for where, _, _ in SNIPPET.findall((ROOT / "README.md").read_text())]

    assert ["sqlite", "postgresql", "mariadb", "mysql"] in wheres


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    missing = [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]

    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_a_part_of_a_page_find_it(document: Path) -> None:
    missing = [
        f"{file}#{place}"
        for file, place in PLACE.findall(document.read_text())
        if place not in _places(document.parent / file if file else document)
    ]

    assert missing == []


def _places(page: Path) -> set[str]:
    """Return the headings of a page, as links name them."""
    headings = (
        re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in HEADING.findall(page.read_text())
    )
    return {heading.replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tests_that_a_page_names_exist(document: Path) -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(NAMED_TEST.findall(document.read_text()))

    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_the_tables_of_the_guarantees_are_up_to_date(request: pytest.FixtureRequest) -> None:
    """Return the collected tests of this run; if it has only some, let pytest collect all."""
    script, text = ROOT / "docs" / "draw_guarantees.py", (ROOT / "docs" / "guarantees.md").read_text()
    drawing = runpy.run_path(str(script))
    where = drawing["where_tests_run"](request.config.stash[all_tests])
    if set(NAMED_TEST.findall(text)) <= where.keys():
        assert drawing["page"](text, where) == text, "run `make docs`"
    else:
        subprocess.run([sys.executable, script, "--check"], cwd=ROOT, check=True, timeout=200)


def test_the_versions_in_the_readme_are_the_ones_that_were_tested() -> None:
    text = (ROOT / "README.md").read_text()
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_guarantees.py"))["with_versions"](text)

    assert drawn == text, "run `make docs`"
    assert "| PostgreSQL | " in drawn


def test_the_drawing_of_the_states_is_up_to_date() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_states.py"))

    assert drawn["drawing"]() in (ROOT / "docs" / "states.md").read_text()
