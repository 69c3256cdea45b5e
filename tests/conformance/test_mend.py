"""A sweep heals trains, slots and pipelines from which a person deleted something by hand."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
import redis

from dibs import JobState, NewJob
from dibs.operations import upkeep
from tests.support.faces import Face
from tests.support.matrix import MYSQLS
from tests.support.servers import mysql_connection
from tests.support.servers.failover import primary_url

DeleteByHand = Callable[[UUID], None]

within_reach = pytest.mark.parametrize(
    "engine", ["sqlite", "postgresql", "mariadb", "mysql", "redis", "redis-cluster"], indirect=True
)


@pytest.fixture
def delete_by_hand(app: Face, engine: str, url: str) -> DeleteByHand:
    """Remove a job as a person would who knows nothing of gates: plain SQL, or DEL."""
    if engine == "memory":
        pytest.skip("nobody reaches into the memory of a process by hand")

    def delete(id: UUID) -> None:
        if engine.startswith("redis"):
            with contextlib.closing(redis.Redis.from_url(primary_url(url))) as client:
                assert client.delete(f"{{dibs}}:job:{id}") == 1
            return
        with contextlib.closing(_connection(engine, url)) as connection:
            with contextlib.closing(connection.cursor()) as cursor:
                for statement in DELETIONS:
                    cursor.execute(statement.replace("?", MARKS.get(engine, "%s")), [_as_stored(engine, id)])
            connection.commit()

    return delete


@pytest.fixture
def forget_gates_by_hand(
    app: Face, engine: str, url: str, delete_by_hand: DeleteByHand
) -> Callable[[], None]:
    """Remove all that a store notes of its gates; what the jobs know of them stays."""

    def forget() -> None:
        if engine.startswith("redis"):
            with contextlib.closing(redis.Redis.from_url(primary_url(url))) as client:
                gone = [key for name in GATE_KEYS for key in client.scan_iter(f"{{dibs}}:{name}")]
                assert client.delete(*gone)
            return
        with contextlib.closing(_connection(engine, url)) as connection:
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute("delete from dibs_gates")
            connection.commit()

    return forget


GATE_KEYS = ("gates", "gate:*", "members:*", "line:*", "going:*")
DELETIONS = ("delete from dibs_jobs where id = ?", "delete from dibs_finished where id = ?")
MARKS = {"sqlite": "?"}


def _as_stored(engine: str, id: UUID) -> Any:
    return {"sqlite": str(id), **dict.fromkeys(MYSQLS, id.bytes)}.get(engine, id)


def _connection(engine: str, url: str) -> Any:
    if engine == "sqlite":
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    return mysql_connection(url) if engine in MYSQLS else psycopg.connect(url)


@within_reach
@pytest.mark.parametrize("runs", [False, True])
def test_a_train_whose_head_was_deleted_by_hand_goes_on(
    app: Face, delete_by_hand: DeleteByHand, runs: bool
) -> None:
    first, second, third = app.enqueue(*[NewJob("work", train="t") for _ in range(3)])
    if runs:
        app.claim_job(first.id)

    delete_by_hand(first.id)
    app.sweep()

    assert [app.get(job.id).state for job in (second, third)] == ["ready", "blocked"]


def test_a_train_whose_holder_was_deleted_by_hand_goes_on(app: Face, delete_by_hand: DeleteByHand) -> None:
    first, second = app.enqueue(*[NewJob("work", train="t", on_failed="hold") for _ in range(2)])
    app.claim_job(first.id).fail("broken", retry=False)

    delete_by_hand(first.id)
    app.sweep()

    assert app.get(second.id).state == "ready"
    assert app.trains.held() == []


def test_a_slot_whose_running_job_was_deleted_by_hand_goes_on(
    app: Face, delete_by_hand: DeleteByHand
) -> None:
    first, second = app.enqueue(*[NewJob("work", slot="s") for _ in range(2)])
    app.claim_job(first.id)

    delete_by_hand(first.id)
    app.sweep()

    assert app.get(second.id).state == "ready"


def test_a_train_of_which_all_was_deleted_by_hand_leaves_no_trace(
    app: Face, delete_by_hand: DeleteByHand
) -> None:
    for job in app.enqueue(*[NewJob("work", train="t") for _ in range(2)]):
        delete_by_hand(job.id)

    app.sweep()

    assert app.trains.list() == []
    assert app.enqueue(NewJob("work", train="t"))[0].state == "ready"


def test_the_next_enqueue_needs_no_sweep_to_see_that_the_head_is_gone(
    app: Face, delete_by_hand: DeleteByHand
) -> None:
    first, second = app.enqueue(*[NewJob("work", train="t") for _ in range(2)])
    delete_by_hand(first.id)

    [third] = app.enqueue(NewJob("work", train="t"))

    assert (app.get(second.id).state, third.state) == ("ready", "blocked")


@within_reach
@pytest.mark.parametrize(
    "gate", [{"train": "t"}, {"slot": "s"}, {"slot": ("s", 1), "slot_limit": 2}], ids=repr
)
def test_those_whose_gate_was_deleted_by_hand_with_who_was_ahead_go_on(
    app: Face,
    delete_by_hand: DeleteByHand,
    forget_gates_by_hand: Callable[[], None],
    gate: dict[str, Any],
) -> None:
    ahead, *jobs = app.enqueue(*[NewJob("work", **gate) for _ in range(5)])
    plain, _ = app.enqueue(NewJob("plain", priority=-1), NewJob("plain", priority=-1, delay=60))
    at_once = gate.get("slot_limit", 1)

    forget_gates_by_hand()
    for job in [ahead, *jobs[: at_once - 1]]:
        delete_by_hand(job.id)
    app.sweep()

    ran = []
    while claims := app.claim(limit=10):
        assert len([claim for claim in claims if claim.job.kind == "work"]) <= at_once
        for claim in claims:
            ran.append(claim.job.id)
            claim.succeed()
    assert sorted(ran) == sorted([plain.id, *(job.id for job in jobs[at_once - 1 :])])
    assert [id for id in ran if id != plain.id] == [job.id for job in jobs[at_once - 1 :]]
    assert app.trains.list() == []


@pytest.mark.parametrize("gate", [{"train": "t"}, {"slot": "s"}], ids=repr)
def test_who_runs_stays_alone_when_its_gate_was_deleted_by_hand(
    app: Face, forget_gates_by_hand: Callable[[], None], gate: dict[str, Any]
) -> None:
    first, second, third = app.enqueue(*[NewJob("work", **gate) for _ in range(3)])
    claim = app.claim_job(first.id)

    forget_gates_by_hand()
    app.sweep()

    assert [app.get(job.id).state for job in (first, second, third)] == ["running", "blocked", "blocked"]
    claim.succeed()
    assert [app.get(job.id).state for job in (second, third)] == ["ready", "blocked"]


def test_a_gate_that_a_sweep_makes_anew_gives_no_place_twice(
    app: Face, forget_gates_by_hand: Callable[[], None]
) -> None:
    jobs = app.enqueue(*[NewJob("work", train="t", max_attempts=1) for _ in range(3)])
    app.claim_job(jobs[0].id, lease=1)
    app.age(10)

    forget_gates_by_hand()
    app.sweep()
    jobs += app.enqueue(NewJob("work", train="t"))

    for job in jobs[1:]:
        [claim] = app.claim(limit=9)
        assert claim.job.id == job.id
        claim.succeed()


def test_a_sweep_looks_for_lost_gates_page_by_page(
    app: Face,
    delete_by_hand: DeleteByHand,
    forget_gates_by_hand: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "GATES", 2)
    firsts, seconds = [app.enqueue(*[NewJob(f"k{n % 3}", **_gate(n)) for n in range(10)]) for _ in range(2)]

    forget_gates_by_hand()
    for job in firsts:
        delete_by_hand(job.id)
    app.sweep()

    assert {app.get(job.id).state for job in seconds} == {"ready"}


def _gate(n: int) -> dict[str, str]:
    return {"train": f"t{n}"} if n % 2 else {"slot": f"s{n}"}


# -- Pipelines ----------------------------------------------------------------------------------


def _drawn(
    app: Face, on_failed: str = "cancel", **options: Any
) -> tuple[Any, NewJob, NewJob, NewJob, NewJob]:
    """first, then second, then third; and beside them other, for which third waits, too."""
    pipeline = app.pipeline("nightly", on_failed=on_failed)
    first, other = pipeline.add(NewJob("first", max_attempts=1)), pipeline.add(NewJob("other"))
    second = pipeline.add(NewJob("second", **options), after=[first])
    third = pipeline.add(NewJob("third"), after=[second, other])
    pipeline.enqueue()
    return pipeline, first, other, second, third


@pytest.mark.parametrize("on_failed", ["cancel", "hold"])
@pytest.mark.parametrize("runs", [False, True])
def test_those_after_a_job_that_was_deleted_by_hand_are_cancelled(
    app: Face, delete_by_hand: DeleteByHand, runs: bool, on_failed: str
) -> None:
    _, first, other, second, third = _drawn(app, on_failed)
    if runs:
        app.claim_job(first.id)

    delete_by_hand(first.id)
    app.sweep()

    message = f"job {first.id} before it was deleted"
    assert [(job.state, job.message) for job in map(app.get, (second.id, third.id))] == [
        ("cancelled", message)
    ] * 2
    assert app.get(other.id).state == "ready"
    assert app.retry(second.id).state == "ready"
    assert app.get(third.id).state == "blocked"


def test_a_pipeline_of_which_nothing_was_deleted_is_left_as_it_is(app: Face) -> None:
    pipeline, first, _, second, third = _drawn(app, train="t")
    app.claim_job(first.id).succeed()
    before = app.pipelines.get(pipeline.id)

    app.sweep()

    assert app.pipelines.get(pipeline.id) == before
    assert [app.get(job.id).state for job in (second, third)] == ["ready", "blocked"]


def test_a_job_that_succeeded_before_it_was_deleted_by_hand_counts_all_the_same(
    app: Face, delete_by_hand: DeleteByHand
) -> None:
    _, first, other, second, third = _drawn(app)
    app.claim_job(first.id).succeed()
    app.claim_job(other.id).succeed()

    delete_by_hand(first.id)
    delete_by_hand(other.id)
    app.sweep()

    assert [app.get(job.id).state for job in (second, third)] == ["ready", "blocked"]
    app.claim_job(second.id).succeed()
    assert app.get(third.id).state == "ready"


def test_a_step_on_a_train_that_was_deleted_by_hand_is_waited_for_by_nobody(
    app: Face, delete_by_hand: DeleteByHand
) -> None:
    _, first, _, second, third = _drawn(app, train="t")

    delete_by_hand(second.id)
    app.sweep()
    app.claim_job(first.id).succeed()

    assert app.get(third.id).message == f"job {second.id} before it was deleted"
    assert app.trains.get("t") is None


def test_a_job_that_was_retried_after_the_failed_one_before_it_was_pruned_does_not_wait_for_ever(
    app: Face,
) -> None:
    _, first, _, second, _ = _drawn(app)
    app.claim_job(first.id).fail("broken")
    app.age(10)
    app.ask(lambda: upkeep.prune(0, {JobState.failed}))
    assert app.retry(second.id).state == "blocked"

    app.sweep()

    assert app.get(first.id) is None
    assert app.get(second.id).message == f"job {first.id} before it was deleted"
    assert app.retry(second.id).state == "ready"
