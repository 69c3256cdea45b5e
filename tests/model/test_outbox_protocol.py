"""The outbox keeps its promises in every order of events, and each missing guard breaks one."""

from __future__ import annotations

import pytest

from dibs.outbox.messages import Status
from tests.model.explorer import describe, walk_all
from tests.model.outbox_protocol import CAUGHT_BY, Mutant, OutboxProtocol, Promise, explore

THREE = ("k", "k", "k")

# How many worlds there are at least; far fewer, and something no longer happens.
SMALL = {
    "one message that is redriven": (OutboxProtocol(keys=("k",), losses=2, redrives=1), 2_500),
    "two of one key": (OutboxProtocol(max_attempts=1, losses=2), 3_000),
    "two of one key, tried again": (OutboxProtocol(losses=0), 18_000),
    "two keys": (OutboxProtocol(keys=("k", "l"), max_attempts=1), 1_900),
    "three of one key, one at a time": (OutboxProtocol(keys=THREE, relays=1, batch=1, losses=0), 5_000),
    "three of one key in one batch": (OutboxProtocol(keys=THREE, batch=3, relays=1, max_attempts=1), 3_000),
}
LARGE = {
    "two of one key, everything": (OutboxProtocol(), 50_000),
    "two of one key that are redriven": (OutboxProtocol(max_attempts=1, redrives=1), 10_000),
    "three of one key": (OutboxProtocol(keys=THREE, relays=1), 250_000),
    "three of one key, one at a time, tried again": (OutboxProtocol(keys=THREE, relays=1, batch=1), 100_000),
    "three of two keys": (OutboxProtocol(keys=("k", "l", "k"), max_attempts=1, losses=0), 40_000),
    "three relays": (OutboxProtocol(relays=3, losses=0), 20_000),
}


@pytest.mark.parametrize(("outbox", "at_least"), SMALL.values(), ids=SMALL)
def test_the_outbox_keeps_every_promise(outbox: OutboxProtocol, at_least: int) -> None:
    explored = explore(outbox)

    assert explored.broken is None, describe(explored.way)
    assert explored.worlds >= at_least


@pytest.mark.long
@pytest.mark.parametrize(("outbox", "at_least"), LARGE.values(), ids=LARGE)
def test_the_outbox_keeps_every_promise_with_more_of_everything(
    outbox: OutboxProtocol, at_least: int
) -> None:
    explored = explore(outbox)

    assert explored.broken is None, describe(explored.way)
    assert explored.worlds >= at_least


@pytest.mark.parametrize("mutant", Mutant)
def test_each_guard_left_out_of_the_outbox_breaks_the_promise_it_protects(mutant: Mutant) -> None:
    expected = CAUGHT_BY[mutant]

    tries = 1 if expected == Promise.at_least_once else 2  # which looks at all there is

    explored = explore(OutboxProtocol(mutant=mutant, max_attempts=tries), frozenset({expected}))

    assert explored.broken == expected


def test_every_promise_of_the_outbox_is_the_reason_why_some_mutant_is_caught() -> None:
    assert set(CAUGHT_BY) == set(Mutant)
    assert set(CAUGHT_BY.values()) == set(Promise)


def test_everything_that_can_happen_to_a_message_happens_somewhere() -> None:
    verbs, states, twice = set(), set(), False
    for deed, after in walk_all(SMALL["one message that is redriven"][0]):
        verbs.add(deed.verb)
        states |= {message.status for message in after.messages}
        twice = twice or len(after.delivered) > 1

    assert states == {*Status, None}
    assert verbs == {
        *("write", "commit", "roll back", "claim", "publish", "refuse", "mark", "expire", "die", "redrive")
    }
    assert twice
