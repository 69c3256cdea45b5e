"""A fresh store for each fault test, of each engine that the test is about."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from dibs import Dibs
from tests.support.fault_stores import Place, Places
from tests.support.servers import MariaDB, MySQLServer, PostgreSQL, mysql_connection


@pytest.fixture(scope="session")
def template(postgresql: PostgreSQL) -> str:
    """A database with dibs' tables and nothing in them."""
    return postgresql.prepare_template("dibs_faults", _migrate)


class Databases:
    """Databases with dibs' empty tables; one that a test only used and did not alter serves again."""

    def __init__(self, server: PostgreSQL, template: str) -> None:
        self._server, self._template = server, template
        self._clean: list[str] = []

    def take(self) -> str:
        return self._clean.pop() if self._clean else self._server.fresh_database(self._template)

    def give_back(self, place: Place) -> None:
        if place.spoilt:
            self._server.drop_database(place.url.rpartition("/")[2])
            return
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
            connection.execute("delete from dibs_jobs; delete from dibs_finished; delete from dibs_queues")
            connection.execute("delete from dibs_schedules; delete from dibs_gates")
        self._clean.append(place.url)


class MysqlDatabases:
    """The same on MariaDB and MySQL, which have no templates."""

    def __init__(self, server: MariaDB) -> None:
        self._server = server
        self._clean: list[str] = []

    def take(self) -> str:
        if self._clean:
            return self._clean.pop()
        url = self._server.fresh_database()
        _migrate(url)
        return url

    def give_back(self, place: Place) -> None:
        if place.spoilt:
            self._server.drop_database(place.url.rpartition("/")[2])
            return
        with closing(mysql_connection(place.url)) as connection, connection.cursor() as cursor:
            for table in ("dibs_jobs", "dibs_finished", "dibs_queues", "dibs_schedules", "dibs_gates"):
                cursor.execute(f"delete from {table}")
        self._clean.append(place.url)


@pytest.fixture(scope="session")
def mariadb_databases(mariadb: MariaDB) -> MysqlDatabases:
    return MysqlDatabases(mariadb)


@pytest.fixture(scope="session")
def mysql_databases(mysql: MySQLServer) -> MysqlDatabases:
    return MysqlDatabases(mysql)


@pytest.fixture(scope="session")
def databases(postgresql: PostgreSQL, template: str) -> Databases:
    return Databases(postgresql, template)


def _migrate(url: str) -> None:
    app = Dibs(url).sync
    app.migrate()
    app.close()


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    """Makes empty stores, as many as the test wants, of the engines that it names."""
    databases_of_redis = itertools.count()
    with ExitStack() as stack:

        def make(engine: str) -> Place:
            match engine:
                case "postgresql":
                    databases: Databases = request.getfixturevalue("databases")
                    place = Place(engine, databases.take())
                    stack.callback(databases.give_back, place)
                case "redis":
                    emptied = request.getfixturevalue("empty_redis")
                    place = Place(engine, emptied("redis", next(databases_of_redis)))
                case "mariadb" | "mysql":
                    others: MysqlDatabases = request.getfixturevalue(f"{engine}_databases")
                    place = Place(engine, others.take())
                    stack.callback(others.give_back, place)
                case "sqlite":
                    place = Place(engine, f"sqlite:///{tmp_path}/jobs-{uuid4().hex}.db")
                case _:
                    place = Place(engine, "memory://")
            stack.callback(place.close)
            return place

        yield make


@pytest.fixture
def postgres(places: Places) -> Place:
    return places("postgresql")


@pytest.fixture
def on_redis(places: Places) -> Place:
    return places("redis")


@pytest.fixture
def sqlite(places: Places) -> Place:
    return places("sqlite")


@pytest.fixture
def memory(places: Places) -> Place:
    return places("memory")


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
def locking(request: pytest.FixtureRequest, places: Places) -> Place:
    """A store that locks single rows."""
    return places(request.param)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql", "redis"])
def shared(request: pytest.FixtureRequest, places: Places) -> Place:
    """A store that several processes may work on."""
    return places(request.param)


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mariadb", "mysql", "redis"])
def place(request: pytest.FixtureRequest, places: Places) -> Place:
    return places(request.param)
