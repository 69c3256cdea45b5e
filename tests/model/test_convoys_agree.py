"""Convoys, which a machine with all rules seldom draws, as often as it takes."""

from __future__ import annotations

import pytest
from agreement import check_agreement, only
from beside import RedisStore, SqlStore
from gated_agreement import GatedAgreement
from hypothesis import Phase

ON_TRAINS = only(
    GatedAgreement,
    *("ride", "look_ahead", "settle_convoy", "enqueue_at_one_gate", "end_head"),
    *("settle", "cancel", "retry", "delete", "sweep", "release_train", "set_queue_and_claim"),
)
STORES = {"sqlite": 6, "postgres": 2, "mariadb_beside": 2, "on_redis": 4}


@pytest.mark.parametrize(("store", "examples"), STORES.items(), ids=STORES)
def test_convoys_are_as_in_memory(request: pytest.FixtureRequest, store: str, examples: int) -> None:
    check_agreement(request.getfixturevalue(store), ON_TRAINS, examples=examples)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("store", "examples"), STORES.items(), ids=STORES)
def test_convoys_are_as_in_memory_at_length(
    request: pytest.FixtureRequest, store: str, examples: int
) -> None:
    check_agreement(request.getfixturevalue(store), ON_TRAINS, examples=50 * examples, derandomize=False)


Lost = dict[str, tuple[str, str, str]]

LOST_CONVOYS: dict[str, Lost] = {
    "sqlite": {
        "a convoy comes backwards": ("followers", "order by job.position", "order by job.position desc"),
        "a convoy needs no head": (
            "start_follower",
            "and held.token = :head_token and held.state = 'running'",
            "",
        ),
        "a convoy ends all at once": ("date_end", "where id = :id", "where id = :id and false"),
        "a convoy takes who is not due": ("followers", "job.run_at <=", "0 <="),
        "a follower gets no lease": (
            "start_follower",
            "lease_until = :lease_until",
            "lease_until = head.claimed_at",
        ),
    },
    "on_redis": {
        "a convoy comes backwards": (
            "followers",
            "'ZRANGEBYLEX', store .. ':members:train:' .. head.train, next, '+'",
            "'ZREVRANGEBYLEX', store .. ':members:train:' .. head.train, '+', next",
        ),
    },
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "lost"),
    [
        pytest.param(store, lost, id=f"{store}: {name}")
        for store, rules in LOST_CONVOYS.items()
        for name, lost in rules.items()
    ],
)
def test_a_store_whose_convoys_lost_a_rule_no_longer_agrees(
    request: pytest.FixtureRequest, store: str, lost: tuple[str, str, str]
) -> None:
    broken: SqlStore | RedisStore = request.getfixturevalue(store)
    broken.take_out(*lost)

    with pytest.raises(AssertionError):
        check_agreement(broken, ON_TRAINS, examples=200, phases=[Phase.generate])
