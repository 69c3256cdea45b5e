"""What `dibs work` is told: flags before the environment before pyproject.toml before the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from dibs import BadRequest
from dibs.cli.choices import Choices
from dibs.cli.config import without_password

NOTHING = (None, None, None, None, None)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("APP", "QUEUES", "CONCURRENCY", "PROCESSES", "GRACE"):
        monkeypatch.delenv(f"DIBS_WORK_{name}", raising=False)
    return tmp_path


def test_without_a_word_there_are_defaults() -> None:
    chosen = Choices.made("jobs:app", None, None, None, None)

    assert (chosen.target, chosen.queues, chosen.concurrency, chosen.processes, chosen.grace) == (
        *("jobs:app", None, 10, 1, 10.0),
    )


def test_flags_beat_the_environment_and_that_beats_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = '[tool.dibs.work]\napp = "shop:app"\nqueues = ["a"]\nconcurrency = 2\ngrace = 3\n'
    (folder / "pyproject.toml").write_text(work)
    monkeypatch.setenv("DIBS_WORK_CONCURRENCY", "5")
    monkeypatch.setenv("DIBS_WORK_QUEUES", "b, c")

    said, flagged = Choices.made(*NOTHING), Choices.made("jobs:app", "d", 7, 2, 1.0)

    assert (said.target, said.queues, said.concurrency, said.grace) == ("shop:app", ["b", "c"], 5, 3.0)
    assert (flagged.target, flagged.queues, flagged.concurrency, flagged.processes) == (
        "jobs:app",
        ["d"],
        7,
        2,
    )


def test_an_app_must_be_named_somewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        Choices.made(*NOTHING)

    assert "dibs work MODULE:APP" in capsys.readouterr().err


@pytest.mark.parametrize("said", ["queue = 'a'", "concurrency = 'many'", "concurrency = 0"])
def test_what_the_file_says_wrongly_is_refused_with_its_name(folder: Path, said: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.dibs.work]\napp = 'shop:app'\n{said}\n")

    with pytest.raises(BadRequest, match=r"concurrency|tool\.dibs\.work"):
        Choices.made(*NOTHING)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db:5433/shop?password=secret", "postgresql://ann@db:5433/shop"),
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("memory://", "memory://"),
        ("redis://:secret@cache/0", "redis://cache/0"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
