"""Convoys, which a machine with all rules seldom draws, as often as it takes."""

from __future__ import annotations

import pytest

from tests.model.agreement import check_agreement, only
from tests.model.beside import RealStore
from tests.model.draws import End
from tests.model.gated_agreement import GatedAgreement

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


# -- every way in which a convoy can go ---------------------------------------------------------------------

ON_TRAIN = {"kind": "soon", "queue": "mail", "train": "north"}
FOUR = [ON_TRAIN] * 4
ONE_IS_LATER = [ON_TRAIN, ON_TRAIN, ON_TRAIN | {"delay": 60}, ON_TRAIN]
ENDS: dict[str, End | None] = {
    "goes on": None,
    "succeeds": ("succeed", ("done",), {}),
    "fails": ("fail", ("no",), {}),
}
RIDES = [
    {"before": before, "meanwhile": meanwhile, "limit": limit, "end": end}
    for before, meanwhile in [
        *((None, each) for each in (None, "cancel", "delete", "sweep", "overtake")),
        *(("pause", None), ("lease", None)),
    ]
    for limit in (None, 2)
    for end in ENDS.values()
]


def ride_every_way(store: RealStore) -> None:
    """Each beside memory, from an empty store to one in which everything is done."""
    for options, ride in [*((FOUR, ride) for ride in RIDES), (ONE_IS_LATER, RIDES[0])]:
        machine = type("Riding", (GatedAgreement,), {"store": store})()
        machine.enqueue_many(options, backwards=False, fresh=True)
        machine.both_show_the_same()
        machine.ride(train="north", many=2, seconds=48, children=[], **ride)
        machine.both_show_the_same()
        machine.teardown()


@pytest.mark.parametrize("store", STORES)
def test_a_convoy_is_as_in_memory_whatever_comes_in_its_way(
    request: pytest.FixtureRequest, store: str
) -> None:
    ride_every_way(request.getfixturevalue(store))


Lost = dict[str, tuple[str, str, str]]

BACKWARDS = "a convoy comes backwards"
LEASE_IS_OVER = "a head leads on when its lease is over"
NOT_DUE = "a convoy takes who is not due"
PAUSED = "a convoy takes who is of a paused queue"
ANY_TOKEN = "whoever has the head may lead"
NO_HEAD = "a convoy needs no head that runs"
NO_LEASE = "a follower gets no lease"
NO_ATTEMPT = "a follower spends no attempt"
AT_ONCE = "a convoy ends all at once"

LOST_CONVOYS: dict[str, Lost] = {
    "sqlite": {
        BACKWARDS: ("followers", "order by job.position", "order by job.position desc"),
        LEASE_IS_OVER: ("followers", "and head.lease_until > ", "and 0 < "),
        NOT_DUE: ("followers", "job.run_at <=", "0 <="),
        PAUSED: ("followers", "setting.paused or ", ""),
        ANY_TOKEN: ("start_follower", "and held.token = :head_token", ""),
        NO_HEAD: ("start_follower", "and held.token = :head_token and held.state = 'running'", ""),
        NO_LEASE: ("start_follower", "lease_until = :lease_until", "lease_until = head.claimed_at"),
        NO_ATTEMPT: ("start_follower", "attempts + 1", "attempts"),
        AT_ONCE: ("date_end", "where id = :id", "where id = :id and false"),
    },
    "postgres": {
        BACKWARDS: ("followers", "order by job.position", "order by job.position desc"),
        LEASE_IS_OVER: ("followers", "and head.lease_until > ", "and to_timestamp(0) < "),
        NOT_DUE: ("followers", "next.run_at <=", "to_timestamp(0) <="),
        PAUSED: ("followers", "setting.paused or ", ""),
        ANY_TOKEN: (
            "start_followers",
            "((job.id, job.token) in (select given.head, given.head_token from given)) is true",
            "true",
        ),
        NO_HEAD: ("start_followers", "and job.lease_until is not null", ""),
        NO_LEASE: ("start_followers", "given.lease * interval", "0 * interval"),
        NO_ATTEMPT: ("start_followers", "job.attempts + 1", "job.attempts"),
        AT_ONCE: ("date_ends", "where job.id = given.id", "where job.id = given.id and false"),
    },
    "mariadb_beside": {
        BACKWARDS: ("followers", "order by job.position", "order by job.position desc"),
        LEASE_IS_OVER: ("followers", "and head.lease_until > ", "and from_unixtime(0) < "),
        NOT_DUE: ("followers", "job.run_at <=", "from_unixtime(0) <="),
        PAUSED: ("followers", "setting.paused or ", ""),
        ANY_TOKEN: ("start_followers", "and head.token = given.head_token", ""),
        NO_HEAD: ("start_followers", "and head.lease_until is not null", ""),
        NO_LEASE: (
            "start_followers",
            "job.lease_until = given.lease_until",
            "job.lease_until = given.claimed_at",
        ),
        NO_ATTEMPT: ("start_followers", "job.attempts + 1", "job.attempts"),
        AT_ONCE: ("date_ends", "on job.id = unhex(given.id)", "on job.id = unhex(given.id) and false"),
    },
    "on_redis": {
        BACKWARDS: (
            "followers",
            "'ZRANGEBYLEX', store .. ':members:train:' .. head.train, next, '+'",
            "'ZREVRANGEBYLEX', store .. ':members:train:' .. head.train, '+', next",
        ),
        LEASE_IS_OVER: ("followers", "tonumber(head.lease_until) <= now", "false"),
        NOT_DUE: ("followers", "tonumber(job.run_at) <= now", "true"),
        PAUSED: ("followers", "redis.call('SISMEMBER', store .. ':paused', queue) == 0", "true"),
        ANY_TOKEN: (
            "settle",
            "held(ride[HEAD], ride[HEAD_TOKEN])",
            "held(ride[HEAD], load(ride[HEAD]).token)",
        ),
        NO_LEASE: ("settle", "text(now + ride[LEASE])", "text(now)"),
        NO_ATTEMPT: ("settle", "'attempts', (job.attempts or 0) + 1", "'attempts', (job.attempts or 0)"),
        AT_ONCE: ("settle", "job.ended_at = text(now - ride[ENDED_AGO])", "job.ended_at = nil"),
    },
}


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
    broken: RealStore = request.getfixturevalue(store)
    broken.take_out(*lost)

    with pytest.raises(AssertionError):
        ride_every_way(broken)
