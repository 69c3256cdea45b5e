"""`dibs verify` on real stores: processes are killed and frozen, no promise is broken, and no job is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from dibs.cli.commands import verify
from dibs.cli.trial.processes import WorkerProcesses
from dibs.cli.trial.records import Verdict
from tests.support.check_history import broken_rules
from tests.support.commands import dibs, lines
from tests.support.fault_stores import wait_until
from tests.support.servers import MariaDB, PostgreSQL

pytestmark = pytest.mark.usefixtures("empty_folder")

SMALL = ("--jobs", "150", "--workers", "3", "--kills", "1", "--freezes", "1")


@pytest.fixture(
    params=[
        "sqlite",
        "postgresql",
        pytest.param("mariadb", marks=pytest.mark.long),
        pytest.param("redis", marks=pytest.mark.long),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/own.db"
    if request.param == "redis":
        empty: Callable[[str], str] = request.getfixturevalue("empty_redis")
        return empty("redis")
    server: PostgreSQL | MariaDB = request.getfixturevalue(request.param)
    address = server.fresh_database()
    assert dibs("migrate", "--url", address).exit_code == 0
    return address


def test_killed_and_frozen_processes_break_no_promise_and_nothing_is_left(url: str) -> None:
    for _ in range(4):  # a process that was frozen between two jobs has nothing to settle too late
        done = dibs("verify", url, *SMALL, "--json")
        report = json.loads(done.stdout)
        verdict = report["verdict"]
        if verdict["refused"] >= 1:
            break
    assert (done.exit_code, done.stderr, report["problems"]) == (0, "", [])
    assert (report["killed"], report["frozen"]) == (1, 1)
    assert report["jobs"] >= 150
    assert (verdict["double_claims"], verdict["late_writes"], verdict["lost"]) == (0, 0, 0)
    assert verdict["came_back"] >= 2
    assert verdict["refused"] >= 1
    app = Dibs(url)
    assert sum(app.sync.counts().values()) == 0
    app.sync.close()


def test_the_history_and_the_page_of_a_run_are_written(tmp_path: Path) -> None:
    files = ("--history", f"{tmp_path}/h.jsonl", "--report", f"{tmp_path}/r.html")

    done = dibs("verify", f"sqlite:///{tmp_path}/own.db", *SMALL, *files, "--json")

    history = (tmp_path / "h.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in history]
    enqueued = [event for event in events if event["event"] == "enqueued"]
    assert broken_rules(history) == []
    assert len(enqueued) == json.loads(done.stdout)["jobs"]
    assert {"train", "slot"} <= {gate for event in enqueued for gate in event}
    assert {"killed", "frozen", "resumed"} <= {event["event"] for event in events}
    page = (tmp_path / "r.html").read_text()
    assert page.count("<!doctype html>") == 1
    assert '"event":"frozen"' in page


def test_a_run_goes_on_for_its_minutes(tmp_path: Path) -> None:
    few = ("--jobs", "50", "--kills", "0", "--freezes", "0", "--workers", "2")

    done = dibs("verify", f"sqlite:///{tmp_path}/own.db", *few, "--minutes", "0.05", "--json")

    report = json.loads(done.stdout)
    assert (done.exit_code, report["problems"]) == (0, [])
    assert report["seconds"] >= 3
    assert report["jobs"] > 57


def test_a_page_that_can_not_be_written_is_said_before_the_run(tmp_path: Path) -> None:
    done = dibs("verify", f"sqlite:///{tmp_path}/own.db", "--report", f"{tmp_path}/none/r.html")

    assert done.exit_code == 2
    assert "can't be written" in done.stderr


def test_a_broken_promise_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Verdict(
        double_claims=1, late_writes=0, tokens_not_growing=0, lost=2, claims=9, came_back=1, refused=0
    )
    monkeypatch.setattr(verify, "judge", lambda *_: broken)

    done = dibs("verify", "--url", "sqlite:///own.db", "--jobs", "50", "--kills", "0", "--freezes", "0")

    assert done.exit_code == 1
    assert {"double claims = 1", "lost = 2"} <= set(lines(done.stdout))
    assert lines(done.stderr) == [
        "dibs: a promise was broken here; please report it, with the output of `dibs doctor`"
    ]


def test_a_store_of_one_process_is_refused() -> None:
    done = dibs("verify", "memory://")

    assert (done.exit_code, len(lines(done.stderr))) == (1, 1)
    assert "one process alone can use this store" in done.stderr


def test_processes_that_ran_out_of_jobs_are_started_again_and_nothing_is_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze, tries = WorkerProcesses.freeze_while_holding, [0]

    def freeze_too_late(workers: Any, choose: Any, meanwhile: Any, enough: int) -> Any:
        tries[0] += 1
        if tries[0] > 1:
            return freeze(workers, choose, meanwhile, enough)
        wait_until(lambda: not workers.alive())
        meanwhile()  # more jobs, and no process is left to do them
        return None

    monkeypatch.setattr(WorkerProcesses, "freeze_while_holding", freeze_too_late)

    done = dibs(
        "verify", f"sqlite:///{tmp_path}/own.db", "--jobs", "50", "--kills", "1", "--freezes", "0", "--json"
    )

    report = json.loads(done.stdout)
    assert (done.exit_code, report["problems"]) == (0, [])
    assert (report["killed"], report["verdict"]["lost"]) == (1, 0)
