"""The judge of `dibs verify` must be able to find what it is there to find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from dibs.cli.trial.records import Record, Recorder, RecordFile, Verdict, judge

START = datetime(2030, 1, 1, tzinfo=UTC)
JOB, OTHER = UUID(int=1), UUID(int=2)


def claimed(token: int, at: float, lease: float = 2, job: UUID = JOB) -> Record:
    begins = START + timedelta(seconds=at)
    return Record("claimed", at, job, token, begins, begins + timedelta(seconds=lease))


def settled(token: int, job: UUID = JOB) -> Record:
    return Record("settled", 0, job, token)


def refused(token: int) -> Record:
    return Record("refused", 0, JOB, token)


def verdict(*lines: Record, succeeded: tuple[UUID, ...] = (JOB,)) -> Verdict:
    return judge([JOB], succeeded, lines)


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


def test_a_line_that_was_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    Recorder(str(tmp_path / "a")).write(claimed(1, 0))
    with (tmp_path / "a").open("ab") as file:
        file.write(b'["claimed",0')

    assert RecordFile(tmp_path / "a").read() == [claimed(1, 0)]
    assert RecordFile(tmp_path / "missing").read() == []
