"""How often an enqueue is announced, and when the hint may name its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.engines import hints
from dibs.engines.hints import Hint, Hints, hint_of, read_hint
from dibs.jobs.ids import new_id
from dibs.jobs.job import NEW_JOB_COLUMNS

Enqueue = Callable[..., list[Hint]]


def _job(**given: Any) -> tuple[Any, ...]:
    usual = {"id": new_id(), "kind": "send", "queue": "mail", "priority": 0}
    return tuple({**dict.fromkeys(NEW_JOB_COLUMNS), **usual, **given}[name] for name in NEW_JOB_COLUMNS)


@pytest.fixture
def enqueue(monkeypatch: pytest.MonkeyPatch) -> Enqueue:
    """Enqueue a job so many seconds after the last one; return its hints."""
    naming, now = Hints(naming=True), 100.0
    monkeypatch.setattr(hints, "monotonic", lambda: now)

    def enqueue(*jobs: tuple[Any, ...], after: float = 0.0) -> list[Hint]:
        nonlocal now
        now += after
        return list(map(read_hint, naming.due(jobs)))

    return enqueue


@pytest.mark.parametrize("gap", [0.005, 0.01, 1.0])
def test_at_a_moderate_rate_every_job_is_announced_by_its_id(enqueue: Enqueue, gap: float) -> None:
    for _ in range(100):
        job = _job()

        assert enqueue(job, after=gap) == [Hint("mail", "send", 0, job[0])]


def test_in_a_flood_there_is_a_hint_every_20_ms_which_names_no_job(enqueue: Enqueue) -> None:
    for _ in range(50):
        enqueue(_job(), after=0.001)

    flood = [hint for _ in range(1000) for hint in enqueue(_job(), after=0.001)]

    assert 45 <= len(flood) <= 50
    assert set(flood) == {Hint("mail", "send")}  # the jobs before it had none


def test_an_urgent_job_is_announced_at_once_in_a_flood_of_others(enqueue: Enqueue) -> None:
    for _ in range(50):
        enqueue(_job(), after=0.001)
    urgent = _job(priority=9)

    assert enqueue(urgent, after=0.001) == [Hint("mail", "send", 9, urgent[0])]


def test_a_hint_names_no_job_that_is_due_later_and_none_of_several(enqueue: Enqueue) -> None:
    assert enqueue(_job(delay=5), after=1.0) == [Hint("mail", "send")]
    assert enqueue(_job(), _job(), after=1.0) == [Hint("mail", "send")]
    assert enqueue(_job(), _job(kind="print"), after=1.0) == [Hint("mail")]


def test_a_hint_without_a_job_is_read_as_it_was_sent() -> None:
    assert read_hint(hint_of("mail", ["send"])) == Hint("mail", "send")
    assert read_hint(hint_of("mail", ["send", "print"])) == Hint("mail")
    assert read_hint("") == Hint("")
