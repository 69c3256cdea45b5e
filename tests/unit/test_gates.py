"""Which jobs of a train or slot may go: the decisions of jobs/gates.py, case by case."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from dibs.jobs.gates import (
    WAITING_READ,
    GateJob,
    Left,
    first_to_hold,
    fits,
    giving_way,
    has_room,
    holds,
    kept_instead,
    left_train,
    new_position,
    open_slot,
    open_train,
    waiting_needed,
)
from dibs.jobs.states import JobState


def job(n: int, state: str = "blocked", position: int = 0, **more: Any) -> GateJob:
    more.setdefault("token", n if state == "running" else None)
    return GateJob(UUID(int=n), state, position, **more)


def numbers(ids: Any) -> list[int]:
    return [getattr(id, "id", id).int for id in ids]


# -- Positions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sort", "policy", "position"),
    [
        ("train", "wait", 8),
        ("train", None, 8),
        ("slot", "wait", 0),
        ("slot", "replace", 0),
        ("slot", "drop", 0),
        ("slot", None, 0),
        ("slot", "preempt", -8),
    ],
)
def test_a_new_job_gets_its_position(sort: str, policy: str | None, position: int) -> None:
    assert new_position(sort, policy, 7) == position


@pytest.mark.parametrize(
    ("limit", "going", "expected"),
    [(1, [], True), (1, [1], False), (2, [2], True), (2, [1], False), (1, [3], False), (3, [3, 2], False)],
)
def test_the_strictest_limit_counts(limit: int, going: list[int], expected: bool) -> None:
    assert fits(limit, going) is expected


def test_a_dropped_job_leaves_its_place_to_the_running_one_or_the_first() -> None:
    waiting, urgent, running = job(1), job(2, priority=5), job(3, "running", 4)

    assert kept_instead(1, []) is None
    assert kept_instead(3, [job(1, slot_limit=3)]) is None
    assert kept_instead(1, [waiting, urgent]) == urgent.id
    assert kept_instead(1, [waiting, urgent, running]) == running.id


# -- Trains -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "on_cancelled", "on_failed", "expected"),
    [
        ("succeeded", "hold", "hold", False),
        ("failed", "advance", "hold", True),
        ("failed", "hold", "advance", False),
        ("cancelled", "hold", "advance", True),
        ("cancelled", "advance", "hold", False),
    ],
)
def test_an_end_holds_a_train_by_its_policy(
    state: str, on_cancelled: str, on_failed: str, expected: bool
) -> None:
    row = {"id": UUID(int=1), "position": 3, "on_cancelled": on_cancelled, "on_failed": on_failed}

    assert holds(JobState(state), on_cancelled, on_failed) is expected
    assert left_train(row, state) == Left(UUID(int=1), 3, expected)
    assert left_train(row, None).holds is False


@pytest.mark.parametrize("state", ["blocked", "ready", "scheduled", "running"])
def test_a_head_is_let_through_if_it_is_blocked(state: str) -> None:
    assert open_train(job(1, state, 1), None).opens is (state == "blocked")


def test_a_held_train_and_an_empty_one_open_nothing() -> None:
    assert open_train(job(1, "blocked", 1), UUID(int=9)).opens is False
    assert open_train(None, None).opens is False


LEFT = {
    "the head": ([(1, 1, True)], 2, 1),
    "the head, and no job is left": ([(1, 1, True)], None, 1),
    "the head, with another policy": ([(1, 1, False)], 2, None),
    "a follower": ([(3, 3, True)], 2, None),
    "the head and its follower": ([(1, 1, True), (2, 2, True)], 3, 1),
    "a follower, then the head": ([(2, 2, True), (1, 1, True)], 3, 1),
    "a follower, then a head that holds nothing": ([(2, 2, True), (1, 1, False)], 3, None),
    "a head that holds nothing, then the next": ([(1, 1, False), (2, 2, True)], 3, 2),
}


@pytest.mark.parametrize(("left", "first", "holder"), LEFT.values(), ids=LEFT)
def test_only_a_head_holds_its_train(left: list[Any], first: int | None, holder: int | None) -> None:
    head = None if first is None else job(first, "blocked", first)
    gone = [Left(UUID(int=n), position, stops) for n, position, stops in left]

    opening = open_train(head, None, gone)

    assert opening.held_by == (None if holder is None else UUID(int=holder))
    assert opening.opens is (holder is None and head is not None)
    assert open_train(head, UUID(int=9), gone).held_by == UUID(int=9)


def test_only_the_first_that_may_hold_a_train_must_be_compared_with_its_head() -> None:
    assert first_to_hold([]) is None
    assert first_to_hold([Left(UUID(int=n), n, True) for n in (5, 2, 3)]) == Left(UUID(int=2), 2, True)


# -- Slots --------------------------------------------------------------------------------------

SLOTS: dict[str, tuple[list[GateJob], list[int], list[int], list[int]]] = {
    # the jobs: ready afterwards, let through, sent back
    "an empty slot": ([], [], [], []),
    "the first of two": ([job(2), job(1)], [1], [1], []),
    "the more urgent of two": ([job(1), job(2, priority=1)], [2], [2], []),
    "the one that was due first": ([job(1, run_at=5), job(2, run_at=4)], [2], [2], []),
    "the one with the smaller position": ([job(1, position=1), job(2, position=-1)], [2], [2], []),
    "none beside a running one": ([job(1, "running"), job(2)], [], [], []),
    "the ready one stays": ([job(1, "ready"), job(2)], [1], [], []),
    "a ready one yields to a more urgent one": ([job(1, "ready"), job(2, priority=1)], [2], [2], [1]),
    "a ready one yields to a running one": ([job(1, "ready"), job(2, "running")], [], [], [1]),
    "as many as fit": ([job(n, slot_limit=2) for n in (1, 2, 3)], [1, 2], [1, 2], []),
    "as many as fit beside a running one": (
        [job(1, "running", slot_limit=3), *(job(n, slot_limit=3) for n in (2, 3, 4))], [2, 3], [2, 3], [],
    ),
    "no further than a strict one": (
        [job(1, slot_limit=3), job(2, slot_limit=1), job(3, slot_limit=3)], [1], [1], [],
    ),
    "a strict running one": ([job(1, "running"), job(2, slot_limit=3)], [], [], []),
}  # fmt: skip


@pytest.mark.parametrize(("jobs", "ready", "let_through", "sent_back"), SLOTS.values(), ids=SLOTS)
def test_a_slot_lets_through(
    jobs: list[GateJob], ready: list[int], let_through: list[int], sent_back: list[int]
) -> None:
    opening = open_slot(jobs, has_offer=False)

    assert numbers(opening.ready) == ready
    assert numbers(opening.let_through) == let_through
    assert numbers(opening.sent_back) == sent_back
    assert opening.asked == []


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_blocked_jobs_are_needed_than_the_first_allows_and_one(limit: int) -> None:
    jobs = [job(1, slot_limit=limit), *(job(n, slot_limit=9) for n in range(2, 12))]

    needed = waiting_needed(jobs)

    assert needed == limit + 1
    assert open_slot(jobs[:needed], has_offer=False) == open_slot(jobs, has_offer=False)
    assert waiting_needed([job(1, "running"), job(2, "ready")]) == 0


OFFERS = {
    # the jobs, whether there is an offer, whether this is upkeep: the offer afterwards
    "a job is let through, another waits": ([job(1), job(2)], False, False, "new"),
    "a job is let through during an offer": ([job(1, priority=1), job(2, "ready")], True, False, "new"),
    "a job is let through by upkeep": ([job(1), job(2)], False, True, "new"),
    "another came behind a ready one": ([job(1, "ready"), job(2)], False, False, "new"),
    "the offer goes on": ([job(1, "ready"), job(2)], True, False, "kept"),
    "upkeep repeats no offer": ([job(1, "ready"), job(2)], False, True, "kept"),
    "no job waits": ([job(1)], True, False, "none"),
    "no job is ready": ([job(1, "running"), job(2)], True, False, "none"),
}


@pytest.mark.parametrize(("jobs", "has_offer", "mends", "offer"), OFFERS.values(), ids=OFFERS)
def test_an_offer_begins(jobs: list[GateJob], has_offer: bool, mends: bool, offer: str) -> None:
    assert open_slot(jobs, has_offer=has_offer, mends=mends).offer == offer


PREEMPTED = {
    # the jobs: the running ones that are asked to stop
    "one that only waits": ([job(1, "running"), job(2)], []),
    "the running one": ([job(1, "running"), job(2, position=-1)], [1]),
    "one that was asked already": ([job(1, "running", asked=True), job(2, position=-1)], []),
    "a newer pre-empting one": ([job(1, "running", -2), job(2, position=-1)], []),
    "an older pre-empting one": ([job(1, "running", -1), job(2, position=-2)], [1]),
    "the one that started first": (
        [job(1, "running", slot_limit=2, token=8), job(2, "running", slot_limit=2, token=7),
         job(3, position=-1, slot_limit=2)], [2],
    ),
    "as many as a strict one needs": (
        [job(1, "running", slot_limit=2), job(2, "running", slot_limit=2), job(3, position=-1)], [1, 2],
    ),
    "ready ones count as if they had started": (
        [job(1, "running", slot_limit=2), job(2, position=-2, slot_limit=2),
         job(3, position=-1, slot_limit=2)], [1],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("jobs", "asked"), PREEMPTED.values(), ids=PREEMPTED)
def test_a_pre_empting_job_asks_to_stop(jobs: list[GateJob], asked: list[int]) -> None:
    opening = open_slot(jobs, has_offer=False)

    assert numbers(opening.asked) == asked
    assert (opening.reason is not None) is bool(asked)


def test_a_pre_empting_job_is_named_as_the_reason() -> None:
    opening = open_slot([job(1, "running"), job(2, position=-1)], has_offer=False)

    assert opening.reason == f"pre-empted by {UUID(int=2)}"


def test_a_job_claimed_by_name_goes_before_ready_ones_but_not_beside_running_ones() -> None:
    assert has_room(1, [job(1, "ready"), job(2)])
    assert not has_room(1, [job(1, "running")])
    assert has_room(2, [job(1, "running", slot_limit=2)])


MAIL, SMS = {"queue": "mail", "kind": "send"}, {"queue": "sms", "kind": "send"}
OTHER_KIND = {"queue": "mail", "kind": "sort"}
GIVING_WAY = {
    "to one of another queue": ([job(1, "ready", **MAIL), job(2, **SMS)], [1]),
    "to one of another kind": ([job(1, "ready", **MAIL), job(2, **OTHER_KIND)], [1]),
    "not to one like it": ([job(1, "ready", **MAIL), job(2, **MAIL)], []),
    "not to a running one": ([job(1, "ready", **MAIL), job(2, "running", **SMS)], []),
    "in the order of their turns": ([job(2, "ready", 3, **MAIL), job(1, "ready", 4, **MAIL), job(3)], [2, 1]),
    "only some": ([job(1, "ready", **MAIL), job(2, "ready", **SMS), job(3, **SMS)], [1]),
    "where more wait than are read": (
        [job(1, "ready", **MAIL), *(job(n, **MAIL) for n in range(2, WAITING_READ + 2))], [1],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("jobs", "expected"), GIVING_WAY.values(), ids=GIVING_WAY)
def test_a_ready_job_gives_way(jobs: list[GateJob], expected: list[int]) -> None:
    assert numbers(giving_way(jobs)) == expected
