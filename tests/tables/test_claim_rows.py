"""`claim_rows`: which rows, in which state and order, and as what; on every driver, by both strategies."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, exists, func, inspect, select
from sqlalchemy.orm import Session

from tests.support.table_databases import Desk
from tests.support.user_tables import Animal, Author, Dog, Report, Seat, Shelf, Status, archived, task

TAKEN = {"status": "taken", "locked_by": "w1"}
READY = Report.status == "ready"


def test_it_takes_what_matches_and_leaves_the_rest_alone(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1), Report(id=2, status="done"), Report(id=3))

    rows = desk.claim(Report, where=READY, set=TAKEN, limit=10, order_by=Report.id, strategy=strategy)

    assert [(row.id, row.status, row.locked_by) for row in rows] == [(1, "taken", "w1"), (3, "taken", "w1")]
    assert desk.look(Report.id, Report.status, Report.locked_by) == [
        (1, "taken", "w1"),
        (2, "done", None),
        (3, "taken", "w1"),
    ]


def test_it_never_takes_more_than_the_limit(desk: Desk, strategy: Any) -> None:
    desk.add(*(Report(id=number) for number in range(1, 8)))

    sizes = [
        len(desk.claim(Report, where=READY, set=TAKEN, limit=3, order_by=Report.id, strategy=strategy))
        for _ in range(4)
    ]

    assert sizes == [3, 3, 1, 0]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_claims_nothing(desk: Desk, strategy: Any, limit: int) -> None:
    desk.add(Report(id=1))
    told = desk.statements()

    assert desk.claim(Report, where=READY, set=TAKEN, limit=limit, strategy=strategy) == []
    assert told == []
    assert desk.look(Report.status) == [("ready",)]


def test_rows_come_in_the_order_of_several_columns(desk: Desk, strategy: Any) -> None:
    desk.add(*(Report(id=number, rank=rank) for number, rank in enumerate([1, 2, 1, 3, 2], 1)))

    order = [Report.rank.desc(), Report.id]
    rows = desk.claim(Report, where=READY, set=TAKEN, limit=4, order_by=order, strategy=strategy)

    assert [row.id for row in rows] == [4, 2, 5, 1]


def test_the_order_is_over_the_values_before_the_claim(desk: Desk, strategy: Any) -> None:
    desk.add(*(Report(id=number, rank=number) for number in (1, 2, 3)))

    values = {"status": "taken", "rank": 100 - Report.rank}
    rows = desk.claim(
        Report, where=READY, set=values, limit=2, order_by=[Report.rank.desc()], strategy=strategy
    )

    assert [(row.id, row.rank) for row in rows] == [(3, 97), (2, 98)]


def test_text_and_nothing_are_sorted_as_the_database_does(desk: Desk, strategy: Any) -> None:
    titles = {1: "b", 2: "a", 3: "c"}
    desk.add(*(Report(id=number, title=title, rank=None) for number, title in titles.items()))
    desk.add(Report(id=4, title="a", rank=5))

    rows = desk.claim(
        Report, where=READY, set=TAKEN, limit=9, order_by=[Report.title.desc(), Report.id], strategy=strategy
    )

    assert [row.id for row in rows] == [3, 1, 2, 4]


def test_nulls_stand_where_the_database_puts_them(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1, rank=2), Report(id=2, rank=None), Report(id=3, rank=1))
    order = [Report.rank.desc(), Report.id]
    expected = desk.look_in_order(Report.id, order)

    rows = desk.claim(Report, where=READY, set=TAKEN, limit=9, order_by=order, strategy=strategy)

    assert [row.id for row in rows] == expected


def test_set_takes_expressions(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1, attempts=4, title="x"))

    values = {Report.status: "taken", "attempts": Report.attempts + 1, "title": func.upper(Report.title)}
    [row] = desk.claim(Report, where=READY, set=values, limit=1, strategy=strategy)

    assert (row.attempts, row.title) == (5, "X")


def test_where_may_look_into_other_tables(desk: Desk, strategy: Any) -> None:
    desk.add(Author(id=1, name="Ann"), Author(id=2, name="Bob"))
    desk.add(Report(id=1, author_id=1), Report(id=2, author_id=2), Report(id=3))

    of_bob = exists(select(Author.id).where(Author.id == Report.author_id, Author.name == "Bob"))
    rows = desk.claim(Report, where=[READY, of_bob], set=TAKEN, limit=9, strategy=strategy)
    by_ann = desk.claim(
        Report, where=READY & Report.author.has(name="Ann"), set=TAKEN, limit=9, strategy=strategy
    )

    assert ([row.id for row in rows], [row.id for row in by_ann]) == ([2], [1])


def test_a_composite_key_will_do(desk: Desk, strategy: Any) -> None:
    desk.add(*(Seat(hall=hall, number=number) for hall in "AB" for number in (1, 2)))

    rows = desk.claim(
        Seat,
        where=Seat.holder.is_(None),
        set={"holder": "Ann"},
        limit=3,
        order_by=[Seat.number, Seat.hall.desc()],
        strategy=strategy,
    )

    assert [(row.hall, row.number) for row in rows] == [("B", 1), ("A", 1), ("B", 2)]
    assert [holder for _, _, holder in desk.look(Seat.hall, Seat.number, Seat.holder)].count("Ann") == 3


def test_a_composite_key_in_the_order_of_numbers(desk: Desk, strategy: Any) -> None:
    desk.add(*(Seat(hall="A", number=number) for number in (1, 2, 3)))

    rows = desk.claim(
        Seat,
        where=Seat.holder.is_(None),
        set={"holder": "Ann"},
        limit=2,
        order_by=Seat.number.desc(),
        strategy=strategy,
    )

    assert [row.number for row in rows] == [3, 2]


def test_a_table_gives_rows(desk: Desk, strategy: Any) -> None:
    desk.insert(task, {"id": 1, "state": "new", "importance": 1}, {"id": 2, "state": "new", "importance": 2})

    rows = desk.claim(
        task,
        where=task.c.state == "new",
        set={"state": "taken"},
        limit=9,
        order_by=task.c.importance.desc(),
        strategy=strategy,
    )

    assert rows == [(2, "taken", 2), (1, "taken", 1)]
    assert rows[0]._mapping[task.c.state] == rows[0].state == "taken"
    assert rows[0]._mapping[task.c.importance] == rows[0].importance == 2


def test_a_table_of_another_schema_will_do(desk: Desk, strategy: Any) -> None:
    desk.insert(task, {"id": 1, "state": "new"})
    desk.insert(archived, {"id": 7, "state": "new"})

    rows = desk.claim(
        archived, where=archived.c.state == "new", set={"state": "taken"}, limit=9, strategy=strategy
    )

    assert rows == [(7, "taken")]
    assert desk.look(task.c.state) == [("new",)]


def test_a_subclass_that_shares_its_table_gets_its_own_rows(desk: Desk, strategy: Any) -> None:
    desk.add(Dog(id=1), Animal(id=2), Dog(id=3))

    def feed(model: Any) -> list[Any]:
        hungry = Animal.fed.is_(False)
        return desk.claim(
            model, where=hungry, set={"fed": True}, limit=9, order_by=Animal.id, strategy=strategy
        )

    dogs, others = feed(Dog), feed(Animal)

    assert [(type(one), one.id) for one in dogs] == [(Dog, 1), (Dog, 3)]
    assert [(type(one), one.id) for one in others] == [(Animal, 2)]


# -- instances ------------------------------------------------------------------------------------


def test_instances_have_the_types_of_their_columns(desk: Desk, strategy: Any) -> None:
    due = datetime(2026, 1, 2, 3, 4, 5)
    desk.add(Report(id=1, about={"a": [1]}, price=Decimal("9.99"), due=due))

    [row] = desk.claim(Report, where=READY, set={"mood": Status.taken, **TAKEN}, limit=1, strategy=strategy)

    assert isinstance(row, Report)
    assert (row.about, row.price, row.due, row.mood) == ({"a": [1]}, Decimal("9.99"), due, Status.taken)


def test_instances_come_with_what_their_class_loads_with_them(desk: Desk, strategy: Any) -> None:
    desk.add(Author(id=1, name="Ann"), Shelf(id=1, name="top", author_id=1), Shelf(id=2, name="low"))

    rows = desk.claim(
        Shelf, where=Shelf.full.is_(False), set={"full": True}, limit=9, order_by=Shelf.id, strategy=strategy
    )

    assert [(row.id, row.full, row.loud, row.authors) for row in rows] == [
        (1, True, "TOP", 1),
        (2, True, "LOW", 0),
    ]
    assert [row.author and row.author.name for row in rows] == ["Ann", None]
    assert [row.reviewer and row.reviewer.name for row in rows] == ["Ann", None]


def test_from_an_engine_or_a_connection_instances_are_detached(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1), Report(id=2))

    [one] = desk.claim(Report, where=READY, set=TAKEN, limit=1, order_by=Report.id, strategy=strategy)
    [two] = desk.claim_on_connection(Report, where=READY, set=TAKEN, limit=1, strategy=strategy)

    for row in (one, two):
        assert inspect(row).detached
        assert not inspect(row).modified
    with Session(desk.home) as session:  # they may be taken on as they are
        session.add(one)
        one.status = "done"
        session.commit()
    assert desk.look(Report.id, Report.status) == [(1, "done"), (2, "taken")]


def test_from_a_session_instances_are_attached_and_fresh(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1))

    def load(session: Any) -> None:
        session.known = session.get(Report, 1)
        session.commit()

    def judge(session: Any, rows: list[Any]) -> None:
        assert rows == [session.known]  # one identity, one instance
        assert not session.in_transaction()
        assert inspect(rows[0]).persistent
        assert inspect(rows[0]).dict["status"] == "taken"  # loaded, though the session expires on commit
        assert not session.in_transaction()
        rows[0].status = "done"
        session.commit()

    desk.claim_in_session(
        Report, before=load, after=judge, where=READY, set=TAKEN, limit=1, strategy=strategy
    )

    assert desk.look(Report.status) == [("done",)]


def test_a_session_still_expires_what_it_commits_itself(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1))

    def judge(session: Any, rows: list[Any]) -> bool:
        session.commit()
        rows[0].title = "new"
        session.commit()
        return inspect(rows[0]).expired

    assert desk.claim_in_session(Report, after=judge, where=READY, set=TAKEN, limit=1, strategy=strategy)


def test_a_table_claimed_in_a_session_gives_rows(desk: Desk, strategy: Any) -> None:
    desk.insert(task, {"id": 1, "state": "new"})

    rows = desk.claim_in_session(
        task, where=task.c.state == "new", set={"state": "taken"}, limit=1, strategy=strategy
    )

    assert rows == [(1, "taken", None)]


def test_the_claim_is_durable_when_the_call_returns(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1))

    def judge(session: Any, rows: list[Any]) -> None:
        assert desk.look(Report.status) == [("taken",)]
        session.rollback()

    desk.claim_in_session(Report, after=judge, where=READY, set=TAKEN, limit=1, strategy=strategy)

    assert desk.look(Report.status) == [("taken",)]


def test_a_claim_that_fails_changes_nothing_and_leaves_the_session_usable(desk: Desk, strategy: Any) -> None:
    desk.add(*(Report(id=number) for number in (1, 2)))

    with pytest.raises(Exception, match=r"(?i)null"):
        desk.claim(Report, where=READY, set={"status": None}, limit=2, strategy=strategy)

    assert desk.look(Report.status) == [("ready",), ("ready",)]
    assert len(desk.claim(Report, where=READY, set=TAKEN, limit=2, strategy=strategy)) == 2


# -- any order ------------------------------------------------------------------------------------

COLUMNS = [Report.rank, Report.title, Report.due, Report.price, Report.attempts]
rows_of_all_kinds = st.lists(
    st.fixed_dictionaries(
        {
            "rank": st.none() | st.integers(-2, 2),
            "title": st.sampled_from(["", "a", "B", "b", "é"]),
            "due": st.none() | st.sampled_from([datetime(2026, 1, day) for day in (1, 2, 10)]),
            "price": st.sampled_from([Decimal("9.99"), Decimal("10.5"), Decimal(0)]),
            "status": st.sampled_from(["ready", "ready", "done"]),
        }
    ),
    max_size=8,
)
directions = st.sampled_from(
    [
        lambda column: column,
        lambda column: column.desc(),
        lambda column: column.asc().nulls_last(),
        lambda column: column.desc().nulls_first(),
    ]
)
orders = st.lists(st.tuples(st.sampled_from(COLUMNS), directions), max_size=3)
changes = st.sampled_from([{}, {"rank": 7}, {"title": "z"}, {"attempts": Report.attempts + 1}])


@pytest.mark.parametrize("driver", ["sqlite+pysqlite", "postgresql+psycopg"])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(rows=rows_of_all_kinds, order=orders, change=changes, limit=st.integers(1, 9))
def test_whatever_the_order_rows_come_as_a_plain_select_has_them(
    desk: Desk, strategy: Any, rows: list[Any], order: list[Any], change: dict[str, Any], limit: int
) -> None:
    with desk.home.begin() as connection:
        connection.execute(delete(Report))
    desk.add(*(Report(id=number, **row) for number, row in enumerate(rows, 1)))
    order_by = [*(direct(column) for column, direct in order), Report.id.desc()]
    with desk.home.connect() as connection:
        expected = select(Report.id).where(READY).order_by(*order_by).limit(limit)
        ids = list(connection.execute(expected).scalars())

    claimed = desk.claim(
        Report, where=READY, set={**TAKEN, **change}, limit=limit, order_by=order_by, strategy=strategy
    )

    assert [row.id for row in claimed] == ids
    assert {id for id, status in desk.look(Report.id, Report.status) if status == "taken"} == set(ids)
