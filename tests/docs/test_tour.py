"""The tour is true: its nine stops, and the helpers that it skips, are what one job really meets."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.support.servers import PostgreSQL
from tools.house import ROOT
from tools.trace_job import Calls, trace

TOUR = (ROOT / "docs" / "tour.md").read_text()
STOPS = re.findall(r"^## (\d)\. \[.+?\]\(\.\./src/dibs/(.+?)\)", TOUR, re.MULTILINE)
SKIPPED = re.findall(r"\]\(\.\./src/dibs/(.+?)\)", TOUR.split("## Skipped on the way")[1].split("\n## ")[0])

# What a reader of one job meets; may only go down.
MOST_FILES, MOST_CHANGES = 22, 80


@pytest.fixture(scope="module")
def calls(postgresql: PostgreSQL) -> Calls:
    return asyncio.run(trace(postgresql.fresh_database()))


def test_the_tour_has_nine_stops() -> None:
    assert [number for number, _ in STOPS] == [str(number) for number in range(1, 10)]


def test_what_the_tour_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TOUR) if "://" not in link]

    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_a_job_meets_every_stop(calls: Calls) -> None:
    assert {file for _, file in STOPS} <= set(calls.files)


def test_what_a_job_meets_is_a_stop_or_named_as_skipped(calls: Calls) -> None:
    assert set(calls.files) <= {file for _, file in STOPS} | set(SKIPPED)


def test_what_is_named_as_skipped_is_met(calls: Calls) -> None:
    assert set(SKIPPED) <= set(calls.files)


def test_the_way_of_a_job_gets_no_longer(calls: Calls) -> None:
    assert len(set(calls.files)) <= MOST_FILES
    assert calls.changes <= MOST_CHANGES
