"""A claim that leaves a row as it was would give it out twice: refused, and nothing is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import and_, exists, func, null, or_, select, text, true

from dibs import BadRequest
from tests.support.table_databases import Desk
from tests.support.user_tables import Author, Report, task

READY = Report.status == "ready"
AGAIN = r"set= leaves .* matching where=.*next claim"


@pytest.mark.parametrize(
    "how",
    [
        {"where": READY, "set": {"attempts": Report.attempts + 1}},
        {"where": or_(READY, Report.rank > 1), "set": {"status": "taken"}},  # one of the two still matches
        {"where": [READY, Report.attempts < 5], "set": {"status": "ready"}},
        {"where": true(), "set": {"status": "taken"}},
        {"where": text("status = 'ready' and id < 9"), "set": {"attempts": 1}},
        {"where": READY, "set": {"attempts": 1}, "order_by": [func.abs(Report.rank)]},  # not sorted in Python
        {"where": Report.locked_by.is_(None), "set": {"status": "taken"}},
        {"where": [~Report.rank.is_(None), Report.due.is_not_distinct_from(None)], "set": {"attempts": 1}},
        {"where": text("locked_by IS NULL"), "set": {"status": "taken"}},
    ],
    ids=["other column", "or", "same value", "true", "text", "sorted there", "null", "nulls", "null in text"],
)
@pytest.mark.parametrize("way", ["claim", "claim_on_connection", "claim_in_session"])
def test_a_claim_that_leaves_a_row_matching_is_refused(
    desk: Desk, strategy: Any, way: str, how: dict[str, Any]
) -> None:
    desk.add(*(Report(id=number, rank=number) for number in range(1, 4)))
    before = desk.look(Report.id, Report.status, Report.attempts)

    with pytest.raises(BadRequest, match=AGAIN):
        getattr(desk, way)(Report, limit=2, strategy=strategy, **how)

    assert desk.look(Report.id, Report.status, Report.attempts) == before


def test_rows_of_a_table_are_checked_too(desk: Desk, strategy: Any) -> None:
    desk.insert(task, {"id": 1, "state": "new"}, {"id": 2, "state": "new"})

    with pytest.raises(BadRequest, match=AGAIN):
        desk.claim(task, where=task.c.state != "done", set={"state": "x"}, limit=2, strategy=strategy)

    taken = desk.claim(task, where=task.c.state == "new", set={"state": "x"}, limit=1, strategy=strategy)
    assert [(row.id, row.state) for row in taken] == [(taken[0].id, "x")]
    assert len(taken[0]) == len(task.c)


def test_a_condition_that_is_null_does_not_match(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1, rank=5))

    [row] = desk.claim(
        Report, where=and_(READY, Report.rank < 9), set={"rank": null()}, limit=1, strategy=strategy
    )

    assert (row.status, row.rank) == ("ready", None)


@pytest.mark.parametrize(
    "where", [Report.rank.is_not(None), text("priority is not null")], ids=["is", "text"]
)
def test_a_claim_may_end_its_condition_by_a_null(desk: Desk, strategy: Any, where: Any) -> None:
    desk.add(Report(id=1, rank=5), Report(id=2))

    [row] = desk.claim(Report, where=where, set={"rank": None}, limit=2, strategy=strategy)

    assert (row.id, row.rank) == (1, None)


def test_a_condition_with_a_subquery_is_not_checked(desk: Desk, strategy: Any) -> None:
    desk.add(Author(id=1, name="Ann"), Report(id=1, author_id=1))
    anns = exists(select(Author.id).where(Author.id == Report.author_id))

    [row] = desk.claim(Report, where=[READY, anns], set={"attempts": 3}, limit=1, strategy=strategy)

    assert row.attempts == 3


@pytest.mark.filterwarnings("ignore:Invoking and_")
@pytest.mark.parametrize("make", [lambda: None, list, tuple, and_, lambda: [and_()]])
def test_a_claim_without_a_condition_is_refused(desk: Desk, make: Callable[[], Any]) -> None:
    desk.add(Report(id=1))
    where = make()

    with pytest.raises(BadRequest, match=r"where= is empty.*rows that are claimed already"):
        desk.claim(Report, where=where, set={"status": "taken"}, limit=1)

    assert desk.look(Report.status) == [("ready",)]
