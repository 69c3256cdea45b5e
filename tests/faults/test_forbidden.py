"""A server that answers, and does not let us: said at once, by name, with what to do about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from dibs import Dibs, NewJob, NotPermitted, StoreRefused, StoreUnavailable, Worker
from dibs.cli import app as cli
from dibs.outbox import Message, Outbox, Relay
from tests.support.internals import store_of
from tests.support.matrix import MYSQLS
from tests.support.servers import MariaDB, PostgreSQL, Redis, mysql_connection

Places = Callable[[str], str]


@pytest.fixture
def forbidding(request: pytest.FixtureRequest, template: str) -> Iterator[Places]:
    """A store whose tables are there, as somebody sees it who may do nothing with them."""
    server: PostgreSQL | None = None
    made: list[str] = []

    def place(engine: str) -> str:
        nonlocal server
        match engine:
            case "postgresql":
                server = request.getfixturevalue("postgresql")
                url = server.fresh_database(template)
                made.append(url.rpartition("/")[2])
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("drop role if exists clerk")
                    connection.execute("create role clerk login")
                return _as(url, "clerk")
            case "mariadb" | "mysql":
                mariadb: MariaDB = request.getfixturevalue(engine)
                url = mariadb.fresh_database()
                Dibs(url).sync.migrate()
                name = url.rpartition("/")[2]
                with mysql_connection(url) as connection, connection.cursor() as cursor:
                    cursor.execute("drop user if exists clerk@'%'")
                    cursor.execute("create user clerk@'%' identified by 'secret'")
                    cursor.execute(f"grant select, create temporary tables on {name}.* to clerk@'%'")
                return _as(url, "clerk:secret")
        redis: Redis = request.getfixturevalue("own_redis")
        assert redis.say("ACL SETUSER clerk on >secret ~* &* +@all -eval -evalsha") == "+OK\r\n"
        return _as(redis.url(), "clerk:secret")

    yield place
    if server is not None:
        for name in made:
            server.drop_database(name)
        with server.connect() as connection:
            connection.execute("drop role clerk")


def _as(url: str, who: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{who}@{rest.rpartition('@')[2]}"


SERVERS = ["postgresql", "mariadb", "mysql", "redis"]
GRANT = {
    "postgresql": r"PostgreSQL at .*permission denied for .*grant select, insert, .* to clerk",
    "mariadb": r"MySQL at .*denied to user 'clerk'.*grant select, insert, update, delete",
    "redis": r"Redis at .*clerk.*ACL SETUSER",
}
GRANT["mysql"] = GRANT["mariadb"]


@pytest.mark.parametrize("engine", SERVERS)
def test_who_may_not_write_is_told_who_may_not_what_and_what_to_do(engine: str, forbidding: Places) -> None:
    app = Dibs(forbidding(engine)).sync

    with pytest.raises(NotPermitted, match=GRANT[engine]) as told:
        app.enqueue(NewJob("greet"))

    app.close()
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("engine", SERVERS)
def test_the_same_awaited(engine: str, forbidding: Places) -> None:
    async def enqueue() -> None:
        async with asyncio.timeout(20):
            app = Dibs(forbidding(engine))
            with pytest.raises(NotPermitted, match=GRANT[engine]):
                await app.enqueue(NewJob("greet"))
            await app.close()

    asyncio.run(enqueue())


@pytest.mark.parametrize("engine", SERVERS)
def test_a_worker_that_may_not_claim_ends_instead_of_trying_for_ever(engine: str, forbidding: Places) -> None:
    async def work() -> None:
        app = Dibs(forbidding(engine))
        app.job(name="greet")(lambda: None)
        try:
            async with asyncio.timeout(20):
                with pytest.raises(NotPermitted, match=GRANT[engine]):
                    await Worker(app).run()
        finally:
            await app.close()

    asyncio.run(work())


@pytest.mark.parametrize("engine", SERVERS)
def test_at_the_command_line_it_is_one_line_and_no_bug(engine: str, forbidding: Places) -> None:
    done = CliRunner().invoke(cli, ["jobs", "list", "--url", url := forbidding(engine)])
    if engine in MYSQLS:  # looking is allowed there
        assert done.exit_code == 0
        done = CliRunner().invoke(cli, ["enqueue", "greet", "--url", url])

    assert (done.exit_code, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "clerk" in done.stderr
    assert "report" not in done.stderr


def test_who_may_not_make_tables_is_told_so(postgresql: PostgreSQL, forbidding: Places) -> None:
    url = forbidding("postgresql")
    with postgresql.connect(url.rpartition("/")[2]) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
        connection.execute("grant usage on schema public to clerk")

    app = Dibs(url).sync
    with pytest.raises(NotPermitted, match=r"clerk may not .*grant usage, create on schema public to clerk"):
        app.migrate()

    app.close()


def test_the_doctor_calls_it_a_problem_of_the_store(forbidding: Places) -> None:
    app = Dibs(forbidding("postgresql")).sync

    [found] = app.doctor()

    app.close()
    assert (found.level, found.topic) == ("problem", "store")
    assert "clerk" in found.sentence


def test_an_outbox_that_may_not_be_written_says_so_too(forbidding: Places) -> None:
    outbox = Outbox(forbidding("postgresql")).sync

    with pytest.raises(NotPermitted, match="clerk"):
        outbox.redrive_many()

    outbox.close()


# -- stores that do not let us in ---------------------------------------------------------------

Refusing = Callable[[str], str]
REFUSED = {
    "postgresql, user": r"PostgreSQL at .*nobody",
    "postgresql, database": r"PostgreSQL at .*nowhere",
    "mariadb, password": r"MySQL at .*Access denied for user 'clerk'",
    "mariadb, database": r"MySQL at .*nowhere",
    "mysql, password": r"MySQL at .*Access denied for user 'clerk'",
    "mysql, database": r"MySQL at .*nowhere",
    "redis, no password": r"Redis at .*password",
    "redis, password": r"Redis at .*password",
    "redis, database": r"Redis at .*, database 99.* out of range",
    "sqlite, folder": r"SQLite can't open .*its folder must exist",
    "sqlite, no database": r"jobs\.db.*holds something else",
}


@pytest.fixture
def refusing(request: pytest.FixtureRequest, tmp_path: Path) -> Refusing:
    """A store that will not have us, whoever tries how often."""

    def place(how: str) -> str:
        match how.split(", "):
            case ["postgresql", wrong]:
                server: PostgreSQL = request.getfixturevalue("postgresql")
                return _as(server.url(), "nobody") if wrong == "user" else server.url("nowhere")
            case ["mariadb" | "mysql" as engine, wrong]:
                mariadb: MariaDB = request.getfixturevalue(engine)
                mariadb.make_user("clerk", "secret")
                return _as(mariadb.url(), "clerk:s3cret") if wrong == "password" else mariadb.url("nowhere")
            case ["redis", "database"]:
                return request.getfixturevalue("own_redis").url(99)
            case ["redis", wrong]:
                redis: Redis = request.getfixturevalue("own_redis")
                assert redis.say("CONFIG SET requirepass secret") == "+OK\r\n"
                return redis.url() if wrong == "no password" else _as(redis.url(), ":s3cret")
            case ["sqlite", "folder"]:
                return f"sqlite:///{tmp_path}/no/such/folder/jobs.db"
        (tmp_path / "jobs.db").write_text("this is a letter, not a database " * 100)
        return f"sqlite:///{tmp_path}/jobs.db"

    return place


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("how", REFUSED)
def test_who_is_not_let_in_is_told_so_at_once(how: str, colour: str, refusing: Refusing) -> None:
    app = Dibs(refusing(how))
    began = time.monotonic()

    with pytest.raises(StoreRefused, match=REFUSED[how]) as told:
        if colour == "sync":
            app.sync.enqueue(NewJob("greet"))
        else:
            asyncio.run(_enqueue_and_close(app))

    app.sync.close()
    assert time.monotonic() - began < 5
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("how", REFUSED)
def test_a_worker_that_is_not_let_in_ends_instead_of_trying_for_ever(how: str, refusing: Refusing) -> None:
    async def work() -> None:
        app = Dibs(refusing(how))
        app.job(name="greet")(lambda: None)
        try:
            async with asyncio.timeout(20):
                with pytest.raises(StoreRefused, match=REFUSED[how]):
                    await Worker(app).run()
        finally:
            await app.close()

    asyncio.run(work())


@pytest.mark.parametrize("how", [how for how in REFUSED if not how.startswith("redis")])
def test_a_relay_that_is_not_let_in_ends_instead_of_trying_for_ever(how: str, refusing: Refusing) -> None:
    async def relay() -> None:
        outbox = Outbox(refusing(how))
        try:
            async with asyncio.timeout(20):
                with pytest.raises(StoreRefused, match=REFUSED[how]) as told:
                    await Relay(outbox, {"default": _take}).run()
        finally:
            await outbox.close()
        assert "s3cret" not in str(told.value)

    asyncio.run(relay())


@pytest.mark.parametrize("how", [how for how in REFUSED if not how.startswith("redis")])
def test_who_is_not_let_in_to_an_outbox_is_told_so_at_once(how: str, refusing: Refusing) -> None:
    outbox = Outbox(refusing(how)).sync
    began = time.monotonic()

    with pytest.raises(StoreRefused, match=REFUSED[how]):
        outbox.find_unprocessed()

    outbox.close()
    assert time.monotonic() - began < 5


def test_a_relay_that_has_relayed_keeps_trying_when_it_is_not_let_in_any_more(mariadb: MariaDB) -> None:
    mariadb.make_user("porter", "secret")
    url = mariadb.fresh_database()
    Dibs(url).sync.migrate()
    got: list[Message] = []

    async def take(message: Message) -> None:
        got.append(message)

    async def relay() -> None:
        outbox, ours = Outbox(_as(url, "porter:secret")), Outbox(url)
        relay = Relay(outbox, {"default": take}, poll=0.1)
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(relay.run())
            await ours.publish("orders", {"n": 1})
            while not outbox.events.counts["published"]:
                await asyncio.sleep(0.01)
            _lock_out(mariadb, "porter")
            while relay.trouble is None:
                await asyncio.sleep(0.01)
            mariadb._do("alter user porter account unlock")
            await ours.publish("orders", {"n": 2})
            while len(got) < 2:
                await asyncio.sleep(0.01)
            relay.stop()
        await outbox.close()
        await ours.close()

    asyncio.run(relay())


async def _take(_: Message) -> None: ...


def _lock_out(server: MariaDB, user: str) -> None:
    """New connections are refused, and the old ones are gone."""
    server._do(f"alter user {user} account lock")
    server._do(f"kill user {user}")


def test_a_worker_that_has_worked_keeps_trying_when_it_is_not_let_in_any_more(own_redis: Redis) -> None:
    ran: list[int] = []

    async def work() -> None:
        app = Dibs(own_redis.url(), poll=0.1)

        @app.job
        def greet(number: int) -> None:
            ran.append(number)

        worker = Worker(app)
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            await greet.enqueue(1)
            while not ran:
                await asyncio.sleep(0.01)
            own_redis.say("CONFIG SET requirepass secret", "AUTH secret", "CLIENT KILL TYPE pubsub")
            own_redis.say("AUTH secret", "CLIENT KILL TYPE normal SKIPME yes")
            while worker.health().reason is None:
                await asyncio.sleep(0.01)
            own_redis.say("AUTH secret", "CONFIG SET requirepass ''")
            await greet.enqueue(2)
            while len(ran) < 2:
                await asyncio.sleep(0.01)
            worker.stop()
        await app.close()

    asyncio.run(work())

    assert ran == [1, 2]


# -- stores that take no changes ----------------------------------------------------------------


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_server_that_became_a_replica_is_called_read_only(
    colour: str, postgresql: PostgreSQL, template: str
) -> None:
    url = postgresql.fresh_database(template)
    with postgresql.connect() as connection:
        connection.execute(f"alter database {url.rpartition('/')[2]} set default_transaction_read_only = on")

    app = Dibs(url)
    with pytest.raises(StoreUnavailable, match=r"fresh_\d+ is read-only: .*let the URL lead to"):
        if colour == "sync":
            app.sync.enqueue(NewJob("greet"))
        else:
            asyncio.run(_enqueue_and_close(app))

    app.sync.close()
    postgresql.drop_database(url.rpartition("/")[2])


async def _enqueue_and_close(app: Dibs) -> None:
    try:
        await app.enqueue(NewJob("greet"))
    finally:
        await app.close()


def test_a_full_disk_under_sqlite_comes_with_advice(tmp_path: Path) -> None:
    with Dibs(f"sqlite:///{tmp_path}/jobs.db").sync as app:
        connection = store_of(app)._file._opened()  # type: ignore[attr-defined]
        [pages] = connection.execute("pragma page_count").fetchone()
        connection.execute(f"pragma max_page_count = {pages}")

        with pytest.raises(StoreUnavailable, match=r"jobs\.db: .* full; make room on its disk"):
            app.enqueue(NewJob("greet", args={"text": "x" * 100_000}))


def test_a_file_that_became_read_only_comes_with_advice(tmp_path: Path) -> None:
    with Dibs(f"sqlite:///{tmp_path}/jobs.db").sync as app:
        store_of(app)._file._opened().execute("pragma query_only = on")  # type: ignore[attr-defined]

        with pytest.raises(
            StoreUnavailable, match=r"jobs\.db: .*readonly.*; you must be allowed to write to it"
        ):
            app.enqueue(NewJob("greet"))
