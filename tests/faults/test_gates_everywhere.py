"""Trains, slots and unique keys on every engine: many at once, slow commits, and what a long line costs."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from dibs import Dibs, LeaseLost, NewJob, Worker
from tests.support import gate_fault_cases as gates
from tests.support.fault_stores import Place, Places, together

PRODUCERS = [pytest.param(12, id="some"), pytest.param(50, id="many", marks=pytest.mark.long)]
CROWD, PUT, TAKEN = 100_000, 1000, 900
PLAIN, ROUNDS = 10_000, 5
GATES, CLAIMS = 5000, 200

many_producers = pytest.mark.parametrize("producers", PRODUCERS)
every_engine = pytest.mark.parametrize(
    "kind", ["memory", "sqlite", "postgresql", "mariadb", "mysql", "redis"]
)


# -- Many at once -------------------------------------------------------------------------------


@many_producers
def test_producers_of_one_train_make_one_head(place: Place, producers: int) -> None:
    assert gates.producers_make_one_head(place, producers=producers) is None


@many_producers
@pytest.mark.parametrize("policy", ["wait", "replace", "preempt", "drop"])
def test_producers_of_one_slot_make_one_turn(place: Place, producers: int, policy: str) -> None:
    assert gates.producers_of_a_slot_make_one_turn(place, producers=producers, policy=policy) is None


@many_producers
@pytest.mark.parametrize("options", [{}, {"unique_for": 60}, {"on_conflict": "replace"}], ids=repr)
def test_producers_of_one_key_store_one_job(place: Place, producers: int, options: dict[str, Any]) -> None:
    assert gates.producers_of_a_key_store_one_job(place, producers=producers, **options) is None


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb", "mysql"])
def test_a_producer_that_is_slow_to_commit_is_not_overtaken(places: Places, kind: str) -> None:
    assert gates.an_open_producer_is_not_overtaken(places(kind)) is None


@pytest.mark.parametrize("rounds", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_of_two_racing_claims_of_siblings_one_wins(place: Place, rounds: int) -> None:
    assert gates.of_two_siblings_one_wins(place, rounds=rounds) is None


# -- Claimers who die ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """One claim: when it was had, and when its holder let go; None of one who died."""

    claim: Any
    had: float
    let_go: float | None


@pytest.mark.parametrize(
    ("claimers", "slots", "each"),
    [
        pytest.param(6, 3, 12, id="small"),
        pytest.param(32, 10, 100, id="full-size", marks=pytest.mark.long),
    ],
)
def test_nobody_starts_in_a_slot_before_who_had_it_let_go_or_its_lease_ended(
    place: Place, claimers: int, slots: int, each: int
) -> None:
    apps = place.apps(claimers)
    new = [NewJob("work", slot=f"s{n % slots}", max_attempts=1000) for n in range(slots * each)]
    held: list[Held] = []
    number = itertools.count(1)

    def work(app: Dibs, stock: list[NewJob]) -> None:
        while sum(one.let_go is not None for one in held) < len(new):
            if stock:  # some come while others run
                app.sync.enqueue(stock.pop())
            for claim in app.sync.claim(lease=0.5):
                held.append(_work_on(claim, dies=next(number) % 12 == 0))
            time.sleep(0.005)

    apps[0].sync.enqueue(*new[: len(new) // 2])
    stocks = [new[len(new) // 2 + nth :: claimers] for nth in range(claimers)]
    together(
        *(lambda app=app, stock=stock: work(app, stock) for app, stock in zip(apps, stocks, strict=True))
    )

    assert apps[0].sync.counts()["succeeded"] == len(new)
    dead = [one for one in held if one.let_go is None]
    print(place.kind, f"{len(held)} claims, of which {len(dead)} died")
    assert len(dead) >= len(new) // 12
    by_slot = defaultdict(list)
    for one in sorted(held, key=lambda one: one.claim.token):
        by_slot[one.claim.job.slot].append(one)
    for one, later in (pair for line in by_slot.values() for pair in pairwise(line)):
        if one.let_go is None:
            assert later.claim.job.claimed_at >= one.claim.lease_until
        else:
            assert later.had >= one.let_go


def _work_on(claim: Any, *, dies: bool) -> Held:
    had = time.monotonic()
    time.sleep(0.002)
    let_go = time.monotonic()
    try:
        if not dies:
            claim.succeed()
    except LeaseLost:  # it took so long that others believed it dead
        dies = True
    return Held(claim, had, None if dies else let_go)


# -- Cost ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(900)
@every_engine
@pytest.mark.parametrize("gate", ["train", "slot"])
def test_a_place_costs_the_same_behind_a_hundred_thousand(places: Places, kind: str, gate: str) -> None:
    """In turns with a store where they are the first, so that both meet the same machine."""
    first, last = (places(kind).apps(1)[0] for _ in range(2))
    _crowd(last, gate)

    put = _in_turns([first, last], PUT, lambda app: _timed(lambda: _put(app, gate)))
    steps = _in_turns([first, last], TAKEN, _take)

    assert last.sync.counts()["blocked"] > CROWD - TAKEN
    costs = {
        "put": put,
        "claim": [[claim for claim, _ in each] for each in steps],
        "advance": [[advance for _, advance in each] for each in steps],
    }
    times = {name: _times_as_much(*both) for name, both in costs.items()}
    print(kind, gate, {name: f"{factor:.2f} times" for name, factor in times.items()})
    assert {name: factor for name, factor in times.items() if factor > 2} == {}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("gate", ["train", "slot"])
def test_a_plain_claim_costs_the_same_beside_thousands_of_gates(places: Places, kind: str, gate: str) -> None:
    alone, crowded = (places(kind).apps(1)[0] for _ in range(2))
    for _ in range(2):
        crowded.sync.enqueue(*(NewJob("work", **{gate: f"g{n}"}) for n in range(GATES)))
    for app in (alone, crowded):
        app.sync.enqueue(*(NewJob("plain") for _ in range(CLAIMS)))

    took = _in_turns([alone, crowded], CLAIMS, lambda app: _timed(lambda: app.sync.claim(kinds=["plain"])))

    times = _times_as_much(*took)
    print(kind, gate, f"{times:.2f} times")
    assert times <= 1.5


@pytest.mark.long
@pytest.mark.timeout(900)
@every_engine
def test_plain_jobs_drain_as_fast_beside_a_hundred_thousand_that_wait(places: Places, kind: str) -> None:
    alone, crowded = (places(kind).apps(1)[0] for _ in range(2))
    _crowd(crowded, "train")

    turns = asyncio.run(_drained_in_turns([alone, crowded]))

    assert crowded.sync.counts()["blocked"] == CROWD - 1
    times = _times_as_much(*map(list, zip(*turns, strict=True)))
    print(kind, f"{1 / times:.0%} as fast")
    assert 1 / times >= 0.8


async def _drained_in_turns(apps: Sequence[Dibs]) -> list[list[float]]:
    """How long a worker had each time."""
    for app in apps:
        app.job(_nothing, name="nothing")
    try:
        return [[await _drained(app) for app in apps] for _ in range(ROUNDS)]
    finally:
        for app in apps:
            await app.close()


async def _drained(app: Dibs) -> float:
    await app.enqueue(*(NewJob("nothing") for _ in range(PLAIN)))
    began = time.perf_counter()
    await Worker(app, concurrency=100).run(until_idle=True, handle_signals=False)
    return time.perf_counter() - began


async def _nothing() -> None: ...


def _crowd(app: Dibs, gate: str) -> None:
    """A hundred thousand in one line."""
    for _ in range(CROWD // 1000):
        app.sync.enqueue(*(NewJob("work", **{gate: "g"}) for _ in range(1000)))


def _in_turns(apps: Sequence[Dibs], many: int, work: Callable[[Dibs], Any]) -> list[list[Any]]:
    """What `work` answered for each of the apps, which had their turns one after another."""
    turns = [[work(app) for app in apps] for _ in range(many)]
    return [list(each) for each in zip(*turns, strict=True)]


def _put(app: Dibs, gate: str) -> None:
    app.sync.enqueue(NewJob("work", **{gate: "g"}))


def _take(app: Dibs) -> tuple[float, float]:
    """How long it takes to claim who is first, and to finish it so that the next one goes."""
    claims: list[Any] = []
    claim = _timed(lambda: claims.extend(app.sync.claim(limit=5)))
    [head] = claims
    return claim, _timed(head.succeed)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _times_as_much(one: list[float], other: list[float]) -> float:
    return statistics.median(other) / statistics.median(one)
