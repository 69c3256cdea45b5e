"""Tables that somebody holds: a migration asks for them a few seconds at a time, and says who has them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from dibs import Dibs, StoreUnavailable
from dibs.engines.mysql.engine import MySQL
from dibs.engines.mysql.session import connect_options
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.sql.blocks import schema_version
from dibs.engines.sql.migrations import MIGRATION_LOCK, undoing
from tests.support.faces import open_face
from tests.support.raw_sql import bare_store, by_hand

BEFORE, NEWEST = 7, schema_version("postgresql")


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
def outdated(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that lacks the versions from 8 on, which begin with an index on the finished jobs."""
    url = bare_store(request.param, request, tmp_path)
    with open_face("sync", url) as app:
        app.migrate()
    dialect = (PostgreSQL() if request.param == "postgresql" else MySQL()).dialect
    by_hand(url, *(statement for _, statement in undoing(dialect, range(1, NEWEST + 1), to=BEFORE)))
    return url


@contextmanager
def held(url: str) -> Iterator[Any]:
    """A transaction that has written to the finished jobs, and stays open."""
    connection: Any
    if url.startswith("postgresql"):
        connection = psycopg.connect(url)
    else:
        connection = pymysql.connect(**connect_options(url))
    cursor = connection.cursor()
    cursor.execute("begin")
    cursor.execute("update dibs_finished set priority = priority")
    try:
        yield connection
    finally:
        connection.rollback()
        connection.close()


def test_a_migration_that_waits_for_a_table_says_who_has_it_and_gives_up(
    outdated: str, face: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dibs.engines.sql.migrations.LONGEST_WAIT", 5)
    with open_face(face, outdated) as app, held(outdated):
        with pytest.raises(StoreUnavailable, match=r"transaction .*open for .*then migrate again"):
            app.migrate()

        assert app.schema_version() < schema_version("postgresql")
        assert any("its tables are locked" in record.getMessage() for record in caplog.records)


def test_others_get_at_the_table_while_a_migration_waits_for_it(outdated: str) -> None:
    app = Dibs(outdated).sync
    with ThreadPoolExecutor() as threads:
        with held(outdated):
            migrating = threads.submit(app.migrate)
            time.sleep(1)  # it is waiting by now
            for _ in range(3):
                by_hand(outdated, "update dibs_finished set priority = priority")

        assert migrating.result(60) == list(range(BEFORE + 1, NEWEST + 1))
    app.close()


def test_a_migration_may_take_longer_than_an_answer(
    outdated: str, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor() as threads, open_face(face, outdated) as app:
        migrating_elsewhere = threads.submit(by_hand, outdated, *_busy_for(4, outdated))
        time.sleep(1)  # it has the lock by now
        for engine in ("postgresql", "mysql"):
            monkeypatch.setattr(f"dibs.engines.{engine}.pools.ANSWER_TIMEOUT", 1)
        monkeypatch.setattr("dibs.engines.retries.LONG_ENOUGH", 0.5)  # shorter than an answer, as it is
        applied = app.migrate()
        migrating_elsewhere.result(60)

    assert applied == list(range(BEFORE + 1, NEWEST + 1))


def _busy_for(seconds: int, url: str) -> list[str]:
    """Statements of somebody else who migrates."""
    if url.startswith("postgresql"):
        return [f"select pg_advisory_xact_lock({MIGRATION_LOCK})", f"select pg_sleep({seconds})"]
    return ["select get_lock(concat(database(), '.dibs_migrate'), 10)", f"select sleep({seconds})"]
