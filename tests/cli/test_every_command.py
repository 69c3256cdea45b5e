"""Every command with an unknown id, with a server that is not there, and with an empty store.

The commands are taken from the command line itself: one that is missing in the table fails.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from dibs.cli import app
from dibs.engines import retries
from tests.support.commands import UNKNOWN, dibs, lines

pytestmark = pytest.mark.usefixtures("empty_folder")

JOBS = "from dibs import Dibs\napp = Dibs()\n@app.job\nasync def greet(): ...\n"


@dataclass(frozen=True)
class Typed:
    """A command as typed, and its output on an empty store."""

    words: str
    code: int = 0
    says: str = ""
    wrong: str | None = None
    """The same with an unknown id or name, exit code 1, or with an invalid id: 2."""
    needs_store: bool = True
    ends: bool = True
    """False for commands that run until a signal, or take long: they have tests of their own."""
    waits: bool = False
    """For a server that is not there."""


TABLE = {
    "work": Typed("work jobs_here:app --until-idle", ends=False, waits=True),
    "enqueue": Typed("enqueue greet {}", wrong="enqueue greet {} --pipeline-id nonsense"),
    "top": Typed("top --once", says="no queue has live jobs"),
    "why": Typed(f"why {UNKNOWN}", code=1, says="it was never enqueued here", wrong="why nonsense"),
    "schedules": Typed("schedules", says="there are no schedules"),
    **{
        f"schedules {verb}": Typed(f"schedules {verb} report", code=1, says="no schedule 'report'")
        for verb in ("pause", "resume", "run", "delete")
    },
    "prune": Typed("prune --older-than 1h", says="pruned 0 jobs"),
    "migrate": Typed("migrate"),
    "move": Typed("move --from URL --to sqlite:///other.db", says="moved 0 jobs"),
    "doctor": Typed("doctor"),
    "serve": Typed("serve --port 0", ends=False),
    "verify": Typed("verify", ends=False),
    "demo": Typed("demo", needs_store=False, ends=False),
    "jobs list": Typed("jobs list", says="no jobs in", wrong="jobs list --after nonsense"),
    "jobs show": Typed(
        f"jobs show {UNKNOWN}", code=1, says="it was never enqueued here", wrong="jobs show nonsense"
    ),
    "jobs retry": Typed("jobs retry --all", says="retried 0 jobs", wrong="jobs retry nonsense"),
    "jobs cancel": Typed("jobs cancel --all", says="cancelled 0 jobs", wrong="jobs cancel nonsense"),
    "jobs recover": Typed(
        f"jobs recover {UNKNOWN}", code=1, says="it was never enqueued here", wrong="jobs recover nonsense"
    ),
    "jobs delete": Typed(
        f"jobs delete {UNKNOWN}", code=1, says="it was never enqueued here", wrong="jobs delete nonsense"
    ),
    "queues": Typed("queues", says="no queue"),
    "queues pause": Typed("queues pause mail", says="mail"),
    "queues resume": Typed("queues resume mail", says="mail"),
    "queues limit": Typed("queues limit mail 3", says="mail"),
    "jobs wait": Typed(
        f"jobs wait {UNKNOWN}", code=1, says="it was never enqueued here", wrong="jobs wait nonsense"
    ),
    "jobs update": Typed(
        f"jobs update {UNKNOWN} --priority 1",
        code=1,
        says="it was never enqueued here",
        wrong="jobs update --priority 1 nonsense",
    ),
    "workers": Typed("workers", says="no worker was heard of lately"),
    "slots": Typed("slots", says="no job of a slot"),
    "pipelines": Typed("pipelines", says="no pipeline has jobs"),
    "pipelines show": Typed(
        f"pipelines show {UNKNOWN}", code=1, says="no pipeline", wrong="pipelines show nonsense"
    ),
    "trains": Typed("trains", says="no job is on a train"),
    "trains show": Typed("trains show north", code=1, says="north", wrong="trains show north"),
    "trains release": Typed("trains release north", code=1, says="north", wrong="trains release north"),
    "outbox relay": Typed("outbox relay --broker redis://127.0.0.1:1 --until-idle", ends=False, waits=True),
    "outbox list": Typed("outbox list", says="no messages"),
    "outbox redrive": Typed("outbox redrive --all", says="0 messages", wrong="outbox redrive nonsense"),
    "outbox prune": Typed("outbox prune --older-than 1h", says="0 messages removed"),
    "tables sql": Typed("tables sql nowhere:Report", code=1, says="can't load", needs_store=False),
}


def _commands(path: list[str], command: Any) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if path and (not children or command.invoke_without_command):
        yield " ".join(path)
    for name, child in children.items():
        yield from _commands([*path, name], child)


def test_every_command_is_in_the_table() -> None:
    assert set(_commands([], typer.main.get_command(app))) == set(TABLE)


def run(words: str, url: str) -> Any:
    """Return the command with the URL of the store in its position."""
    typed = [url if word == "URL" else word for word in words.split()]
    done = dibs(*typed, **({} if "URL" in words.split() else {"DIBS_URL": url}), input="")
    assert "Traceback" not in done.output
    return done


# -- an empty store -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("name", [name for name, typed in TABLE.items() if typed.ends])
def test_an_empty_store_is_no_trouble(name: str, engine: str, url: str) -> None:
    typed = TABLE[name]

    done = run(typed.words, url)

    assert (done.exit_code, typed.says in done.output) == (typed.code, True), done.output
    if typed.code:
        assert (done.stdout, len(lines(done.stderr))) == ("", 1)


# -- a wrong id ---------------------------------------------------------------------------------


def _wrong() -> Iterator[str]:
    for typed in TABLE.values():
        if typed.wrong is not None:
            yield typed.wrong
            yield typed.wrong.replace("nonsense", UNKNOWN)


# An id is also a time, to find older jobs by; and a pipeline has the id of its first job.
FINE = {f"jobs list --after {UNKNOWN}", f"enqueue greet {{}} --pipeline-id {UNKNOWN}"}


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("words", sorted(set(_wrong()) - FINE))
def test_an_unknown_id_is_reported_in_one_line(words: str, engine: str, url: str) -> None:
    done = run(words, url)

    assert (done.exit_code, len(lines(done.stderr))) == (2 if "nonsense" in words else 1, 1), done.output
    assert words.split()[-1] in done.stderr


# -- a server that is not there -----------------------------------------------------------------


@pytest.fixture(scope="module")
def closed() -> Iterator[int]:
    """Reserve a port on which no process listens, and which no other process gets."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def _calls() -> Iterator[tuple[str, str]]:
    """List each command on each kind of server; the outbox needs a database, so not on Redis."""
    for name, typed in TABLE.items():
        if typed.needs_store and not typed.waits:
            for scheme in ("postgresql", "mysql", *(() if name.startswith("outbox ") else ("redis",))):
                yield name, scheme


@pytest.mark.parametrize(("name", "scheme"), list(_calls()))
def test_a_server_that_is_not_there_is_named(
    name: str, scheme: str, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", (0.0,))  # and it does not start meanwhile
    Path("jobs_here.py").write_text(JOBS)

    database = "0" if scheme == "redis" else "shop"
    done = run(TABLE[name].words, f"{scheme}://127.0.0.1:{closed}/{database}")

    assert done.exit_code == 1, done.output
    [said] = lines(done.stdout if name == "doctor" else done.stderr)  # the doctor reports it as a finding
    assert f"127.0.0.1:{closed}" in said
    assert "does not answer: " in said
    assert "check that it is running and reachable, then try again" in said


def test_a_worker_on_an_empty_store_drains_nothing_and_ends(tmp_path: Path) -> None:
    (tmp_path / "jobs_here.py").write_text(JOBS)

    command = [sys.executable, "-m", "dibs.cli", *TABLE["work"].words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "")
    assert "stopped after" in done.stderr


def test_until_idle_leaves_what_is_due_later_and_the_help_says_so(tmp_path: Path) -> None:
    (tmp_path / "jobs_here.py").write_text(JOBS)
    dibs("enqueue", "greet", "--delay", "1h")

    command = [sys.executable, "-m", "dibs.cli", *TABLE["work"].words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0
    assert "total: 1 scheduled" in dibs("queues").stdout
    for words in (["work"], ["outbox", "relay"]):
        assert "what is due later stays" in " ".join(dibs(*words, "--help", COLUMNS="200").stdout.split())


@pytest.mark.parametrize(
    ("name", "saying", "lines"),
    [
        ("work", "the worker does not reach its store yet and keeps trying: ", 2),
        # After the third line it runs, and handles signals.
        ("outbox relay", "the relay does not reach its database yet and keeps trying: ", 3),
    ],
)
def test_waiting_for_a_missing_server_is_reported(
    name: str, saying: str, lines: int, tmp_path: Path, closed: int
) -> None:
    (tmp_path / "jobs_here.py").write_text(JOBS)

    command = [sys.executable, "-m", "dibs.cli", *TABLE[name].words.split()]
    url = f"postgresql://127.0.0.1:{closed}/shop"
    worker = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ, "DIBS_URL": url}
    )
    try:
        assert worker.stderr is not None
        said = [worker.stderr.readline() for _ in range(lines)]
        worker.send_signal(signal.SIGTERM)
        _, rest = worker.communicate(timeout=60)
    finally:
        worker.kill()

    assert saying in said[1]
    assert f"127.0.0.1:{closed}" in said[1]
    assert (worker.returncode, "Traceback" in rest) == (0, False)
