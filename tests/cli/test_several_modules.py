"""Jobs in several modules, mistakes in them, and a worker that starts anew when one changes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs import NewJob, SyncDibs
from tests.support.workers import Process, look, processes

APP = "from dibs import Dibs\napp = Dibs()\n"
MAIL = "from shop.app import app\n@app.job\ndef send() -> str:\n    return 'sent'\n"


def work(*words: str, code: int = 0) -> str:
    """Return what `dibs work --until-idle` logs."""
    command = [sys.executable, "-m", "dibs.cli", "work", "--until-idle", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.fixture
def shop(store: SyncDibs, tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "app.py").write_text(APP)
    (folder / "mail.py").write_text(MAIL)
    return folder


def test_a_worker_imports_the_modules_that_it_is_told(store: SyncDibs, shop: Path) -> None:
    [job] = store.enqueue(NewJob("send"))

    without = work("shop.app:app", code=1)
    work("shop.app:app", "--import", "shop.mail, shop.app")

    assert "no jobs are registered" in without
    assert "import the modules that have its jobs first (dibs work: --import pkg.mail,pkg.billing)" in without
    assert store.get(job.id).result == "sent"


def test_modules_may_be_named_in_the_settings(store: SyncDibs, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dibs.work]\napp = "shop.app:app"\nimports = ["shop.mail"]\n'
    )
    [job] = store.enqueue(NewJob("send"))

    work()

    assert store.get(job.id).result == "sent"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("shop.nothing", "can't import 'shop.nothing': No module named 'shop.nothing'"),
        ("shop.untyped", "'args' has no name"),
    ],
)
def test_a_bad_module_is_named_with_the_line_of_its_author(shop: Path, module: str, words: str) -> None:
    (shop / "untyped.py").write_text("from shop.app import app\n\n@app.job\ndef untyped(*args): ...\n")

    said = work("shop.app:app", "--import", module, code=1)

    assert words in said
    assert module != "shop.untyped" or f"(line 3 of {shop / 'untyped.py'})" in said
    assert "tasks.py" not in said


# -- --reload -----------------------------------------------------------------------------------


@pytest.fixture
def worker(store: SyncDibs, tmp_path: Path) -> Iterator[Process]:
    (tmp_path / "jobs.py").write_text(job_that_returns("old"))
    with processes(tmp_path, f"sqlite:///{tmp_path}/dibs.db") as start:
        yield start("--reload", "--grace", "1s")


def job_that_returns(text: str) -> str:
    return f"{APP}@app.job\ndef send() -> str:\n    return {text!r}\n"


def result(store: SyncDibs) -> object:
    [job] = store.enqueue(NewJob("send"))
    return store.wait(job.id, timeout=60).result


def test_a_changed_file_starts_the_worker_anew(store: SyncDibs, worker: Process, tmp_path: Path) -> None:
    assert result(store) == "old"

    (tmp_path / "jobs.py").write_text(job_that_returns("new"))
    look(lambda: "jobs.py changed" in worker.said())
    assert result(store) == "new"

    (tmp_path / "jobs.py").write_text("def broken(:\n")
    look(lambda: "waiting for a change" in worker.said())
    (tmp_path / "jobs.py").write_text(job_that_returns("mended"))
    assert result(store) == "mended"

    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert store.workers() == []


LONG = f"{APP}import time\n@app.job\ndef send() -> None:\n    time.sleep(4)\n"


@pytest.mark.parametrize("edited", [True, False], ids=["while it starts anew", "while it works"])
def test_an_interrupt_ends_it(store: SyncDibs, worker: Process, tmp_path: Path, edited: bool) -> None:
    assert result(store) == "old"
    (tmp_path / "jobs.py").write_text(LONG)
    look(lambda: "jobs.py changed" in worker.said())
    store.enqueue(NewJob("send"))
    look(lambda: store.counts()["running"] == 1)

    if edited:
        (tmp_path / "jobs.py").write_text(job_that_returns("new"))
        look(lambda: worker.said().count("jobs.py changed") == 2)
    worker.send(signal.SIGINT)

    assert worker.ended() == 0
