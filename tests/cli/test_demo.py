"""`dibs demo` and `dibs migrate` as people run them, and proof that the demo's counts find errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast
from urllib.request import HTTPCookieProcessor, build_opener
from uuid import UUID, uuid4

import pytest

from dibs import Dibs, NewJob, SyncDibs
from dibs.cli.commands.demo import QUEUE, Display, kill_one
from dibs.cli.trial.processes import WorkerProcess, WorkerProcesses
from dibs.cli.trial.records import ProcessLog, Record, RecordedEvent, TrialOptions, count
from dibs.engines.sql.blocks import schema_version
from tests.support.servers import PostgreSQL

DIBS = [sys.executable, "-c", "from dibs.cli import main; main()"]


def dibs(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    return subprocess.run(
        [*DIBS, *arguments],
        cwd=cwd,
        env={**kept, "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# -- the demo, whole ----------------------------------------------------------------------------


def test_the_demo_loses_nothing_and_runs_nothing_twice_at_once(tmp_path: Path) -> None:
    done = dibs("demo", "--jobs", "400", "--seed", "7", cwd=tmp_path, TMPDIR=str(tmp_path))

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    for line in ("jobs 400", "succeeded 400", "lost 0", "ran twice at once 0"):
        assert line in lines
    [back] = [line for line in lines if line.startswith("came back after the kill ")]
    assert int(back.rsplit(" ", 1)[1]) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_demo_prints_json(tmp_path: Path) -> None:
    done = dibs("demo", "--jobs", "600", "--workers", "3", "--json", cwd=tmp_path)

    counts = json.loads(done.stdout)
    assert done.returncode == 0
    assert (counts["jobs"], counts["lost"], counts["ran_twice_at_once"]) == (600, 0, 0)


def test_ctrl_c_ends_the_demo_and_its_processes(tmp_path: Path) -> None:
    whole = subprocess.Popen(
        [*DIBS, "demo", "--jobs", "50000"],
        env={**os.environ, "TMPDIR": str(tmp_path), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_hear_ctrl_c,
    )
    _wait_for(lambda: len(list(tmp_path.glob("*/worker-*.jsonl"))) == 4)

    whole.send_signal(signal.SIGINT)
    _, errors = whole.communicate(timeout=20)

    assert whole.returncode not in (0, None)
    assert b"Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
    _wait_for(lambda: not _processes_naming(str(tmp_path)))


def _hear_ctrl_c() -> None:
    """Restore SIGINT: a background job of a shell ignores it, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait_for(happened: object, seconds: float = 20) -> None:
    assert callable(happened)
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def _processes_naming(text: str) -> list[str]:
    """Processes with this text in their command or their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes() + process.with_name("environ").read_bytes()
        except OSError:
            continue
        if text.encode() in line:
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


class SlowWorker:
    """A worker that is frozen between its claim and the record of it, as many times as wanted."""

    is_alive = True

    def __init__(self, store: SyncDibs, freezes: int) -> None:
        self.tokens = {claim.token for claim in store.claim(queues=[QUEUE], limit=2, worker="worker-1")}
        self.freezes = freezes
        self.killed = False

    def tokens_in_hand(self) -> set[int]:
        return set() if self.freezes > 0 else self.tokens

    def freeze(self) -> None:
        self.freezes -= 1

    def resume(self) -> None:
        pass

    def kill(self) -> None:
        self.killed = self.freezes <= 0


def test_a_worker_is_killed_only_once_it_has_written_down_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app = Dibs("memory://")
    with app.sync as store:
        store.enqueue(*(NewJob("demo", queue=QUEUE) for _ in range(2)))
        slow = SlowWorker(store, freezes=8)
        options = TrialOptions(
            queue=QUEUE, kind="demo", lease=3, batch=2, longest_work=0, seed=1, renews=True
        )
        workers = WorkerProcesses(app, tmp_path, "worker", options)
        workers.all = [cast("WorkerProcess", slow)]
        monkeypatch.setattr(workers, "settled", lambda: [0])

        kill_one(workers, 0, Display())

    assert slow.killed


# -- its counting can say no --------------------------------------------------------------------


JOB, OTHER = uuid4(), uuid4()


def log(*records: tuple[RecordedEvent, float, UUID, int], killed_at: float | None = None) -> ProcessLog:
    return ProcessLog([Record(*record) for record in records], killed_at)


def worked(job: UUID, token: int, start: float, end: float) -> list[tuple[RecordedEvent, float, UUID, int]]:
    return [
        ("claimed", start, job, token),
        ("started", start, job, token),
        ("ended", end, job, token),
        ("settled", end, job, token),
    ]


def test_a_clean_run_is_counted_as_clean() -> None:
    logs = [log(*worked(JOB, 1, 0, 1)), log(*worked(OTHER, 2, 0, 1))]

    counts = count([JOB, OTHER], [JOB, OTHER], logs)

    assert (counts.jobs, counts.succeeded, counts.lost, counts.ran_twice_at_once) == (2, 2, 0, 0)


def test_a_job_that_the_store_does_not_know_as_succeeded_is_lost() -> None:
    counts = count([JOB, OTHER], [JOB], [log(*worked(JOB, 1, 0, 1), *worked(OTHER, 2, 1, 2))])

    assert (counts.lost, counts.is_good) == (1, False)


def test_a_job_that_no_worker_ended_is_lost_whatever_the_store_says() -> None:
    counts = count([JOB, OTHER], [JOB, OTHER], [log(*worked(JOB, 1, 0, 1))])

    assert counts.lost == 1


def test_two_runs_that_overlap_are_seen() -> None:
    counts = count([JOB], [JOB], [log(*worked(JOB, 1, 0, 3)), log(*worked(JOB, 2, 2, 4))])

    assert (counts.ran_twice_at_once, counts.is_good) == (1, False)


def test_a_run_that_begins_when_the_other_ends_does_not_overlap() -> None:
    counts = count([JOB], [JOB], [log(*worked(JOB, 1, 0, 2)), log(*worked(JOB, 2, 2, 4))])

    assert counts.ran_twice_at_once == 0


@pytest.mark.parametrize(("began_again", "overlaps"), [(4.0, 1), (6.0, 0)])
def test_what_a_killed_worker_had_begun_lasts_until_the_kill(began_again: float, overlaps: int) -> None:
    dead = log(("claimed", 1, JOB, 1), ("started", 1, JOB, 1), killed_at=5)
    heir = log(*worked(JOB, 2, began_again, began_again + 1))

    counts = count([JOB], [JOB], [dead, heir])

    assert counts.ran_twice_at_once == overlaps
    assert counts.came_back_after_the_kill == 1


def test_a_run_without_an_end_of_a_living_worker_overlaps_every_later_one() -> None:
    stuck = log(("claimed", 1, JOB, 1), ("started", 1, JOB, 1))

    counts = count([JOB], [JOB], [stuck, log(*worked(JOB, 2, 100, 101))])

    assert counts.ran_twice_at_once == 1


def test_a_kill_after_which_nothing_came_back_is_not_good() -> None:
    dead = log(*worked(JOB, 1, 0, 1), killed_at=5)

    counts = count([JOB], [JOB], [dead])

    assert (counts.came_back_after_the_kill, counts.is_good) == (0, False)


# -- dibs migrate -------------------------------------------------------------------------------


def test_migrate_does_its_work_once(tmp_path: Path, postgresql: PostgreSQL) -> None:
    url = postgresql.fresh_database()

    first = dibs("migrate", cwd=tmp_path, DIBS_URL=url)
    again = dibs("--url", url, "migrate", "--json", cwd=tmp_path)

    newest = schema_version("postgresql")
    applied = ", ".join(str(version) for version in range(1, newest + 1))
    said = f"applied {applied}: the store has schema version {newest}\n"
    assert (first.returncode, first.stdout) == (0, said)
    assert (again.returncode, json.loads(again.stdout)) == (0, {"applied": [], "version": newest})


def test_the_sql_that_migrate_prints_does_what_migrate_does(tmp_path: Path, postgresql: PostgreSQL) -> None:
    url = postgresql.fresh_database()
    script = dibs("migrate", "--sql", "--url", url, cwd=tmp_path).stdout
    with postgresql.connect(url.rsplit("/", 1)[1]) as connection:
        connection.execute(script)

    after = dibs("migrate", "--url", url, "--sql", cwd=tmp_path)

    assert after.stdout == "-- nothing to do: the tables are up to date\n"
    assert dibs("migrate", "--url", url, cwd=tmp_path).stdout.startswith("nothing to do")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["migrate", "--url", "mongodb://somewhere"], 1, "no store for 'mongodb' URLs"),
        (["migrate", "--url", "postgresql://127.0.0.1:1/none"], 1, "does not answer"),
        (["demo", "--jobs", "three"], 2, "--jobs"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_what_goes_wrong_is_said_without_a_traceback(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    done = dibs(*arguments, cwd=tmp_path)

    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert code == 2 or len(done.stderr.splitlines()) == 1


def test_help_and_version_are_there(tmp_path: Path) -> None:
    assert "migrate" in dibs("--help", cwd=tmp_path).stdout
    assert dibs("--version", cwd=tmp_path).stdout.startswith("dibs 0.")


def test_sample_jobs_are_on_a_page_until_ctrl_c(tmp_path: Path) -> None:
    whole = subprocess.Popen(
        [*DIBS, "demo", "--serve", "--port", "0"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_hear_ctrl_c,
        text=True,
    )
    assert whole.stdout is not None
    assert "sample jobs" in whole.stdout.readline()
    link = whole.stdout.readline().split()[-1]
    opener = build_opener(HTTPCookieProcessor())
    assert b"What waits" in opener.open(link).read()

    _wait_for(lambda: b"send_receipt" in opener.open(link.partition("login")[0] + "jobs").read())
    whole.send_signal(signal.SIGINT)
    _, errors = whole.communicate(timeout=30)

    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
    _wait_for(lambda: not _processes_naming(str(tmp_path)))
