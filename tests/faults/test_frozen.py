"""Stopped processes with a transaction open, and locks that are held for long: no store is lost by them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dibs import Dibs, NewJob, StoreBusy, StoreUnavailable
from dibs.engines import retries
from dibs.engines.mysql import pools as mysql_pools
from dibs.engines.mysql import session as mysql_session
from dibs.engines.postgresql import session as postgresql_session
from dibs.engines.sqlite import file as sqlite_file
from dibs.operations.scripts import Step
from dibs.worker import open_transactions
from tests.support.fault_stores import Place, face_of, wait_until, working
from tests.support.internals import engine_of, store_of

LIMIT = 2.0  # seconds that a transaction of ours may be idle
SOON = LIMIT + 2.5  # on a machine that does other things as well


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
def place(request: pytest.FixtureRequest, places: Any) -> Place:
    made: Place = places(request.param)
    return made


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Frozen:
    """An app whose first cancel stops before its commit, with all its locks, until it may go on."""

    def __init__(self, app: Dibs) -> None:
        self.is_frozen, self.may_go_on = threading.Event(), threading.Event()
        engine = engine_of(app)
        answer = engine.answer

        def frozen(step: Step, **options: Any) -> Any:
            rows = yield from answer(step, **options)
            if step.question == "cancel" and not self.is_frozen.is_set():
                self.is_frozen.set()
                self.may_go_on.wait(60)  # on an event loop this stops the loop, as SIGSTOP would
            return rows

        engine.answer = frozen


def test_a_transaction_that_stands_still_is_ended_and_run_again(place: Place, face: str) -> None:
    stopped, other = place.app(), place.app()
    [job] = other.sync.enqueue(NewJob("work"))
    other.sync.counts()
    frozen = Frozen(stopped)

    with face_of(stopped, face) as app, ThreadPoolExecutor(1) as pool:
        cancelling = pool.submit(app.cancel_many, kind="work")
        assert frozen.is_frozen.wait(30)
        before = time.monotonic()
        cancelled = other.sync.cancel(job.id)
        waited = time.monotonic() - before
        frozen.may_go_on.set()
        cancelling.result(30)

    assert waited < SOON
    assert cancelled.state == "cancelled"


def test_a_stopped_process_keeps_no_locks(place: Place) -> None:
    app = place.app()
    [job] = app.sync.enqueue(NewJob("work"))

    with _stopped_process(place.url):
        before = time.monotonic()
        app.sync.cancel(job.id)

    assert time.monotonic() - before < SOON
    assert app.sync.get(job.id).state == "cancelled"


@contextlib.contextmanager
def _stopped_process(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stops itself between the last statement of a cancel and its commit."""
    program = f"""
import os, signal
from dibs import Dibs
from tests.support.internals import engine_of
app = Dibs({url!r})
engine = engine_of(app)
answer = engine.answer
def stopping(step, **options):
    rows = yield from answer(step, **options)
    if step.question == "cancel":
        engine.answer = answer
        os.kill(os.getpid(), signal.SIGSTOP)
    return rows
engine.answer = stopping
app.sync.cancel_many(kind='work')
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0  # its session is gone: it went on with another


def test_a_callers_transaction_may_stand_still(place: Place) -> None:
    app = place.app()
    with contextlib.closing(place.connect()) as connection:
        with connection.transaction():
            [job] = app.sync.enqueue(NewJob("work"), within=connection)
            time.sleep(LIMIT + 1)

    assert app.sync.get(job.id).state == "ready"


def test_mysql_limits_its_transactions_by_their_sessions(
    places: Any, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL has no `idle_transaction_timeout`: a short `wait_timeout` instead, only while one is open."""
    place = places("mariadb")
    isolation, rest = mysql_session.SESSION
    without = rest.replace(f"/*M! idle_transaction_timeout = {LIMIT:.0f}, */ ", "")
    assert without != rest
    monkeypatch.setattr(mysql_pools, "SESSION", (isolation, without))
    monkeypatch.setattr(mysql_session, "limits_transactions", lambda connection: False)

    test_a_transaction_that_stands_still_is_ended_and_run_again(place, face)

    app = place.app()
    app.sync.cancel_many(kind="work")
    with store_of(app)._sync._connection() as connection, connection.cursor() as cursor:
        cursor.execute("select @@session.wait_timeout = @@global.wait_timeout")
        assert cursor.fetchone() == (1,)


def test_a_transaction_has_no_round_trip_for_its_limit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    app = place.app()
    app.sync.enqueue(NewJob("work"))
    pool = store_of(app)._sync
    said: list[object] = []
    speaker = pool._speaker

    def noting(connection: Any, *timeout: Any) -> Any:
        speak = speaker(connection, *timeout)
        return lambda what: (said.append(what), speak(what))[1]

    monkeypatch.setattr(pool, "_speaker", noting)
    app.sync.cancel_many(kind="work")

    texts = [one for one in said if isinstance(one, str)]
    assert len(texts) == 2
    assert texts[0].removeprefix("set session wait_timeout = 2; ").startswith(("begin", "start transaction"))
    assert texts[1].partition("; set session wait_timeout = default")[0] == "commit"


# -- Locks that are held for long ---------------------------------------------------------------


@pytest.fixture(params=["postgresql", "mariadb", "mysql", "sqlite"])
def locked(request: pytest.FixtureRequest, places: Any, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A store on which a lock is waited for only a second, and an operation tried once."""
    monkeypatch.setattr(retries, "PAUSES", ())
    monkeypatch.setitem(postgresql_session.SESSION, "lock_timeout", "1s")
    isolation, rest = mysql_session.SESSION
    short = rest.replace(
        f"innodb_lock_wait_timeout = {mysql_session.LOCK_TIMEOUT}", "innodb_lock_wait_timeout = 1"
    )
    monkeypatch.setattr(mysql_pools, "SESSION", (isolation, short))
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT", 1)
    made: Place = places(request.param)
    return made


@contextlib.contextmanager
def _locking(place: Place, *rows: Any) -> Iterator[None]:
    """Lock the job with this id, or what this statement locks, from a connection of the test's own."""
    with contextlib.closing(place.connect()) as connection:
        if place.kind == "sqlite":
            connection.execute("begin immediate")
            yield
            connection.execute("rollback")
            return
        with connection.transaction():
            for row in rows:
                is_id = not isinstance(row, str)
                text = "select 1 from dibs_jobs where id = %s for update" if is_id else row
                connection.execute(text, [row] if is_id else None)
            yield


def test_a_lock_wait_is_not_a_store_that_does_not_answer(locked: Place, face: str) -> None:
    app = locked.app()
    [job] = app.sync.enqueue(NewJob("work"))

    with _locking(locked, job.id), face_of(app, face) as caller, pytest.raises(StoreBusy) as busy:
        caller.cancel(job.id)

    assert "waited 1" in str(busy.value)
    assert "`cancel` has waited" in str(busy.value)
    assert "for a lock" in str(busy.value)
    assert isinstance(busy.value, StoreUnavailable)
    if locked.kind == "sqlite":
        assert f"this process, {os.getpid()}," in str(busy.value)
    else:
        assert str(job.id) in str(busy.value)


GATES: dict[str, tuple[dict[str, Any], str]] = {
    "train": ({"train": "t"}, "select 1 from dibs_gates where name = 't' for update"),
    "slot": ({"slot": ("csv", 7)}, "select 1 from dibs_gates where name = '[\"csv\",7]' for update"),
    "unique key": (
        {"unique": "k", "on_conflict": "replace"},
        "select 1 from dibs_jobs where unique_key = 'k' for update",
    ),
}


@pytest.mark.parametrize("locked", ["postgresql", "mariadb", "mysql"], indirect=True)
@pytest.mark.parametrize("gate", GATES)
def test_an_enqueue_that_can_not_get_a_lock_names_it_and_has_stored_nothing(
    locked: Place, face: str, gate: str
) -> None:
    options, lock = GATES[gate]
    app = locked.app()
    [first] = app.sync.enqueue(NewJob("work", **options))

    with _locking(locked, lock), face_of(app, face) as caller, pytest.raises(StoreBusy) as busy:
        caller.enqueue(NewJob("work"), NewJob("work", args={"n": 2}, **options))

    name = {"train": "'t'", "slot": "'[\"csv\",7]'", "unique key": "'k'"}[gate]
    assert f"holds on the {gate} {name}" in str(busy.value)
    assert "nothing was stored" in str(busy.value)
    assert "dibs doctor" in str(busy.value)
    assert [job.id for job in app.sync.find()] == [first.id]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "mysql"])
def test_an_enqueue_waits_ten_seconds_for_a_lock_and_not_longer(places: Any, kind: str) -> None:
    place = places(kind)
    app = place.app()
    app.sync.enqueue(NewJob("work", train="t"))

    with _locking(place, GATES["train"][1]), pytest.raises(StoreBusy) as busy:
        began = time.monotonic()
        app.sync.enqueue(NewJob("work", train="t"))

    assert 9.5 < time.monotonic() - began < 13
    assert "waited 10 s" in str(busy.value)


def test_the_process_that_keeps_a_sqlite_file_locked_is_named(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT", 0.2)
    place = places("sqlite")
    app = place.app()
    [first] = app.sync.enqueue(NewJob("work"))

    with _stopped_process(place.url) as process, pytest.raises(StoreBusy) as busy:
        app.sync.enqueue(NewJob("work"))

    assert f"process {process.pid} holds" in str(busy.value)
    assert "state T" in str(busy.value)
    assert [job.id for job in app.sync.find()] == [first.id]


@pytest.mark.parametrize("locked", ["sqlite"], indirect=True)
def test_a_worker_waits_for_a_lock_and_keeps_its_store(
    locked: Place, caplog: pytest.LogCaptureFixture
) -> None:
    app = locked.app()
    began, may_end = threading.Event(), threading.Event()

    @app.job(name="work")
    async def _() -> None:
        began.set()
        await asyncio.to_thread(may_end.wait, 10)

    [job] = app.sync.enqueue(NewJob("work"))
    with working(app):
        assert began.wait(10)
        with _locking(locked, job.id), caplog.at_level("INFO"):
            may_end.set()
            wait_until(lambda: "the worker keeps trying" in caplog.text)
        wait_until(lambda: app.sync.get(job.id).state == "succeeded", seconds=10)

    assert "has waited" in caplog.text
    assert "lost its store" not in caplog.text


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "mysql"])
def test_a_worker_goes_on_beside_a_job_whose_row_stays_locked(
    places: Any, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_transactions, "LONG", 0.5)
    place = places(kind)
    app = place.app(poll=1)
    began, may_end = threading.Event(), threading.Event()

    @app.job(name="held")
    async def _() -> None:
        began.set()
        await asyncio.to_thread(may_end.wait, 30)

    @app.job(name="plain")
    async def _() -> None: ...

    [held] = app.sync.enqueue(NewJob("held"))
    with working(app):
        assert began.wait(10)
        with _locking(place, held.id), caplog.at_level("INFO"):
            may_end.set()
            wait_until(lambda: f"has locked the row of job {held.id}" in caplog.text, seconds=15)
            [plain] = place.app().sync.enqueue(NewJob("plain"))
            wait_until(lambda: app.sync.get(plain.id).state == "succeeded", seconds=5)
            assert app.sync.get(held.id).state == "running"
        wait_until(lambda: app.sync.get(held.id).state == "succeeded", seconds=10)

    assert app.sync.get(held.id).attempts == 1
    assert "lost its store" not in caplog.text
