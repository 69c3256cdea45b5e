"""One row that is locked, one loop that is blocked, one store that is silent: the rest goes on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pytest

from dibs import Dibs, LeaseLost, NewJob, Worker
from dibs.worker import open_transactions
from tests.support import fault_cases
from tests.support.fault_stores import Place, answers_within, renew, together, wait_until
from tests.support.internals import age
from tests.support.matrix import MYSQLS
from tests.support.proxy import FaultProxy
from tests.support.servers import PostgreSQL

LEASE = 0.5


def test_renewing_ten_jobs_does_not_wait_for_one_that_is_being_completed(locking: Place) -> None:
    app = locking.apps(1)[0]
    fault_cases.enqueue(app, 10)
    claims = app.sync.claim(limit=10, lease=30)
    tenth = claims[9]
    with locking.connect() as connection:
        with connection.transaction(force_rollback=True):
            tenth.succeed("not yet committed", within=connection)

            [standing] = answers_within(1, lambda: renew(app, claims, 600), then=lambda: None)

            pushed = {id for id, one in standing.items() if one.lease_until > tenth.lease_until}
            assert set(standing) == {claim.job.id for claim in claims}, "a held claim was reported lost"
            assert pushed == {claim.job.id for claim in claims[:9]}
            assert standing[tenth.job.id].lease_until == tenth.lease_until

    again = renew(app, claims, 900)
    assert again[tenth.job.id].lease_until > tenth.lease_until
    tenth.succeed("after the rollback")
    assert app.sync.get(tenth.job.id).result == "after the rollback"


def test_a_completion_that_was_committed_is_no_longer_renewed(locking: Place) -> None:
    app = locking.apps(1)[0]
    fault_cases.enqueue(app, 2)
    claims = app.sync.claim(limit=2, lease=30)
    with locking.connect() as connection, connection.transaction():
        claims[0].succeed(within=connection)

    standing = renew(app, claims, 600)

    assert set(standing) == {claims[1].job.id}


def test_the_sweep_does_not_wait_for_a_job_that_is_being_completed(locking: Place) -> None:
    app = locking.apps(1)[0]
    fault_cases.enqueue(app, 10)
    claims = app.sync.claim(limit=10, lease=30)
    age(app, 31)
    with locking.connect() as connection:
        with connection.transaction():
            claims[9].succeed("in time", within=connection)

            [swept] = answers_within(1, app.sync.sweep, then=lambda: None)

    assert (swept.returned, swept.failed) == (9, 0)
    assert app.sync.get(claims[9].job.id).result == "in time"
    assert app.sync.counts()["ready"] == 9


@pytest.mark.parametrize(
    "scene",
    [fault_cases.a_locked_row_does_not_stall_renewals, fault_cases.a_locked_row_does_not_stall_the_sweep],
)
def test_one_locked_row_stalls_nobody(locking: Place, scene: fault_cases.Scene) -> None:
    assert scene(locking) is None


def test_a_kept_claim_whose_row_stays_locked_is_given_up_before_its_lease_ends(locking: Place) -> None:
    app = locking.apps(1)[0]
    fault_cases.enqueue(app, 1)
    [claim] = app.sync.claim(lease=1)

    with pytest.raises(LeaseLost):
        with claim as job, fault_cases.locked(locking, job.id):
            wait_until(lambda: claim.lost or _expired(locking, job.id), seconds=5)
            assert not _expired(locking, job.id), "the lease ended, and its holder was not told"


def _expired(place: Place, id: Any) -> bool:
    """Whether the store may take the job back."""
    now = "utc_timestamp(6)" if place.kind in MYSQLS else "clock_timestamp()"
    query = f"select lease_until < {now} from dibs_jobs where id = %s"
    [(expired,)] = place.sql(query, id)
    return bool(expired)


# -- The event loop is blocked ------------------------------------------------------------------


def test_a_body_that_blocks_the_event_loop_for_three_leases_keeps_its_job(shared: Place) -> None:
    app, thief = shared.app(), _Thief(shared.app())
    [job] = app.sync.enqueue(NewJob("work"))

    async def work() -> None:
        async with app:
            [claim] = await app.claim(lease=LEASE)
            async with claim:
                with thief:
                    time.sleep(3 * LEASE)

    asyncio.run(work())

    done = app.sync.get(job.id)
    assert (done.state, done.attempts, done.errors) == ("succeeded", 1, [])
    assert thief.tried >= 3, "nobody tried to take the job meanwhile"
    assert thief.stolen == []


def test_a_handler_that_blocks_the_event_loop_for_three_leases_keeps_its_job(shared: Place) -> None:
    app, thief = shared.app(), _Thief(shared.app())

    @app.job(lease=LEASE)
    async def work() -> str:
        with thief:
            time.sleep(3 * LEASE)
        return "undisturbed"

    async def run() -> Any:
        async with app:
            job = await work.enqueue()
            return await app.run_job(job.id)

    done = asyncio.run(run())

    assert (done.state, done.result, done.attempts) == ("succeeded", "undisturbed", 1)
    assert thief.tried >= 3, "nobody tried to take the job meanwhile"
    assert thief.stolen == []


class _Thief:
    """Claims whatever it can get, from another thread and app, for as long as the block lasts."""

    def __init__(self, app: Dibs) -> None:
        self._app = app
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._steal)
        self.tried = 0
        self.stolen: list[Any] = []

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _steal(self) -> None:
        while not self._over.wait(0.02):
            self.stolen += self._app.sync.claim()
            self.tried += 1


# -- The store is silent ------------------------------------------------------------------------


def test_a_body_is_cancelled_before_its_lease_ends_when_the_store_is_silent(
    postgres: Place, postgresql: PostgreSQL
) -> None:
    [job] = postgres.app().sync.enqueue(NewJob("work"))

    async def work(app: Dibs, proxy: FaultProxy) -> tuple[str, float]:
        [claim] = await app.claim(lease=4)  # a busy machine is late by more than a tenth of a short one
        ended = "in no way"
        try:
            async with claim:
                proxy.blackhole()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    ended = "cancelled"
                    raise
        except LeaseLost:
            left = _seconds_left(postgres, job.id)
        proxy.heal()
        await app.close()
        return ended, left

    with FaultProxy(postgresql.port) as proxy:
        app = postgres.app(postgres.url.replace(f":{postgresql.port}/", f":{proxy.port}/"))
        ended, left = asyncio.run(work(app, proxy))

    assert ended == "cancelled"
    assert left > 0, "the job was given up only after the store might have given it away"
    assert postgres.app().sync.get(job.id).state == "running"


def _seconds_left(place: Place, id: Any) -> float:
    query = "select extract(epoch from lease_until - clock_timestamp()) from dibs_jobs where id = %s"
    [(left,)] = place.sql(query, id)
    return float(left)


def test_a_blocking_body_sees_before_its_lease_ends_that_the_store_is_silent(
    postgres: Place, postgresql: PostgreSQL
) -> None:
    [job] = postgres.app().sync.enqueue(NewJob("work"))
    with FaultProxy(postgresql.port) as proxy:
        app = postgres.app(postgres.url.replace(f":{postgresql.port}/", f":{proxy.port}/"))
        [claim] = app.sync.claim(lease=1.5)

        with pytest.raises(LeaseLost):
            with claim:
                proxy.blackhole()
                wait_until(lambda: claim.lost)
                left = _seconds_left(postgres, job.id)
                claim.check()

        proxy.heal()
        app.sync.close()
    assert left > 0, "the job was given up only after the store might have given it away"


# -- A caller's transaction stays open ----------------------------------------------------------

AT_A_GATE: list[dict[str, Any]] = [{"train": "t"}, {"slot": "s"}]


class _Working:
    """A worker with a job `held`, which ends when the test says so, and plain jobs beside it."""

    def __init__(self, place: Place, held: NewJob) -> None:
        self.app = app = place.app()
        self.began, self.may_end = threading.Event(), threading.Event()
        self.plain = 0

        @app.job(name="held", lease=1.5)
        async def _() -> None:
            self.began.set()
            while not self.may_end.is_set():
                await asyncio.sleep(0.01)

        @app.job(name="plain")
        async def _() -> None:
            self.plain += 1

        [self.job] = app.sync.enqueue(held)
        self.worker = Worker(app, concurrency=4)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        await self.worker.run(handle_signals=False)
        await self.app.close()

    def do_plain(self, many: int = 20) -> None:
        """Wait until these were done; meanwhile nothing else may stand in their way."""
        before = self.plain
        self.app.sync.enqueue(*[NewJob("plain") for _ in range(many)])
        wait_until(lambda: self.plain >= before + many, seconds=5)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self.began.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.may_end.set()
        self.worker.stop()
        self._thread.join()


@pytest.mark.parametrize("gate", AT_A_GATE, ids=["train", "slot"])
def test_an_open_producer_at_one_gate_stops_no_other_job(
    locking: Place, gate: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    producer = locking.app()
    with (
        _Working(locking, NewJob("held", **gate)) as work,
        contextlib.closing(locking.connect()) as connection,
    ):
        with connection.transaction():
            [behind] = producer.sync.enqueue(NewJob("held", **gate), within=connection)
            work.may_end.set()
            for _ in range(3):
                work.do_plain()
            assert producer.sync.get(work.job.id).state == "running"

        wait_until(lambda: producer.sync.get(behind.id).state == "succeeded", seconds=5)
        done = producer.sync.get(work.job.id)

    assert (done.state, done.attempts) == ("succeeded", 1)
    assert "lost its store" not in caplog.text


MEETING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "keep": ({"unique": "k"}, {"unique": "k"}),
    "replace": ({"unique": "k"}, {"unique": "k", "on_conflict": "replace"}),
    "unique_for": ({"unique": "k", "unique_for": 60}, {"unique": "k", "unique_for": 60}),
    "drop": ({"slot": "s"}, {"slot": "s", "slot_policy": "drop"}),
}


@pytest.mark.parametrize("meeting", MEETING)
def test_an_open_enqueue_that_meets_a_running_job_leaves_it_its_lease(locking: Place, meeting: str) -> None:
    running, new = MEETING[meeting]
    producer = locking.app()
    with _Working(locking, NewJob("held", **running)) as work:
        producer.sync.enqueue(*[NewJob("plain", delay=3) for _ in range(20)])
        with contextlib.closing(locking.connect()) as connection, connection.transaction():
            [met] = producer.sync.enqueue(NewJob("held", **new), within=connection)
            assert (met.id, met.is_new) == (work.job.id, False)
            token = producer.sync.get(work.job.id).token

            time.sleep(2.5)  # longer than its lease
            assert producer.sync.sweep().returned == 0
            assert producer.sync.get(work.job.id).token == token
            work.may_end.set()
            wait_until(lambda: work.plain == 20, seconds=5)

        wait_until(lambda: producer.sync.get(work.job.id).state == "succeeded", seconds=5)

    assert producer.sync.get(work.job.id).attempts == 1


def test_a_job_whose_gate_stays_locked_keeps_its_lease_and_says_why(
    locking: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_transactions, "LONG", 0.5)
    producer = locking.app()
    with _Working(locking, NewJob("held", train="t")) as work:
        with contextlib.closing(locking.connect()) as connection, connection.transaction():
            producer.sync.enqueue(NewJob("held", train="t"), within=connection)
            work.may_end.set()

            wait_until(lambda: "has locked the train 't'" in caplog.text, seconds=10)
            time.sleep(2)  # longer than its lease
            assert producer.sync.sweep().returned == 0

        wait_until(lambda: producer.sync.get(work.job.id).state == "succeeded", seconds=5)

    assert producer.sync.get(work.job.id).attempts == 1


def test_a_locked_train_stops_no_other_train(locking: Place) -> None:
    producer = locking.app()
    with _Working(locking, NewJob("held", train="t")) as work:
        with contextlib.closing(locking.connect()) as connection, connection.transaction():
            producer.sync.enqueue(NewJob("held", train="t"), within=connection)
            work.may_end.set()
            others = producer.sync.enqueue(*[NewJob("plain", train="u") for _ in range(20)])

            wait_until(lambda: work.plain == len(others), seconds=5)


def test_who_is_told_to_end_does_not_wait_for_a_locked_train_for_ever(locking: Place) -> None:
    producer = locking.app()
    with contextlib.closing(locking.connect()) as connection, connection.transaction():
        with _Working(locking, NewJob("held", train="t")) as work:
            producer.sync.enqueue(NewJob("held", train="t"), within=connection)
            work.may_end.set()
            work.do_plain()
            work.worker.stop()
            work.worker.stop()
            began = time.monotonic()

        assert time.monotonic() - began < 5

    assert producer.sync.get(work.job.id).state == "running"


# -- A claim by name ----------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [{}, *AT_A_GATE], ids=["plain", "train", "slot"])
def test_a_claim_by_name_waits_for_who_has_locked_the_job_and_does_not_want_it(
    locking: Place, gate: dict[str, Any]
) -> None:
    app = locking.apps(1)[0]
    [job] = app.sync.enqueue(NewJob("work", **gate))
    let_go = threading.Event()
    with ThreadPoolExecutor() as threads, fault_cases.locked(locking, job.id):
        claiming = threads.submit(app.sync.claim_job, job.id)
        threading.Timer(0.2, let_go.set).start()
        let_go.wait()
        assert not claiming.done(), "it answered while nobody could know"

    assert claiming.result() is not None


def test_a_claim_by_name_waits_for_a_sibling_that_is_being_enqueued(locking: Place) -> None:
    app, producer = locking.apps(2)
    [job] = app.sync.enqueue(NewJob("work", slot="s"))
    with ThreadPoolExecutor() as threads:
        with contextlib.closing(locking.connect()) as connection, connection.transaction():
            producer.sync.enqueue(NewJob("work", slot="s"), within=connection)
            claiming = threads.submit(app.sync.claim_job, job.id)
            time.sleep(0.2)

        assert claiming.result() is not None


@pytest.mark.parametrize("gate", [{}, *AT_A_GATE], ids=["plain", "train", "slot"])
def test_a_claim_by_name_waits_for_no_open_transaction_for_long(locking: Place, gate: dict[str, Any]) -> None:
    app = locking.apps(1)[0]
    [job] = app.sync.enqueue(NewJob("work", **gate))
    began = time.monotonic()
    with fault_cases.locked(locking, job.id):
        [claim] = answers_within(5, lambda: app.sync.claim_job(job.id), then=lambda: None)

    assert claim is None
    assert time.monotonic() - began > 0.5


def test_callers_who_meet_a_key_while_its_holder_ends_are_not_undone(locking: Place) -> None:
    """MySQL may undo a caller here (docs/internals/mysql.md): it is told to start again, and does."""
    apps, over = locking.apps(9), threading.Event()

    def produce(app: Dibs) -> None:
        with contextlib.closing(locking.connect()) as connection:
            if locking.kind in MYSQLS:  # else it locks the gap that was left, as any insert there may
                connection.execute("set session transaction isolation level read committed")
            for _ in range(15):
                while True:
                    try:
                        with connection.transaction():
                            app.sync.enqueue(NewJob("work", unique="k"), within=connection)
                            time.sleep(0.01)
                    except Exception as error:
                        if locking.kind != "mysql" or "run the whole of it again" not in str(error.__notes__):
                            raise
                    else:
                        break

    def end() -> None:
        while not over.is_set():
            for claim in apps[0].sync.claim():
                claim.succeed()

    with ThreadPoolExecutor() as threads:
        ending = threads.submit(end)
        try:
            together(*((lambda app=app: produce(app)) for app in apps[1:]))
        finally:
            over.set()
        ending.result()


def test_a_callers_transaction_that_lost_a_deadlock_says_what_to_do(locking: Place) -> None:
    app = locking.apps(1)[0].sync

    def enqueue(connection: Any, key: str) -> BaseException | None:
        try:
            app.enqueue(NewJob("work", unique=key), within=connection)
        except Exception as error:
            connection.rollback()
            return error
        return None

    with contextlib.closing(locking.connect()) as one, contextlib.closing(locking.connect()) as other:
        for connection, key in ((one, "a"), (other, "b")):
            connection.execute("begin")
            enqueue(connection, key)
        ends = together(lambda: enqueue(one, "b"), lambda: enqueue(other, "a"))
        one.rollback()
        other.rollback()

    [lost] = [error for error in ends if error is not None]
    assert type(lost).__module__.split(".")[0] in ("psycopg", "pymysql")
    assert "run the whole of it again" in lost.__notes__[0]
