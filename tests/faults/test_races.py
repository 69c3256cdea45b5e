"""Many at once, with real processes and threads: no job twice, none lost, nobody left out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from dibs import NewJob
from tests.support import fault_cases
from tests.support.fault_stores import Actor, Place, actors, keep_journal, together

SIZES = [
    pytest.param(6, 240, 3, id="small"),
    pytest.param(20, 2000, 1, id="full-size-one-by-one", marks=pytest.mark.long),
    pytest.param(20, 5000, 7, id="full-size-by-seven", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("claimers", "jobs", "limit"), SIZES)
def test_many_processes_claim_every_job_exactly_once(
    shared: Place, claimers: int, jobs: int, limit: int, tmp_path: Path
) -> None:
    app = shared.app()
    enqueued = {job.id for job in app.sync.enqueue(*(NewJob("work") for _ in range(jobs)))}

    with actors(shared.url, claimers) as processes:
        done = _drain_at_once(processes, tmp_path, limit)

    claims = [
        tuple(line.split()) for each in tmp_path.glob("claims-*") for line in each.read_text().splitlines()
    ]
    assert Counter(Counter(id for id, _ in claims).values()) == {1: jobs}, "a job was claimed twice"
    assert {id for id, _ in claims} == {str(id) for id in enqueued}, "a job was lost"
    assert len({token for _, token in claims}) == jobs
    assert app.sync.counts() == {**dict.fromkeys(app.sync.counts(), 0), "succeeded": jobs}
    _they_really_raced(tmp_path, done)


def _drain_at_once(processes: list[Actor], folder: Path, limit: int) -> list[int]:
    for number, process in enumerate(processes):
        process.tell("drain", file=str(folder / f"claims-{number}"), limit=limit)
    return [process.hear() for process in processes]


def _they_really_raced(folder: Path, done: list[int]) -> None:
    """Tokens are in claiming order: with no race the processes would follow one another."""
    by_token = sorted(
        (int(line.split()[1]), file.name)
        for file in folder.glob("claims-*")
        for line in file.read_text().splitlines()
    )
    changes = sum(one[1] != next[1] for one, next in pairwise(by_token))
    assert sum(many > 0 for many in done) >= 3, f"hardly anybody took part: {done}"
    assert changes >= 5, f"the processes took turns: {changes} changes of claimer"


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads of one process change as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("impatient_threads")
@pytest.mark.parametrize("limit", [1, 7])
def test_many_threads_claim_every_job_of_a_memory_store_exactly_once(memory: Place, limit: int) -> None:
    app = memory.app()
    enqueued = [job.id for job in app.sync.enqueue(*(NewJob("work") for _ in range(1000)))]

    def drain() -> list[object]:
        claimed: list[object] = []
        while claims := app.sync.claim(limit=limit):
            claimed += [claim.job.id for claim in claims]
            for claim in claims:
                claim.succeed()
        return claimed

    claimed = together(*[drain] * 8)

    assert Counter(id for each in claimed for id in each) == Counter(enqueued)
    assert app.sync.counts()["succeeded"] == 1000
    assert sum(bool(each) for each in claimed) >= 4, "the threads followed one another"


def test_as_many_claimers_as_ready_jobs_each_get_one(place: Place) -> None:
    assert fault_cases.each_claimer_gets_a_job_of_its_own(place) is None


def test_as_many_claimers_as_ready_jobs_of_a_named_line_each_get_one(shared: Place) -> None:
    wish = {"queues": ["default"], "kinds": ["work"]}
    assert fault_cases.each_claimer_gets_a_job_of_its_own(shared, **wish) is None


@pytest.mark.parametrize(
    "wish",
    [
        pytest.param({}, id="all"),
        pytest.param({"queues": ["one", "two"]}, id="by-queue"),
        pytest.param({"queues": ["one", "two"], "kinds": ["red", "blue"]}, id="by-name"),
    ],
)
def test_as_many_claimers_as_ready_jobs_of_several_lines_each_get_one(
    place: Place, wish: dict[str, list[str]]
) -> None:
    rounds = 20 if place.kind in ("postgresql", "mariadb", "mysql") else 5
    assert fault_cases.each_claimer_gets_a_job_of_many_lines(place, rounds=rounds, **wish) is None


@pytest.mark.parametrize(
    "scene",
    [
        fault_cases.a_claim_never_waits,
        fault_cases.a_claim_never_waits_for_another_line,
        fault_cases.a_claim_by_id_waits_for_nobody_for_long,
    ],
)
def test_a_ready_row_that_somebody_has_locked_delays_nobody(locking: Place, scene: fault_cases.Scene) -> None:
    assert scene(locking) is None


@pytest.mark.parametrize("limit", [1, 2])
def test_a_unique_key_held_in_an_open_transaction_delays_no_claim(locking: Place, limit: int) -> None:
    app = locking.apps(1)[0]
    [held] = app.sync.enqueue(NewJob("rare", unique="key", priority=5))
    [other] = app.sync.enqueue(NewJob("common"))
    with locking.connect() as connection, connection.transaction():
        [known] = app.sync.enqueue(NewJob("rare", unique="key"), within=connection)

        claims = app.sync.claim(limit=limit)

    assert known.id == held.id
    assert [claim.job.id for claim in claims] == [held.id, other.id][:limit]


def test_of_many_who_want_one_job_exactly_one_gets_it(place: Place) -> None:
    assert fault_cases.one_of_many_wins_the_job(place, rounds=50) is None


@pytest.mark.parametrize("limit", [1, 5])
def test_a_queue_never_runs_more_than_its_limit(place: Place, limit: int) -> None:
    assert fault_cases.a_limit_holds_under_race(place, limit=limit) is None


def test_a_queue_never_runs_more_than_its_limit_when_jobs_are_claimed_by_id(place: Place) -> None:
    apps = place.apps(8)
    apps[0].sync.limit("narrow", 3)
    jobs = apps[0].sync.enqueue(*(NewJob("work", queue="narrow") for _ in range(8)))

    answers = together(
        *((lambda app=app, job=job: app.sync.claim_job(job.id)) for app, job in zip(apps, jobs, strict=True))
    )

    winners = [claim for claim in answers if claim is not None]
    assert len(winners) == apps[0].sync.counts("narrow")["running"] == 3


def test_a_unique_key_raced_for_by_many_is_held_once(place: Place) -> None:
    assert fault_cases.a_unique_key_is_held_once(place) is None


def test_a_unique_key_whose_holder_is_just_finishing_is_always_answered(place: Place) -> None:
    assert fault_cases.a_unique_key_is_never_answered_by_nobody(place) is None


def test_a_failed_job_retried_by_many_comes_back_once(place: Place) -> None:
    assert fault_cases.a_retry_by_many_leaves_one_copy(place) is None


def test_a_tick_that_many_workers_see_at_different_times_is_enqueued_once(place: Place) -> None:
    assert fault_cases.a_tick_is_enqueued_once(place, rounds=20) is None


def test_the_same_new_job_enqueued_by_many_threads_is_stored_once(place: Place) -> None:
    assert fault_cases.a_job_enqueued_by_many_is_stored_once(place) is None


def test_the_same_new_job_enqueued_by_many_processes_is_stored_once(shared: Place) -> None:
    app, journal = shared.app(), keep_journal(shared)
    ids = [str(NewJob("work").id) for _ in range(15)]

    with actors(shared.url, 4) as processes:
        answers = [_ask_all(processes, id) for id in ids]

    assert [sorted(answer) for answer in answers] == [[False, False, False, True]] * len(ids)
    assert {str(job.id) for job in app.sync.find(limit=100)} == set(ids)
    assert all(journal(id) == [("ready", None)] for id in ids)


def _ask_all(processes: list[Actor], id: str) -> list[bool]:
    for process in processes:
        process.tell("enqueue", kind="work", id=id)
    return [process.hear() for process in processes]


@pytest.mark.parametrize(
    "scene",
    [
        fault_cases.an_enqueue_repeated_stores_nothing_new,
        fault_cases.an_enqueue_overtaken_by_its_twin_stores_nothing_new,
        fault_cases.a_unique_key_that_is_taken_names_its_holder,
        fault_cases.a_retry_respects_the_unique_key,
    ],
)
def test_nothing_is_stored_twice(place: Place, scene: fault_cases.Scene) -> None:
    assert scene(place) is None
