"""The decisions: what an attempt leads to, and how long to wait before the next."""

from datetime import timedelta
from typing import Any

import pytest

from dibs import BadRequest, JobState, Retry
from dibs.jobs.states import (
    FINISHED,
    TRANSITIONS,
    WAITING,
    CancelledBy,
    Outcome,
    Raised,
    Released,
    Snoozed,
    Succeeded,
    put_back,
    settle,
    swept,
)

SECOND = 1_000_000
ERROR = {"message": "broken"}
FIXED, NEVER = Retry.fixed(5), Retry.never()


@pytest.mark.parametrize(
    ("outcome", "attempts", "retry", "state", "settled_as", "delay", "refund"),
    [
        (Succeeded('"x"'), 1, FIXED, "succeeded", "succeeded", None, False),
        (Succeeded(None), 3, NEVER, "succeeded", "succeeded", None, False),
        (Raised(ERROR), 1, FIXED, "scheduled", "retried", 5 * SECOND, False),
        (Raised(ERROR), 2, FIXED, "scheduled", "retried", 5 * SECOND, False),
        (Raised(ERROR), 1, Retry.fixed(0), "ready", "retried", 0, False),
        (Raised(ERROR), 3, FIXED, "failed", "failed", None, False),
        (Raised(ERROR), 4, FIXED, "failed", "failed", None, False),
        (Raised(ERROR), 1, NEVER, "failed", "failed", None, False),
        (Raised(ERROR, retry=False), 1, FIXED, "failed", "failed", None, False),
        (Snoozed(30), 3, NEVER, "scheduled", "snoozed", 30, True),
        (Snoozed(0), 1, FIXED, "ready", "snoozed", 0, True),
        (Released(), 3, NEVER, "ready", "released", None, True),
        (CancelledBy("why"), 1, FIXED, "cancelled", "cancelled", None, False),
    ],
    ids=repr,
)
def test_an_outcome_leads_to_its_settlement(
    outcome: Outcome,
    attempts: int,
    retry: Retry,
    state: str,
    settled_as: str,
    delay: int | None,
    refund: bool,
) -> None:
    to = settle(attempts, 3, outcome, retry, 0.5)

    assert (to.state, to.settled_as, to.delay, to.refund) == (state, settled_as, delay, refund)
    assert to.state in TRANSITIONS[JobState.running]


def test_a_settlement_carries_what_it_must_store() -> None:
    assert settle(1, 3, Succeeded('"x"'), FIXED, 0).result == '"x"'
    assert settle(1, 3, Raised(ERROR), FIXED, 0).error == ERROR
    assert settle(3, 3, Raised(ERROR), FIXED, 0).error == ERROR
    assert settle(1, 3, CancelledBy("why"), FIXED, 0).message == "why"


@pytest.mark.parametrize("state", JobState)
def test_a_job_asked_to_cancel_never_goes_back_to_waiting(state: JobState) -> None:
    assert put_back(state, cancel_asked=False) == state
    assert put_back(state, cancel_asked=True) not in WAITING
    assert state not in FINISHED or put_back(state, cancel_asked=True) == state


@pytest.mark.parametrize(
    ("attempts", "cancel_asked", "state"),
    [
        (1, False, "ready"),
        (2, False, "ready"),
        (3, False, "failed"),
        (4, False, "failed"),
        (1, True, "cancelled"),
        (3, True, "cancelled"),
    ],
)
def test_an_expired_lease_comes_back_until_the_attempts_are_used_up(
    attempts: int, cancel_asked: bool, state: str
) -> None:
    assert swept(attempts, 3, cancel_asked=cancel_asked) == state


def test_every_state_has_its_transitions_and_a_finished_one_never_runs() -> None:
    assert set(TRANSITIONS) == set(JobState) == WAITING | FINISHED | {JobState.running}
    assert all(JobState.running not in TRANSITIONS[state] for state in FINISHED)
    assert TRANSITIONS[JobState.succeeded] == frozenset()
    assert [state for state in JobState if JobState.running in TRANSITIONS[state]] == [JobState.ready]


# -- Retry --------------------------------------------------------------------------------------


def test_the_usual_back_off_doubles_up_to_an_hour() -> None:
    retry = Retry.exponential()

    seconds = [retry.delay(attempts, 0.5) / SECOND for attempts in (1, 2, 3, 10, 11, 12, 50)]

    assert seconds == [2, 4, 8, 1024, 2048, 3600, 3600]


@pytest.mark.parametrize("attempts", [1, 5, 40])
def test_the_jitter_stays_within_ten_percent(attempts: int) -> None:
    retry = Retry.exponential()
    middle = retry.delay(attempts, 0.5)

    assert retry.delay(attempts, 0) == pytest.approx(0.9 * middle)
    assert retry.delay(attempts, 1) == pytest.approx(1.1 * middle)
    assert retry.delay(attempts, 0.3) == pytest.approx(0.96 * middle)


def test_no_jitter_is_exact() -> None:
    retry = Retry.exponential(base=3, cap=100, jitter=0)

    assert [retry.delay(attempts, chance) for attempts, chance in [(1, 0), (2, 1), (9, 0.2)]] == [
        3 * SECOND,
        9 * SECOND,
        100 * SECOND,
    ]


@pytest.mark.parametrize("seconds", [0, 0.5, 1, 90])
def test_a_fixed_pause_is_the_same_every_time(seconds: float) -> None:
    retry = Retry.fixed(seconds)

    assert {retry.delay(attempts, chance) for attempts in (1, 2, 99) for chance in (0, 1)} == {
        round(seconds * SECOND)
    }


def test_a_pause_may_be_a_timedelta() -> None:
    two, minute = timedelta(seconds=2), timedelta(minutes=1)

    assert Retry.fixed(minute).delay(1, 0.5) == 60 * SECOND
    assert Retry.exponential(base=two, cap=minute) == Retry.exponential(base=2, cap=60)


@pytest.mark.parametrize("pause", ["x", None, True, -1, float("nan"), float("inf"), 1e18, timedelta(-1)])
def test_a_pause_that_no_store_could_keep_is_refused(pause: Any) -> None:
    for made in (Retry.fixed, lambda it: Retry.exponential(base=it), lambda it: Retry.exponential(cap=it)):
        with pytest.raises(BadRequest, match="give seconds or a timedelta"):
            made(pause)


@pytest.mark.parametrize("jitter", [50, -0.1, float("nan"), "x", True])
def test_a_jitter_that_is_no_part_of_the_pause_is_refused(jitter: Any) -> None:
    with pytest.raises(BadRequest, match="jitter"):
        Retry.exponential(jitter=jitter)


def test_no_pause_is_longer_than_a_hundred_years() -> None:
    century = timedelta(days=36_600)

    assert Retry.exponential(cap=century, jitter=1).delay(1000, 1) == century / timedelta(microseconds=1)


@pytest.mark.parametrize("base", [2, 1.5, 10**6])
def test_no_number_of_attempts_is_too_many(base: float) -> None:
    assert Retry.exponential(base=base, jitter=0).delay(2_147_483_647, 0.5) == 3600 * SECOND


def test_never_means_never() -> None:
    assert not Retry.never().again
    assert Retry.fixed(1).again
    assert Retry.exponential().again
