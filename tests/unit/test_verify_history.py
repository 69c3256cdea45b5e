"""The judge of `dibs verify` must be able to find what it is there to find."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from dibs.cli.trial.records import RULES, Record, Recorder, RecordFile, Verdict, judge, page
from tests.support.check_history import broken_rules

START = datetime(2030, 1, 1, tzinfo=UTC)
JOB, OTHER = UUID(int=1), UUID(int=2)


def claimed(token: int, at: float, lease: float = 2, job: UUID = JOB) -> Record:
    begins = START + timedelta(seconds=at)
    return Record("claimed", at, job, token, begins, begins + timedelta(seconds=lease))


def settled(token: int, job: UUID = JOB) -> Record:
    return Record("settled", 0, job, token)


def refused(token: int) -> Record:
    return Record("refused", 0, JOB, token)


def ended(token: int, at: float, job: UUID = JOB) -> Record:
    return Record("ended", at, job, token)


def verdict(*lines: Record, succeeded: tuple[UUID, ...] = (JOB,)) -> Verdict:
    """Judge a history; the checker that shares no code with dibs must come to the same verdict."""
    history = [Record("enqueued", 0, JOB), *lines, *(Record("succeeded", 99, id) for id in succeeded)]
    return _agreed(history)


def _agreed(history: list[Record]) -> Verdict:
    found = judge(history)
    second = Counter(rule for rule, _ in broken_rules(msgspec.json.encode(one).decode() for one in history))
    assert {rule: getattr(found, rule) for rule in RULES} == {
        rule: second[rule.replace("_", " ")] for rule in RULES
    }
    return found


def test_a_job_that_came_back_and_was_done_once_is_well() -> None:
    found = verdict(claimed(1, 0), claimed(2, 2), settled(2), refused(1))

    assert found.is_good
    assert (found.claims, found.came_back, found.refused) == (2, 1, 1)


def test_a_claim_while_another_is_held_is_a_double_claim() -> None:
    assert verdict(claimed(1, 0), claimed(2, 1.9), settled(2)).double_claims == 1


def test_a_claim_of_what_was_done_is_a_double_claim() -> None:
    assert verdict(claimed(1, 0), settled(1), claimed(2, 5)).double_claims == 1


def test_a_late_settlement_that_was_accepted_is_a_late_write() -> None:
    assert verdict(claimed(1, 0), claimed(2, 2), settled(1)).late_writes == 1


def test_a_late_renewal_that_was_accepted_is_a_late_write() -> None:
    wrote = Record("wrote", 0, JOB, 1)

    assert verdict(claimed(1, 0), claimed(2, 2), wrote, settled(2)).late_writes == 1
    assert verdict(claimed(1, 0), wrote, settled(1)).is_good


def test_a_job_that_was_done_twice_is_a_late_write() -> None:
    assert verdict(claimed(1, 0), settled(1), settled(1)).late_writes == 1


def test_a_later_claim_with_a_smaller_token_is_found() -> None:
    assert verdict(claimed(7, 0), claimed(3, 2), settled(7)).tokens_not_growing == 1


def test_a_job_that_nobody_finished_is_lost() -> None:
    assert verdict(claimed(1, 0), succeeded=()).lost == 1


@pytest.mark.parametrize(
    "lines", [(claimed(1, 0), claimed(2, 1)), (claimed(1, 0), claimed(2, 2), settled(1)), ()], ids=str
)
def test_none_of_these_is_well(lines: tuple[Record, ...]) -> None:
    assert not verdict(*lines, succeeded=()).is_good


def test_claims_of_different_jobs_have_nothing_to_do_with_each_other() -> None:
    assert verdict(claimed(1, 0), claimed(2, 1, job=OTHER), settled(1), settled(2, OTHER)).is_good


def at_gate(gate: str, *lines: Record) -> Verdict:
    """Judge a history of two jobs at one gate, of which both succeed."""
    enqueued = [Record("enqueued", 0, id, **{gate: "g"}) for id in (JOB, OTHER)]
    return _agreed([*enqueued, *lines, *(Record("succeeded", 99, id) for id in (JOB, OTHER))])


DONE = (claimed(1, 0), ended(1, 1), settled(1))


@pytest.mark.parametrize("gate", ["train", "slot"])
def test_jobs_of_a_gate_one_after_the_other_are_well(gate: str) -> None:
    assert at_gate(gate, *DONE, claimed(2, 1.1, job=OTHER), ended(2, 2, OTHER), settled(2, OTHER)).is_good


@pytest.mark.parametrize("gate", ["train", "slot"])
def test_a_gate_goes_on_when_the_lease_of_a_dead_worker_is_over(gate: str) -> None:
    again = (claimed(2, 2), ended(2, 2.1), settled(2))

    assert at_gate(gate, claimed(1, 0), *again, claimed(3, 2.2, job=OTHER), settled(3, OTHER)).is_good


def test_a_job_claimed_before_the_one_ahead_in_its_train_ended_is_out_of_order() -> None:
    found = at_gate("train", *DONE, claimed(2, 0.9, job=OTHER), settled(2, OTHER))
    reversed = at_gate("train", claimed(1, 0, job=OTHER), settled(1, OTHER), claimed(2, 5), ended(2, 6))

    assert found.trains_out_of_order == reversed.trains_out_of_order == 1
    assert not found.is_good


def test_a_slot_that_two_jobs_hold_is_found() -> None:
    found = at_gate("slot", *DONE, claimed(2, 0.9, job=OTHER), ended(2, 1.2, OTHER), settled(2, OTHER))

    assert found.slots_held_twice == 1
    assert not found.is_good


def test_the_page_shows_the_verdict_the_faults_and_the_jobs_in_question() -> None:
    came_back = [claimed(1, 0, job=OTHER), claimed(2, 3, job=OTHER), settled(2, OTHER)]
    faults = [
        Record("frozen", 1, worker="w-1"),
        Record("resumed", 4, worker="w-1"),
        Record("killed", 5, worker="w-2"),
    ]
    lost = [Record("enqueued", 0, JOB, train="<t>"), claimed(4, 6)]
    history = [*lost, *came_back, *faults, Record("succeeded", 99, OTHER)]

    text = page(["lost = 1"], ["a promise & more"], history)

    assert text.count("<t>") == 0  # nothing of a history is read as HTML
    run = json.loads(text.partition('id="run">')[2].partition("</script>")[0])
    assert [(one["job"], one["rules"]) for one in run["jobs"]] == [(str(JOB), ["lost"]), (str(OTHER), [])]
    assert [len(one["records"]) for one in run["jobs"]] == [2, 4]
    assert [fault["event"] for fault in run["faults"]] == ["frozen", "resumed", "killed"]
    assert (run["lines"], run["problems"]) == (["lost = 1"], ["a promise & more"])
    assert run["workers"]["w-1"] == [1, 4, 0]
    assert not any(outside in text for outside in ("<link", "src=", "fetch(", "@import", "url("))


def test_a_line_that_was_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    Recorder(str(tmp_path / "a")).write(claimed(1, 0))
    with (tmp_path / "a").open("ab") as file:
        file.write(b'["claimed",0')

    assert RecordFile(tmp_path / "a").read() == [claimed(1, 0)]
    assert RecordFile(tmp_path / "missing").read() == []
