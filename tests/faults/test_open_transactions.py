"""Callers with transactions of their own, several of them open: at gates, keys and pipelines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from dibs import Job, LeaseLost, NewJob, Worker
from tests.support.fault_stores import Place, Places, answers_within, together
from tests.support.matrix import MYSQLS
from tests.support.servers import mysql_connection

LEVELS = ["read committed", "repeatable read"]
OLD = ["repeatable read", "serializable"]


@contextlib.contextmanager
def transaction(place: Place, level: str = "read committed") -> Iterator[Any]:
    if place.kind in MYSQLS:
        with contextlib.closing(mysql_connection(place.url, autocommit=False)) as connection:
            connection.query(f"set session transaction isolation level {level}")
            connection.begin()
            yield connection
        return
    with contextlib.closing(psycopg.connect(place.url)) as connection:
        connection.isolation_level = psycopg.IsolationLevel[level.upper().replace(" ", "_")]
        yield connection


@contextlib.contextmanager
def snapshot(place: Place, level: str) -> Iterator[Any]:
    """A transaction that has looked at the store."""
    with transaction(place, level) as connection:
        connection.cursor().execute("select * from dibs_jobs")
        yield connection


@contextlib.contextmanager
def begun(work: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Work that waits for somebody by now."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        time.sleep(0.5)
        yield future


# -- PostgreSQL: what upkeep did at a gate since your snapshot ----------------------------------


@pytest.mark.parametrize("level", OLD)
def test_who_came_due_in_a_slot_since_your_snapshot_is_not_overlooked(postgres: Place, level: str) -> None:
    app = postgres.app().sync
    [due] = app.enqueue(NewJob("work", slot="s", delay=0.3))
    with snapshot(postgres, level) as connection:
        time.sleep(0.4)
        app.sweep()
        claim = app.claim_job(due.id)
        with pytest.raises(psycopg.errors.SerializationFailure):
            app.enqueue(NewJob("work", slot="s"), within=connection)
    claim.succeed()


@pytest.mark.parametrize("level", OLD)
def test_whose_lease_ended_in_a_slot_since_your_snapshot_is_waited_for_by_nobody(
    postgres: Place, level: str
) -> None:
    app = postgres.app().sync
    dead, _ = app.enqueue(NewJob("work", slot="s", max_attempts=1), NewJob("work", slot="s", delay=5000))
    app.claim_job(dead.id, lease=0.2)
    with snapshot(postgres, level) as connection:
        time.sleep(0.3)
        app.sweep()
        assert app.get(dead.id).state == "failed"
        with pytest.raises(psycopg.errors.SerializationFailure):
            app.enqueue(NewJob("work", slot="s"), within=connection)


@pytest.mark.parametrize("level", OLD)
@pytest.mark.parametrize("options", [{}, {"train": "t"}, {"slot": "s"}, {"unique": "u"}], ids=repr)
def test_a_claim_newer_than_your_snapshot_is_not_called_lost(
    postgres: Place, level: str, options: dict[str, Any]
) -> None:
    app = postgres.app().sync
    [job] = app.enqueue(NewJob("work", **options))
    with snapshot(postgres, level) as connection:
        claim = app.claim_job(job.id)
        with pytest.raises(psycopg.errors.SerializationFailure):
            claim.succeed(within=connection)
    claim.succeed()


# -- Keys in any order --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"on_conflict": "replace"}, {"unique_for": 60}], ids=repr)
def test_keys_in_bulk_and_in_any_order_never_undo_each_other(locking: Place, options: dict[str, Any]) -> None:
    """Another stores the same keys the other way round."""
    app = locking.app().sync
    keys = [f"k{n:02}" for n in range(40)]
    together_now = threading.Barrier(2, timeout=20)

    def put(keys: list[str]) -> None:
        for _ in range(20):
            with transaction(locking) as connection:
                together_now.wait()
                app.enqueue(*(NewJob("work", unique=key, **options) for key in keys), within=connection)
                connection.rollback()

    together(lambda: put(keys), lambda: put(keys[::-1]))


# -- MariaDB: nobody without a gate or a key waits -----------------------------------------------


def use_plain_jobs(app: Any) -> int:
    app.enqueue(NewJob("plain"), NewJob("plain"))
    claims = app.claim(limit=5, kinds=["plain"])
    for claim in claims:
        claim.succeed()
    return len(claims)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("options", [{}, {"train": "t"}, {"slot": "s"}, {"unique": "u"}], ids=repr)
def test_a_success_with_children_keeps_nobody_from_settling(
    locking: Place, level: str, options: dict[str, Any]
) -> None:
    app = locking.app().sync
    use_plain_jobs(app)
    [job] = app.enqueue(NewJob("work"))
    claim = app.claim_job(job.id)
    with transaction(locking, level) as connection:
        claim.succeed(then=[NewJob("child", **options)], within=connection)
        assert answers_within(5, lambda: use_plain_jobs(app), then=connection.rollback) == [2]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("options", [{}, {"on_conflict": "replace"}], ids=repr)
def test_a_new_key_keeps_nobody_from_storing_plain_jobs(
    locking: Place, level: str, options: dict[str, Any]
) -> None:
    app = locking.app().sync
    use_plain_jobs(app)
    with transaction(locking, level) as connection:
        app.enqueue(NewJob("work", unique=uuid4().hex, **options), within=connection)
        assert answers_within(5, lambda: use_plain_jobs(app), then=connection.rollback) == [2]


@pytest.mark.parametrize("options", [{}, {"unique": "k"}, {"train": "t"}], ids=repr)
def test_a_job_that_finished_since_your_snapshot_is_not_stored_a_second_time(
    locking: Place, options: dict[str, Any]
) -> None:
    _enqueue_again_in_an_old_snapshot(locking, "repeatable read", options)


def test_a_job_that_finished_is_not_stored_a_second_time_where_all_is_serializable(postgres: Place) -> None:
    _enqueue_again_in_an_old_snapshot(postgres, "serializable", {})


def _enqueue_again_in_an_old_snapshot(locking: Place, level: str, options: dict[str, Any]) -> None:
    app, new = locking.app().sync, NewJob("work", **options)
    with snapshot(locking, level) as connection, contextlib.suppress(psycopg.errors.SerializationFailure):
        app.enqueue(new)
        app.claim_job(new.id).succeed("the first")
        [again] = app.enqueue(new, within=connection)
        connection.commit()
        assert not again.is_new

    assert {state: many for state, many in app.counts().items() if many} == {"succeeded": 1}
    with transaction(locking, level) as connection:
        [known] = app.enqueue(new, within=connection)
        [other] = app.enqueue(other_new := NewJob("other"), within=connection)
        connection.commit()
    assert (known.result, other.is_new, app.get(other_new.id).state) == ("the first", True, "ready")


# -- Pipelines ----------------------------------------------------------------------------------


def two_steps(app: Any) -> tuple[Any, NewJob]:
    """A claim of the first and the second, which waits for it."""
    pipeline = app.pipeline("p")
    first = pipeline.add(NewJob("first"))
    second = pipeline.add(NewJob("second"), after=[first])
    pipeline.sync.enqueue()
    return app.sync.claim_job(first.id), second


@pytest.mark.parametrize("level", LEVELS)
def test_pipelines_do_not_wait_for_each_other(locking: Place, level: str) -> None:
    app = locking.app()
    mine, _ = two_steps(app)
    other, second = two_steps(app)

    def go_on() -> Job:
        other.succeed()
        two_steps(app)[0].succeed()
        return app.sync.claim_job(second.id).job

    with transaction(locking, level) as connection:
        mine.succeed(within=connection)
        assert answers_within(5, go_on, then=connection.rollback) != []


def test_a_turn_of_a_worker_waits_for_no_pipeline(locking: Place) -> None:
    app = locking.app()
    done: list[int] = []

    @app.job
    async def plain(n: int) -> None:
        done.append(n)

    pipeline = app.pipeline("p")
    by_hand, beside = pipeline.add(NewJob("by_hand")), pipeline.add(NewJob("plain", {"n": -1}))
    last = pipeline.add(NewJob("plain", {"n": -2}), after=[by_hand, beside])
    pipeline.sync.enqueue()
    claim = app.sync.claim_job(by_hand.id)

    async def work(connection: Any) -> list[int]:
        worker = Worker(app, concurrency=2)
        running = asyncio.create_task(worker.run())
        while not done:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        for n in range(5):
            await app.enqueue(NewJob("plain", {"n": n}))
        await asyncio.sleep(3)
        before = sorted(done)
        connection.commit()
        await app.wait(last.id, timeout=20)
        worker.stop()
        await running
        await app.close()
        return before

    with transaction(locking) as connection:
        claim.succeed(within=connection)
        assert asyncio.run(work(connection)) == [-1, 0, 1, 2, 3, 4]
    assert app.sync.get(last.id).state == "succeeded"


@pytest.mark.parametrize("how", ["enqueued", "set off"])
def test_a_step_that_came_while_you_waited_for_its_slot_is_superseded_with_all_after_it(
    locking: Place, how: str
) -> None:
    app = locking.app()
    pipeline = app.pipeline("p")
    before = [pipeline.add(NewJob("before"))] if how == "set off" else []
    step = pipeline.add(NewJob("step", slot="s"), after=before)
    after = pipeline.add(NewJob("after"), after=[step])
    with transaction(locking) as connection:
        if before:
            pipeline.sync.enqueue()
            app.sync.claim_job(before[0].id).succeed(within=connection)
        else:
            pipeline.sync.enqueue(within=connection)
        with begun(lambda: app.sync.enqueue(NewJob("work", slot="s", slot_policy="replace"))) as future:
            connection.commit()
        future.result()

    assert [app.sync.get(job.id).state for job in (step, after)] == ["cancelled", "cancelled"]


def test_a_pipeline_newer_than_your_snapshot_is_superseded_to_its_end(places: Places) -> None:
    place = places("mariadb")
    app = place.app()
    with snapshot(place, "repeatable read") as connection:
        pipeline = app.pipeline("p")
        jobs = [pipeline.add(NewJob("step", slot="s"))]
        for _ in range(2):
            jobs.append(pipeline.add(NewJob("after"), after=[jobs[-1]]))
        pipeline.sync.enqueue()
        app.sync.enqueue(NewJob("work", slot="s", slot_policy="replace"), within=connection)
        connection.commit()

    assert [app.sync.get(job.id).state for job in jobs] == ["cancelled"] * 3


@pytest.mark.parametrize("level", LEVELS)
def test_new_pipelines_never_undo_each_other(locking: Place, level: str) -> None:
    app = locking.app()
    at_once = threading.Barrier(3, timeout=20)

    def put() -> None:
        for _ in range(5):
            pipeline = app.pipeline("p")
            pipeline.add(NewJob("after"), after=[pipeline.add(NewJob("first"))])
            with transaction(locking, level) as connection:
                at_once.wait()
                assert [job.is_new for job in pipeline.sync.enqueue(within=connection)] == [True, True]
                connection.commit()
            assert [job.is_new for job in pipeline.sync.enqueue()] == [False, False]

    together(put, put, put)


def test_a_claim_that_is_lost_locks_nobody_at_read_committed(postgres: Place) -> None:
    app = postgres.app().sync
    [job] = app.enqueue(NewJob("work"))
    old = app.claim_job(job.id)
    old.release()
    new = app.claim_job(job.id)
    with transaction(postgres) as connection:
        with pytest.raises(LeaseLost):
            old.succeed(within=connection)
        assert answers_within(5, new.succeed, then=connection.rollback) == [None]
