"""`dibs tables sql` prints what a table lacks; `claims.check()` says whether an index serves the order."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from dibs.cli import app
from dibs.doctor import Level
from tests.support.matrix import MYSQLS
from tests.support.table_databases import SYNC_DRIVERS, Desk
from tests.support.user_tables import Parcel, Report

OLD = """
from sqlalchemy import Column, DateTime, Integer, MetaData, String, Table, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from dibs.tables import Claimable
from dibs.tables.sync import Claims

class Base(DeclarativeBase):
    pass

class Old(Base, Claimable):
    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20))
    rank: Mapped[int]

def claims_on(engine):
    ready = (Old.status == "ready") & (Old.attempts < 5)
    return Claims(Old, engine, ready=ready, order_by=[Old.rank, Old.id])

claims = claims_on(create_engine("sqlite://"))
"""


@pytest.fixture
def old(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Make a table without the columns of leases, with two rows in it."""
    (tmp_path / "old_shop.py").write_text(OLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with desk.home.begin() as connection:
        connection.execute(
            text("create table invoice (id integer primary key, status varchar(20), `rank` integer)")
            if desk.database in MYSQLS
            else text("create table invoice (id integer primary key, status varchar(20), rank integer)")
        )
        connection.execute(text("insert into invoice values (1, 'ready', 2), (2, 'ready', 1)"))
    yield desk
    sys.modules.pop("old_shop", None)
    with desk.home.begin() as connection:
        connection.execute(text("drop table invoice"))


def dibs(*words: str) -> Any:
    return CliRunner().invoke(app, ["tables", "sql", *words], prog_name="dibs")


def url_of(desk: Desk) -> str:
    return desk.home.url.set(drivername=desk.database).render_as_string(hide_password=False)


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
def test_a_table_that_exists_becomes_a_queue_by_what_is_printed(old: Desk) -> None:
    printed = dibs("old_shop:claims", "--url", url_of(old))
    assert (printed.exit_code, printed.stdout.count("ADD COLUMN"), printed.stdout.count("CREATE INDEX")) == (
        (0, 4, 1)
    )

    with old.home.begin() as connection:
        for statement in printed.stdout.strip().splitlines():
            connection.execute(text(statement.rstrip(";")))
    import old_shop  # type: ignore[import-not-found]

    claims = old_shop.claims_on(old.home)
    rows = claims.claim(2)
    claims.done(rows[0], set={"status": "done"})

    assert [(row.id, row.attempts, row.claim_token) for row in rows] == [(2, 1, 1), (1, 1, 1)]
    assert [(one.level, str(one)) for one in claims.check()] == [
        (Level.ok, "claim: an index of invoice serves the order")
    ]
    again = dibs("old_shop:claims", "--url", url_of(old))
    assert again.stdout == "-- nothing to do: columns and index are there\n"


@pytest.mark.parametrize("driver", ["sqlite+pysqlite"])
def test_without_a_url_everything_is_printed_for_a_dialect(old: Desk) -> None:
    assert dibs("old_shop:Old").stdout.splitlines() == [
        "ALTER TABLE invoice ADD COLUMN locked_by VARCHAR(200);",
        "ALTER TABLE invoice ADD COLUMN locked_until TIMESTAMP WITH TIME ZONE;",
        "ALTER TABLE invoice ADD COLUMN claim_token BIGINT DEFAULT '0' NOT NULL;",
        "ALTER TABLE invoice ADD COLUMN attempts INTEGER DEFAULT '0' NOT NULL;",
        "CREATE INDEX ix_invoice_claim ON invoice (locked_until);",
    ]
    assert json.loads(dibs("old_shop:claims", "--dialect", "mariadb", "--json").stdout)[-1] == (
        "CREATE INDEX ix_invoice_claim ON invoice (status, `rank`, id)"
    )


@pytest.mark.parametrize("driver", ["sqlite+pysqlite"])
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["old_shop"], 2, "write MODULE:MODEL"),
        (["old_shop:Absent"], 1, "can't load 'old_shop:Absent'"),
        (["old_shop:Base"], 1, "pass a Table or a mapped class"),
        (["old_shop:Old", "--dialect", "dbase"], 1, "no tables of SQLAlchemy on 'dbase'"),
    ],
)
def test_what_can_not_be_printed_is_said_in_one_line(
    old: Desk, words: list[str], code: int, message: str
) -> None:
    done = dibs(*words)

    assert (done.exit_code, len(done.stderr.splitlines())) == (code, 1)
    assert message in done.stderr


def test_check_warns_when_no_index_serves_the_order(desk: Desk) -> None:
    desk.add(Parcel(id=1), Parcel(id=2))
    unserved = desk.claims(Parcel, ready=Parcel.status == "ready", order_by=[Parcel.rank.desc()])
    served = desk.claims(Parcel, ready=None, order_by=Parcel.id)
    unordered = desk.claims(Parcel, ready=None)

    [finding] = unserved.check()

    assert finding.level == Level.warning
    assert "no index of parcel serves the order" in str(finding)
    assert "dibs tables sql" in str(finding)
    assert [one.level for one in [*served.check(), *unordered.check()]] == [Level.ok, Level.ok]
    assert desk.look(Parcel.id, Parcel.claim_token) == [(1, 0), (2, 0)]


def test_the_mixin_makes_the_columns(desk: Desk) -> None:
    found = {one["name"]: one for one in inspect(desk.home).get_columns("parcel")}

    assert {"locked_by", "locked_until", "claim_token", "attempts"} <= set(found)
    with Session(desk.home) as session:
        parcel = Parcel(id=1)
        session.add(parcel)
        session.commit()
        assert (parcel.claim_token, parcel.attempts, parcel.locked_by) == (0, 0, None)
    assert not hasattr(Report, "claim_token")


# -- what goes wrong ----------------------------------------------------------------------------


def asked(*words: str) -> str:
    """Return the one line of the error."""
    done = CliRunner().invoke(app, ["tables", "sql", *words])
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.stderr
    return done.stderr


def test_a_server_that_does_not_answer_is_one_line_without_its_password() -> None:
    said = asked("tests.support.user_tables:Report", "--url", "postgresql://shopper:s3cret@127.0.0.1:1/shop")

    assert "postgresql://shopper@127.0.0.1:1/shop can't be reached" in said
    assert "s3cret" not in said
    assert "unexpected" not in said


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = asked("tests.support.user_tables:Report", "--url", f"sqlite:///{tmp_path}/empty.db")

    assert f"there is no table {Report.__tablename__} at sqlite:///{tmp_path}/empty.db: create it" in said
