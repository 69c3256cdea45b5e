"""`Claims`: leases on the user's own rows, fenced by their token; on every driver."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session

from dibs import BadRequest, LeaseLost, UnsupportedConnection, tables
from dibs.tables import RowsLost, leases, sync
from tests.support.matrix import MYSQLS
from tests.support.table_databases import SYNC_DRIVERS, Desk
from tests.support.user_tables import Loose, Parcel, Report

READY = Parcel.status == "ready"


def expire(desk: Desk, *ids: int) -> None:
    """As if the lease had ended a minute ago."""
    ago = datetime.now(UTC) - timedelta(minutes=1)
    with desk.home.begin() as connection:
        connection.execute(update(Parcel).where(Parcel.id.in_(ids)).values(locked_until=ago))


@pytest.fixture
def claims(desk: Desk) -> Any:
    desk.add(*(Parcel(id=number, rank=number) for number in (1, 2, 3)))
    return desk.claims(Parcel, ready=READY, lease=60, order_by=Parcel.rank)


def test_a_claim_names_its_holder_and_its_end(desk: Desk, claims: Any) -> None:
    [row] = claims.claim(worker="w1")

    assert (row.id, row.locked_by, row.claim_token, row.attempts) == (1, "w1", 1, 1)
    left = row.locked_until - datetime.now(UTC)
    assert timedelta(seconds=30) < left <= timedelta(seconds=61)


def test_live_locks_are_never_claimed(desk: Desk, claims: Any, strategy: Any) -> None:
    first = claims.claim(2, strategy=strategy)
    second = claims.claim(2, strategy=strategy)

    assert ([row.id for row in first], [row.id for row in second]) == ([1, 2], [3])
    assert claims.claim(2, strategy=strategy) == []


def test_an_expired_lock_is_claimed_again_under_a_later_token(desk: Desk, claims: Any, strategy: Any) -> None:
    claims.claim(3)
    expire(desk, 2)

    [row] = claims.claim(3, strategy=strategy)

    assert (row.id, row.claim_token, row.attempts) == (2, 2, 2)


def test_a_lease_ends_by_itself(desk: Desk, claims: Any) -> None:
    claims.claim(3, lease=0.1)

    found: list[Any] = []
    while not found:  # ends by the database's clock
        found = claims.claim(1)

    assert found[0].claim_token == 2


def test_done_sets_and_unlocks(desk: Desk, claims: Any) -> None:
    [row] = claims.claim()

    claims.done(row, set={"status": "sent", Parcel.rank: Parcel.rank + 10})

    columns = (Parcel.id, Parcel.status, Parcel.rank, Parcel.locked_by, Parcel.locked_until, Parcel.attempts)
    assert desk.look(*columns)[0] == (1, "sent", 11, None, None, 1)


def test_release_gives_the_row_and_the_attempt_back(desk: Desk, claims: Any) -> None:
    rows = claims.claim(2)

    claims.release(rows, set={"rank": 9})

    assert desk.look(Parcel.id, Parcel.locked_by, Parcel.attempts, Parcel.rank)[:2] == [
        (1, None, 0, 9),
        (2, None, 0, 9),
    ]
    assert [row.claim_token for row in claims.claim(3)] == [1, 2, 2]


def test_renew_pushes_the_end(desk: Desk, claims: Any) -> None:
    [row] = claims.claim()

    claims.renew(row, lease=3600)

    [(_, until), *_] = desk.look(Parcel.id, Parcel.locked_until)
    assert until - row.locked_until > timedelta(minutes=50)


@pytest.mark.parametrize("verb", ["renew", "release", "done"])
def test_a_late_holder_changes_nothing(desk: Desk, claims: Any, verb: str) -> None:
    [late] = claims.claim(worker="late")
    expire(desk, 1)
    [successor] = claims.claim(worker="successor")
    before = desk.look(*Parcel.__table__.c)

    with pytest.raises(LeaseLost, match="Parcel 1: the lease was lost") as lost:
        getattr(claims, verb)(late, **({"set": {"status": "sent"}} if verb == "done" else {}))

    assert lost.value.rows == [late]
    assert desk.look(*Parcel.__table__.c) == before
    claims.done(successor, set={"status": "sent"})


def test_after_the_end_a_holder_counts_as_long_as_nobody_claimed(desk: Desk, claims: Any) -> None:
    [row] = claims.claim()
    expire(desk, 1)

    claims.done(row, set={"status": "sent"})

    assert desk.look(Parcel.id, Parcel.status)[0] == (1, "sent")


def test_what_was_given_up_is_no_longer_held(desk: Desk, claims: Any) -> None:
    one, two = claims.claim(2)
    claims.release(one)
    claims.done(two, set={"status": "sent"})

    for row in (one, two):
        with pytest.raises(LeaseLost):
            claims.done(row, set={"status": "lost"})

    assert desk.look(Parcel.id, Parcel.status)[:2] == [(1, "ready"), (2, "sent")]


def test_of_several_those_still_held_are_written_and_the_others_named(desk: Desk, claims: Any) -> None:
    rows = claims.claim(3)
    expire(desk, 2)
    claims.claim()

    with pytest.raises(RowsLost) as lost:
        claims.done(rows, set={"status": "sent"})

    assert lost.value.rows == [rows[1]]
    assert desk.look(Parcel.id, Parcel.status) == [(1, "sent"), (2, "ready"), (3, "sent")]


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
def test_a_database_that_answers_no_updates_writes_row_by_row(
    desk: Desk, claims: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = claims.claim(3)
    expire(desk, 2)
    claims.claim()
    monkeypatch.setattr(leases, "_way_to_write", lambda dialect: leases._write_each)

    with pytest.raises(RowsLost) as lost:
        claims.done(rows, set={"status": "sent"})

    assert lost.value.rows == [rows[1]]
    assert desk.look(Parcel.id, Parcel.status) == [(1, "sent"), (2, "ready"), (3, "sent")]


def test_many_rows_are_written_by_a_few_statements(desk: Desk, claims: Any) -> None:
    rows = claims.claim(3)
    told = desk.statements()

    claims.renew(rows)
    claims.done(rows, set={"status": "sent"})

    assert len(told) == (4 if desk.database in MYSQLS else 2)


def test_a_holder_that_reloaded_its_row_keeps_its_own_token(desk: Desk, claims: Any) -> None:
    [late] = claims.claim()
    expire(desk, 1)
    claims.claim()

    with Session(desk.home) as session:
        session.add(late)
        session.refresh(late)
        assert late.claim_token == 2
    with pytest.raises(LeaseLost):
        claims.done(late, set={"status": "sent"})


def test_done_in_your_transaction_lives_and_dies_with_it(desk: Desk, claims: Any) -> None:
    one, two = claims.claim(2)

    finish_within(desk, claims, one, commit=False)
    finish_within(desk, claims, two, commit=True)

    assert desk.look(Parcel.id, Parcel.status) == [(1, "ready"), (2, "sent"), (3, "ready")]


def finish_within(desk: Desk, claims: Any, row: Any, *, commit: bool) -> None:
    if not desk.is_async:
        with Session(desk.tested) as session:
            claims.done(row, set={"status": "sent"}, within=session)
            session.commit() if commit else session.rollback()
        return
    from sqlalchemy.ext.asyncio import AsyncSession

    async def finish() -> None:
        async with AsyncSession(desk.tested) as session:
            await claims._claims.done(row, set={"status": "sent"}, within=session)
            await (session.commit() if commit else session.rollback())

    desk.run(finish())


def test_a_table_made_by_hand_will_do(desk: Desk) -> None:
    desk.add(*(Loose(id=number) for number in (1, 2)))
    claims = desk.claims(Loose, ready=Loose.state == "new", order_by=Loose.id)

    [one] = claims.claim(lease=60)
    [two] = claims.claim(lease=60)
    assert claims.claim() == []
    claims.done(one, set={"state": "done"})
    claims.release(two)

    assert desk.look(Loose.id, Loose.state, Loose.locked_by) == [(1, "done", None), (2, "new", None)]
    now = datetime.now(UTC).replace(tzinfo=None)
    assert abs(one.locked_until - now - timedelta(seconds=60)) < timedelta(seconds=30)


def test_a_plain_table_gives_rows_that_can_be_finished(desk: Desk) -> None:
    table: Any = Parcel.__table__
    desk.add(Parcel(id=1))
    claims = desk.claims(table, ready=table.c.status == "ready")

    [row] = claims.claim(worker="w1")
    claims.renew(row)
    claims.done([row], set={"status": "sent"})

    assert (row.locked_by, desk.look(table.c.status)) == ("w1", [("sent",)])


# -- the stream -----------------------------------------------------------------------------------


def test_a_stream_gives_every_row_once(desk: Desk, claims: Any) -> None:
    seen = []
    for row in claims.stream(batch=2, until_idle=True):
        seen.append(row.id)
        claims.done(row, set={"status": "sent"})

    assert seen == [1, 2, 3]


def test_a_stream_that_is_left_gives_back_what_it_did_not_hand_out(desk: Desk, claims: Any) -> None:
    stream = claims.stream(batch=3)
    row = next(stream)
    stream.close()

    assert [(one.id, one.attempts) for one in claims.claim(3)] == [(2, 1), (3, 1)]
    claims.done(row, set={"status": "sent"})


def test_a_stream_renews_what_waits_and_drops_what_was_lost(desk: Desk, claims: Any) -> None:
    stream = claims.stream(batch=3, until_idle=True)
    next(stream)
    expire(desk, 2, 3)
    [other] = claims.claim(worker="other")  # takes 2
    _let_a_third_of_the_lease_pass(claims)

    assert [row.id for row in stream] == [3]
    assert other.id == 2


def _let_a_third_of_the_lease_pass(claims: Any) -> None:
    answers = iter([True])
    leases = getattr(claims, "_claims", claims).leases
    leases.is_stale = lambda since: next(answers, False)


def test_a_stream_waits_for_rows(desk: Desk, claims: Any) -> None:
    for row in claims.claim(3):
        claims.done(row, set={"status": "sent"})
    stream = claims.stream(poll=0.01)
    desk.add(Parcel(id=4))

    assert next(stream).id == 4
    stream.close()


# -- refusals -------------------------------------------------------------------------------------


def test_done_without_anything_to_set_is_refused(desk: Desk, claims: Any) -> None:
    [row] = claims.claim()

    with pytest.raises(BadRequest, match="claimed again at once"):
        claims.done(row, set={})


def test_what_is_not_claimable_is_refused(desk: Desk, claims: Any) -> None:
    with pytest.raises(BadRequest, match=r"no column locked_until.*Claimable.*dibs tables sql"):
        desk.claims(Report, ready=None)
    with pytest.raises(BadRequest, match="too short"):
        desk.claims(Parcel, ready=None, lease=0.01)
    with pytest.raises(BadRequest, match="not a Parcel that was claimed here"):
        claims.renew(Parcel(id=1))


def test_claims_want_an_engine() -> None:
    engine = create_engine("sqlite://")

    with pytest.raises(UnsupportedConnection, match="AsyncEngine"):
        tables.Claims(Parcel, engine, ready=None)  # type: ignore[arg-type]
    with engine.connect() as connection, pytest.raises(UnsupportedConnection, match="need a Engine"):
        sync.Claims(Parcel, connection, ready=None)  # type: ignore[arg-type]


def test_both_faces_of_claims_take_the_same_arguments() -> None:
    names = [name for name in dir(sync.Claims) if not name.startswith("_")]

    assert names == [name for name in dir(tables.Claims) if not name.startswith("_")]
    for name in names:
        ours, theirs = getattr(tables.Claims, name), getattr(sync.Claims, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
        assert ours.__doc__ == theirs.__doc__
    for name in sync.__all__:
        assert hasattr(tables, name)
    assert (
        str(inspect.signature(tables.claim_rows)).split("model")[1]
        == (str(inspect.signature(sync.claim_rows)).split("model")[1])
    )
