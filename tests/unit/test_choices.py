"""What `dibs work` is told: flags before the environment before pyproject.toml before the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from dibs import BadRequest
from dibs.cli._support.config import WorkOptions, from_pyproject
from dibs.text import without_password

NOTHING = (None, None, None, None, None)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("APP", "QUEUES", "CONCURRENCY", "PROCESSES", "GRACE"):
        monkeypatch.delenv(f"DIBS_WORK_{name}", raising=False)
    return tmp_path


def test_without_a_word_there_are_defaults() -> None:
    chosen = WorkOptions.chosen("jobs:app", None, None, None, None)

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

    said, flagged = WorkOptions.chosen(*NOTHING), WorkOptions.chosen("jobs:app", "d", 7, 2, 1.0)

    assert (said.target, said.queues, said.concurrency, said.grace) == ("shop:app", ["b", "c"], 5, 3.0)
    assert (flagged.target, flagged.queues, flagged.concurrency, flagged.processes) == (
        "jobs:app",
        ["d"],
        7,
        2,
    )


def test_an_app_must_be_named_somewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        WorkOptions.chosen(*NOTHING)

    assert "dibs work MODULE:APP" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("queue = 'a'", "{}: tool.dibs.work.queue is unknown: the settings here are app, queues"),
        ("queues = 'a'", "{}: tool.dibs.work.queues='a' is not a list of names"),
        ("queues = [1]", "{}: tool.dibs.work.queues=[1] is not a list of names"),
        ("queues = []", "{}: tool.dibs.work.queues names no queue"),
        ("concurrency = 'many'", "{}: tool.dibs.work.concurrency='many' is not a whole number"),
        ("concurrency = 0", "{}: tool.dibs.work.concurrency=0 must be at least 1"),
        ("grace = -1", "{}: tool.dibs.work.grace=-1.0 must be 0 seconds or more"),
    ],
)
def test_what_the_file_says_wrongly_is_refused_with_its_name(folder: Path, said: str, answer: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.dibs.work]\napp = 'shop:app'\n{said}\n")

    with pytest.raises(BadRequest) as refused:
        WorkOptions.chosen(*NOTHING)

    assert str(refused.value).startswith(answer.format(folder / "pyproject.toml"))


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("url = 3", "{}: tool.dibs.url=3 is not a text"),
        ("pool_size = '3'", "{}: tool.dibs.pool_size='3' is not a whole number"),
        ("poll = 'x'", "{}: tool.dibs.poll='x' is not a number"),
        ("pooled = 'yes'", "{}: tool.dibs.pooled='yes' is not true or false"),
        ("colour = 1", "{}: tool.dibs.colour is unknown: the settings here are url, prefix"),
    ],
)
def test_so_are_settings_of_the_store(folder: Path, said: str, answer: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.dibs]\n{said}\n")

    with pytest.raises(BadRequest) as refused:
        from_pyproject(folder)

    assert str(refused.value).startswith(answer.format(folder / "pyproject.toml"))


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("CONCURRENCY", "abc", "$DIBS_WORK_CONCURRENCY='abc' is not a whole number"),
        ("PROCESSES", "1.5", "$DIBS_WORK_PROCESSES='1.5' is not a whole number"),
        ("PROCESSES", "0", "$DIBS_WORK_PROCESSES=0 must be at least 1"),
        ("GRACE", "10m", "$DIBS_WORK_GRACE='10m' is not a number"),
        ("QUEUES", " ,", "$DIBS_WORK_QUEUES names no queue: leave it out to work on all"),
    ],
)
def test_a_variable_that_can_not_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, answer: str
) -> None:
    monkeypatch.setenv(f"DIBS_WORK_{name}", text)

    with pytest.raises(BadRequest) as refused:
        WorkOptions.chosen("jobs:app", None, None, None, None)

    assert str(refused.value) == answer


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db:5433/shop?password=secret", "postgresql://ann@db:5433/shop"),
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("memory://", "memory://"),
        ("redis://:secret@cache/0", "redis://cache/0"),
        ("postgresql://ann:s@cret@h1:1,h2:2/shop", "postgresql://ann@h1:1,h2:2/shop"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
