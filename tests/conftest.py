"""Fixtures every suite shares: private servers, an app per engine and face, and a leak check."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import shutil
import signal
import sqlite3
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from tests.support import servers
from tests.support.empty_stores import emptied_mysql, emptied_postgresql
from tests.support.faces import Face, Make, open_face
from tests.support.leaks import check_leaks
from tests.support.matrix import ENGINES, MYSQLS, all_tests, is_for, mark_the_rest
from tests.support.servers import (
    Galera,
    MariaDB,
    MissingServer,
    MySQLServer,
    PgBouncer,
    PostgreSQL,
    Redis,
    RedisCluster,
)
from tests.support.servers.failover import RedisPair
from tests.support.servers.stores import STORES

_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store", choices=STORES, help="run the tests of one engine only, on this version of its server"
    )


def pytest_configure(config: pytest.Config) -> None:
    """A shell that runs the tests in the background has them ignore Ctrl-C, and so would what they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if (name := config.getoption("--store")) is not None:
        try:
            STORES[name].use()
        except MissingServer as error:
            pytest.exit(f"not tested: {name} ({error})", returncode=pytest.ExitCode.USAGE_ERROR)
    gc.disable()  # until all tests are found: walking what they are made of again and again takes seconds


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """The server all tests share; never to be stopped by one of them."""
    with PostgreSQL() as server:
        yield server


@pytest.fixture
def own_postgresql() -> Iterator[PostgreSQL]:
    """A server of the test's own, that it may kill."""
    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgresql: PostgreSQL) -> Iterator[PgBouncer]:
    """A pooler in front of the shared server, as people get it: in transaction mode, all else by default."""
    with PgBouncer(postgresql) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(request: pytest.FixtureRequest) -> Iterator[MariaDB]:
    """The server all tests share; never to be stopped by one of them."""
    if request.config.getoption("--store") == "galera":
        with Galera() as cluster:
            yield cluster.nodes[0]
        return
    with MariaDB() as server:
        yield server


@pytest.fixture
def own_mariadb() -> Iterator[MariaDB]:
    """A server of the test's own, that it may kill."""
    with MariaDB() as server:
        yield server


@contextlib.contextmanager
def _running_mysql() -> Iterator[MySQLServer]:
    """A MySQL; where there is none the test is skipped, and the end of the run says so."""
    try:
        server = MySQLServer()
    except MissingServer as error:
        servers.not_tested[MySQLServer.name] = str(error)
        pytest.skip(f"no MySQL: {error}")
    with server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQLServer]:
    """The server all tests share; never to be stopped by one of them."""
    with _running_mysql() as server:
        yield server


@pytest.fixture
def own_mysql() -> Iterator[MySQLServer]:
    """A server of the test's own, that it may kill."""
    with _running_mysql() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[Redis]:
    """The Redis that all tests share; what it writes is not forced to disk."""
    settings = {"appendfsync": "no", "save": ""}
    if request.config.getoption("--store") == "sentinel":
        with RedisPair(settings) as pair:
            yield pair.primary
        return
    with Redis(settings) as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    """A Redis of the test's own, that it may kill; every change is on disk before it is acknowledged."""
    with Redis() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster({"appendonly": "no"}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def empty_redis(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Answers the address of a database of Redis, or of the cluster, without a key in it."""

    def emptied(engine: str, database: int = 0) -> str:
        if engine == "redis":
            server: Redis = request.getfixturevalue("redis_server")
            assert server.say(f"SELECT {database}", "FLUSHDB") == "+OK\r\n+OK\r\n"
            return server.url(database)
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        for node in cluster.nodes:
            assert node.say("FLUSHDB") == "+OK\r\n"
        return cluster.url()

    return emptied


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Names the store a test runs on; tests themselves ask `app.traits`, never this."""
    return request.param


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(engine: str, empty_store: Callable[[str], str]) -> str:
    """The address of an empty store."""
    return empty_store(engine)


@pytest.fixture
def empty_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Answers the address of an empty store of this engine; there is one of each."""

    def emptied(engine: str) -> str:
        if engine == "memory":
            return "memory://"
        if engine == "sqlite":
            shutil.copyfile(request.getfixturevalue("migrated_file"), tmp_path / "jobs.db")
            return f"sqlite:///{tmp_path}/jobs.db"
        if engine in ("redis", "redis-cluster"):
            return request.getfixturevalue("empty_redis")(engine)
        if engine in MYSQLS:
            return emptied_mysql(request.getfixturevalue(f"migrated_{engine}"))
        return emptied_postgresql(request.getfixturevalue("migrated_database"))

    return emptied


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copied for each test: making the tables takes ten times as long."""
    file = tmp_path_factory.mktemp("migrated") / "jobs.db"
    with Dibs(f"sqlite:///{file}").sync:
        return file


@pytest.fixture(scope="session")
def migrated_database(postgresql: PostgreSQL, request: pytest.FixtureRequest) -> Iterator[str]:
    url = postgresql.create_database("conformance")
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--store") == "pgbouncer":
            patch.setenv("DIBS_LISTEN_URL", url)
            url = request.getfixturevalue("pgbouncer").url("conformance")
        migrator = Dibs(url).sync
        migrator.migrate()
        migrator.close()
        yield url


@pytest.fixture(scope="session")
def migrated_mariadb(mariadb: MariaDB) -> str:
    return _migrated(mariadb)


@pytest.fixture(scope="session")
def migrated_mysql(mysql: MySQLServer) -> str:
    return _migrated(mysql)


def _migrated(server: MariaDB) -> str:
    url = server.create_database("conformance")
    migrator = Dibs(url).sync
    migrator.migrate()
    migrator.close()
    return url


@pytest.fixture
def app(url: str, face: str) -> Iterator[Face]:
    """An app on an empty store, closed when the test is over."""
    with open_face(face, url) as app:
        yield app


@pytest.fixture
def open_app(url: str, face: str) -> Iterator[Callable[..., Face]]:
    """Further apps on the same store, with settings of their own."""
    with contextlib.ExitStack() as opened:
        yield lambda **settings: opened.enter_context(open_face(face, url, **settings))


@pytest.fixture
def make(app: Face) -> Make:
    return Make(app)


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that passed must have ended its threads, tasks and sockets."""
    with check_leaks(unless=lambda: request.node.stash.get(_failed, False)):
        yield


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that runs within a test sends the log to a stream that is closed after it."""
    loggers = [logging.getLogger(), logging.getLogger("dibs")]
    levels = [logger.level for logger in loggers]
    yield
    loggers[0].handlers[:] = [each for each in loggers[0].handlers if type(each) is not logging.StreamHandler]
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note all tests, and mark what only `make test-long` runs: tests/support/matrix.py has the rules."""
    config.stash[all_tests] = list(items)
    if (name := config.getoption("--store")) is None:
        mark_the_rest(items)
        return
    _keep(config, items, [item for item in items if is_for(item, STORES[name].engine)])
    mark_the_rest(items)
    own = {config.rootpath / file for file in STORES[name].also}
    short = [item for item in items if item.get_closest_marker("long") is None or item.path in own]
    _keep(config, items, short)


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept


def pytest_collection_finish() -> None:
    """Everything imported so far is none of the leak check's business: it looks at what is newer."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several test processes tells the first one which servers it used."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["servers"] = dict(servers.used)
        output["not tested"] = dict(servers.not_tested)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    servers.used.update(output.get("servers", {}))
    servers.not_tested.update(output.get("not tested", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    versions = {**servers.used, "SQLite": sqlite3.sqlite_version}
    line = ", ".join(f"{name} {version}" for name, version in versions.items())
    terminalreporter.write_line(f"servers: {line}")
    if (name := config.getoption("--store")) is not None:
        counts = {word: len(terminalreporter.stats.get(word, [])) for word in ("passed", "failed", "error")}
        version = versions.get(STORES[name].server)
        report = {"version": version, **counts, "not tested": servers.not_tested}
        STORES[name].report(name).write_text(json.dumps(report))


def pytest_unconfigure(config: pytest.Config) -> None:
    """End with what could not be tested, below everything else that a run says."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workeroutput"):
        for name, reason in servers.not_tested.items():
            reporter.write_line(f"not tested: {name} ({reason})", red=True, bold=True)
