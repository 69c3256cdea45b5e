"""The suite can fail: each statement, broken on purpose, is found out by the scene made for it.

A mutant is one replaced text in one block of a dialect. `Mutant.text` must still be there: when a
statement is reworded, its mutants say so instead of passing for nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dibs import Dibs
from dibs.engines import retries
from dibs.engines.sqlite import file as sqlite_file
from tests.support import fault_cases
from tests.support.fault_stores import Place, Places, mutate


@pytest.fixture(autouse=True)
def give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that can't get through need not try for two seconds."""
    monkeypatch.setattr(retries, "PAUSES", (0.0, 0.01, 0.02))


@dataclass(frozen=True)
class Mutant:
    """What is broken, in which block, and who must notice."""

    name: str
    block: str
    text: str
    instead: str
    scene: fault_cases.Scene
    symptom: str = ""
    also: tuple[str, str] | None = None

    def hurt(self, app: Dibs) -> None:
        mutate(app, self.block, self.text, self.instead)
        if self.also is not None:
            mutate(app, self.block, *self.also)


LOCK = "for update skip locked"
LOCK_OF_JOB = "for update /*!80017 of job */ skip locked"
TAKE = "where job.ctid = any (array(select picked.spot from picked))"
TAKE_BY_ID = f"where job.id in (select other.id from dibs_jobs other {TAKE.replace('job.', 'other.')})"
TAKE_OF_LINE = "where job.ctid = any (array(\n    select ready.ctid"
FENCE = "and ((job.id, job.token) in (select given.id, given.token from given)) is true"

SCHEDULES = [
    Mutant(
        "a schedule is moved from anywhere", "move_schedule", "and last_tick = :since", "",
        fault_cases.a_tick_is_enqueued_once, "enqueued twice",
    ),
    Mutant(
        "a schedule is moved to any other tick", "move_schedule", "last_tick = :since", "last_tick <> :tick",
        fault_cases.a_tick_is_enqueued_once, "enqueued twice",
    ),
    Mutant(
        "a schedule is moved to any later tick", "move_schedule", "last_tick = :since", "last_tick < :tick",
        fault_cases.a_tick_is_enqueued_once, "enqueued twice",
    ),
]  # fmt: skip

POSTGRESQL = [
    Mutant(
        "claim takes no lock, and what has moved", "claim", LOCK, "",
        fault_cases.each_claimer_gets_a_job_of_its_own, "claimed twice", also=(TAKE, TAKE_BY_ID),
    ),
    Mutant(
        "claim waits for locks", "claim", LOCK, "for update",
        fault_cases.a_claim_never_waits, "waited",
    ),
    Mutant(
        "claim of a line takes no lock, and what has moved", "claim_line", LOCK, "",
        fault_cases.each_taker_of_a_line_gets_jobs_of_its_own, "claimed twice",
        also=(TAKE_OF_LINE, TAKE_OF_LINE.replace("ctid", "id")),
    ),
    Mutant(
        "claim of a line waits for locks", "claim_line", LOCK, "for update",
        fault_cases.a_taker_of_a_line_never_waits, "waited",
    ),
    Mutant(
        "going on takes no lock, and what has moved", "exchange_on", LOCK, "",
        fault_cases.each_who_goes_on_gets_jobs_of_its_own, "claimed twice", also=(TAKE, TAKE_BY_ID),
    ),
    Mutant(
        "going on waits for locks", "exchange_on", LOCK, "for update",
        fault_cases.who_goes_on_never_waits, "waited",
    ),
    Mutant(
        "claim by id takes no lock", "claim_job", LOCK, "",
        fault_cases.one_of_many_wins_the_job, "claimed twice",
    ),
    Mutant(
        "claim by id waits for locks", "claim_job", LOCK, "for update",
        fault_cases.a_claim_by_id_waits_for_nobody_for_long, "answered []",
    ),
    Mutant(
        "claim counts no attempt", "claim", "attempts = job.attempts + 1", "attempts = job.attempts",
        fault_cases.poison_runs_out_of_attempts, "more often",
    ),
    Mutant(
        "claim keeps the old token", "claim", "token = nextval('dibs_token')",
        "token = coalesce(job.token, nextval('dibs_token'))",
        fault_cases.a_zombie_succeeds_at_nothing, "greater",
    ),
    Mutant(
        "limits are counted without a lock", "lock_limits", "for update", "",
        fault_cases.a_limit_holds_under_race, "over the limit",
    ),
    Mutant("settle is not fenced", "settle", FENCE, "", fault_cases.a_zombie_succeeds_at_nothing, "changed"),
    Mutant(
        "giving back is not fenced", "settle", FENCE, "", fault_cases.a_zombie_gives_nothing_back, "changed"
    ),
    Mutant("exchange is not fenced", "exchange", FENCE, "",
           fault_cases.an_exchange_of_a_zombie_settles_nothing, "no longer held"),
    Mutant(
        "settle takes jobs that wait", "settle", "and job.lease_until is not null", "",
        fault_cases.a_released_claim_settles_nothing, "could",
    ),
    Mutant(
        "settle with children is not fenced", "settle", FENCE, "",
        fault_cases.children_come_only_with_success, "left 1 children",
    ),
    Mutant(
        "renew is not fenced", "renew", FENCE, "",
        fault_cases.a_zombie_renews_nothing, "changed",
    ),
    Mutant(
        "renew waits for locks", "renew", "for update skip locked", "for update",
        fault_cases.a_locked_row_does_not_stall_renewals, "waited",
    ),
    Mutant(
        "progress is not fenced", "progress", "and token = :token", "and :token > 0",
        fault_cases.a_zombie_reports_nothing, "changed",
    ),
    Mutant(
        "sweep takes live leases", "sweep", "and job.lease_until <= statement_timestamp()", "",
        fault_cases.a_live_lease_is_not_swept, "had a minute to go",
    ),
    Mutant(
        "sweep waits for locks", "sweep", LOCK, "for update",
        fault_cases.a_locked_row_does_not_stall_the_sweep, "waited",
    ),
    Mutant(
        "a repeated enqueue is not expected", "enqueue_again", "on conflict (id) do nothing", "",
        fault_cases.an_enqueue_overtaken_by_its_twin_stores_nothing_new, "StoreUnavailable",
    ),
    Mutant(
        "a repeated enqueue forgets what has finished", "enqueue_forget_finished",
        "and finished.id = job.id", "and finished.id = job.id and false",
        fault_cases.an_enqueue_overtaken_by_its_twin_stores_nothing_new, "came back to life",
    ),
    Mutant(
        "a unique key that is taken answers nothing", "holders",
        "on job.unique_key = given.key", "on false",
        fault_cases.a_unique_key_that_is_taken_names_its_holder,
    ),
    Mutant(
        "retry does not expect a taken key", "retry", "on conflict do nothing", "",
        fault_cases.a_retry_respects_the_unique_key, "StoreUnavailable",
    ),
    Mutant(
        "retry leaves the finished copy", "retry", "where finished.id = back.id",
        "where finished.id = back.id and false",
        fault_cases.a_retry_by_many_leaves_one_copy, "retried by many left",
    ),
]  # fmt: skip

SQLITE = [
    Mutant(
        "claim sees jobs that are running", "near",
        "indexed by dibs_jobs_ready\nwhere ready.state = 'ready' and", "where",
        fault_cases.each_claimer_gets_a_job_of_its_own, "claimed twice",
    ),
    Mutant(
        "claim by id sees jobs that are running", "wanted", "and job.state = 'ready'", "",
        fault_cases.one_of_many_wins_the_job, "claimed twice",
    ),
    Mutant(
        "claim counts no attempt", "lease", "attempts = attempts + 1", "attempts = attempts",
        fault_cases.poison_runs_out_of_attempts, "more often",
    ),
    Mutant(
        "tokens stand still", "tokens", "value + :taken", "value + 0 * :taken",
        fault_cases.a_zombie_succeeds_at_nothing, "greater",
    ),
    Mutant(
        "settle is not fenced", "settle_ended", "and job.token = :token", "",
        fault_cases.a_zombie_succeeds_at_nothing, "changed",
    ),
    Mutant(
        "giving back is not fenced", "settle_returned", "and token = :token", "",
        fault_cases.a_zombie_gives_nothing_back, "changed",
    ),
    Mutant(
        "settle takes jobs that wait", "settle_ended", "and job.state = 'running'", "",
        fault_cases.a_released_claim_settles_nothing, "could",
    ),
    Mutant(
        "settle with children is not fenced", "settle_ended", "and job.token = :token", "",
        fault_cases.children_come_only_with_success, "left 1 children",
    ),
    Mutant(
        "renew is not fenced", "renew", "and token = :token", "and :token > 0",
        fault_cases.a_zombie_renews_nothing, "changed",
    ),
    Mutant(
        "progress is not fenced", "progress", "and token = :token", "and :token > 0",
        fault_cases.a_zombie_reports_nothing, "changed",
    ),
    Mutant(
        "sweep takes live leases", "expired", "and job.lease_until <=", "and 0 <=",
        fault_cases.a_live_lease_is_not_swept, "had a minute to go",
    ),
    Mutant(
        "a repeated enqueue is not looked for", "holders", "where job.id in", "where false and job.id in",
        fault_cases.an_enqueue_overtaken_by_its_twin_stores_nothing_new, "StoreUnavailable",
    ),
    Mutant(
        "a unique key that is taken is not seen", "holders", "where job.unique_key in",
        "where false and job.unique_key in",
        fault_cases.a_unique_key_is_held_once, "StoreUnavailable",
    ),
    Mutant(
        "retry does not expect a taken key", "retry_finished", "on conflict do nothing", "",
        fault_cases.a_retry_respects_the_unique_key, "StoreUnavailable",
    ),
    Mutant(
        "retry leaves the finished copy", "forget_finished", "where id = :id", "where id = :id and false",
        fault_cases.a_retry_by_many_leaves_one_copy, "retried by many left",
    ),
    Mutant(
        "limits count nothing", "lines", "other.state = 'running' and", "false and",
        fault_cases.a_limit_holds_under_race, "over the limit",
    ),
]  # fmt: skip


HELD = "and job.token = given.token"

MARIADB = [
    Mutant(
        "claim takes no lock", "lock_first", LOCK, "",
        fault_cases.each_claimer_gets_a_job_of_its_own, "claimed twice",
    ),
    Mutant(
        "claim of several lines takes no lock", "lock_these", LOCK_OF_JOB, "",
        fault_cases.each_claimer_gets_a_job_of_many_lines, "claimed twice",
    ),
    Mutant(
        "claim waits for locks", "lock_first", LOCK, "for update", fault_cases.a_claim_never_waits, "waited"
    ),
    Mutant(
        "going on takes no lock", "lock_first_on", LOCK, "",
        fault_cases.each_who_goes_on_in_a_line_gets_jobs_of_its_own, "claimed twice",
    ),
    Mutant(
        "going on waits for locks", "lock_first_on", LOCK, "for update",
        fault_cases.who_goes_on_never_waits, "waited",
    ),
    Mutant(
        "what is leased is not found by its key", "lease", "force index (primary)", "ignore index (primary)",
        fault_cases.a_claim_never_waits, "waited",
    ),
    Mutant(
        "claim by id takes no lock", "lock_these", LOCK_OF_JOB, "",
        fault_cases.one_of_many_wins_the_job, "claimed twice",
    ),
    Mutant(
        "claim by id waits for locks", "lock_these", LOCK_OF_JOB, "for update",
        fault_cases.a_claim_by_id_waits_for_nobody_for_long, "answered []",
    ),
    Mutant(
        "claim counts no attempt", "lease", "job.attempts + 1", "job.attempts",
        fault_cases.poison_runs_out_of_attempts, "more often",
    ),
    Mutant(
        "tokens stand still", "lock_first", "nextval(dibs_token)", "1",
        fault_cases.a_zombie_succeeds_at_nothing, "greater",
    ),
    Mutant(
        "limits are counted without a lock", "lock_limits", "for update", "",
        fault_cases.a_limit_holds_under_race, "over the limit",
    ),
    Mutant("settle is not fenced", "held", HELD, "", fault_cases.a_zombie_succeeds_at_nothing, "changed"),
    Mutant("giving back is not fenced", "held", HELD, "", fault_cases.a_zombie_gives_nothing_back, "changed"),
    Mutant("exchange is not fenced", "held", HELD, "",
           fault_cases.an_exchange_of_a_zombie_settles_nothing, "no longer held"),
    Mutant(
        "settle takes jobs that wait", "held", "and job.lease_until is not null", "",
        fault_cases.a_released_claim_settles_nothing, "could",
    ),
    Mutant(
        "settle with children is not fenced", "held", HELD, "",
        fault_cases.children_come_only_with_success, "left 1 children",
    ),
    Mutant("renew is not fenced", "held_and_free", HELD, "", fault_cases.a_zombie_renews_nothing, "changed"),
    Mutant(
        "renew waits for locks", "held_and_free", LOCK_OF_JOB, "for update",
        fault_cases.a_locked_row_does_not_stall_renewals, "waited",
    ),
    Mutant("progress is not fenced", "held", HELD, "", fault_cases.a_zombie_reports_nothing, "changed"),
    Mutant(
        "sweep takes live leases", "expired", "where job.lease_until <= utc_timestamp(6)",
        "where job.lease_until is not null",
        fault_cases.a_live_lease_is_not_swept, "had a minute to go",
    ),
    Mutant(
        "sweep waits for locks", "expired", LOCK, "for update",
        fault_cases.a_locked_row_does_not_stall_the_sweep, "waited",
    ),
    Mutant(
        "a repeated enqueue is not expected", "enqueue_again",
        "on duplicate key update stored_by = dibs_jobs.stored_by", "",
        fault_cases.an_enqueue_overtaken_by_its_twin_stores_nothing_new, "StoreUnavailable",
    ),
    Mutant(
        "a repeated enqueue takes what is there for its own", "enqueue_again",
        "stored_by = dibs_jobs.stored_by", "stored_by = unhex(:stored_by)",
        fault_cases.a_job_enqueued_by_many_is_stored_once, "is_new was told",
    ),
    Mutant(
        "a repeated enqueue forgets what has finished", "finished", "for update", "limit 0",
        fault_cases.an_enqueue_overtaken_by_its_twin_stores_nothing_new, "came back to life",
    ),
    Mutant(
        "a unique key that is taken answers nothing", "holders", "for update", "limit 0",
        fault_cases.a_unique_key_is_held_once,
    ),
    Mutant(
        "a unique key that is taken names nobody", "key_holders", "job.id as holder",
        "unhex(repeat('0', 32)) as holder", fault_cases.a_unique_key_that_is_taken_names_its_holder,
    ),
    Mutant(
        "retry does not expect a taken key", "retry",
        "on duplicate key update stored_by = dibs_jobs.stored_by", "",
        fault_cases.a_retry_respects_the_unique_key, "StoreUnavailable",
    ),
    Mutant(
        "retry leaves the finished copy", "forget_finished", "on job.id = unhex(given.id)",
        "on job.id = unhex(given.id) and false",
        fault_cases.a_retry_by_many_leaves_one_copy, "retried by many left",
    ),
]  # fmt: skip

ALL = [
    *(("postgresql", one) for one in POSTGRESQL),
    *(("sqlite", one) for one in SQLITE),
    *(("mariadb", one) for one in MARIADB),
]
ALL += [(engine, one) for engine in ("postgresql", "sqlite") for one in SCHEDULES]
ALL += [("mariadb", replace(one, block="schedule_at")) for one in SCHEDULES]


ENOUGH_TRIES = 4


@pytest.mark.parametrize(
    ("engine", "mutant"), [pytest.param(*each, id=f"{each[0]}: {each[1].name}") for each in ALL]
)
def test_a_mutant_is_caught(places: Places, engine: str, mutant: Mutant) -> None:
    wrong = None
    for _ in range(ENOUGH_TRIES):  # some scenes are races, which a mutant may survive by luck
        place = places(engine)
        place.broken_by = mutant.hurt
        if (wrong := fault_cases.run_scene(mutant.scene, place)) is not None:
            break

    assert wrong is not None, f"{mutant.name}: nobody noticed"
    assert mutant.symptom in wrong


SCENES = sorted(
    {(engine, mutant.scene) for engine, mutant in ALL}, key=lambda each: (each[0], each[1].__name__)
)


@pytest.mark.parametrize(
    ("engine", "scene"), [pytest.param(*each, id=f"{each[0]}: {each[1].__name__}") for each in SCENES]
)
def test_the_statement_as_it_is_passes_the_same_scene(
    places: Places, engine: str, scene: fault_cases.Scene
) -> None:
    assert fault_cases.run_scene(scene, places(engine)) is None


# -- Mutants that are more than one replaced text ------------------------------------------------


def test_a_claim_with_a_naive_subselect_is_caught(postgres: Place) -> None:
    postgres.broken_by = _claim_naively

    wrong = fault_cases.run_scene(fault_cases.a_claim_is_never_larger_than_asked, postgres)

    assert wrong is not None
    assert "where 3 were asked for" in wrong or "over-claimed" in wrong


def _claim_naively(app: Dibs) -> None:
    """The lock in a subselect and the guard repeated outside, as most people write it."""
    naive = """
        where job.state = 'ready' and job.queue = 'default' and job.id in (
            select ready.id from dibs_jobs ready where ready.state = 'ready' and ready.queue = 'default'
            order by ready.id limit :limit for update skip locked
        )"""
    mutate(app, "claim", TAKE, naive)


def test_without_its_lock_a_claim_still_takes_nothing_that_another_has_moved(postgres: Place) -> None:
    postgres.broken_by = lambda app: mutate(app, "claim", LOCK, "")

    assert fault_cases.run_scene(fault_cases.each_claimer_gets_a_job_of_its_own, postgres) is None


class Deferred(sqlite3.Connection):
    """A connection whose transactions begin with a read, and find out too late that they write."""

    def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:
        return super().execute(statement.replace("begin immediate", "begin"), *given)


@pytest.mark.parametrize("deferred", [False, True], ids=["as-it-is", "mutant"])
def test_a_sqlite_transaction_that_does_not_begin_immediate_is_caught(
    sqlite: Place, deferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = _count_refusals(monkeypatch)
    sqlite.app().sync.migrate()
    if deferred:
        connect = sqlite3.connect
        monkeypatch.setattr(
            sqlite_file.sqlite3, "connect", lambda *a, **o: connect(*a, **o, factory=Deferred)
        )

    for _ in range(5 * ENOUGH_TRIES if deferred else 1):  # a race that the mutant may win by luck
        fault_cases.run_scene(fault_cases.each_claimer_gets_a_job_of_its_own, sqlite)
        if refused:
            break

    assert bool(refused) == deferred, f"{len(refused)} statements were turned away as busy"


def _count_refusals(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Every time SQLite turned a statement away although it was asked to wait."""
    refused: list[BaseException] = []
    sort: Callable[..., BaseException] = sqlite_file.SqliteFile._sorted

    def noted(self: Any, error: sqlite3.Error, *about: Any) -> BaseException:
        refused.append(error)
        return sort(self, error, *about)

    monkeypatch.setattr(sqlite_file.SqliteFile, "_sorted", noted)
    return refused
