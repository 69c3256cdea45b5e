"""`within=`: jobs that live and die with the caller's own transaction."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncmy
import asyncpg
import psycopg
import pymysql
import pytest
import sqlalchemy
from django.db.backends.base.base import BaseDatabaseWrapper
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

from dibs import Context as JobContext
from dibs import Dibs, DibsError, LeaseLost, NewJob, UnsupportedConnection
from tests.support.django_project import connected
from tests.support.faces import Face, Make, needs, nothing_written, open_face
from tests.support.param_names import named
from tests.support.servers import MariaDB, PostgreSQL, mysql_connection


class Yours:
    """A connection of the caller's with a transaction open, and how to end that."""

    def __init__(
        self, face: Face, given: Any, end: Callable[[str], Any], execute: Callable[[str], Any]
    ) -> None:
        self._face = face
        self.given = given
        self._end = end
        self._execute = execute

    def commit(self) -> None:
        self._face.wait_for(self._end("commit"))

    def rollback(self) -> None:
        self._face.wait_for(self._end("rollback"))

    def execute(self, sql: str) -> Any:
        return self._face.wait_for(self._execute(sql))


# -- How each kind is opened --------------------------------------------------------------------


@contextlib.contextmanager
def _sqlite3(face: Face, url: str) -> Iterator[Yours]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.row_factory = sqlite3.Row
    wait = _instantly(face)
    yield Yours(
        face, connection, lambda how: wait(getattr(connection, how)()), lambda q: wait(connection.execute(q))
    )
    connection.close()


def _instantly(face: Face) -> Callable[[Any], Any]:
    """Blocking drivers on the async face: their answers need no waiting."""

    async def answered(value: Any) -> Any:
        return value

    return answered if face.colour == "async" else lambda value: value


@contextlib.contextmanager
def _psycopg(face: Face, url: str) -> Iterator[Yours]:
    with psycopg.connect(url) as connection:
        yield Yours(face, connection, lambda how: getattr(connection, how)(), connection.execute)
        connection.rollback()


@contextlib.contextmanager
def _psycopg_async(face: Face, url: str) -> Iterator[Yours]:
    connection = face.wait_for(psycopg.AsyncConnection.connect(url))
    yield Yours(face, connection, lambda how: getattr(connection, how)(), connection.execute)
    face.wait_for(connection.close())


@contextlib.contextmanager
def _asyncpg(face: Face, url: str) -> Iterator[Yours]:
    connection = face.wait_for(asyncpg.connect(url))
    transaction = connection.transaction()
    face.wait_for(transaction.start())
    yield Yours(face, connection, lambda how: getattr(transaction, how)(), connection.execute)
    face.wait_for(connection.close())


@contextlib.contextmanager
def _asyncpg_pooled(face: Face, url: str) -> Iterator[Yours]:
    pool = face.wait_for(_make_pool(url))
    connection = face.wait_for(pool.acquire())
    transaction = connection.transaction()
    face.wait_for(transaction.start())
    yield Yours(face, connection, lambda how: getattr(transaction, how)(), connection.execute)
    face.wait_for(pool.release(connection))
    face.wait_for(pool.close())


async def _make_pool(url: str) -> Any:
    return await asyncpg.create_pool(url, min_size=1, max_size=1)


@contextlib.contextmanager
def _pymysql(face: Face, url: str) -> Iterator[Yours]:
    connection = mysql_connection(url, autocommit=False, cursorclass=pymysql.cursors.DictCursor)
    with contextlib.closing(connection):
        yield Yours(face, connection, lambda how: getattr(connection, how)(), _by_cursor(connection))


@contextlib.contextmanager
def _pymysql_begun(face: Face, url: str) -> Iterator[Yours]:
    connection = mysql_connection(url)
    connection.begin()
    with contextlib.closing(connection):
        yield Yours(face, connection, lambda how: getattr(connection, how)(), _by_cursor(connection))


def _by_cursor(connection: Any) -> Callable[[str], Any]:
    def execute(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    return execute


@contextlib.contextmanager
def _asyncmy(face: Face, url: str) -> Iterator[Yours]:
    place = sqlalchemy.make_url(url)
    given = {"host": place.host, "port": place.port, "user": "root", "database": place.database}
    connection = face.wait_for(_asyncmy_connected(given))

    async def execute(sql: str) -> None:
        async with connection.cursor() as cursor:
            await cursor.execute(sql)

    yield Yours(face, connection, lambda how: getattr(connection, how)(), execute)
    face.wait_for(connection.ensure_closed())


async def _asyncmy_connected(given: dict[str, Any]) -> Any:
    return await asyncmy.connect(**given)


def _alchemy(driver: str, *, session: bool) -> Any:
    @contextlib.contextmanager
    def opened(face: Face, url: str) -> Iterator[Yours]:
        engine = sqlalchemy.create_engine(f"{driver}:{url.split(':', 1)[1]}")
        with Session(engine) if session else engine.connect() as given:
            run = lambda sql: given.execute(sqlalchemy.text(sql))  # noqa: E731
            yield Yours(face, given, lambda how: getattr(given, how)(), run)
        engine.dispose()

    return opened


def _alchemy_async(driver: str, *, session: bool) -> Any:
    @contextlib.contextmanager
    def opened(face: Face, url: str) -> Iterator[Yours]:
        engine = create_async_engine(f"{driver}:{url.split(':', 1)[1]}")
        given = AsyncSession(engine) if session else face.wait_for(engine.connect().start())
        run = lambda sql: given.execute(sqlalchemy.text(sql))  # noqa: E731
        yield Yours(face, given, lambda how: getattr(given, how)(), run)
        face.wait_for(given.close())
        face.wait_for(engine.dispose())

    return opened


@contextlib.contextmanager
def _django(face: Face, url: str) -> Iterator[Yours]:
    with connected(url) as connection:
        connection.set_autocommit(False)
        yield Yours(face, connection, lambda how: getattr(connection, how)(), _by_cursor(connection))
        connection.rollback()


CONNECTIONS: dict[tuple[str, str, str], Any] = {
    ("sqlite", "sync", "sqlite3"): _sqlite3,
    ("sqlite", "async", "sqlite3"): _sqlite3,
    ("sqlite", "sync", "Connection"): _alchemy("sqlite", session=False),
    ("sqlite", "sync", "Django"): _django,
    ("sqlite", "sync", "Session"): _alchemy("sqlite", session=True),
    ("sqlite", "async", "AsyncConnection"): _alchemy_async("sqlite+aiosqlite", session=False),
    ("sqlite", "async", "AsyncSession"): _alchemy_async("sqlite+aiosqlite", session=True),
    ("postgresql", "sync", "psycopg"): _psycopg,
    ("postgresql", "sync", "Connection"): _alchemy("postgresql+psycopg", session=False),
    ("postgresql", "sync", "Django"): _django,
    ("postgresql", "sync", "Session"): _alchemy("postgresql+psycopg", session=True),
    ("postgresql", "async", "psycopg"): _psycopg_async,
    ("postgresql", "async", "asyncpg"): _asyncpg,
    ("postgresql", "async", "asyncpg pool"): _asyncpg_pooled,
    ("postgresql", "async", "AsyncConnection asyncpg"): _alchemy_async("postgresql+asyncpg", session=False),
    ("postgresql", "async", "AsyncSession asyncpg"): _alchemy_async("postgresql+asyncpg", session=True),
    ("postgresql", "async", "AsyncConnection psycopg"): _alchemy_async("postgresql+psycopg", session=False),
    ("postgresql", "async", "AsyncSession psycopg"): _alchemy_async("postgresql+psycopg", session=True),
    ("mariadb", "sync", "PyMySQL"): _pymysql,
    ("mariadb", "sync", "PyMySQL begun"): _pymysql_begun,
    ("mariadb", "sync", "Connection"): _alchemy("mysql+pymysql", session=False),
    ("mariadb", "sync", "Django"): _django,
    ("mariadb", "sync", "Session"): _alchemy("mariadb+pymysql", session=True),
    ("mariadb", "async", "asyncmy"): _asyncmy,
    ("mariadb", "async", "AsyncConnection"): _alchemy_async("mysql+asyncmy", session=False),
    ("mariadb", "async", "AsyncSession"): _alchemy_async("mariadb+asyncmy", session=True),
}


def _each(*faces: str) -> pytest.MarkDecorator:
    kinds = [key for key in CONNECTIONS if key[1] in faces]
    return pytest.mark.parametrize(
        ("engine", "face", "yours"),
        [(engine, face, (engine, face, kind)) for engine, face, kind in kinds],
        ids=[f"{kind}-{engine}-{face}" for engine, face, kind in kinds],
        indirect=True,
    )


every_connection = _each("sync", "async")
every_awaited_connection = _each("async")  # `ctx.complete` is awaited


@pytest.fixture
def yours(request: pytest.FixtureRequest, app: Face, url: str) -> Iterator[Yours]:
    app.open()
    with CONNECTIONS[request.param](app, url) as yours:
        yield yours


# -- Enqueue ------------------------------------------------------------------------------------


@every_connection
def test_a_job_is_there_once_the_transaction_is_committed(app: Face, yours: Yours) -> None:
    [job] = app.enqueue(NewJob("work", args={"n": 1}, tags=["a"], delay=60), within=yours.given)
    assert app.get(job.id) is None

    yours.commit()

    found = app.get(job.id)
    assert (found.args, found.tags, found.state) == ({"n": 1}, ["a"], "scheduled")
    assert (found.run_at, found.enqueued_at) == (job.run_at, job.enqueued_at)


@every_connection
def test_a_job_is_gone_once_the_transaction_is_rolled_back(app: Face, yours: Yours) -> None:
    [job] = app.enqueue(NewJob("work"), within=yours.given)

    yours.rollback()

    assert app.get(job.id) is None
    assert sum(app.counts().values()) == 0


@every_connection
def test_the_same_job_can_be_enqueued_after_a_rollback(app: Face, yours: Yours) -> None:
    new = NewJob("work")
    app.enqueue(new, within=yours.given)
    yours.rollback()

    [job] = app.enqueue(new)

    assert job.is_new
    assert app.get(new.id).state == "ready"


@every_connection
@pytest.mark.parametrize(("how", "left"), [("commit", 1), ("rollback", 0)])
def test_the_callers_own_rows_share_the_fate_of_the_job(
    app: Face, url: str, yours: Yours, how: str, left: int
) -> None:
    with _notes(url) as notes:
        yours.execute("insert into notes values ('mine')")
        app.enqueue(NewJob("work"), within=yours.given)
        assert (notes(), app.counts()["ready"]) == (0, 0)

        getattr(yours, how)()

        assert (notes(), app.counts()["ready"]) == (left, left)


@contextlib.contextmanager
def _notes(url: str) -> Iterator[Callable[[], int]]:
    """A table of the caller's, and how many rows others see in it."""
    with contextlib.closing(_beside(url)) as connection, contextlib.closing(connection.cursor()) as cursor:
        cursor.execute("create table if not exists notes (text text)")
        cursor.execute("delete from notes")
        connection.commit()

        def count() -> int:
            cursor.execute("select count(*) from notes")
            return int(cursor.fetchone()[0])

        yield count


def _beside(url: str) -> Any:
    """Another connection to the same store."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    if url.startswith("mysql"):
        return mysql_connection(url)
    return psycopg.connect(url, autocommit=True)


@every_connection
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_place_on_a_train_lives_and_dies_with_the_transaction(app: Face, yours: Yours, how: str) -> None:
    first, second = app.enqueue(NewJob("work", train="t"), NewJob("work", train="t"), within=yours.given)
    assert [job.state for job in (first, second)] == ["ready", "blocked"]
    assert app.trains.get("t") is None

    getattr(yours, how)()

    third = app.enqueue(NewJob("work", train="t"))[0]
    assert third.state == ("blocked" if how == "commit" else "ready")
    assert app.trains.get("t").length == (3 if how == "commit" else 1)


@every_connection
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_train_advances_with_the_transaction_that_completes_its_head(
    app: Face, yours: Yours, how: str
) -> None:
    first, second = app.enqueue(NewJob("work", train="t"), NewJob("work", train="t"))
    claim = app.claim_job(first.id)
    claim.succeed(within=yours.given)
    assert app.get(second.id).state == "blocked"

    getattr(yours, how)()

    assert app.get(second.id).state == ("ready" if how == "commit" else "blocked")


@every_connection
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_slot_is_freed_with_the_transaction(app: Face, yours: Yours, how: str) -> None:
    first, second = app.enqueue(NewJob("work", slot="s"), NewJob("work", slot="s"))
    claim = app.claim_job(first.id)
    claim.succeed(within=yours.given)

    getattr(yours, how)()

    assert app.get(second.id).state == ("ready" if how == "commit" else "blocked")


@every_connection
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_pipeline_lives_and_dies_with_the_transaction(app: Face, yours: Yours, how: str) -> None:
    pipeline = app.pipeline("nightly")
    first = pipeline.add(NewJob("first"))
    second = pipeline.add(NewJob("second", train="t"), after=[first])

    jobs = pipeline.enqueue(within=yours.given)
    assert [(job.state, job.is_new) for job in jobs] == [("ready", True), ("blocked", True)]
    assert app.pipelines.get(pipeline.id) is None
    getattr(yours, how)()

    again = pipeline.enqueue()
    assert [job.is_new for job in again] == [how == "rollback"] * 2
    app.claim_job(first.id).succeed()
    assert app.get(second.id).state == "ready"


@every_connection
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_step_lets_the_next_go_with_the_transaction_that_completes_it(
    app: Face, yours: Yours, how: str
) -> None:
    pipeline = app.pipeline("nightly")
    first = pipeline.add(NewJob("first"))
    second = pipeline.add(NewJob("second"), after=[first])
    pipeline.enqueue()
    claim = app.claim_job(first.id)

    claim.succeed("well", within=yours.given)
    assert app.get(second.id).state == "blocked"
    getattr(yours, how)()

    assert app.get(second.id).state == ("ready" if how == "commit" else "blocked")


@every_connection
def test_a_unique_key_holds_inside_and_outside(app: Face, make: Make, yours: Yours) -> None:
    held = make.ready(unique="held")

    [taken] = app.enqueue(NewJob("work", unique="held"), within=yours.given)
    [new] = app.enqueue(NewJob("work", unique="mine"), within=yours.given)
    [again] = app.enqueue(NewJob("work", unique="mine"), within=yours.given)
    yours.commit()

    assert (taken.id, taken.is_new) == (held.id, False)
    assert (again.id, new.is_new, again.is_new) == (new.id, True, False)
    assert make.ready(unique="mine").id == new.id


@every_connection
def test_the_same_job_again_stores_nothing_new_inside(app: Face, yours: Yours) -> None:
    new = NewJob("work")
    app.enqueue(new, within=yours.given)

    [again] = app.enqueue(new, within=yours.given)
    yours.commit()

    assert (again.id, again.is_new) == (new.id, False)
    assert app.counts()["ready"] == 1


@every_connection
def test_very_many_jobs_go_in_with_one_transaction(app: Face, yours: Yours) -> None:
    jobs = app.enqueue(*(NewJob("work", args={"n": n}) for n in range(600)), within=yours.given)
    assert app.counts()["ready"] == 0

    yours.commit()

    assert app.counts()["ready"] == len(jobs) == 600


@every_connection
def test_keyed_and_plain_jobs_mix_inside(app: Face, yours: Yours) -> None:
    jobs = app.enqueue(NewJob("a"), NewJob("b", unique="k"), NewJob("c", delay=9), within=yours.given)
    yours.commit()

    assert [app.get(job.id).kind for job in jobs] == ["a", "b", "c"]


@every_connection
def test_a_task_is_enqueued_within_by_using(app: Face, yours: Yours) -> None:
    @app.job
    def send(order_id: int) -> None: ...

    gone = app.enqueue_task(send.using(within=yours.given), 1)
    yours.rollback()

    assert app.get(gone.id) is None


@every_connection
def test_bad_input_leaves_the_transaction_as_it_was(app: Face, yours: Yours) -> None:
    [job] = app.enqueue(NewJob("work"), within=yours.given)

    with pytest.raises(DibsError):
        app.enqueue(NewJob(""), within=yours.given)
    yours.commit()

    assert app.get(job.id) is not None


# -- Succeed ------------------------------------------------------------------------------------


@every_connection
def test_a_success_counts_once_it_is_committed(app: Face, make: Make, yours: Yours) -> None:
    claim, child = make.running(), NewJob("child")

    claim.succeed("done", then=[child], within=yours.given)
    before = app.get(claim.job.id)
    yours.commit()

    job = app.get(claim.job.id)
    assert (before.state, job.state, job.result) == ("running", "succeeded", "done")
    assert (app.get(child.id).parent_id, job.pipeline_id) == (job.id, job.id)


@every_connection
def test_a_success_that_is_rolled_back_never_was(app: Face, make: Make, yours: Yours) -> None:
    claim = make.running()

    claim.succeed("done", then=[NewJob("child")], within=yours.given)
    yours.rollback()

    assert app.get(claim.job.id) == claim.job
    assert app.counts()["ready"] == 0
    claim.fail("still mine")
    assert app.get(claim.job.id).state == "scheduled"


@every_connection
def test_a_zombie_can_not_succeed_within_either(app: Face, make: Make, yours: Yours) -> None:
    zombie = make.expired()
    app.sweep()
    app.claim_job(zombie.job.id)

    with nothing_written(app):
        with pytest.raises(LeaseLost):
            zombie.succeed(then=[NewJob("child")], within=yours.given)
        yours.commit()
    assert app.refusals(zombie.job.id) == []  # the transaction is left as it is


@every_connection
def test_the_same_success_again_within_is_a_success(app: Face, make: Make, yours: Yours) -> None:
    claim = make.running()

    claim.succeed("done", within=yours.given)
    claim.succeed("done", within=yours.given)
    yours.commit()

    assert app.get(claim.job.id).state == "succeeded"


@every_awaited_connection
def test_a_handler_completes_in_its_own_transaction(app: Face, yours: Yours) -> None:
    @app.job
    async def work(ctx: JobContext) -> None:
        await ctx.complete("done", within=yours.given)
        await _finish(yours, "commit")

    done = app.run_job(app.enqueue_task(work).id)

    assert (done.state, done.result) == ("succeeded", "done")


@every_awaited_connection
def test_a_handler_that_completes_but_never_commits_failed(app: Face, yours: Yours) -> None:
    @app.job
    async def work(ctx: JobContext) -> None:
        await ctx.complete("done", within=yours.given)
        await _finish(yours, "rollback")

    done = app.run_job(app.enqueue_task(work).id)

    assert (done.state, done.attempts) == ("scheduled", 1)
    assert "not committed" in done.errors[0].message


@every_awaited_connection
def test_a_handler_that_completes_rolls_back_and_raises_failed_of_what_it_raised(
    app: Face, yours: Yours
) -> None:
    @app.job
    async def work(ctx: JobContext) -> None:
        await ctx.complete("done", within=yours.given)
        await _finish(yours, "rollback")
        raise ValueError("the commit was refused")

    done = app.run_job(app.enqueue_task(work).id)

    [error] = done.errors
    assert (done.state, done.attempts) == ("scheduled", 1)
    assert (error.type, error.message) == ("ValueError", "the commit was refused")


async def _finish(yours: Yours, how: str) -> None:
    await yours._end(how)


# -- What does not fit --------------------------------------------------------------------------


@every_connection
def test_a_connection_without_a_transaction_is_refused(app: Face, url: str, yours: Yours) -> None:
    with _idle(app, url, yours) as idle:
        for call in (
            lambda: app.enqueue(NewJob("work"), within=idle),
            lambda: app.enqueue(NewJob("work"), NewJob("work", unique="k"), within=idle),
        ):
            with nothing_written(app), pytest.raises(UnsupportedConnection, match="transaction"):
                call()


@contextlib.contextmanager
def _idle(app: Face, url: str, yours: Yours) -> Iterator[Any]:
    """The same kind of connection, in a mode where every statement commits itself."""
    match yours.given:
        case sqlite3.Connection():
            connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            yield connection
            connection.close()
        case psycopg.Connection():
            with psycopg.connect(url, autocommit=True) as connection:
                yield connection
        case psycopg.AsyncConnection():
            connection = app.wait_for(psycopg.AsyncConnection.connect(url, autocommit=True))
            yield connection
            app.wait_for(connection.close())
        case pymysql.Connection():
            with contextlib.closing(mysql_connection(url)) as connection:
                yield connection
        case BaseDatabaseWrapper():
            with connected(url) as connection:
                yield connection
        case asyncmy.connection.Connection():
            yours.commit()
            app.wait_for(yours.given.autocommit(True))
            yield yours.given
        case sqlalchemy.Connection():
            engine = yours.given.engine.execution_options(isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                yield connection
        case Session():
            engine = yours.given.get_bind().execution_options(isolation_level="AUTOCOMMIT")
            with Session(engine) as session:
                yield session
        case AsyncSession():
            engine = yours.given.bind.execution_options(isolation_level="AUTOCOMMIT")
            session = AsyncSession(engine)
            yield session
            app.wait_for(session.close())
        case sqlalchemy.ext.asyncio.AsyncConnection():
            engine = yours.given.engine.execution_options(isolation_level="AUTOCOMMIT")
            connection = app.wait_for(engine.connect().start())
            yield connection
            app.wait_for(connection.close())
        case _:
            yours.commit()
            yield yours.given


@pytest.mark.parametrize("nonsense", [object(), "connection", 5, [], sqlite3.connect], ids=named)
def test_what_is_no_connection_is_refused_naming_what_fits(app: Face, make: Make, nonsense: Any) -> None:
    needs(app, "joins_caller")
    claim = make.running()

    for call in (
        lambda: app.enqueue(NewJob("work"), within=nonsense),
        lambda: claim.succeed(within=nonsense),
    ):
        with nothing_written(app), pytest.raises(UnsupportedConnection, match="SQLAlchemy"):
            call()


def test_a_store_without_transactions_refuses_every_connection(app: Face, make: Make, tmp_path: Path) -> None:
    if app.traits.joins_caller:
        pytest.skip("this store joins the caller's transaction")
    claim = make.running()

    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection, nothing_written(app):
        with pytest.raises(UnsupportedConnection, match="within"):
            app.enqueue(NewJob("work"), within=connection)
        with pytest.raises(UnsupportedConnection, match="within"):
            claim.succeed(within=connection)


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_another_file_is_refused(app: Face, tmp_path: Path) -> None:
    app.open()

    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("create table t (x)")
        with pytest.raises(UnsupportedConnection, match=r"other\.db"):
            app.enqueue(NewJob("work"), within=connection)


@pytest.mark.parametrize(("engine", "face"), [("sqlite", "sync")], indirect=True)
def test_another_file_through_sqlalchemy_is_refused(app: Face, tmp_path: Path) -> None:
    with open_face("sync", f"sqlite:///{tmp_path}/other.db") as other:
        other.open()
    app.open()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/other.db")

    for opened in (engine.connect(), Session(engine)):
        with opened, pytest.raises(UnsupportedConnection, match=r"other\.db"):
            app.enqueue(NewJob("work"), within=opened)

    engine.dispose()


@pytest.mark.parametrize(("engine", "face"), [("postgresql", "sync")], indirect=True)
def test_another_database_is_refused(app: Face, postgresql: PostgreSQL) -> None:
    other = postgresql.fresh_database()

    with psycopg.connect(other) as connection:
        with nothing_written(app), pytest.raises(DibsError):
            app.enqueue(NewJob("work"), within=connection)


@pytest.mark.parametrize("tables", ["with our tables", "without"])
@pytest.mark.parametrize(("engine", "face"), [("mariadb", "sync")], indirect=True)
def test_another_database_of_mariadb_is_refused(app: Face, mariadb: MariaDB, tables: str) -> None:
    other = mariadb.fresh_database()
    if tables != "without":
        beside = Dibs(other).sync
        beside.migrate()
        beside.close()

    with contextlib.closing(mysql_connection(other, autocommit=False)) as connection:
        with nothing_written(app), pytest.raises(UnsupportedConnection, match="leads to the database"):
            app.enqueue(NewJob("work"), within=connection)


@pytest.mark.parametrize(("engine", "face"), [("mariadb", "sync")], indirect=True)
def test_a_mariadb_connection_without_a_transaction_is_refused(app: Face, url: str) -> None:
    with contextlib.closing(mysql_connection(url)) as connection:
        with nothing_written(app), pytest.raises(UnsupportedConnection, match="no transaction"):
            app.enqueue(NewJob("work"), within=connection)


@pytest.mark.parametrize(("engine", "face"), [("mariadb", "sync")], indirect=True)
def test_a_key_taken_after_the_caller_looked_at_the_database_is_still_seen(app: Face, url: str) -> None:
    """MariaDB's transactions see an old snapshot by default; who holds a key is asked of now."""
    may_look = "set session autocommit = 0 /*M!110602 , innodb_snapshot_isolation = off */"
    with contextlib.closing(mysql_connection(url, autocommit=False, init_command=may_look)) as connection:
        _by_cursor(connection)("select count(*) from dibs_jobs")
        [holder] = app.enqueue(NewJob("work", unique="key"))

        [known] = app.enqueue(NewJob("work", unique="key"), within=connection)

        connection.commit()
    assert (known.id, known.is_new) == (holder.id, False)


@pytest.mark.parametrize(("engine", "face"), [("postgresql", "sync"), ("postgresql", "async")], indirect=True)
def test_a_connection_to_another_engine_is_refused(app: Face, tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine("sqlite://")

    with contextlib.closing(sqlite3.connect(":memory:")) as connection, engine.connect() as alchemy:
        for given in (connection, alchemy):
            with nothing_written(app), pytest.raises(UnsupportedConnection, match="psycopg"):
                app.enqueue(NewJob("work"), within=given)

    engine.dispose()


@pytest.mark.parametrize(("engine", "face"), [("postgresql", "async")], indirect=True)
def test_a_blocking_connection_on_the_async_face_says_where_it_belongs(app: Face, url: str) -> None:
    engine = sqlalchemy.create_engine(f"postgresql+psycopg:{url.split(':', 1)[1]}")

    with psycopg.connect(url) as plain, engine.connect() as alchemy, Session(engine) as session:
        for given in (plain, alchemy, session):
            with nothing_written(app), pytest.raises(UnsupportedConnection, match=r"app\.sync"):
                app.enqueue(NewJob("work"), within=given)

    engine.dispose()


@pytest.mark.parametrize(("engine", "face"), [("postgresql", "sync")], indirect=True)
def test_an_awaited_connection_on_the_sync_face_says_where_it_belongs(app: Face, url: str) -> None:
    app.open()

    async def ask_with_all() -> None:
        plain, other = await asyncpg.connect(url), await psycopg.AsyncConnection.connect(url)
        engine = create_async_engine(f"postgresql+asyncpg:{url.split(':', 1)[1]}")
        async with engine.connect() as alchemy, AsyncSession(engine) as session:
            for given in (plain, other, alchemy, session):
                with nothing_written(app), pytest.raises(UnsupportedConnection, match="async"):
                    app.enqueue(NewJob("work"), within=given)
        await plain.close()
        await other.close()
        await engine.dispose()

    asyncio.run(ask_with_all())


def test_a_claim_takes_no_transaction(app: Face) -> None:
    with pytest.raises(TypeError, match="within"):
        app.claim(within=object())


@every_connection
def test_a_success_that_was_rolled_back_may_be_followed_by_one_with_children(
    app: Face, make: Make, yours: Yours
) -> None:
    claim, child = make.running(), NewJob("audit")
    claim.succeed(within=yours.given)
    yours.rollback()

    claim.succeed(then=[child])

    assert app.get(child.id).parent_id == claim.job.id


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize("face", ["async"], indirect=True)
def test_a_scoped_session_is_taken_like_the_one_behind_it(app: Face, url: str) -> None:
    new = NewJob("work"), NewJob("work")
    app.open()

    async def go() -> None:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        await app.app.enqueue(new[0], within=scoped)
        await scoped.rollback()
        await app.app.enqueue(new[1], within=scoped)
        await scoped.commit()
        await scoped.remove()
        await engine.dispose()

    app.wait_for(go())

    assert [job.id for job in app.find()] == [new[1].id]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_connection_that_answers_no_text_is_refused(app: Face, url: str) -> None:
    app.open()
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.text_factory = bytes

        with pytest.raises(UnsupportedConnection, match="text_factory"):
            app.enqueue(NewJob("work"), within=connection)

        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        app.enqueue(NewJob("work"), within=connection)
        connection.rollback()
