"""The protocol keeps its promises in every order of events, and each missing guard breaks one."""

from __future__ import annotations

import pytest

from dibs.jobs.states import JobState
from tests.model.explorer import describe, walk_all
from tests.model.protocol import CAUGHT_BY, Mutant, Promise, Protocol, explore

# The people's part and the many attempts apart: together they make ten times as many worlds.
SMALL = {
    "one job, three attempts": (Protocol(max_attempts=3, retries=0), 15_000),
    "one job that a person retries": (Protocol(gifts=0), 13_000),
    "one job that nobody cancels": (Protocol(cancels=False), 40_000),
    "three workers after one job": (Protocol(workers=3, retries=0), 5_000),
    "two jobs": (Protocol(jobs=2, max_attempts=1, gifts=0, retries=0), 5_000),
}
LARGE = {
    "one job, everything": (Protocol(), 80_000),
    "two jobs, two attempts": (Protocol(jobs=2, gifts=0, retries=0, cancels=False), 150_000),
    "three workers, two of them die": (Protocol(workers=3, losses=2, gifts=2, retries=0), 50_000),
}


@pytest.mark.parametrize(("protocol", "at_least"), SMALL.values(), ids=SMALL)
def test_the_protocol_keeps_every_promise(protocol: Protocol, at_least: int) -> None:
    explored = explore(protocol)

    assert explored.broken is None, describe(explored.way)
    assert explored.worlds >= at_least


@pytest.mark.long
@pytest.mark.parametrize(("protocol", "at_least"), LARGE.values(), ids=LARGE)
def test_the_protocol_keeps_every_promise_with_more_of_everything(protocol: Protocol, at_least: int) -> None:
    explored = explore(protocol)

    assert explored.broken is None, describe(explored.way)
    assert explored.worlds >= at_least


@pytest.mark.parametrize("mutant", Mutant)
def test_each_missing_guard_breaks_the_promise_it_protects(mutant: Mutant) -> None:
    expected = CAUGHT_BY[mutant]
    retries = int(mutant == Mutant.token_starts_anew)

    explored = explore(Protocol(retries=retries, mutant=mutant), frozenset({expected}))

    assert explored.broken == expected


def test_every_promise_but_one_is_the_reason_why_some_mutant_is_caught() -> None:
    # `legal` is broken only together with one of the others, which say more.
    assert set(Promise) - set(CAUGHT_BY.values()) == {Promise.legal}


def test_every_state_but_blocked_and_every_kind_of_answer_is_met() -> None:
    states, answers = set(), set()
    for deed, after in walk_all(Protocol(gifts=1, retries=0)):
        states |= {job.state for job in after.jobs}
        answers.add((deed.verb, deed.answer))

    assert states == set(JobState) - {JobState.blocked}
    assert {("settle", "ok"), ("settle", "unknown"), ("settle", "lost"), ("claim", "unknown")} <= answers
    assert {("renew", "ok"), ("renew", "lost"), ("die", "ok"), ("sweep", "ok"), ("cancel", "ok")} <= answers


def test_a_late_renewal_revives_a_lease_that_nobody_took_back() -> None:
    way = [("claim", "ok"), ("expire", "ok"), ("renew", "ok"), ("settle", "ok")]

    assert is_possible(Protocol(), way)


def test_the_way_to_a_broken_promise_is_the_shortest() -> None:
    explored = explore(Protocol(mutant=Mutant.sweep_at_any_time), frozenset({Promise.lease_holds}))

    assert [deed.verb for deed in explored.way] == ["claim", "sweep"]


def is_possible(protocol: Protocol, way: list[tuple[str, str]]) -> bool:
    worlds = {protocol.start()}
    for wanted in way:
        worlds = {
            after
            for world in worlds
            for deed, after in protocol.steps(world)
            if (deed.verb, deed.answer) == wanted
        }
    return bool(worlds)
