"""Limits of the server's own, and rows of workers that are locked: trouble to wait out, never an end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from dibs import Dibs, NewJob, StoreBusy, StoreUnavailable
from dibs.engines import retries
from tests.support.fault_stores import Place, Places, face_of, wait_until, working


@pytest.fixture(params=["postgresql", "mariadb"])
def place(request: pytest.FixtureRequest, places: Places) -> Place:
    return places(request.param)


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def _locked(place: Place, statement: str) -> Iterator[None]:
    with contextlib.closing(place.connect()) as connection, connection.transaction():
        connection.execute(statement)
        yield


def _with_a_handler(app: Dibs) -> Dibs:
    @app.job(name="work")
    async def _() -> None: ...

    return app


# -- Rows of workers ----------------------------------------------------------------------------


@pytest.mark.parametrize("seen", ["now", "long ago"])
def test_an_idle_worker_finds_work_while_the_row_of_another_worker_is_locked(place: Place, seen: str) -> None:
    app = _with_a_handler(place.app(poll=0.5))
    app.sync.counts()
    then = "2020-01-01" if seen == "long ago" else "2100-01-01"
    place.sql(
        "insert into dibs_workers (name, kinds, concurrency, running, started_at, seen_at) "
        f"values ('frozen', '[]', 1, 0, '{then}', '{then}')"
    )

    with _locked(place, "select 1 from dibs_workers where name = 'frozen' for update"), working(app):
        wait_until(lambda: len(app.sync.workers()) > (seen == "now"))
        [job] = place.app().sync.enqueue(NewJob("work"))
        wait_until(lambda: app.sync.get(job.id).state == "succeeded", seconds=5)


def test_the_row_of_a_worker_that_is_gone_for_long_is_removed(place: Place) -> None:
    app = _with_a_handler(place.app())
    app.sync.counts()
    place.sql(
        "insert into dibs_workers (name, kinds, concurrency, running, started_at, seen_at) "
        "values ('gone', '[]', 1, 0, '2020-01-01', '2020-01-01')"
    )

    with working(app):
        wait_until(lambda: not place.sql("select 1 from dibs_workers where name = 'gone'"))


# -- Limits of the server's own -------------------------------------------------------------------

LIMITED = {
    "postgresql": "alter role current_user set statement_timeout = '300ms'",
    "mariadb": "set global max_statement_time = 0.3",
}
UNLIMITED = {
    "postgresql": "alter role current_user reset statement_timeout",
    "mariadb": "set global max_statement_time = 0",
}
TABLE_LOCKS = {
    "postgresql": "lock table dibs_jobs in access exclusive mode",
    "mariadb": "lock tables dibs_jobs write, dibs_finished write",
}


@pytest.fixture
def limited(place: Place) -> Iterator[Place]:
    """A store that ends statements after 0.3 seconds."""
    place.app().sync.counts()
    place.sql(LIMITED[place.kind])
    yield place
    place.sql(UNLIMITED[place.kind])


def test_a_statement_that_the_server_ends_for_its_time_is_trouble_and_no_bug(
    limited: Place, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", (0.0,))
    app = limited.app()
    app.sync.counts()

    with (
        _locked(limited, TABLE_LOCKS[limited.kind]),
        face_of(app, face) as caller,
        pytest.raises(StoreUnavailable) as told,
    ):
        caller.enqueue(NewJob("work"))

    assert isinstance(told.value, StoreBusy)
    assert "a time limit of the server's own" in str(told.value)
    assert {"postgresql": "statement_timeout", "mariadb": "max_statement_time"}[limited.kind] in str(
        told.value
    )
    assert app.sync.find() == []


def test_a_worker_outlives_statements_that_the_server_ends_for_their_time(
    limited: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retries, "PAUSES", (0.0,))
    app = _with_a_handler(limited.app(poll=0.2))

    with working(app), caplog.at_level("INFO"):
        wait_until(app.sync.workers)
        with _locked(limited, TABLE_LOCKS[limited.kind]):
            wait_until(lambda: "time limit of the server's own" in caplog.text)
        [job] = limited.app().sync.enqueue(NewJob("work"))
        wait_until(lambda: app.sync.get(job.id).state == "succeeded")


@pytest.mark.parametrize(
    ("number", "is_trouble"), [(1969, True), (3024, True), (1064, False)], ids=["mariadb", "mysql", "syntax"]
)
def test_time_limits_of_mysql_and_mariadb_are_known(number: int, *, is_trouble: bool) -> None:
    from pymysql import OperationalError

    from dibs.engines.mysql.session import judge

    judged = judge(OperationalError(number, "over"), "mysql://host/db")

    assert isinstance(judged, retries.TryAgain) == is_trouble
