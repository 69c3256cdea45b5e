"""Numbers as people say them: one job is no jobs."""

from __future__ import annotations

import pytest

from dibs.cli.commands import serve, verify
from dibs.cli.commands.demo import TextDisplay
from dibs.cli.trial.records import Verdict
from dibs.log_format import swept_line
from dibs.text import numbered, spoken_size


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1234, "1,234 jobs")]
)
def test_one_is_said_as_one(number: int, said: str) -> None:
    assert numbered(number, "job") == said


@pytest.mark.parametrize(
    ("size", "said"), [(0, "0 bytes"), (1, "1 byte"), (512, "512 bytes"), (1.5e6, "1.5 MB")]
)
def test_a_size_is_said_with_its_unit(size: float, said: str) -> None:
    assert spoken_size(size) == said


def test_a_verification_that_met_one_of_each_says_so() -> None:
    broken = dict.fromkeys(("double_claims", "late_writes", "tokens_not_growing", "lost"), 0)
    verdict = Verdict(**broken, claims=1, came_back=1, refused=1)
    report = verify.Report(jobs=1, killed=1, frozen=1, seconds=2.0, verdict=verdict, problems=[])

    assert list(verify._lines(report))[:3] == [
        "1 job, 1 claim in 2.0 s",
        "processes that held jobs: 1 killed, 1 frozen past their leases",
        "1 job came back; 1 late settlement refused",
    ]


def test_a_demo_of_many_jobs_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    display = TextDisplay(jobs=5000, workers=4)
    display.begin()
    display.killed(1, 1)

    assert capsys.readouterr().out.splitlines() == [
        "4 processes share 5,000 jobs on a SQLite file",
        "worker-2 was killed while it held 1 job",
    ]


def test_a_token_of_one_character_is_said_to_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    serve._credentials("x", None, None, "127.0.0.1")

    assert capsys.readouterr().err == "a token of 1 character can be guessed; take 16 or more\n"


def test_what_came_back_from_the_dead_is_said_of_one_and_of_many() -> None:
    moved = {"returned": 1, "failed": 1, "cancelled": 2}

    assert swept_line(moved)[1] == (
        "↻ jobs: 1 back from a worker that died, 1 failed with the worker, no attempt left, "
        "2 cancelled with the worker"
    )
