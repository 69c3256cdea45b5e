"""`fence`: the token of a claim guards the user's own rows, in the user's own transaction."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pymysql
import pytest

from dibs import BadRequest, Context, Dibs, LeaseLost, UnsupportedConnection
from tests.conformance import test_within
from tests.conformance.test_within import Yours, every_connection
from tests.support.faces import Face, Make
from tests.support.internals import core_of
from tests.support.servers import mysql_connection

TABLE = (
    "create table if not exists report "
    "(id integer primary key, name varchar(20) unique, body text, token bigint)"
)

yours = test_within.yours  # a fixture: the caller's connection, of every kind


@pytest.fixture
def stored(url: str) -> Iterator[Callable[[str], Any]]:
    """A table of the user's with rows 1 and 2, and how others see it: `stored("select …")`."""
    with contextlib.closing(_connect(url)) as connection:

        def run(sql: str) -> Any:
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute(sql)
                rows = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            return rows

        run(TABLE)
        run("delete from report")
        run("insert into report (id, name, body, token) values (1, 'a', '', 0), (2, 'b', '', null)")
        yield run


@every_connection
def test_a_fenced_row_has_the_token_once_the_transaction_is_committed(
    make: Make, yours: Yours, stored: Callable[[str], Any]
) -> None:
    claim = make.running()

    claim.fence(yours.given, "report", key=1)
    yours.execute("update report set body = 'mine' where id = 1")
    assert stored("select body, token from report where id = 1") == [("", 0)]
    yours.commit()

    assert stored("select body, token from report where id = 1") == [("mine", claim.token)]
    assert stored("select token from report where id = 2") == [(None,)]


@every_connection
def test_a_row_without_a_token_can_be_fenced_and_fenced_again(
    make: Make, yours: Yours, stored: Callable[[str], Any]
) -> None:
    claim = make.running()

    claim.fence(yours.given, "report", key={"name": "b", "id": 2}, column="token")
    claim.fence(yours.given, "report", key=2)
    yours.commit()

    assert stored("select token from report where id = 2") == [(claim.token,)]


@every_connection
@pytest.mark.parametrize("insert", [False, True], ids=["update", "insert"])
def test_a_zombie_is_refused_once_its_successor_wrote(
    app: Face, make: Make, yours: Yours, stored: Callable[[str], Any], insert: bool
) -> None:
    zombie = make.expired(max_attempts=9)
    successor = app.claim_job(zombie.job.id, worker="successor")
    successor.fence(yours.given, "report", key={"id": 1}, insert=insert)
    yours.execute("update report set body = 'of the successor' where id = 1")
    yours.commit()
    _begin(yours)

    with pytest.raises(LeaseLost, match=f"token {successor.token} and ours is {zombie.token}"):
        zombie.fence(yours.given, "report", key={"id": 1}, insert=insert)
    yours.rollback()

    assert stored("select body, token from report where id = 1") == [("of the successor", successor.token)]


@every_connection
def test_rows_that_do_not_exist_can_be_made_by_their_fence(
    make: Make, yours: Yours, stored: Callable[[str], Any]
) -> None:
    claim = make.running()

    claim.fence(yours.given, "report", key={"id": 7}, insert=True)
    claim.fence(yours.given, "report", key={"id": 7}, insert=True)
    yours.commit()

    assert stored("select token from report where id = 7") == [(claim.token,)]


@every_connection
def test_a_row_that_is_missing_is_told(make: Make, yours: Yours, stored: Callable[[str], Any]) -> None:
    claim = make.running()

    with pytest.raises(BadRequest, match=r"no row to fence in report where id=99.*insert"):
        claim.fence(yours.given, "report", key=99)


@every_connection
def test_of_several_rows_one_later_token_is_enough_to_be_refused(
    make: Make, yours: Yours, stored: Callable[[str], Any]
) -> None:
    stored("update report set body = 'both'")
    stored(f"update report set token = {2**40} where id = 2")

    with pytest.raises(LeaseLost):
        make.running().fence(yours.given, "report", key={"body": "both"})
    yours.rollback()

    assert stored("select id, token from report order by id") == [(1, 0), (2, 2**40)]


BAD = [
    ("report; drop table report", 1, "token"),
    ('report"', 1, "token"),
    ("report", {"id) or (1=1": 1}, "token"),
    ("report", 1, "token = 1, body"),
    ("report", {}, "token"),
    ("report", None, "token"),
    ("report", {"id": None}, "token"),
    ("", 1, "token"),
    (7, 1, "token"),
    ("report", 1, ":token"),
]


@every_connection
def test_names_that_could_be_more_than_names_are_refused(
    make: Make, yours: Yours, stored: Callable[[str], Any]
) -> None:
    claim = make.running()

    for table, key, column in BAD:
        with pytest.raises(BadRequest):
            claim.fence(yours.given, table, key=key, column=column)


@every_connection
def test_values_are_only_values(make: Make, yours: Yours, stored: Callable[[str], Any]) -> None:
    claim = make.running()

    with pytest.raises(BadRequest, match="no row to fence"):
        claim.fence(yours.given, "report", key={"name": "' or '1'='1"})
    yours.commit()

    assert stored("select id, token from report order by id") == [(1, 0), (2, None)]


def test_something_that_is_no_connection_is_refused(make: Make) -> None:
    with pytest.raises(UnsupportedConnection, match="not a connection"):
        make.running().fence(object(), "report", key=1)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_a_connection_without_a_transaction_is_refused(make: Make) -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(TABLE)
        with pytest.raises(UnsupportedConnection, match="begin"):
            make.running().fence(connection, "report", key=1)


@pytest.mark.parametrize(("engine", "face"), [("postgresql", "async")], indirect=True)
def test_a_connection_of_the_other_colour_is_sent_to_the_other_face(make: Make, url: str) -> None:
    with psycopg.connect(url) as connection, pytest.raises(UnsupportedConnection, match=r"ctx\.sync\.fence"):
        make.running().fence(connection, "report", key=1)


def test_the_rows_may_live_in_another_database(make: Make) -> None:
    """Jobs in one store, rows in a SQLite file beside it: only the token travels."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(TABLE)
        connection.execute("insert into report (id, token) values (1, 0)")
        claim = make.running()

        claim.fence(connection, "main.report", key=1)

        assert connection.execute("select token from report").fetchall() == [(claim.token,)]


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql"], indirect=True)
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_a_handler_fences_through_its_context(
    app: Face, url: str, stored: Callable[[str], Any], colour: str
) -> None:
    def plain(ctx: Context) -> int:
        with contextlib.closing(_connect(url)) as connection:
            ctx.sync.fence(connection, "report", key=1)
            connection.commit()
        return ctx.token

    async def awaited(ctx: Context) -> int:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.execute(TABLE)
            connection.execute("insert into report (id, token) values (1, 0)")
            await ctx.fence(connection, "report", key=1)
        return plain(ctx)

    app.job(name="work")(plain if colour == "plain" else awaited)
    task = core_of(app.app).registry.tasks["work"]

    done = app.run_job(app.enqueue_task(task).id)

    assert done.state == "succeeded", done.errors
    assert stored("select token from report where id = 1") == [(done.result,)]


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("face", ["sync"], indirect=True)
def test_a_zombie_that_waited_for_its_successors_transaction_is_refused(
    app: Face, make: Make, url: str, stored: Callable[[str], Any]
) -> None:
    """It asks while the row is still locked: what it then sees must be what was committed."""
    zombie = make.expired(max_attempts=9)
    successor = app.claim_job(zombie.job.id)
    refused: list[BaseException] = []

    def late() -> None:
        with psycopg.connect(url) as connection:
            try:
                zombie.fence(connection, "report", key=1)
            except LeaseLost as error:
                refused.append(error)

    with psycopg.connect(url) as connection:
        successor.fence(connection, "report", key=1)
        thread = threading.Thread(target=late)
        thread.start()
        _until_somebody_waits(url)
        connection.commit()
    thread.join(10)

    assert len(refused) == 1
    assert stored("select token from report where id = 1") == [(successor.token,)]


def test_a_claim_that_is_known_to_be_lost_does_not_reach_the_connection() -> None:
    app = Dibs("memory://")
    [job] = app.sync.enqueue(app.job(lambda: None, name="work").new())
    claim = app.sync.claim_job(job.id)
    claim._held.lost = True

    with pytest.raises(LeaseLost):
        claim.fence(object(), "report", key=1)


def _connect(url: str) -> Any:
    if url.startswith("mysql"):
        return mysql_connection(url, autocommit=False)
    return sqlite3.connect(url[10:]) if url.startswith("sqlite") else psycopg.connect(url)


def _begin(yours: Yours) -> None:
    """Not all begin by themselves; here a transaction that the fixture's end rolls back."""
    if isinstance(yours.given, pymysql.Connection):
        yours.given.begin()
    if "asyncpg" in type(yours.given).__module__:
        transaction = yours.given.transaction()
        yours._face.wait_for(transaction.start())
        yours._end = lambda how: getattr(transaction, how)()


def _until_somebody_waits(url: str) -> None:
    waits = (
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'update%report%'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(waits).fetchone() == (0,):
            pass
