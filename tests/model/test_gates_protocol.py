"""Gates and pipelines keep their promises in every order of events, and each missing guard breaks one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dibs.jobs.states import JobState
from tests.model.explorer import describe, walk_all
from tests.model.gates_promises import explore
from tests.model.gates_protocol import Gates
from tests.model.gates_words import CAUGHT_BY, Kind, Mutant, Promise

TRAIN, OTHERS = Kind("train"), Kind("train", producer=1)
HOLDS = Kind("train", on_failed="hold")
SLOT, WIDE = Kind("slot"), Kind("slot", limit=2)
PARENT, HOLDING = Kind(), Kind(dooms=False)


def in_slot(policy: str, limit: int = 1) -> Kind:
    return Kind("slot", producer=1, policy=policy, limit=limit)


TORN = {"verbs": ("delete_by_hand",), "people": 1, "losses": 0}

# How many worlds there are at least; far fewer, and something no longer happens.
SMALL = {
    "a train with two producers": (Gates(kinds=(TRAIN, TRAIN, OTHERS)), 1_400),
    "a train whose heads come back": (Gates(kinds=(TRAIN, OTHERS), max_attempts=2, gifts=1), 3_000),
    "a train that holds, and people": (
        Gates(kinds=(HOLDS, TRAIN, OTHERS), workers=1, losses=0, people=2),
        7_000,
    ),
    "a train torn by hand": (Gates(kinds=(TRAIN, TRAIN, OTHERS), workers=1, **TORN), 900),
    "a slot for two, and one who is strict": (
        Gates(kinds=(WIDE, WIDE, in_slot("wait")), losses=0, turns=0),
        3_000,
    ),
    "a slot that comes back": (Gates(kinds=(SLOT, in_slot("wait")), losses=0, gifts=1), 1_000),
    "a slot whose waiting jobs are replaced": (
        Gates(kinds=(SLOT, SLOT, in_slot("replace")), losses=0, turns=0),
        1_000,
    ),
    "a slot that is pre-empted": (Gates(kinds=(SLOT, in_slot("preempt")), max_attempts=2), 2_500),
    "a slot that drops": (Gates(kinds=(Kind("slot", policy="drop"), in_slot("drop"), SLOT), turns=0), 2_000),
    "a slot, and people": (Gates(kinds=(SLOT, in_slot("wait")), losses=0, people=1), 3_000),
    "two parents": (Gates(kinds=(PARENT, PARENT, Kind(parents=(0, 1))), max_attempts=2), 4_000),
    "a chain, and people": (
        Gates(kinds=(PARENT, Kind(parents=(0,)), Kind(parents=(1,))), people=2),
        1_800,
    ),
    "a pipeline that holds": (Gates(kinds=(HOLDING, HOLDING, Kind(parents=(0, 1))), people=1), 2_000),
    "a child with a place on a train": (Gates(kinds=(PARENT, Kind("train", parents=(0,)), OTHERS)), 400),
}
LARGE = {
    "a train of four that holds, and people": (
        Gates(kinds=(HOLDS, TRAIN, OTHERS, OTHERS), people=2, workers=1),
        30_000,
    ),
    "a train whose heads come back often": (
        Gates(kinds=(TRAIN, TRAIN, OTHERS), max_attempts=2, gifts=1),
        10_000,
    ),
    "a slot of three": (Gates(kinds=(SLOT, SLOT, in_slot("wait"))), 10_000),
    "a slot of three that is pre-empted": (Gates(kinds=(SLOT, WIDE, in_slot("preempt"))), 9_000),
    "a slot that comes back often": (Gates(kinds=(SLOT, in_slot("wait")), max_attempts=2, gifts=1), 10_000),
    "a slot, and more people": (Gates(kinds=(SLOT, in_slot("replace")), people=2), 10_000),
    "a diamond on a train": (
        Gates(
            kinds=(PARENT, Kind(parents=(0,)), Kind("train", parents=(0,)), Kind("train", parents=(1, 2))),
            people=1,
        ),
        1_000,
    ),
}


@pytest.mark.parametrize(("gates", "at_least"), SMALL.values(), ids=SMALL)
def test_gates_keep_every_promise(gates: Gates, at_least: int) -> None:
    explored = explore(gates)

    assert explored.broken is None, describe(explored.way)
    assert explored.worlds >= at_least


@pytest.mark.long
@pytest.mark.parametrize(("gates", "at_least"), LARGE.values(), ids=LARGE)
def test_gates_keep_every_promise_with_more_of_everything(gates: Gates, at_least: int) -> None:
    explored = explore(gates)

    assert explored.broken is None, describe(explored.way)
    assert explored.worlds >= at_least


PREEMPTS = Kind("slot", policy="preempt")
PREEMPTS_ONE = Kind("slot", policy="preempt", limit=2)

# Where each guard is needed.
SCENES = {
    Mutant.place_by_luck: Gates(kinds=(TRAIN, OTHERS)),
    Mutant.gate_not_locked: Gates(kinds=(TRAIN, OTHERS)),
    Mutant.advance_first: Gates(kinds=(TRAIN, OTHERS)),
    Mutant.advance_later: Gates(kinds=(TRAIN, OTHERS)),
    Mutant.back_to_the_end: Gates(kinds=(TRAIN, OTHERS), max_attempts=2),
    Mutant.held_goes_on: Gates(kinds=(HOLDS, OTHERS)),
    Mutant.follower_holds: Gates(kinds=(TRAIN, HOLDS), people=1),
    Mutant.settle_unfenced: Gates(kinds=(TRAIN, OTHERS)),
    Mutant.nobody_counts: Gates(kinds=(SLOT, in_slot("wait"))),
    Mutant.own_limit_only: Gates(kinds=(SLOT, in_slot("wait", limit=2))),
    Mutant.overtake_looks_first: Gates(kinds=(SLOT, in_slot("wait"))),
    Mutant.turn_passed_unseen: Gates(kinds=(SLOT, in_slot("wait"))),
    Mutant.preempt_takes_away: Gates(kinds=(SLOT, in_slot("preempt"))),
    Mutant.older_preempts: Gates(kinds=(PREEMPTS, PREEMPTS, in_slot("wait")), losses=0, turns=0),
    Mutant.ready_uncounted: Gates(
        kinds=(WIDE, WIDE, PREEMPTS_ONE, PREEMPTS_ONE),
        losses=0,
        turns=0,
    ),
    Mutant.replace_ends_all: Gates(kinds=(SLOT, in_slot("replace"))),
    Mutant.drop_looks_first: Gates(kinds=(Kind("slot", policy="drop"), in_slot("drop"))),
    Mutant.any_parent: Gates(kinds=(PARENT, PARENT, Kind(parents=(0, 1)))),
    Mutant.parents_look_first: Gates(kinds=(PARENT, PARENT, Kind(parents=(0, 1)))),
    Mutant.zombie_lets_go: Gates(kinds=(PARENT, Kind(parents=(0,))), max_attempts=2),
    Mutant.doomed_wait: Gates(kinds=(PARENT, Kind(parents=(0,)))),
    Mutant.nobody_mends: Gates(kinds=(TRAIN, OTHERS), **TORN),
}


@pytest.mark.parametrize("mutant", Mutant)
def test_each_guard_left_out_of_a_gate_breaks_the_promise_it_protects(mutant: Mutant) -> None:
    expected = CAUGHT_BY[mutant]

    explored = explore(replace(SCENES[mutant], mutant=mutant), frozenset({expected}))

    assert explored.broken == expected


@pytest.mark.parametrize("mutant", Mutant)
def test_where_a_guard_is_needed_nothing_goes_wrong_with_it(mutant: Mutant) -> None:
    explored = explore(SCENES[mutant])

    assert explored.broken is None, describe(explored.way)


def test_every_promise_of_gates_is_the_reason_why_some_mutant_is_caught() -> None:
    assert set(CAUGHT_BY) == set(Mutant)
    assert set(CAUGHT_BY.values()) == set(Promise)


SHORT = (
    "a train with two producers",
    "a train torn by hand",
    "a train that holds, and people",
    "a slot that comes back",
)


def test_everything_that_can_happen_at_a_gate_happens_somewhere() -> None:
    verbs, states = set(), set()
    for name in SHORT:
        for deed, after in walk_all(SMALL[name][0]):
            verbs.add(deed.verb)
            states |= {job.state for job in after.jobs}

    assert states == {*JobState, None}
    assert verbs == {
        *(
            "enqueue",
            "commit",
            "roll back",
            "claim",
            "overtake",
            "settle",
            "lost",
            "expire",
            "stage",
            "sweep",
        ),
        *("pass on", "mend", "cancel", "retry", "release_train", "delete_by_hand", "die"),
    }
