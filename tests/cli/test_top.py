"""`dibs top`: one snapshot in a pipe, a live view on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dibs import JobState, SyncDibs
from dibs.cli.commands.top import CountCache, Snapshot, draw, draw_unavailable, read_snapshot
from tests.support.commands import CLOSED, answer, dibs, enqueue, failed, lines, running
from tests.support.servers import PostgreSQL

pytestmark = pytest.mark.usefixtures("empty_folder")

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NONE = dict.fromkeys((state.value for state in JobState), 0)


def drawn(seen: Snapshot, width: int = 120) -> str:
    return printed(draw(seen, width), width)


def printed(picture: Any, width: int = 120) -> str:
    console = Console(width=width, file=None, record=True, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(picture)
    return captured.get()


def frame(**changes: Any) -> Snapshot:
    empty = Snapshot(
        store="memory://",
        at=NOW,
        counted_at=NOW,
        rate=None,
        counts=NONE,
        queues=[],
        workers=[],
        running=[],
    )
    return replace(empty, **changes)


# -- one frame ----------------------------------------------------------------------------------


def test_a_pipe_gets_one_frame(store: SyncDibs) -> None:
    enqueue(store, queue="mail")
    failed(store, queue="mail")
    job = running(store, queue="mail", kind="report")
    store.pause("mail")

    done = dibs("top")

    assert (done.exit_code, done.stderr) == (0, "")
    words = [line.split() for line in lines(done.stdout)]
    assert ["mail", "1", "1", "0", "0", "1", "paused"] in words
    assert any(line[:1] == ["report"] and str(job.id) in line and "pod-a" in line for line in words)
    assert "\x1b" not in done.stdout


def test_an_empty_store_has_a_frame_too(store: SyncDibs) -> None:
    done = dibs("top", "--once")

    assert done.exit_code == 0
    assert "no queue has live jobs" in done.stdout
    assert "no worker was seen lately" in done.stdout
    assert "no job is running" in done.stdout


def test_a_frame_in_json_is_one_object(store: SyncDibs) -> None:
    job = running(store)

    seen = answer("top", "--once")

    assert seen["counts"]["running"] == 1
    assert [one["id"] for one in seen["running"]] == [str(job.id)]
    assert seen["queues"][0]["failed"] == 0


def test_a_store_that_was_never_there_is_one_line_and_exit_code_1() -> None:
    done = dibs("top", "--once", "--url", CLOSED)

    assert (done.exit_code, len(lines(done.stderr))) == (1, 1)


def test_the_rate_is_what_finished_between_two_frames(store: SyncDibs) -> None:
    first = read_snapshot(store, "here")
    failed(store)
    failed(store)
    second = read_snapshot(store, "here", replace(first, counted_at=first.at - timedelta(seconds=100)))

    assert first.rate is None
    assert second.rate == pytest.approx(0.02, rel=0.2)


def test_pruning_between_two_frames_makes_no_negative_rate(store: SyncDibs) -> None:
    failed(store)
    first = read_snapshot(store, "here")
    store.prune(0)

    assert read_snapshot(store, "here", first).rate == 0


def test_what_takes_long_to_count_is_counted_rarely(store: SyncDibs, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(store, queue="mail")
    enqueue(store, queue="mail")
    asked: list[str | None] = []
    count = store.counts

    def slowly(queue: str | None = None) -> dict[str, int]:
        asked.append(queue)
        time.sleep(0.1)
        return count(queue)

    monkeypatch.setattr(type(store), "counts", lambda _, queue=None: slowly(queue))
    cache = CountCache(store)
    first = read_snapshot(store, "here", None, cache.counts())
    enqueue(store, queue="mail")
    enqueue(store, queue="new")
    second = read_snapshot(store, "here", first, cache.counts())

    assert asked == [None, "mail"]
    assert (first.counts["ready"], second.counts["ready"], second.counts["failed"]) == (1, 3, 1)
    assert [(queue["name"], queue["failed"]) for queue in second.queues] == [("mail", 1), ("new", None)]
    assert second.counted_at == first.counted_at < second.at


def test_where_nothing_failed_no_queue_is_asked_for_it(
    store: SyncDibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(store, queue="mail")
    monkeypatch.setattr(type(store), "counts", lambda _, queue=None: {**NONE, "ready": 1, "asked": queue})

    assert read_snapshot(store, "here").queues[0]["failed"] == 0
    assert read_snapshot(store, "here").counts["asked"] is None


def test_numbers_that_are_old_are_said_to_be() -> None:
    old = frame(counts={**NONE, "succeeded": 7}, counted_at=NOW - timedelta(minutes=3))

    assert "7 succeeded" in drawn(old)
    assert "counted 3 min ago" in drawn(old)
    assert "ago" not in drawn(frame())


def test_progress_is_a_bar_and_a_message(store: SyncDibs) -> None:
    claim = store.claim_job(enqueue(store).id)
    assert claim is not None
    claim.progress(0.4, "parsing\x1b[2J")

    text = drawn(read_snapshot(store, "here"))

    assert "━" in text
    assert "40% parsing\\x1b[2J" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_frame_keeps_to_the_width_of_the_terminal(store: SyncDibs, width: int) -> None:
    running(store, kind="a_kind_with_a_very_long_name_indeed", queue="a_queue_with_a_long_name")

    assert max(map(len, lines(drawn(read_snapshot(store, "here"), width)))) <= width


def test_on_eighty_columns_numbers_kinds_and_ids_are_whole(store: SyncDibs) -> None:
    name = "a queue with a rather long name for a queue"
    worker = "web-7d9f-with-a-long-pod-name-4242-ab12cd"
    job = running(store, kind="send_receipt", queue=name, worker=worker)
    store.limit(name, 12)
    store.pause(name)

    said = lines(drawn(read_snapshot(store, "here"), 80))

    columns = ["queue", "ready", "running", "scheduled", "blocked", "failed"]
    assert columns in [line.split() for line in said]
    assert any(line.rstrip().endswith("paused limit 12") for line in said)
    assert any(line.startswith("send_receipt ") and str(job.id) in line for line in said)


def test_a_pipe_is_as_wide_as_its_lines(store: SyncDibs) -> None:
    running(store, kind="k" * 60, worker="w" * 60)

    said = dibs("top", COLUMNS="80").stdout

    assert "k" * 60 in said
    assert "w" * 60 in said


def test_a_store_that_went_away_is_said_above_the_last_frame() -> None:
    text = printed(draw_unavailable(frame(store="here"), "here", "no route to host", 120))

    assert lines(text)[0].startswith("here is unavailable, trying again: no route to host")
    assert "no job is running" in text


# -- live ---------------------------------------------------------------------------------------


class Terminal:
    """A `dibs top` on a terminal of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._mine, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        command = [sys.executable, "-m", "dibs.cli", "top", "--interval", "0.1s", *words]
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, process_group=0
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} never came:\n{self.seen[-2000:]}"
            self._read()

    def press(self, key: str) -> None:
        os.write(self._mine, key.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        deadline = time.monotonic() + 20
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read()
        return self._process.wait(1)

    def _read(self) -> None:
        with suppress(OSError):  # the other side has hung up
            if select.select([self._mine], [], [], 0.05)[0]:
                self.seen += os.read(self._mine, 65536).decode(errors="replace")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._mine)


@contextmanager
def top(folder: Path, *words: str) -> Iterator[Terminal]:
    terminal = Terminal(folder, *words)
    try:
        yield terminal
    finally:
        terminal.close()


def test_a_terminal_shows_what_happens_until_q(store: SyncDibs, tmp_path: Path) -> None:
    with top(tmp_path) as terminal:
        terminal.wait_for("no queue has live jobs")
        enqueue(store, queue="mail")
        terminal.wait_for("mail")
        terminal.press("q")

        assert terminal.ended() == 0
    assert "Traceback" not in terminal.seen


def test_ctrl_c_is_a_good_way_to_leave(store: SyncDibs, tmp_path: Path) -> None:
    with top(tmp_path) as terminal:
        terminal.wait_for("no queue has live jobs")
        terminal.interrupt()

        assert terminal.ended() == 0
    assert "Traceback" not in terminal.seen
    assert "Aborted" not in terminal.seen


def test_a_store_that_goes_away_is_waited_for(own_postgresql: PostgreSQL, tmp_path: Path) -> None:
    url = own_postgresql.create_database("shop")
    dibs("migrate", "--url", url)

    with top(tmp_path, "--url", url) as terminal:
        terminal.wait_for("no queue has live jobs")
        own_postgresql.kill()
        terminal.wait_for("is unavailable, trying again")
        own_postgresql.start()
        dibs("enqueue", "greet", "--queue", "mail", "--url", url)
        terminal.wait_for("mail")
        terminal.press("q")

        assert terminal.ended() == 0


def test_json_frames_are_one_object_per_line(store: SyncDibs, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dibs.cli", "top", "--json", "--interval", "0.1s"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        frames = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)

        assert process.wait(20) == 0
    assert frames[0]["rate"] is None
    assert frames[1]["rate"] == 0
