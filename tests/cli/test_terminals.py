"""The questions before a change, at a real terminal; no answer is a no."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dibs import Dibs, NewJob, SyncDibs
from tests.support.terminal import CONTROL_C, CONTROL_D, typed

ASKING = {
    "retry": (["jobs", "retry", "--all"], "retry 2 failed jobs? [y/N]: ", "retried 2 jobs"),
    "cancel": (["jobs", "cancel", "--all"], "cancel 1 ready job? [y/N]: ", "cancelled 1 job"),
    "prune": (
        ["prune", "--older-than", "0", "--state", "failed"],
        "prune all failed jobs? [y/N]: ",
        "pruned 2 jobs",
    ),
    "give back": (
        ["move", "--from", "sqlite:///dibs.db", "--give-back"],
        "is that store gone for good? [y/N]: ",
        "gave back 0 jobs",
    ),
}
each_that_asks = pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING)

Asking = tuple[list[str], str, str]


@pytest.fixture
def counts(store: SyncDibs) -> dict[str, int]:
    """Return the counts of a store in which all of these commands would change jobs."""
    store.enqueue(*(NewJob("greet", max_attempts=1) for _ in range(3)))
    for claim in store.claim(limit=2):
        claim.fail("broken", retry=False)
    return store.counts()


@each_that_asks
@pytest.mark.parametrize(
    "answer", ["n\r", "\r", CONTROL_C, CONTROL_D, "what?\rn\r"], ids=["n", "enter", "^C", "^D", "what?"]
)
def test_nothing_is_changed_without_a_yes(
    store: SyncDibs, counts: dict[str, int], tmp_path: Path, asking: Asking, answer: str
) -> None:
    words, question, _ = asking
    with typed(tmp_path, *words) as terminal:
        terminal.shows(question)
        terminal.types(answer)

        assert terminal.ended() == 1
        assert "dibs: nothing was changed" in terminal.screen
        assert "--yes" in terminal.screen
        assert "Traceback" not in terminal.screen
    assert store.counts() == counts


@each_that_asks
def test_a_yes_is_enough(counts: dict[str, int], tmp_path: Path, asking: Asking) -> None:
    words, question, done = asking
    with typed(tmp_path, *words) as terminal:
        terminal.shows(question)
        terminal.types("y\r")

        assert terminal.ended() == 0
        assert done in terminal.screen


@each_that_asks
def test_with_yes_no_question_is_asked(counts: dict[str, int], tmp_path: Path, asking: Asking) -> None:
    words, _, done = asking
    with typed(tmp_path, *words, "--yes") as terminal:
        assert terminal.ended() == 0
        assert done in terminal.screen
        assert "[y/N]" not in terminal.screen


@each_that_asks
def test_a_pipe_without_an_answer_changes_nothing(
    store: SyncDibs, counts: dict[str, int], tmp_path: Path, asking: Asking
) -> None:
    words, *_ = asking

    done = subprocess.run(
        [sys.executable, "-m", "dibs.cli", *words, "--json"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert "there was no answer; add --yes" in done.stderr
    assert store.counts() == counts


@pytest.mark.parametrize(("flags", "is_shown"), [([], True), (["--no-log-jobs"], False), (["-q"], False)])
def test_a_worker_says_what_it_does_where_a_person_watches(
    store: SyncDibs, tmp_path: Path, flags: list[str], is_shown: bool
) -> None:
    (tmp_path / "jobs.py").write_text("from dibs import Dibs\napp = Dibs()\n@app.job\ndef greet(): ...\n")
    [job] = store.enqueue(NewJob("greet"))
    words = ["work", "jobs:app", "--until-idle", *flags]

    with typed(tmp_path, *words, columns=200) as terminal:
        assert terminal.ended() == 0
    piped = subprocess.run([sys.executable, "-m", "dibs.cli", *words], capture_output=True, check=True)

    assert (str(job.id) in terminal.screen) is is_shown
    assert "→" not in terminal.screen
    assert str(job.id).encode() not in piped.stderr


def test_a_locale_without_utf_8_is_no_reason_to_fail(tmp_path: Path) -> None:
    """Set a locale without UTF-8; for the locale C Python would use UTF-8."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    url = f"sqlite:///{tmp_path}/jobs.db"
    Dibs(url).sync.enqueue(NewJob("work", queue="Züge"))

    for words in (["queues"], ["jobs", "list"], ["top", "--once"], ["doctor"], ["work", "--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "dibs.cli", "--url", url, *words],
            env={**os.environ, **locale},
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), (words, done.stderr)
