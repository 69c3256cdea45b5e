"""The stores that are held against memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model.beside import RedisStore, SqlStore, mysql_store, postgresql_store, sqlite_store
from tests.support.servers import MariaDB, MySQLServer, PostgreSQL, Redis


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqlStore]:
    store = sqlite_store(str(tmp_path / "jobs.db"))
    yield store
    store.close()


@pytest.fixture
def on_redis(redis_server: Redis) -> Iterator[RedisStore]:
    store = RedisStore(redis_server.url())
    yield store
    store.close()


@pytest.fixture
def postgres(postgresql: PostgreSQL) -> Iterator[SqlStore]:
    store = postgresql_store(postgresql.fresh_database())
    yield store
    store.close()


@pytest.fixture
def mariadb_beside() -> Iterator[SqlStore]:
    """On a server that need not survive a crash: it is asked ten thousand times."""
    with MariaDB({"innodb-flush-log-at-trx-commit": 0}) as server:
        store = mysql_store(server.fresh_database())
        yield store
        store.close()


@pytest.fixture
def mysql_beside(mysql: MySQLServer) -> Iterator[SqlStore]:
    store = mysql_store(mysql.fresh_database())
    yield store
    store.close()
