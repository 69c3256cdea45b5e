"""Pipelines on Redis: more children than one script changes, pieces, deletions by hand, broken rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
import redis

from dibs import Dibs, JobState, NewJob
from dibs.engines.redis import engine as redis_engine
from dibs.operations import upkeep
from dibs.operations.pipelines import rows_of
from tests.support.fault_stores import Place
from tests.support.internals import age, core_of, engine_of, run_script, store_of
from tests.support.redis_checks import STORE, astray, break_script, call_once, misplaced

SCRIPTS = ("settle", "cancel", "retry", "delete", "go_on", "sweep", "enqueue_pipeline")


@pytest.fixture
def client(on_redis: Place) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(on_redis.url, decode_responses=True)) as client:
        yield client


@pytest.fixture
def app(on_redis: Place) -> Dibs:
    return on_redis.app()


def slow(app: Dibs, budget: int = 3) -> Dibs:
    """Let one script change hardly any job."""
    for script in SCRIPTS:
        break_script(app, script, "local budget = 500 ", f"local budget = {budget}")
    return app


def wide(app: Dibs, many: int = 20, on_failed: str = "cancel") -> tuple[NewJob, list[NewJob], NewJob]:
    """first, then many beside each other, then last."""
    drawn = app.sync.pipeline("wide", on_failed=on_failed)
    first = drawn.add(NewJob("first", max_attempts=1))
    both = [drawn.add(NewJob("many"), after=[first]) for _ in range(many)]
    last = drawn.add(NewJob("last"), after=both)
    drawn.enqueue()
    return first, both, last


def counts(app: Dibs) -> dict[str, int]:
    return {state: many for state, many in app.sync.counts().items() if many}


def is_whole(client: redis.Redis) -> bool:
    return not client.exists(f"{STORE}:onward") and (misplaced(client), astray(client)) == ([], [])


# -- More than one script moves -------------------------------------------------------------------


def test_all_after_a_job_are_moved_however_many_they_are(app: Dibs, client: redis.Redis) -> None:
    first, _, last = wide(slow(app))

    app.sync.claim_job(first.id).fail("broken")
    assert counts(app) == {"failed": 1, "cancelled": 21}
    assert app.sync.get(last.id).message == f"job {first.id} before it failed"
    assert is_whole(client)

    app.sync.retry(first.id)
    assert counts(app) == {"ready": 1, "blocked": 21}
    assert is_whole(client)

    app.sync.claim_job(first.id).succeed()
    assert counts(app) == {"succeeded": 1, "ready": 20, "blocked": 1}
    assert is_whole(client)

    for claim in app.sync.claim(limit=50):
        claim.succeed()
    assert app.sync.get(last.id).state == "ready"
    assert is_whole(client)


@pytest.mark.long
def test_ten_thousand_after_a_job_are_moved(app: Dibs, client: redis.Redis) -> None:
    first, _, _ = wide(app, 10_000)

    app.sync.claim_job(first.id).fail("broken")
    assert counts(app) == {"failed": 1, "cancelled": 10_001}
    app.sync.retry(first.id)
    app.sync.claim_job(first.id).succeed()

    assert counts(app) == {"succeeded": 1, "ready": 10_000, "blocked": 1}
    assert is_whole(client)


def test_whoever_dies_half_way_a_sweep_goes_on(app: Dibs, client: redis.Redis) -> None:
    first, _, _ = wide(slow(app))

    call_once(app, "cancel", ids=[first.id], reason=None)
    assert 1 < counts(app)["cancelled"] < 22
    assert run_script(app, upkeep.upcoming).overdue
    app.sync.sweep()

    assert counts(app) == {"cancelled": 22}
    assert is_whole(client)


@pytest.mark.parametrize("then", ["succeed", "fail", "delete"])
def test_a_job_that_is_retried_half_way_is_waited_for_by_all(
    app: Dibs, client: redis.Redis, then: str
) -> None:
    """Some were cancelled, and the others not yet."""
    first, _, _ = wide(slow(app))
    call_once(app, "cancel", ids=[first.id], reason=None)

    call_once(app, "retry", ids=[first.id])
    if then == "delete":
        app.sync.delete(first.id)
    else:
        claim = app.sync.claim_job(first.id)
        claim.succeed() if then == "succeed" else claim.fail("broken")
    app.sync.sweep()

    ends = {
        "succeed": {"succeeded": 1, "ready": 20, "blocked": 1},
        "fail": {"failed": 1, "cancelled": 21},
        "delete": {"cancelled": 21},
    }
    assert counts(app) == ends[then]
    assert is_whole(client)


def test_a_job_that_is_deleted_half_way_has_still_succeeded(app: Dibs, client: redis.Redis) -> None:
    first, _, _ = wide(slow(app))
    claim = app.sync.claim_job(first.id)
    values = (
        str(claim.job.id),
        str(claim.token),
        "succeeded",
        "succeeded",
        None,
        False,
        None,
        "[]",
        None,
        None,
    )
    call_once(app, "settle", settlements=[values], children=[])
    assert counts(app)["ready"] < 20

    call_once(app, "delete", ids=[first.id])
    app.sync.sweep()

    assert counts(app) == {"ready": 20, "blocked": 1}
    assert is_whole(client)


# -- In pieces ------------------------------------------------------------------------------------


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_engine, "MOST_AT_ONCE", 3)


def several(app: Dibs) -> Any:
    """Eight jobs on a train or without, each after the one two before it."""
    drawn = app.sync.pipeline("several")
    added: list[NewJob] = []
    for number in range(8):
        gate = {"train": "t"} if number % 4 == 0 else {"delay": 60} if number == 1 else {}
        added.append(drawn.add(NewJob(f"k{number}", **gate), after=added[-2:-1]))
    return drawn


@pytest.mark.usefixtures("in_pieces")
def test_a_pipeline_in_pieces_is_as_one_in_one_piece(app: Dibs, client: redis.Redis) -> None:
    drawn = several(slow(app))

    jobs = drawn.enqueue()

    assert [job.state for job in jobs] == ["ready", "scheduled", *["blocked"] * 6]
    assert [app.sync.get(job.id).state for job in jobs] == [job.state for job in jobs]
    assert [job.is_new for job in drawn.enqueue()] == [False] * 8
    assert set(app.sync.pipelines.get(drawn.id).after) == {job.id for job in jobs[2:]}
    assert is_whole(client)
    age(app, 100)
    app.sync.sweep()
    for _ in range(4):
        for claim in app.sync.claim(limit=9):
            claim.succeed()
    assert counts(app) == {"succeeded": 8}
    assert is_whole(client)


def calls_of(app: Dibs, drawn: Any) -> list[dict[str, Any]]:
    """Return the calls that an enqueue would make."""
    engine: Any = engine_of(app)
    rows = rows_of(drawn._draft, [core_of(app).registry.prepare(new) for new in drawn._draft.jobs.values()])
    about = (drawn.id, drawn._draft.name, drawn._draft.on_failed)
    return list(engine.pipelines.enqueue_calls(about, drawn._draft.edges, rows))


def send(app: Dibs, call: Any) -> Any:
    def requests() -> Any:
        return (yield call)

    store: Any = store_of(app)
    return store._sync._send(requests)


@pytest.mark.usefixtures("in_pieces")
def test_nothing_of_a_pipeline_runs_before_all_of_it_is_stored(app: Dibs, client: redis.Redis) -> None:
    drawn = several(app)

    for call in calls_of(app, drawn)[:-1]:
        send(app, call)
        app.sync.sweep()
        assert app.sync.claim(limit=9) == []

    assert counts(app) == {"blocked": 8}
    drawn.enqueue()
    assert counts(app) == {"ready": 1, "scheduled": 1, "blocked": 6}
    assert is_whole(client)


@pytest.mark.usefixtures("in_pieces")
def test_what_is_left_of_a_pipeline_that_nobody_stored_whole_is_removed(
    app: Dibs, client: redis.Redis
) -> None:
    drawn = several(slow(app))
    for call in calls_of(app, drawn)[:2]:
        send(app, call)
    age(app, 1800)
    app.sync.sweep()
    assert counts(app) == {"blocked": 6}

    age(app, 1900)
    app.sync.sweep()

    assert counts(app) == {}
    assert client.keys() == []
    assert len(drawn.enqueue()) == 8


@pytest.mark.usefixtures("in_pieces")
def test_whoever_dies_after_the_last_piece_a_sweep_lets_them_go(app: Dibs, client: redis.Redis) -> None:
    drawn = several(slow(app, budget=1))
    for call in calls_of(app, drawn):
        send(app, call)
    assert client.exists(f"{STORE}:onward")

    app.sync.sweep()

    assert counts(app) == {"ready": 1, "scheduled": 1, "blocked": 6}
    assert is_whole(client)


# -- Kept -----------------------------------------------------------------------------------------


def test_prune_does_not_walk_past_those_who_are_waited_for(app: Dibs, client: redis.Redis) -> None:
    first, both, _ = wide(app, 2)
    app.sync.claim_job(first.id).succeed()
    age(app, 60)

    assert app.sync.prune(0) == 0
    assert client.zcard(f"{STORE}:ended:succeeded") == 0
    for new in both:
        app.sync.claim_job(new.id).succeed()

    assert app.sync.prune(0) == 1
    assert app.sync.get(first.id) is None
    assert misplaced(client) == []


def test_who_is_kept_for_a_job_that_was_deleted_by_hand_is_pruned_later(
    app: Dibs, client: redis.Redis
) -> None:
    first, both, last = wide(app, 1)
    app.sync.claim_job(first.id).succeed()
    age(app, 60)
    app.sync.prune(0)

    for new in (*both, last):
        client.delete(f"{STORE}:job:{new.id}")
    age(app, 3600)

    assert app.sync.prune(0) == 1


# -- Deleted by hand ------------------------------------------------------------------------------


def test_a_success_that_nobody_was_told_of_is_told_by_a_sweep(app: Dibs, client: redis.Redis) -> None:
    first, both, _ = wide(app, 2)
    assert client.delete(f"{STORE}:children:{first.id}") == 1
    app.sync.claim_job(first.id).succeed()
    assert counts(app)["blocked"] == 3

    app.sync.sweep()

    assert [app.sync.get(new.id).state for new in both] == ["ready", "ready"]


def test_a_job_that_lost_its_parents_never_starts_by_itself(app: Dibs, client: redis.Redis) -> None:
    _, both, last = wide(app, 2)
    client.delete(f"{STORE}:parents:{both[0].id}")

    app.sync.sweep()

    job = app.sync.get(both[0].id)
    assert (job.state, app.sync.get(last.id).state) == ("cancelled", "cancelled")
    assert "its parents was deleted" in job.message
    assert app.sync.retry(job.id).state == "ready"


def test_more_who_wait_than_a_page_are_all_looked_at(
    app: Dibs, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "GATES", 2)
    gone = [wide(app, 2)[0].id for _ in range(3)]
    head, second = app.sync.enqueue(NewJob("work", train="t"), NewJob("work", train="t"))
    for id in (*gone, head.id):
        client.delete(f"{STORE}:job:{id}")

    app.sync.sweep()

    assert [(job.id, job.state) for job in app.sync.find(state=["ready", "blocked"])] == [
        (second.id, "ready")
    ]
    assert counts(app)["cancelled"] == 9


# -- Rules broken on purpose ----------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """What is broken, in the script of which question, and the symptom."""

    name: str
    question: str
    text: str
    instead: str
    symptom: Callable[[Dibs], str]


def _chain(app: Dibs, on_failed: str = "cancel") -> list[UUID]:
    drawn = app.sync.pipeline("chain", on_failed=on_failed)
    a = drawn.add(NewJob("a", max_attempts=1))
    b = drawn.add(NewJob("b"))
    c = drawn.add(NewJob("c"), after=[a, b])
    d = drawn.add(NewJob("d"), after=[c])
    drawn.enqueue()
    return [new.id for new in (a, b, c, d)]


def _state(app: Dibs, id: UUID) -> str:
    job = app.sync.get(id)
    return "" if job is None else str(job.state)


def _one_of_two_succeeds(app: Dibs) -> str:
    a, _, c, _ = _chain(app)
    app.sync.claim_job(a).succeed()
    return "too early" if _state(app, c) != "blocked" else ""


def _both_succeed(app: Dibs) -> str:
    a, b, c, _ = _chain(app)
    for id in (a, b):
        app.sync.claim_job(id).succeed()
    return "stuck" if _state(app, c) != "ready" else ""


def _one_fails(app: Dibs) -> str:
    a, *_, c, d = _chain(app)
    app.sync.claim_job(a).fail("broken")
    return "not told" if [_state(app, id) for id in (c, d)] != ["cancelled"] * 2 else ""


def _one_fails_and_holds(app: Dibs) -> str:
    a, *_, c, _ = _chain(app, "hold")
    app.sync.claim_job(a).fail("broken")
    return "not held" if _state(app, c) != "blocked" else ""


def _retried(app: Dibs) -> str:
    a, *_, d = _chain(app)
    app.sync.claim_job(a).fail("broken")
    app.sync.retry(a)
    return "not revived" if _state(app, d) != "blocked" else ""


def _retried_though_another_failed(app: Dibs) -> str:
    a, b, c, _ = _chain(app)
    claims = [app.sync.claim_job(id) for id in (a, b)]
    for claim in claims:
        claim.fail("broken", retry=False)
    app.sync.retry(a)
    return "revived" if _state(app, c) != "cancelled" else ""


def _retried_though_a_person_cancelled(app: Dibs) -> str:
    a, _, c, _ = _chain(app)
    app.sync.cancel(c)
    app.sync.cancel(a)
    app.sync.retry(a)
    return "revived" if _state(app, c) != "cancelled" else ""


def _deleted(app: Dibs) -> str:
    a, b, c, _ = _chain(app)
    app.sync.delete(a)
    app.sync.claim_job(b).succeed()
    pipeline = app.sync.pipelines.get(app.sync.get(c).pipeline_id)
    if pipeline.after[c] != (b,):
        return "still named"
    return "waits for a job that is gone" if app.sync.retry(c).state != JobState.ready else ""


def _pruned(app: Dibs) -> str:
    a, *_ = _chain(app)
    app.sync.claim_job(a).succeed()
    age(app, 60)
    return "pruned" if app.sync.prune(0) else ""


def _let_go_half_way(app: Dibs) -> str:
    break_script(app, "cancel", "local budget = 500 ", "local budget = 3")
    first, *_ = wide(app)
    call_once(app, "cancel", ids=[first.id], reason=None)
    app.sync.sweep()
    return "half done" if counts(app) != {"cancelled": 22} else ""


MUTANTS = [
    Mutant(
        "the first success is enough", "settle", "unmet_of(id) == 0 then", "true then", _one_of_two_succeeds,
    ),
    Mutant(
        "a success is not noted", "settle", "put(parents_key(child), parent, -order)", "", _both_succeed,
    ),
    Mutant("the last success is not reported", "settle", "note('met', job.id)", "", _both_succeed),
    Mutant("a failure is not noted", "settle", "note('cancel', job.id, job.id, job.state)", "", _one_fails),
    Mutant(
        "a failure reaches only the next", "settle",
        "note('cancel', job.id, job.cause.origin, job.cause.state)", "", _one_fails,
    ),
    Mutant(
        "no child is held", "settle", "on_failed(job.pipeline_id) == 'cancel'", "true", _one_fails_and_holds,
    ),
    Mutant("a return is not reported", "retry", "note('revive', job.id)", "", _retried),
    Mutant(
        "a return revives a job with other failed parents", "retry", "or not may_wait(id)", "",
        _retried_though_another_failed,
    ),
    Mutant(
        "a return revives what an operator cancelled", "retry", "and was_cancelled_for_parent(child)", "",
        _retried_though_a_person_cancelled,
    ),
    Mutant("a deletion is waited for", "delete", "forget_edge(one.id, id)\n  end", "end", _deleted),
    Mutant(
        "a deletion counts as success", "delete", "put(parents_key(child), parent, false)", "", _deleted,
    ),
    Mutant(
        "a result is pruned that a child may ask for", "prune", "pipelines().is_waited_for(job.id)", "false",
        _pruned,
    ),
    Mutant("a sweep does not go on", "sweep", "pipelines().resume()", "", _let_go_half_way),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_found_out(on_redis: Place, client: redis.Redis, mutant: Mutant) -> None:
    whole, broken = on_redis.app(), on_redis.app()
    assert mutant.symptom(whole) == ""
    client.flushdb()

    break_script(broken, mutant.question, mutant.text, mutant.instead)

    assert mutant.symptom(broken) or not is_whole(client)
