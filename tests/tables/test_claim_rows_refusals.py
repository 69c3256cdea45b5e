"""What `claim_rows` refuses, and that its refusals say what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    StaticPool,
    String,
    Table,
    create_engine,
    false,
    select,
)
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, aliased, scoped_session, sessionmaker

from dibs import BadRequest, ClaimInTransaction, UnsupportedConnection, tables
from dibs.tables import sync
from tests.support.table_databases import SYNC_DRIVERS, Desk
from tests.support.user_tables import Author, Base, Employee, Manager, Query, Report, keyless, shown

TAKEN = {"status": "taken"}
READY = Report.status == "ready"

absent = Table("not_there", MetaData(), Column("id", Integer, primary_key=True), Column("state", String(5)))

one_driver = pytest.mark.parametrize("driver", ["sqlite+pysqlite"])


def test_an_open_transaction_is_refused_and_left_alone(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1))
    how: dict[str, Any] = {"where": READY, "set": TAKEN, "limit": 1, "strategy": strategy}

    def begin(session: Any) -> None:
        session.execute(select(1))

    with pytest.raises(ClaimInTransaction, match=r"open on this session.*commit\(\), or pass the engine"):
        desk.claim_in_session(Report, before=begin, **how)
    with pytest.raises(ClaimInTransaction, match="open on this connection"):
        desk.claim_on_connection(Report, before=begin, **how)

    assert desk.look(Report.status) == [("ready",)]


def test_a_claim_of_nothing_is_refused_in_a_transaction_like_any_other(desk: Desk) -> None:
    nothing: dict[str, Any] = {"where": READY, "set": TAKEN, "limit": 0}

    with pytest.raises(ClaimInTransaction):
        desk.claim_in_session(Report, before=lambda session: session.execute(select(1)), **nothing)
    with pytest.raises(ClaimInTransaction):
        desk.claim_on_connection(Report, before=lambda connection: connection.execute(select(1)), **nothing)

    assert desk.claim(Report, **nothing) == []


@one_driver
def test_a_condition_is_not_a_text(desk: Desk) -> None:
    with pytest.raises(BadRequest, match="where='status = 1' is not a condition"):
        desk.claim(Report, where="status = 1", set=TAKEN, limit=1)


@one_driver
@pytest.mark.parametrize(
    "how",
    [
        {"set": None},
        {"set": "status"},
        {"set": [("status", "taken")]},
        {"order_by": 5},
        {"order_by": {"id": "desc"}},
        {"order_by": [5]},
        {"limit": 2**63},
    ],
    ids=repr,
)
def test_arguments_of_another_type_are_refused(desk: Desk, how: dict[str, Any]) -> None:
    desk.add(Report(id=1))

    with pytest.raises(BadRequest, match=min(how)):
        desk.claim(Report, **{"where": READY, "set": TAKEN, "limit": 1, **how})

    assert desk.look(Report.status) == [("ready",)]


def test_what_a_session_has_not_written_yet_is_a_transaction_too(desk: Desk) -> None:
    with pytest.raises(ClaimInTransaction):
        desk.claim_in_session(
            Report, before=lambda session: session.add(Report(id=1)), where=READY, set=TAKEN, limit=1
        )

    assert desk.look(Report.id) == []


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
def test_a_session_on_a_connection_in_a_transaction_is_refused(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1))

    with desk.tested.connect() as connection, connection.begin(), Session(connection) as session:
        with pytest.raises(ClaimInTransaction):
            desk.claim(Report, on=session, where=READY, set=TAKEN, limit=1, strategy=strategy)

    with desk.tested.connect() as connection, Session(connection) as session:
        [row] = desk.claim(Report, on=session, where=READY, set=TAKEN, limit=1, strategy=strategy)
        assert row in session
    assert desk.look(Report.status) == [("taken",)]


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
def test_a_scoped_session_is_the_session_of_this_thread(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1))
    scoped = scoped_session(sessionmaker(desk.tested))

    [row] = desk.claim(Report, on=scoped, where=READY, set=TAKEN, limit=1, strategy=strategy)

    assert row in scoped()
    scoped.remove()


def test_somebody_elses_transaction_on_a_shared_connection_is_not_committed() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    Base.metadata.create_all(engine)
    with Session(engine) as other:
        other.add(Author(id=1, name="Ann"))
        other.flush()

        with pytest.raises(ClaimInTransaction, match="shares"):
            sync.claim_rows(engine, Report, where=READY, set=TAKEN, limit=1)
        other.rollback()
        assert other.scalars(select(Author.id)).all() == []
    engine.dispose()


def test_a_view_is_refused_and_its_table_untouched(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1))

    for _ in range(2):
        with pytest.raises(BadRequest, match="shown_report is a view; claim the rows of the table"):
            desk.claim(shown, where=shown.c.status == "ready", set=TAKEN, limit=1, strategy=strategy)

    assert desk.look(Report.status) == [("ready",)]


def test_a_table_that_is_not_there_is_the_databases_to_say(desk: Desk, strategy: Any) -> None:
    with pytest.raises(Exception, match="not_there"):
        desk.claim(absent, where=absent.c.id == 1, set={"state": "x"}, limit=1, strategy=strategy)


@one_driver
@pytest.mark.parametrize("model", [Employee, Manager])
def test_joined_inheritance_is_refused(desk: Desk, model: Any) -> None:
    with pytest.raises(BadRequest, match=r"spread over several tables.*__table__"):
        desk.claim(model, where=READY, set={"kind": "x"}, limit=1)


@one_driver
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Query, "mapped to a query"),
        (keyless, "without a primary key"),
        ("report", "pass a Table or a mapped class"),
        (select(Report), "pass a Table or a mapped class"),
        (aliased(Report), "pass a Table or a mapped class"),
    ],
)
def test_what_has_no_rows_of_its_own_is_refused(desk: Desk, model: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        desk.claim(model, where=READY, set={"id": 1}, limit=1)


@one_driver
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"set": {}}, "set= is empty"),
        ({"set": {"state": "taken"}}, "Report has no column state; it has .*status"),
        ({"set": {Author.name: "Ann"}}, "Report has no column"),
        ({"set": {"id": 5}}, "would change the primary key of Report: id"),
        ({"limit": 1.5}, "limit must be a whole number"),
        ({"limit": True}, "limit must be a whole number"),
        ({"strategy": "fast"}, "no strategy 'fast'"),
        ({"order_by": "nothing"}, "Report has no column nothing"),
        ({"where": Author.name == "Ann"}, r"where= refers to author beside Report.*exists"),
    ],
)
def test_a_call_that_can_not_be_meant_is_refused(desk: Desk, how: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"where": READY, "set": TAKEN, "limit": 1, **how}

    with pytest.raises(BadRequest, match=message):
        desk.claim(Report, **call)


@one_driver
def test_names_of_columns_will_do(desk: Desk) -> None:
    desk.add(Report(id=1, rank=1), Report(id=2, rank=2), Report(id=3, rank=0))

    rows = desk.claim(Report, where=READY, set=TAKEN, limit=2, order_by=["rank", "id"])

    assert [row.id for row in rows] == [3, 1]


def test_an_engine_of_the_other_face_is_refused_with_the_right_import() -> None:
    async_engine, engine = create_async_engine("sqlite+aiosqlite://"), create_engine("sqlite://")
    how: dict[str, Any] = {"where": false(), "set": TAKEN, "limit": 1}

    with pytest.raises(UnsupportedConnection, match=r"import claim_rows and Claims from dibs.tables, not"):
        sync.claim_rows(async_engine, Report, **how)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedConnection, match=r"pass SQLAlchemy's Engine"):
        sync.claim_rows("sqlite://", Report, **how)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedConnection, match=r"from dibs.tables.sync"):
        asyncio.run(tables.claim_rows(engine, Report, **how))  # type: ignore[arg-type]


def test_sqlalchemy_is_not_imported_with_dibs() -> None:
    code = "import sys, dibs, dibs.cli; sys.exit('sqlalchemy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_sqlalchemy_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['sqlalchemy'] = None; import dibs.tables"

    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert done.returncode == 1
    assert "pip install 'dibs[sqlalchemy]'" in done.stderr
