"""What a worker's log says of its jobs: whose line it is, what ended, and what blocks the others."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dibs import Dibs
from dibs.cli._support.printing import DONE, JsonFormatter, log_level, set_up_log
from dibs.log_format import current_job
from tests.support.workers import drain

log = logging.getLogger("shop.mail")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Return what `dibs work` would write to stderr."""
    monkeypatch.setattr(current_job, "is_wanted", False)
    root, out = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    root.handlers = []
    set_up_log(logging.INFO, json=False, stream=out)
    yield out
    root.handlers = before
    root.setLevel(level)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
async def test_what_a_handler_logs_names_its_level_logger_and_job(
    app: Dibs, lines: io.StringIO, as_json: bool
) -> None:
    if as_json:
        logging.getLogger().handlers[0].setFormatter(JsonFormatter())

    @app.job
    def plain() -> None:
        log.warning("watch out")

    @app.job
    async def awaited() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(log.info, "hello"))

    jobs = await app.enqueue(plain.new(), awaited.new(), plain.new())
    await drain(app)
    log.info("of no job")

    said = [line for line in lines.getvalue().splitlines() if "shop.mail" in line]
    if as_json:
        told = {
            (one["level"], one["message"], one.get("kind"), one.get("job")) for one in map(json.loads, said)
        }
        assert told == {
            ("warning", "watch out", "plain", str(jobs[0].id)),
            ("warning", "watch out", "plain", str(jobs[2].id)),
            ("info", "hello", "awaited", str(jobs[1].id)),
            ("info", "of no job", None, None),
        }
    else:
        assert sorted(line.partition(" ")[2] for line in said) == sorted(
            [
                f"WARNING shop.mail: watch out  (plain {jobs[0].id})",
                f"WARNING shop.mail: watch out  (plain {jobs[2].id})",
                f"INFO shop.mail: hello  (awaited {jobs[1].id})",
                "INFO shop.mail: of no job",
            ]
        )


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_one_task_still_runs_one_job_after_another_when_they_are_noted(
    app: Dibs, lines: io.StringIO
) -> None:
    tasks: list[Any] = []

    @app.job
    async def work() -> None:
        tasks.append(asyncio.current_task())

    await app.enqueue(*(work.new() for _ in range(50)))

    await drain(app)

    assert len(tasks) == 50
    assert len(set(tasks)) < 25


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_handler_that_blocks_the_event_loop_is_named_once(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def blocks() -> None:
        time.sleep(1.6)

    @app.job
    async def waits() -> None:
        await asyncio.sleep(1.4)

    @app.job
    def plain() -> None:
        time.sleep(1.4)

    jobs = await app.enqueue(blocks.new(), blocks.new(), waits.new(), plain.new())

    await drain(app)

    [record] = [record for record in caplog.records if "event loop" in record.message]
    warning, fields = record.message, record.__dict__["fields"]
    assert (fields["event"], fields["job"], fields["kind"]) == ("blocked", str(jobs[0].id), "blocks")
    assert warning.startswith(f"blocks {jobs[0].id} keeps the event loop for more than 1 s, at line ")
    assert f"of {__file__}" in warning
    assert "make it a plain def" in warning


@pytest.mark.parametrize(
    ("flags", "on_terminal", "level"),
    [
        ((False, False, None), True, DONE),
        ((False, False, None), False, logging.INFO),
        ((False, False, True), False, DONE),
        ((False, False, False), True, logging.INFO),
        ((True, False, None), False, logging.DEBUG),
    ],
)
def test_every_job_has_a_line_where_a_person_watches(
    monkeypatch: pytest.MonkeyPatch, flags: Any, on_terminal: bool, level: int
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)

    assert log_level(*flags) == level
