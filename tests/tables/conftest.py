"""Fixtures for the tests of `claim_rows`: one desk per driver of SQLAlchemy, on the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete, text

from tests.support.table_databases import ASYNC_DRIVERS, SYNC_DRIVERS, Desk, open_engine
from tests.support.user_tables import Base, plain


@dataclass(frozen=True, slots=True)
class SharedDatabase:
    """A database with our tables, made once per kind, and one connection to it that stays."""

    url: str
    archive: str
    engine: Engine


@pytest.fixture(scope="session", autouse=True)
def homes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, SharedDatabase]]:
    """Make the databases before any test, so that the leak check ignores their connections."""
    made = {
        database: _made(database, request, tmp_path_factory.mktemp("tables"))
        for database in ("sqlite", "postgresql", "mariadb", "mysql")
        if database != "mysql" or _has_mysql(request)
    }
    yield made
    for one in made.values():
        one.engine.dispose()


def _has_mysql(request: pytest.FixtureRequest) -> bool:
    try:
        request.getfixturevalue("mysql")
    except pytest.skip.Exception:
        return False
    return True


def _made(database: str, request: pytest.FixtureRequest, folder: Path) -> SharedDatabase:
    archive = str(folder / "archive.db")
    if database == "sqlite":
        url = f"sqlite:///{folder}/shop.db"
    elif database == "postgresql":
        url = request.getfixturevalue("postgresql").create_database("tables")
    else:
        url = request.getfixturevalue(database).create_database("tables")
    driver = next(one for one in SYNC_DRIVERS if one.startswith(database))
    engine = open_engine(driver, url, archive, pool_size=1)
    with engine.begin() as connection:
        if database != "sqlite":
            connection.execute(text("create schema if not exists dibs_archive"))
        else:
            connection.execute(text("pragma journal_mode = wal"))
        Base.metadata.create_all(connection)
        plain.create_all(connection)
        connection.execute(text("create view shown_report as select id, status from report"))
    return SharedDatabase(url, archive, engine)


@pytest.fixture(params=[*SYNC_DRIVERS, *(one for one in ASYNC_DRIVERS if one != "postgresql+psycopg_async")])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[None, "portable"], ids=["best", "portable"])
def strategy(request: pytest.FixtureRequest) -> str | None:
    return request.param


@pytest.fixture
def home(driver: str, homes: dict[str, SharedDatabase]) -> SharedDatabase:
    if (database := driver.split("+")[0]) not in homes:
        pytest.skip("no MySQL")
    return homes[database]


@pytest.fixture
def desk(driver: str, home: SharedDatabase) -> Iterator[Desk]:
    with home.engine.begin() as connection:
        for table in reversed([*Base.metadata.sorted_tables, *plain.sorted_tables]):
            connection.execute(delete(table))
    desk = Desk(driver, home.url, home.archive, home.engine)
    yield desk
    desk.close()
