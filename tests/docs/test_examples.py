"""The examples are run as their readers would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.support.servers import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"

Run = Callable[[str], list[str]]


@pytest.fixture(params=["sqlite", "postgresql"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run an example in an empty folder, on an empty store; return the lines that it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    if request.param == "postgresql":
        env["DIBS_URL"] = request.getfixturevalue("postgresql").fresh_database()

    def run(name: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name)],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


def test_a_plain_script_does_its_jobs_and_tries_again(run: Run) -> None:
    assert run("plain_script.py") == [
        "enqueued 3 jobs",
        "shrink: cat.png is small (attempts: 1)",
        "shrink: dog.png is small (attempts: 1)",
        "notify: told ann@example.com (attempts: 2)",
    ]


def test_every_tick_is_done_once(run: Run) -> None:
    assert run("every_second.py") == [
        "3 ticks, each of them once: True",
        "measure at * * * * * * runs measure",
    ]


def test_a_job_fans_out_and_all_parts_are_waited_for(run: Run) -> None:
    assert run("fan_out.py") == [
        "chapter one: 3 words",
        "chapter two: 12 words",
        "chapter three: 5 words",
        "the book: 20 words",
    ]


def test_an_order_and_its_job_share_a_transaction(run: Run) -> None:
    assert run("transaction.py") == [
        "Eve's order: the card was refused",
        "jobs: 1",
        "orders: 1",
        "receipts: 1",
        "succeeded: receipt for order 1",
    ]


def test_a_cron_script_does_what_is_ready_and_leaves_the_rest(run: Run) -> None:
    first = [
        "sent invoice 1",
        "sent invoice 2",
        "not sent: invoice 3 has no address",
        "2 sent, 1 failed",
        "invoice 3 is for a later run: invoice 3 has no address",
    ]

    assert run("cron_script.py") == first
    assert run("cron_script.py")[-1] == first[-1]


def test_a_long_job_shows_its_progress_and_can_be_cancelled(run: Run) -> None:
    printed = run("long_job.py")

    assert "  0%  0 of 50 rows" in printed
    assert "succeeded: 50 rows" in printed
    assert printed.count("import_rows: cleaned up") == 2
    assert printed[-1] == "cancelled: wrong file"


def test_two_processes_do_all_jobs(run: Run) -> None:
    printed = run("two_processes.py")

    assert printed[-1] == "100 succeeded"
    # Two processes print at once: a line of one may end in the other's.
    done = [int(number) for number in re.findall(r" did (\d+)", " ".join(printed))]
    assert (len(done), sum(done)) == (2, 100)


def test_a_projection_is_rebuilt_without_counting_twice(run: Run) -> None:
    assert run("rebuild_projection.py") == [
        *(f"account {shard}: 100" for shard in range(4)),
        "events projected: 400 of 400",
    ]


def test_a_sweep_deletes_what_is_old_once(run: Run) -> None:
    assert run("retention_sweep.py") == ["swept 101, each of them once: True", "kept 29"]


def test_an_event_moves_the_process_that_waits_for_it_once(run: Run) -> None:
    assert run("process_manager.py") == [
        "order 1: paid, step 1",
        "order 2: paid, step 1",
        "order 1: delivered, step 2",
        "order 2: delivered, step 2",
        "order 1: 2 steps, waits for None",
        "order 2: 2 steps, waits for None",
    ]


def test_every_example_is_listed_and_run() -> None:
    listed, tests = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()

    for example in EXAMPLES.glob("*.py"):
        assert f"({example.name})" in listed
        assert f'run("{example.name}")' in tests


def test_ingest_logs_its_address_and_the_user_of_a_change(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    env = {**kept, "PORT": str(free_port()), "RUN_WORKER": "false"}
    log = tmp_path / "log"
    with log.open("w") as errors:
        command = [sys.executable, str(EXAMPLES / "ingest" / "app.py")]
        app = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert app.stdout is not None
        address = app.stdout.readline().strip()
        asking = Request(f"{address}/dibs/queues/mail/pause", b"", {"cookie": "operator=alice"})
        _once_it_listens(lambda: urlopen(asking).close())
    finally:
        app.kill()
        app.communicate()

    assert address == f"http://127.0.0.1:{env['PORT']}"
    assert "! pause mail, by alice" in log.read_text()


def _once_it_listens(act: Callable[[], None]) -> None:
    for _ in range(600):
        try:
            return act()
        except URLError:
            threading.Event().wait(0.1)
    raise TimeoutError
