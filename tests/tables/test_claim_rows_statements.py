"""What `claim_rows` asks of the database: one statement where one will do, and again when it was undone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
from sqlalchemy import Engine, create_engine, event, select, text
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from dibs.tables import session, strategies, sync
from dibs.tables.model import row_claim
from tests.support.table_databases import SYNC_DRIVERS, Desk
from tests.support.user_tables import Report, Seat, task

READY = Report.status == "ready"
TAKEN = {"status": "taken", "attempts": Report.attempts + 1}
POSTGRESQL = ["postgresql+psycopg", "postgresql+psycopg_async", "postgresql+asyncpg"]
MYSQL = ["mariadb+pymysql", "mariadb+asyncmy", "mysql+pymysql", "mysql+asyncmy"]
SQLITE = ["sqlite+pysqlite", "sqlite+aiosqlite"]


# -- one statement --------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", [*POSTGRESQL, *SQLITE])
def test_a_claim_is_one_statement(desk: Desk) -> None:
    desk.add(*(Report(id=number) for number in range(1, 13)))
    desk.insert(task, {"id": 1, "state": "new"})
    desk.add(Seat(hall="A", number=1))
    how: dict[str, Any] = {
        "where": READY,
        "set": TAKEN,
        "limit": 4,
        "order_by": [Report.rank.desc(), Report.id],
    }
    told = desk.statements()

    found = [
        len(desk.claim(Report, **how)),
        len(desk.claim_on_connection(Report, **how)),
        len(desk.claim_in_session(Report, **how)),
        len(desk.claim(task, where=task.c.state == "new", set={"state": "taken"}, limit=2)),
        len(desk.claim(Seat, where=Seat.holder.is_(None), set={"holder": "Ann"}, limit=2)),
    ]

    assert found == [4, 4, 4, 1, 1]
    assert [statement.split()[0] for statement in told if not statement.startswith("WITH")] == (
        ["UPDATE"] * 5 if desk.database == "sqlite" else []
    )
    assert len(told) == 5


@pytest.mark.parametrize("driver", POSTGRESQL)
def test_a_claim_on_postgresql_opens_no_transaction(desk: Desk) -> None:
    """Begin and commit would be two round trips more, which no event of SQLAlchemy counts."""
    desk.add(Report(id=1))
    beneath: Engine = desk.tested.sync_engine if isinstance(desk.tested, AsyncEngine) else desk.tested
    was_idle: list[Any] = []
    event.listen(beneath, "before_cursor_execute", lambda *args: was_idle.append(_commits_itself(args[0])))

    desk.claim(Report, where=READY, set=TAKEN, limit=1)
    desk.claim_on_connection(Report, where=READY, set=TAKEN, limit=1)
    desk.claim_in_session(Report, where=READY, set=TAKEN, limit=1)

    assert was_idle == [True] * 3


def _commits_itself(connection: Any) -> bool:
    return bool(connection.connection.dbapi_connection.autocommit)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("driver", [*SYNC_DRIVERS[:2], "postgresql+asyncpg"])
def test_a_connection_keeps_its_isolation(desk: Desk, strategy: Any, level: str) -> None:
    desk.add(Report(id=1), Report(id=2))

    found = desk.on_connection(
        lambda connection: connection.execution_options(isolation_level=level),
        lambda on: desk.ask(on, Report, where=READY, set=TAKEN, limit=1, strategy=strategy),
        lambda connection: (connection.get_isolation_level(), connection.in_transaction()),
    )

    assert found == (level, False)


@pytest.mark.parametrize("driver", ["postgresql+psycopg"])
def test_a_connection_that_commits_every_statement_goes_on_to(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1))

    found = desk.on_connection(
        lambda connection: connection.execution_options(isolation_level="AUTOCOMMIT"),
        lambda on: desk.ask(on, Report, where=READY, set=TAKEN, limit=1, strategy=strategy),
        lambda connection: connection.connection.dbapi_connection.autocommit,
    )

    assert found is True


@pytest.mark.parametrize("driver", MYSQL)
def test_mariadb_locks_updates_and_reads(desk: Desk) -> None:
    desk.add(Report(id=1))
    desk.claim(Report, where=READY, set=TAKEN, limit=1)  # asks once whether it is a view
    told = desk.statements()

    desk.claim(Report, where=READY, set=TAKEN, limit=1)
    assert [one.split()[0].lower() for one in told] == ["set", "start", "select"]

    desk.add(Report(id=2))
    told.clear()
    assert len(desk.claim(Report, where=READY, set=TAKEN, limit=1)) == 1
    assert [one.split()[0].lower() for one in told] == ["set", "start", "select", "update", "select"]


# -- others at the same time ----------------------------------------------------------------------


@pytest.mark.parametrize("driver", [*POSTGRESQL, *MYSQL])
def test_a_row_that_somebody_has_locked_is_passed_by(desk: Desk) -> None:
    desk.add(Report(id=1), Report(id=2))

    with desk.home.begin() as other:
        other.execute(select(Report.id).where(Report.id == 1).with_for_update())
        rows = desk.claim(Report, where=READY, set=TAKEN, limit=2, order_by=Report.id)

    assert [row.id for row in rows] == [2]


@pytest.mark.parametrize("level", [None, "AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("driver", ["mariadb+pymysql", "mysql+pymysql"])
def test_between_lock_and_update_others_may_insert_and_nobody_may_claim(
    desk: Desk, level: str | None
) -> None:
    desk.add(Report(id=1), Report(id=5))
    engine = create_engine(desk.tested.url, **({} if level is None else {"isolation_level": level}))
    met: list[Any] = []

    def meet(*args: Any) -> None:
        if "FOR UPDATE" in args[2] and not met:
            met.append("inside")
            desk.add(Report(id=3))
            met.append([one.id for one in desk.claim(Report, where=READY, set=TAKEN, limit=9)])

    event.listen(engine, "after_cursor_execute", meet)
    rows = sync.claim_rows(engine, Report, where=READY, set=TAKEN, limit=9, order_by=Report.id)
    engine.dispose()

    assert met == ["inside", [3]]
    assert [row.id for row in rows] == [1, 5]
    assert desk.look(Report.id, Report.attempts) == [(1, 1), (3, 1), (5, 1)]


# -- undone, and tried again ----------------------------------------------------------------------


@contextmanager
def refusing(desk: Desk, code: int | str, times: int, verb: str = "UPDATE") -> Iterator[list[str]]:
    """Let the server undo the next statements that begin so, with this code."""
    beneath: Engine = desk.tested.sync_engine if isinstance(desk.tested, AsyncEngine) else desk.tested
    kind: Any = beneath.dialect.loaded_dbapi.OperationalError
    refused: list[str] = []

    def refuse(cursor: Any, statement: str, parameters: Any, context: Any) -> None:
        if statement.startswith(verb) and len(refused) < times:
            refused.append(statement)
            raise _undone(kind, code)

    event.listen(beneath, "do_execute", refuse)
    yield refused
    event.remove(beneath, "do_execute", refuse)


def _undone(kind: Any, code: int | str) -> Exception:
    error: Exception = (
        kind(code, "undone, for a test") if isinstance(code, int) else kind("undone, for a test")
    )
    if isinstance(code, str):
        error.sqlstate = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("code", ["40001", "40P01"])
@pytest.mark.parametrize("driver", POSTGRESQL)
def test_what_postgresql_undid_is_done_again(desk: Desk, strategy: Any, code: str) -> None:
    desk.add(Report(id=1), Report(id=2))
    verb = "WITH" if strategy is None else "UPDATE"

    with refusing(desk, code, times=3, verb=verb) as refused:
        rows = desk.claim(Report, where=READY, set=TAKEN, limit=2, order_by=Report.id, strategy=strategy)

    assert len(refused) == 3
    assert [(row.id, row.attempts) for row in rows] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("code", [1213, 1205, 1020])
@pytest.mark.parametrize("driver", MYSQL)
def test_what_the_server_undid_is_done_again(desk: Desk, strategy: Any, code: int) -> None:
    desk.add(Report(id=1), Report(id=2))

    with refusing(desk, code, times=3) as refused:
        rows = desk.claim(Report, where=READY, set=TAKEN, limit=2, order_by=Report.id, strategy=strategy)

    assert len(refused) == 3
    assert [row.id for row in rows] == [1, 2]
    assert desk.look(Report.id, Report.attempts) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("driver", MYSQL)
def test_an_error_in_the_middle_undoes_the_whole(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1), Report(id=2))

    def refuse_second() -> list[Any]:
        with refusing(desk, 1064, times=1, verb="SELECT report.id, report.status"):
            return desk.claim(Report, where=READY, set=TAKEN, limit=2, strategy=strategy)

    with pytest.raises(DBAPIError, match="undone, for a test"):
        refuse_second()

    assert desk.look(Report.id, Report.status) == [(1, "ready"), (2, "ready")]


@pytest.mark.parametrize("driver", MYSQL)
def test_after_many_tries_the_servers_own_error_is_raised(
    desk: Desk, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PAUSES", (0.0, 0.0, 0.0))
    desk.add(Report(id=1))

    with refusing(desk, 1213, times=99) as refused, pytest.raises(OperationalError, match="1213"):
        desk.claim(Report, where=READY, set=TAKEN, limit=1, strategy=strategy)

    assert len(refused) == 4
    assert desk.look(Report.status) == [("ready",)]


@pytest.mark.parametrize("driver", ["mariadb+pymysql", "mysql+pymysql"])
def test_a_lock_that_lasts_longer_than_the_server_waits_is_waited_for(desk: Desk) -> None:
    """Get 1205 from a real server: a guarded update meets a row that another transaction has locked."""
    desk.add(Report(id=1))
    engine = create_engine(desk.tested.url)
    refused = threading.Event()
    event.listen(engine, "connect", lambda raw, _: raw.query("set innodb_lock_wait_timeout = 1"))
    event.listen(engine, "handle_error", lambda context: refused.set())

    with ThreadPoolExecutor(1) as thread:
        with desk.home.begin() as other:
            other.execute(select(Report.id).with_for_update())
            claim = thread.submit(sync.claim_rows, engine, Report, READY, TAKEN, 1, strategy="portable")
            assert refused.wait(60)
        rows = claim.result(60)
    engine.dispose()

    assert [(row.id, row.attempts) for row in rows] == [(1, 1)]


@pytest.mark.parametrize("driver", ["sqlite+pysqlite"])
def test_a_busy_file_is_waited_for(desk: Desk, strategy: Any) -> None:
    desk.add(Report(id=1))
    engine = create_engine(desk.tested.url, connect_args={"timeout": 0})
    refused = threading.Event()
    event.listen(engine, "handle_error", lambda context: refused.set())

    with ThreadPoolExecutor(1) as thread:
        with desk.home.begin() as other:
            other.execute(text("update report set title = 'held'"))
            claim = thread.submit(sync.claim_rows, engine, Report, READY, TAKEN, 1, strategy=strategy)
            assert refused.wait(60)
        rows = claim.result(60)
    engine.dispose()

    assert [(row.id, row.title) for row in rows] == [(1, "held")]


@pytest.mark.parametrize("driver", ["postgresql+psycopg"])
def test_a_server_that_serializes_everything_undoes_some_and_they_are_done_again(
    desk: Desk, strategy: Any
) -> None:
    desk.insert(Report.__table__, *({"id": id, "status": "ready", "attempts": 0} for id in range(1, 101)))
    strict = {"options": "-c default_transaction_isolation=serializable"}
    engine = create_engine(desk.tested.url, connect_args=strict, isolation_level="SERIALIZABLE")

    def drain(_: int) -> list[int]:
        taken: list[int] = []
        while some := sync.claim_rows(engine, Report, READY, TAKEN, 3, Report.id, strategy=strategy):
            taken += [row.id for row in some]
        return taken

    with ThreadPoolExecutor(6) as threads:
        taken = [id for some in threads.map(drain, range(6)) for id in some]
    engine.dispose()

    assert sorted(taken) == list(range(1, 101))


def _versioned(dialect: Any, version: tuple[int, ...], *, is_mariadb: bool = False) -> Any:
    dialect.server_version_info, dialect.is_mariadb = version, is_mariadb
    return dialect


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (postgresql.dialect(), strategies.one_statement),
        (sqlite.dialect(), strategies.update_and_sort),
        (_versioned(mysql.dialect(), (8, 0, 30)), strategies.lock_then_update),
        (_versioned(mysql.dialect(), (10, 6, 2), is_mariadb=True), strategies.lock_then_update),
        (_versioned(mysql.dialect(), (5, 7, 40)), strategies.portable),
        (_versioned(mysql.dialect(), (10, 5, 9), is_mariadb=True), strategies.portable),
        (oracle.dialect(), strategies.portable),
        (mssql.dialect(), strategies.portable),
    ],
)
def test_every_other_database_gets_the_portable_strategy(dialect: Any, expected: Any) -> None:
    dialect.update_returning = True
    claim = row_claim(Report, READY, TAKEN, 3, [Report.rank.desc(), Report.id])

    assert strategies.strategy_for(dialect, claim) is expected


@pytest.mark.parametrize("dialect", [oracle.dialect(), mssql.dialect()], ids=lambda dialect: dialect.name)
def test_what_the_portable_strategy_asks_can_be_said_elsewhere(dialect: Any) -> None:
    claim = row_claim(Seat, Seat.holder.is_(None), {"holder": "Ann"}, 3, [Seat.number.desc(), Seat.hall])

    for statement in (
        strategies._selected(claim),
        strategies._update(claim).where(claim.target.matching([("A", 1), ("B", 2)]), claim.where),
    ):
        assert str(statement.compile(dialect=dialect))


def test_only_what_was_undone_is_tried_again() -> None:
    def error(code: int) -> DBAPIError:
        return DBAPIError("", None, pymysql.err.OperationalError(code, "x"))

    assert [session.may_try_again(error(code)) for code in (1213, 1205, 1020, 1064, 2013)] == [
        True,
        True,
        True,
        False,
        False,
    ]
