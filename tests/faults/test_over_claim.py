"""A claim never takes more than was asked for, whatever the planner believes (proof/pg_overclaim.sql)."""

from __future__ import annotations

from typing import Any

import pytest

from dibs import Dibs, Job, NewJob
from dibs.app.claims import ClaimState, SyncClaim
from dibs.clock import monotonic
from tests.support import fault_cases
from tests.support.fault_stores import Place, exchange, face_of
from tests.support.internals import core_of

# What PostgreSQL 15 answered with 50 rows: the planner puts the locking subselect on the inner side
# of a nested loop and runs it once per row.
NAIVE = """
    with taken as (
        update dibs_jobs set state = 'running'
        where queue = 'default' and state = 'ready' and id in (
            select id from dibs_jobs where queue = 'default' and state = 'ready'
            order by id limit 3 for update skip locked
        )
        returning id
    )
    select count(*) from taken
"""


@pytest.fixture(params=["lies", "lies-generic-plan", "no-statistics-generic-plan"])
def misled(request: pytest.FixtureRequest, postgres: Place) -> Place:
    """A database whose planner expects no ready job; there will be fifty."""
    postgres.sql("alter table dibs_jobs set (autovacuum_enabled = off)")
    if request.param.startswith("lies"):
        fault_cases.say_that_nothing_is_ready(postgres)
    if request.param.endswith("generic-plan"):
        database = postgres.url.rpartition("/")[2]
        postgres.sql(f"alter database {database} set plan_cache_mode = force_generic_plan")
    return postgres


@pytest.fixture
def app(misled: Place) -> Dibs:
    """An app whose statements were prepared before the fifty jobs came."""
    app = misled.app()
    for _ in range(3):
        assert app.sync.claim() == []
    fault_cases.enqueue(app, 50)
    return app


def test_the_recipe_bites_a_naive_claim(postgres: Place) -> None:
    fault_cases.say_that_nothing_is_ready(postgres)
    fault_cases.enqueue(postgres.app(), 50)

    [(taken,)] = postgres.sql(NAIVE)

    assert taken > 3, "the recipe is harmless here, so the tests below prove nothing"


def test_a_claim_of_three_is_three(postgres: Place) -> None:
    assert fault_cases.a_claim_is_never_larger_than_asked(postgres) is None


WISHES: dict[str, dict[str, Any]] = {
    "walk": {},
    "by-queue": {"queues": ["default"]},
    "by-kind": {"kinds": ["work"]},
    "by-name": {"queues": ["default"], "kinds": ["work"]},
    "other-lines-too": {"queues": ["default", "other"], "kinds": ["work", "crowd", "none"]},
}


def test_a_claim_is_exactly_as_large_as_asked(misled: Place, app: Dibs) -> None:
    for name, wish in WISHES.items():
        claims = [claim for limit in (3, 1, 10) for claim in app.sync.claim(limit=limit, **wish)]

        assert fault_cases.not_exactly(misled, 14, claims) is None, name
        for claim in claims:
            claim.release()


def test_an_awaited_claim_is_exactly_as_large_as_asked(misled: Place) -> None:
    with face_of(misled.app(), "async") as face:
        face.claim()
        face.enqueue(*(NewJob("work") for _ in range(50)))

        claims = face.claim(limit=3)

        assert fault_cases.not_exactly(misled, 3, claims) is None


def test_an_exchange_is_exactly_as_large_as_asked(misled: Place, app: Dibs) -> None:
    taken = app.sync.claim(limit=2)
    for many in (3, 1, 10):
        lost, jobs = exchange(app, taken, limit=many)

        assert lost == []
        assert fault_cases.not_exactly(misled, many, jobs) is None
        taken = [_held(app, job) for job in jobs]


def _held(app: Dibs, job: Job) -> Any:
    """The claim of a job that an exchange has leased."""
    return SyncClaim(ClaimState(core_of(app), job, monotonic()))


def test_a_claim_within_limits_is_exactly_as_large_as_asked(misled: Place, app: Dibs) -> None:
    app.sync.limit("default", 5)

    first = app.sync.claim(limit=3)
    assert fault_cases.not_exactly(misled, 3, first) is None
    second = app.sync.claim(limit=3)

    assert fault_cases.not_exactly(misled, 5, [*first, *second]) is None


def test_the_claims_of_two_lines_are_together_as_large_as_asked(misled: Place, app: Dibs) -> None:
    fault_cases.enqueue(app, 50, "more", queue="other")

    claims = app.sync.claim(limit=1)
    claims += app.sync.claim(limit=3)

    assert fault_cases.not_exactly(misled, 4, claims) is None
