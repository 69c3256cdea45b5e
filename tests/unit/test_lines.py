"""What happened to a job, as a line: short, aligned, safe, and made only when somebody wants it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from dibs import Dibs, Job, NewJob, SyncDibs
from dibs.cli._support.printing import JsonFormatter, PlainFormatter, set_up_log
from dibs.events import NAMES, Event, Events
from dibs.log_format import LEVELS, NOTICE, SIGNS, line, swept_line
from dibs.worker.upkeep import UnknownKinds
from tests.support.param_names import named

ERRORS = json.dumps(
    [{"type": "ValueError", "message": "first"}, {"type": "KeyError", "message": "a\n\x1b[2J"}]
)


@pytest.fixture
def store() -> Iterator[SyncDibs]:
    with Dibs("memory://").sync as store:
        yield store


@pytest.fixture
def job(store: SyncDibs) -> Job:
    store.enqueue(NewJob("send_receipt", queue="mail"))
    [claim] = store.claim(worker="pod-a")
    return claim.job


@pytest.fixture
def dibs_log() -> Iterator[logging.Logger]:
    log = logging.getLogger("dibs")
    before = log.level
    yield log
    log.setLevel(before)


def settled(job: Job, settled_as: str, **about: Any) -> Any:
    return line("settled", job, {"as": settled_as, "seconds": 0.12, "errors": ERRORS, **about})


@pytest.mark.parametrize(
    ("settled_as", "about", "begins", "ends"),
    [
        ("succeeded", {}, "✓ send_receipt           120 ms   mail      ", ""),
        ("retried", {"delay": 2_000_000}, "↻", "  again in 2.0 s, attempt 1 of 3: KeyError: a \\x1b[2J"),
        ("failed", {}, "✗", "  given up, attempt 1 of 3: KeyError: a \\x1b[2J  (dibs jobs show {id})"),
        ("snoozed", {"delay": 30_000_000}, "↻", "  again in 30 s"),
        ("released", {}, "↻", "  released"),
        ("cancelled", {}, "✗", "  cancelled"),
    ],
    ids=named,
)
def test_every_outcome_has_its_line(
    job: Job, settled_as: str, about: dict[str, Any], begins: str, ends: str
) -> None:
    text = str(settled(job, settled_as, **about))

    assert text.startswith(begins)
    assert text.endswith(f"{job.id}{ends.format(id=job.id)}")


def test_lines_of_all_sorts_are_aligned(job: Job) -> None:
    texts = [str(line("claimed", job, {})), str(settled(job, "succeeded")), str(settled(job, "failed"))]

    assert len({text.index(str(job.id)) for text in texts}) == 1


def test_a_long_error_is_cut(job: Job) -> None:
    long = json.dumps([{"type": "E", "message": "x" * 10_000}])

    assert len(str(settled(job, "failed", errors=long))) < 450


def test_a_lost_lease_says_what_that_means(job: Job) -> None:
    assert "may not count" in str(line("lost", job, {}))


def test_fields_leave_out_what_does_not_apply(job: Job) -> None:
    assert line("claimed", job, {}).fields() == {
        "event": "claimed", "job": str(job.id), "kind": "send_receipt", "queue": "mail", "attempt": 1,
        "worker": "pod-a",
    }  # fmt: skip
    assert settled(job, "retried", delay=500_000).fields() | {
        "duration_ms": 120.0, "retry_in_s": 0.5, "error": "KeyError: a \\x1b[2J"
    } == settled(job, "retried", delay=500_000).fields()  # fmt: skip


def test_upkeep_is_loud_only_when_somebody_died() -> None:
    assert swept_line({"staged": 3}) == (logging.DEBUG, "+ jobs: 3 due")
    assert swept_line({"staged": 3, "returned": 1}) == (
        NOTICE,
        "↻ jobs: 1 back from a worker that died, 3 due",
    )


def test_every_event_has_a_level_and_a_sign() -> None:
    assert set(LEVELS) == set(SIGNS) == set(NAMES) - {"swept"}


# -- who hears ----------------------------------------------------------------------------------


def test_an_event_that_nobody_wants_is_not_made(
    job: Job, dibs_log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr("dibs.events.Event", lambda *values: made.append(values))
    dibs_log.setLevel(logging.INFO)

    events = Events()
    events.subscribe(print, ["failed"])
    events.claimed([job])
    events.enqueued([job])
    events.settled(job, "succeeded", since=0.0)

    assert made == []


def test_subscribers_hear_what_they_asked_for(job: Job) -> None:
    some: list[Event] = []
    every: list[Event] = []
    events = Events()
    events.subscribe(some.append, ["failed", "lost"])
    stop = events.subscribe(every.append)

    events.settled(job, "succeeded")
    events.settled(job, "failed")
    events.lost(job)
    stop()
    events.claimed([job])

    assert [(one.name, one.about.get("as")) for one in some] == [("settled", "failed"), ("lost", None)]
    assert len(every) == 3


def test_a_subscriber_that_raises_disturbs_nobody(job: Job) -> None:
    heard: list[Event] = []
    events = Events()
    events.subscribe(lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    events.subscribe(heard.append)

    events.lost(job)

    assert len(heard) == 1


# -- how they look ------------------------------------------------------------------------------


def record(message: str, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("dibs", logging.WARNING, __file__, 1, "%s", (message,), None)
    made.__dict__.update(extra)
    return made


def test_people_get_a_time_and_a_coloured_sign(job: Job) -> None:
    told = settled(job, "failed")

    plain = PlainFormatter(coloured=False).format(record(str(told)))
    coloured = PlainFormatter(coloured=True).format(record(str(told)))

    assert plain[8:12] == " ✗ s"
    assert "\x1b[31m✗\x1b[0m send_receipt" in coloured
    assert coloured.replace("\x1b[31m", "").replace("\x1b[0m", "").replace("\x1b[2m", "") == plain


def test_programs_get_one_object_per_line(job: Job) -> None:
    told = settled(job, "failed")

    said = json.loads(JsonFormatter().format(record(str(told), line=told)))
    other = json.loads(JsonFormatter().format(record("● two\nlines")))

    assert said | told.fields() == said
    assert (said["level"], said["event"]) == ("warning", "failed")
    assert datetime.fromisoformat(said["time"]).tzinfo == UTC
    assert (other["event"], other["logger"], other["message"]) == ("log", "dibs", "two\nlines")


def test_what_handlers_log_cannot_move_the_cursor() -> None:
    assert "\x1b" not in PlainFormatter(coloured=False).format(record("a\x1b[2Jb"))


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1"}, False)],
    ids=named,
)
def test_colours_are_for_terminals(
    environ: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch, dibs_log: logging.Logger
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    root, out = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    try:
        root.handlers = []
        set_up_log(logging.INFO, json=False, stream=out)
        dibs_log.info("● hello")
    finally:
        root.handlers = before
        root.setLevel(level)

    assert ("\x1b[" in out.getvalue()) is coloured


# -- kinds that nobody here knows ---------------------------------------------------------------


def test_an_unknown_kind_is_logged_once() -> None:
    unknown = UnknownKinds()
    lines = [("mail", "greet"), ("mail", "unknown"), ("slow", "unknown")]

    assert [kind for _, kind in unknown.new_among(lines, {"greet"})] == ["unknown"]
    assert unknown.new_among(lines, {"greet"}) == []
    assert unknown.new_among([("mail", "another")], {"greet"}) == [("mail", "another")]
