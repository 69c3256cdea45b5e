"""What is MariaDB's own: gap locks, deadlocks, snapshots that went stale, servers of every temper."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest

from dibs import Dibs, NewJob, StoreUnavailable, UnknownEngine
from dibs.app.dibs import SyncDibs
from dibs.doctor import storage
from dibs.engines.mysql import pools, session
from dibs.engines.mysql.session import SESSION, error_number, judge
from dibs.engines.retries import TryAgain
from dibs.engines.sql.blocks import placeholders
from tests.model.crowd import Crowd
from tests.support.fault_stores import MysqlHands, Place, answers_within, blocks, wait_until
from tests.support.internals import store_of
from tests.support.matrix import MYSQLS
from tests.support.servers import MariaDB


@pytest.fixture(params=MYSQLS)
def store(request: pytest.FixtureRequest, places: Any) -> Place:
    return places(request.param)


# -- Those who enqueue are never blocked --------------------------------------------------------

CLAIM = {
    "opening": {"look": 1},
    "line": {"queue": "", "kind": "", "limit": 0},
    "near": {"queue": "default", "kind": "work", "limit": 10},
    "lock_first": {"queue": "default", "kind": "work", "limit": 10},
    "due": {"limit": 500},
    "expired": {"limit": 500},
}


@contextlib.contextmanager
def an_open_claim(place: Place, session: tuple[str, ...]) -> Iterator[Any]:
    """All that a claim and a sweep lock, on a connection of its own that stays in its transaction."""
    texts = blocks(place.app())
    with contextlib.closing(place.connect()) as connection:
        for statement in session:
            connection.execute(statement)
        connection.begin()
        for name, given in CLAIM.items():
            sql, _ = placeholders(texts[name], "pyformat")
            with connection.cursor() as cursor:
                cursor.execute(sql, given)
        yield connection.rollback


@pytest.mark.parametrize("jobs", [0, 3], ids=["nothing-ready", "some-ready"])
def test_an_open_claim_blocks_nobody_who_enqueues(store: Place, jobs: int) -> None:
    app = store.apps(1)[0]
    app.sync.enqueue(*(NewJob("work") for _ in range(jobs)))

    with an_open_claim(store, SESSION) as free:
        new = [NewJob(kind, delay=delay) for kind in ("a", "work", "z") for delay in (None, 60)]
        stored = answers_within(1, lambda: app.sync.enqueue(*new), then=free)

    assert stored, "enqueueing waited for a claim that had not committed"


def test_at_the_servers_own_isolation_level_it_would(store: Place) -> None:
    """The recipe bites: at REPEATABLE READ a claim of nothing locks the gap where jobs arrive."""
    app = store.apps(1)[0]
    [(level,)] = store.sql("select /*M! @@global.tx_isolation */ /*!80017 @@global.transaction_isolation */")
    assert level == "REPEATABLE-READ"

    with an_open_claim(store, ()) as free:
        stored = answers_within(1, lambda: app.sync.enqueue(NewJob("work")), then=free)

    assert not stored


def test_every_connection_of_ours_is_read_committed(store: Place) -> None:
    app = store.app()
    app.sync.counts()
    with store_of(app)._sync._connection() as connection, connection.cursor() as cursor:
        cursor.execute("select /*M! @@tx_isolation */ /*!80017 @@transaction_isolation */")
        assert cursor.fetchone() == ("READ-COMMITTED",)


# -- Undone by the server, and done again -------------------------------------------------------


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The number of every error that made an operation start over."""
    numbers: list[int | None] = []

    class Noted(TryAgain):
        def __init__(self, cause: BaseException, *given: Any, **named: Any) -> None:
            super().__init__(cause, *given, **named)
            numbers.append(error_number(cause))

    monkeypatch.setattr(session, "TryAgain", Noted)
    return numbers


def test_a_transaction_that_lost_a_deadlock_is_run_again(store: Place, heard: list[int | None]) -> None:
    app = store.apps(1)[0]
    first, second = app.sync.enqueue(NewJob("work"), NewJob("work"))
    with contextlib.closing(store.connect()) as other, ThreadPoolExecutor(1) as pool:
        _make_heavy(store, other)
        _lock(other, second.id)
        cancelling = pool.submit(app.sync.cancel_many, kind="work")
        _wait_for_a_waiting_lock(store)

        _lock(other, first.id)  # now each waits for the other; the lighter one is undone
        other.rollback()

        assert cancelling.result(20) == 2
    assert 1213 in heard
    assert app.sync.counts()["cancelled"] == 2
    assert app.sync.enqueue(NewJob("work"))[0].is_new


def _make_heavy(place: Place, connection: MysqlHands) -> None:
    """The server undoes whoever has written less."""
    place.sql("create table heavy (n integer) engine = innodb")
    connection.begin()
    connection.execute(
        "insert into heavy select seq.n "
        "from json_table(concat('[0', repeat(',0', 999), ']'), '$[*]' columns (n for ordinality)) seq"
    )


def _lock(connection: MysqlHands, id: Any) -> None:
    connection.execute("select id from dibs_jobs where id = %s for update", [id])


def _wait_for_a_waiting_lock(place: Place) -> None:
    waiting = "select trx_id from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"

    def seen() -> Any:
        time.sleep(0.15)  # asked more often, the server answers what it answered before
        return place.sql(waiting)

    wait_until(seen)


def test_a_lock_that_was_waited_for_too_long_starts_the_transaction_over(
    store: Place, heard: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tuple(each.replace("lock_wait_timeout = 10", "lock_wait_timeout = 1") for each in SESSION)
    monkeypatch.setattr(pools, "SESSION", short)
    app = store.app()
    [job] = app.sync.enqueue(NewJob("work"))
    with contextlib.closing(store.connect()) as other, ThreadPoolExecutor(1) as pool:
        other.begin()
        _lock(other, job.id)
        cancelling = pool.submit(app.sync.cancel, job.id, "enough")
        wait_until(lambda: 1205 in heard)

        other.rollback()

        assert cancelling.result(20).state == "cancelled"
    [(open_ones,)] = store.sql("select count(*) from information_schema.innodb_trx where trx_rows_locked > 0")
    assert open_ones == 0


@pytest.mark.parametrize("number", [1213, 1205, 1020, 1062])
def test_what_the_server_undid_is_tried_again_and_nothing_is_unsure(number: int) -> None:
    judged = judge(pymysql.err.OperationalError(number, "undone"), "mysql://host/shop")

    assert isinstance(judged, TryAgain)
    assert not judged.unsure


@pytest.mark.parametrize("number", [2006, 2013, 1053, 1927])
def test_a_lost_connection_leaves_everything_unsure(number: int) -> None:
    judged = judge(pymysql.err.OperationalError(number, "gone"), "mysql://me:s3cret@host/shop")

    assert isinstance(judged, TryAgain)
    assert judged.unsure
    assert "s3cret" not in str(judged.final(waited=1))


# -- Servers of every temper --------------------------------------------------------------------

TEMPERS = {
    "snapshot isolation on": {"innodb-snapshot-isolation": "ON"},
    "snapshot isolation off": {"innodb-snapshot-isolation": "OFF"},
    "serializable, in Tokyo, in latin1": {
        "transaction-isolation": "SERIALIZABLE",
        "default-time-zone": "+09:00",
        "character-set-server": "latin1",
        "sql-mode": "ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
    },
    "replicating, rolling back on timeout": {
        "log-bin": "log",
        "binlog-format": "MIXED",
        "innodb-rollback-on-timeout": "ON",
    },
}


@pytest.mark.parametrize("temper", TEMPERS)
def test_a_crowd_meets_no_error_whatever_the_server_is_set_to(temper: str) -> None:
    with MariaDB({**TEMPERS[temper], "innodb-flush-log-at-trx-commit": 0}) as server:
        url = server.fresh_database()
        app = Dibs(url)
        app.sync.migrate()
        with app.sync:
            [job] = app.sync.enqueue(NewJob("odd", args={"text": "é😀 \\ ' \" %s"}, unique="ключ "))
            assert app.sync.get(job.id).args == {"text": "é😀 \\ ' \" %s"}
            assert abs((app.sync.get(job.id).run_at - job.enqueued_at).total_seconds()) < 1
            app.sync.delete(job.id)

            history = Crowd(app, jobs=100, max_attempts=2, seed=1).run(2)

    assert set(history.final.values()) <= {"succeeded", "failed", "cancelled"}
    assert set(history.final) == set(history.max_attempts)
    assert len(history.told) > 100


def test_a_callers_own_transaction_is_told_that_a_record_changed() -> None:
    """With snapshot isolation the caller's transaction is undone whole; it is theirs to run again."""
    with MariaDB({"innodb-snapshot-isolation": "ON"}) as server:
        place = Place("mariadb", server.fresh_database())
        app = place.app()
        app.sync.migrate()
        with contextlib.closing(place), contextlib.closing(place.connect()) as yours:
            [job] = app.sync.enqueue(NewJob("work"))
            yours.begin()
            yours.execute("select count(*) from dibs_jobs")
            [claim] = app.sync.claim()

            with pytest.raises(Exception, match="Record has changed") as told:
                claim.succeed("in an old snapshot", within=yours)
            yours.rollback()
            with yours.transaction():
                claim.succeed("in a new one", within=yours)

            # By name: where PyMySQL stands in for MySQLdb there are two classes of it.
            assert (type(told.value).__name__, told.value.args[0]) == ("OperationalError", 1020)
            assert app.sync.get(job.id).result == "in a new one"


def test_a_server_that_replicates_by_statement_is_refused_with_the_reason() -> None:
    with MariaDB({"log-bin": "log", "binlog-format": "STATEMENT"}) as server:
        app = Dibs(server.fresh_database()).sync
        with pytest.raises(UnknownEngine, match="binlog_format"):
            app.migrate()
        app.close()


def test_a_server_that_is_too_old_is_refused_with_the_reason(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pools, session):
        monkeypatch.setattr(module, "PROBE", "select 1 from a_word_that_no_server_knows for update skip it")

    with pytest.raises(UnknownEngine, match=r"\d+\.\d+.*too old.*MariaDB 10\.6 or MySQL 8\.0\.17"):
        store.app().sync.counts()


def test_a_payload_larger_than_one_statement_may_be_is_sent_in_pieces(store: Place) -> None:
    app = store.app()
    text = '"' * 400_000
    jobs = app.sync.enqueue(*(NewJob("work", args={"text": text}) for _ in range(12)))

    claims = app.sync.claim(limit=12)

    assert {claim.job.id for claim in claims} == {job.id for job in jobs}
    assert all(claim.job.args == {"text": text} for claim in claims)


def test_a_statement_that_the_server_finds_too_large_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = judge(pymysql.err.OperationalError(1153, "Got a packet bigger"), "mysql://host/shop")

    assert isinstance(judged, StoreUnavailable)
    assert "max_allowed_packet" in str(judged)


def test_many_threads_of_one_app_share_its_few_connections(store: Place) -> None:
    app = store.app(pool_size=2)
    app.sync.enqueue(*(NewJob("work") for _ in range(40)))
    over = threading.Barrier(8)

    def work() -> int:
        over.wait()
        return sum(len(app.sync.claim()) for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert sum(future.result() for future in [pool.submit(work) for _ in range(8)]) == 40


# -- What the doctor sees -----------------------------------------------------------------------

LAX = {
    "innodb-flush-log-at-trx-commit": 2,
    "innodb-doublewrite": 0,
    "transaction-isolation": "SERIALIZABLE",
    "log-bin": "changes",
    "binlog-format": "ROW",
    "sync-binlog": 0,
}


def _found(app: SyncDibs, topic: str) -> list[str]:
    return [str(one) for one in app.doctor() if one.topic == topic]


def test_the_doctor_sees_how_a_server_is_set() -> None:
    with MariaDB(LAX) as server, contextlib.closing(Dibs(server.fresh_database()).sync) as app:
        app.migrate()
        found = {topic: _found(app, topic) for topic in ("durability", "isolation")}

    assert [one.partition(":")[0] for one in found["durability"]] == ["durability"] * 3
    assert all(
        any(name in one for one in found["durability"])
        for name in ("innodb_flush_log_at_trx_commit is 2", "innodb_doublewrite is off", "sync_binlog is 0")
    )
    assert found["isolation"] == ["isolation: read committed; transactions of your own begin at serializable"]


def test_the_doctor_sees_a_transaction_that_is_open_for_long(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "A_MINUTE", 0)
    with contextlib.closing(store.connect()) as connection:
        connection.begin()
        connection.execute("select * from dibs_jobs for update")
        thread = connection.thread_id()
        found = _found(store.app().sync, "transactions")

    assert any(f"thread {thread} has been open for" in one for one in found)


def test_the_doctor_says_what_it_may_not_see(store: Place, request: pytest.FixtureRequest) -> None:
    server: MariaDB = request.getfixturevalue(store.kind)
    database = store.url.rpartition("/")[2]
    server._do("drop user if exists visitor@`%`")
    server._do("create user visitor@`%` identified by 's3cret'")
    server._do(f"grant all on `{database}`.* to visitor@`%`")

    findings = store.app(f"mysql://visitor:s3cret@127.0.0.1:{server.port}/{database}").sync.doctor()

    assert any("without the privilege PROCESS" in one.sentence for one in findings)
    assert [one for one in findings if one.level == "problem"] == []


# -- A driver that loses cancellations ----------------------------------------------------------


def test_who_is_cancelled_while_connecting_is_cancelled() -> None:
    async def connect() -> None:
        """As wait_for() does on 3.11 when the connection is there at the same moment."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    async def story() -> None:
        task = asyncio.create_task(pools._unswallowed(connect()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(story())
