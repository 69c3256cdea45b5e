"""Settlements that travel together are judged one by one: two of one job can't both be the winner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dibs import Claim, Dibs, LeaseLost, NewJob
from dibs.clock import SECOND
from dibs.operations import upkeep
from tests.model.beside import make_app
from tests.support.internals import store_of


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mariadb", "mysql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case "redis":
            return request.getfixturevalue("empty_redis")("redis")
        case _:
            return request.getfixturevalue(request.param).fresh_database()


@pytest.mark.parametrize("holder_first", [False, True])
def test_a_zombie_that_settles_in_the_same_breath_as_the_holder_has_lost(
    url: str, holder_first: bool
) -> None:
    async def story() -> None:
        async with app_at(url) as app:
            zombie, holder = await two_claims_of_one_job(app)
            child = NewJob("soon")

            late, good = await together(
                zombie.succeed("late", then=[child]), holder.succeed("good"), swap=holder_first
            )

            assert isinstance(late, LeaseLost)
            assert good is None
            job = await app.get(holder.job.id)
            assert job is not None
            assert job.result == "good"
            assert await app.get(child.id) is None

    asyncio.run(story())


def test_of_two_ends_of_one_claim_sent_together_one_is_told_that_it_lost(url: str) -> None:
    async def story() -> None:
        async with app_at(url) as app:
            claim = await new_claim(app)

            told = await together(claim.cancel("enough"), claim.succeed("done"))

            job = await app.get(claim.job.id)
            assert job is not None
            won = {"cancelled": 0, "succeeded": 1}[job.state]
            assert told[won] is None
            assert isinstance(told[1 - won], LeaseLost)

    asyncio.run(story())


def test_the_same_end_of_one_claim_sent_twice_together_is_a_success(url: str) -> None:
    async def story() -> None:
        async with app_at(url) as app:
            claim = await new_claim(app)

            assert await together(claim.succeed("done"), claim.succeed("done")) == [None, None]

    asyncio.run(story())


def test_of_settlements_sent_together_those_that_hold_are_applied(url: str) -> None:
    async def story() -> None:
        async with app_at(url) as app:
            zombie, holder = await two_claims_of_one_job(app)
            other = await new_claim(app)

            late, good, also_good = await together(zombie.fail("late"), holder.release(), other.succeed())

            assert isinstance(late, LeaseLost)
            assert (good, also_good) == (None, None)
            assert (await app.counts())["succeeded"] == 1
            assert (await app.counts())["ready"] == 1

    asyncio.run(story())


def test_a_zombie_beside_the_new_holder_learns_that_it_is_lost() -> None:
    async def story() -> None:
        async with app_at("memory://") as app:
            zombie, holder = await two_claims_of_one_job(app, lease=0.3)

            with pytest.raises(LeaseLost):
                async with zombie, holder:
                    await asyncio.sleep(5)

            assert zombie.lost
            assert not holder.lost

    asyncio.run(story())


@asynccontextmanager
async def app_at(url: str) -> AsyncIterator[Dibs]:
    app = make_app(url)
    await app.migrate()
    async with app:
        yield app


async def new_claim(app: Dibs, lease: float = 60) -> Claim:
    [job] = await app.enqueue(NewJob("soon"))
    claim = await app.claim_job(job.id, lease=lease)
    assert claim is not None
    return claim


async def two_claims_of_one_job(app: Dibs, lease: float = 60) -> tuple[Claim, Claim]:
    """The first one's lease has run out."""
    zombie = await new_claim(app, lease)
    await store_of(app).run_async(lambda _: upkeep.age(61 * SECOND))
    holder = await app.claim_job(zombie.job.id, lease=lease)
    assert holder is not None
    return zombie, holder


async def together(*settlements: Awaitable[None], swap: bool = False) -> list[Any]:
    """All in one turn of the loop, so that they are sent as one question."""
    ordered = settlements[::-1] if swap else settlements
    told = await asyncio.gather(*ordered, return_exceptions=True)
    return list(told[::-1] if swap else told)
