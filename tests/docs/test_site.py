"""The site has every page once, and its reference every public name."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import dibs
from tools import reference, site

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"


@pytest.fixture(scope="module")
def plan() -> dict[str, object]:
    return tomllib.loads((ROOT / "docs" / "site.toml").read_text())


def test_every_page_stands_in_the_navigation_once(plan: dict[str, object]) -> None:
    named = Counter(site.named_pages(plan))
    pages = {path.relative_to(site.DOCS) for path in site.DOCS.rglob("*.md")}

    assert pages - named.keys() == set(), "add it to docs/site.toml"
    assert [page for page, times in named.items() if times > 1] == []


def test_every_public_name_is_in_the_reference_with_a_docstring() -> None:
    shown = {name: one for page in reference.all_pages() for name, one in page.shown.items()}

    assert set(dibs.__all__) - shown.keys() == set()
    assert [name for name, one in shown.items() if not one.__doc__] == []


def test_public_methods_have_docstrings() -> None:
    """All but those of `Moment`, which SQLAlchemy calls."""
    bare = [
        f"{name}.{method}"
        for page in reference.all_pages()
        for name, one in page.shown.items()
        if isinstance(one, type) and one.__module__.startswith("dibs.") and name != "Moment"
        for method in vars(one)
        if not method.startswith("_") and callable(getattr(one, method)) and not getattr(one, method).__doc__
    ]

    assert bare == []


def test_a_page_of_the_reference_shows_the_signature_a_caller_sees() -> None:
    [page] = [page for page in reference.pages() if page.file == "app.md"]

    drawn = reference.drawn(page)

    assert "async def get(id: UUID | str) -> Job | None" in drawn
    assert "| `pool_size` | `$DIBS_POOL_SIZE` | `int` | `10` |" in drawn


def test_a_link_out_of_the_documents_leads_to_a_page_of_that_file() -> None:
    assert site.place_of(ROOT / "src" / "dibs" / "faces.py") == Path("source/src/dibs/faces.py.md")
    assert site.place_of(ROOT / "CHANGELOG.md") == Path("source/CHANGELOG.md")
    assert site.place_of(ROOT / "docs" / "tour.md") == Path("tour.md")


def test_a_page_is_summed_up_by_its_first_sentence() -> None:
    page = "# Heading\n\n```\ncode\n```\n\nWorkers claim jobs.\nThen they run `them`.\n"

    assert site.first_sentence(page) == "Workers claim jobs."


def test_alerts_and_the_dashboard_name_metrics_that_exist() -> None:
    texts = (
        (DEPLOY / "alerts.yaml").read_text(),
        json.dumps(json.loads((DEPLOY / "grafana.json").read_text())),
    )
    named = set(re.findall(r"\bdibs_\w+", "".join(texts)))
    source = "".join(path.read_text() for path in (ROOT / "src/dibs/integrations").rglob("*.py"))

    missing = {name for name in named if f'"{re.sub("^dibs_|_bucket$", "", name)}"' not in source}

    assert missing == set()


def test_the_image_that_the_guide_shows_is_the_example() -> None:
    guide = (ROOT / "docs" / "operate" / "containers.md").read_text()

    assert (DEPLOY / "Dockerfile").read_text() in guide
