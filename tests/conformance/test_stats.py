"""Stats: what workers counted by the minute adds up, and is read in stretches for charts."""

from __future__ import annotations

from typing import Any

import pytest

from dibs import BadRequest
from dibs.operations.minutes import (
    DONE,
    DURATION,
    FAILED,
    LATENCY,
    MINUTE,
    NOTHING,
    QUARTER,
    add_to_minute,
    forget_minutes,
    minute_of,
)
from dibs.operations.scripts import Step
from tests.support.faces import Face


def counts(done: int = 0, failed: int = 0, latency: int = 0, duration: int = 0) -> list[int]:
    """All in one bucket each, of these numbers."""
    made = list(NOTHING)
    made[DONE], made[FAILED] = done, failed
    made[LATENCY + latency] = made[DURATION + duration] = done + failed
    return made


def add(app: Face, width: int, minute: int, queue: str = "mail", kind: str = "send", **what: int) -> None:
    app.ask(lambda: add_to_minute(width, minute, queue, kind, counts(**what)))


@pytest.fixture
def now(app: Face) -> int:
    return minute_of(app.now())


def test_what_several_workers_count_adds_up(app: Face, now: int) -> None:
    add(app, MINUTE, now - 1, done=2, latency=3, duration=10)
    add(app, MINUTE, now - 1, done=1, failed=1, latency=4, duration=10)
    add(app, MINUTE, now - 1, kind="print", done=10)

    found = app.stats(kind="send", since=600)

    [one] = [each for each in found if each.done]
    assert (one.done, one.failed, one.seconds, one.at.timestamp()) == (3, 1, 60, (now - 1) * 60)
    assert (one.latency.counts[3:5], one.duration.counts[10], one.latency.total) == ((2, 2), 4, 4)
    assert 0.004 <= (one.latency.percentile(0.5) or 0) <= 0.008 <= (one.latency.percentile(0.95) or 0)


def test_every_minute_is_there_though_nothing_happened(app: Face, now: int) -> None:
    add(app, MINUTE, now - 2, done=1)

    found = app.stats(since=300)

    times = [each.at.timestamp() / 60 for each in found]
    assert times == list(range(int(times[-1]) - 4, int(times[-1]) + 1))
    assert [each.done for each in found].count(1) == 1
    assert found[-1].latency.percentile(0.5) is None


def test_stats_are_read_of_a_queue_or_by_queue_and_kind(app: Face, now: int) -> None:
    for queue, kind, done in (("mail", "send", 1), ("mail", "print", 2), ("größe 🚂", "send", 4)):
        add(app, MINUTE, now, queue, kind, done=done)

    assert sum(each.done for each in app.stats()) == 7
    assert sum(each.done for each in app.stats("mail")) == 3
    assert sum(each.done for each in app.stats("mail", "print")) == 2
    assert sum(each.done for each in app.stats("none")) == 0
    by_queue = {(each.queue, each.kind): each.done for each in app.stats(by="queue")}
    by_kind = {(each.queue, each.kind): each.done for each in app.stats("mail", by="kind")}
    assert by_queue == {("mail", None): 3, ("größe 🚂", None): 4}
    assert by_kind == {(None, "send"): 1, (None, "print"): 2}


def test_stretches_may_be_wider(app: Face, now: int) -> None:
    for ago in range(10):
        add(app, MINUTE, now - ago, done=1)

    found = app.stats(since=1200, width=300)

    assert {each.seconds for each in found} == {300}
    assert {each.at.minute % 5 for each in found} == {0}
    assert sum(each.done for each in found) == 10
    assert max(each.done for each in found) == 5


def test_days_are_read_by_the_quarter_of_an_hour(app: Face, now: int) -> None:
    quarter = now // QUARTER * QUARTER
    add(app, QUARTER, quarter - 40 * QUARTER, done=5)  # what is long over is there by the quarter
    add(app, MINUTE, quarter - 3 * QUARTER, done=7)  # and is not counted twice
    add(app, QUARTER, quarter - 3 * QUARTER, done=7)
    add(app, MINUTE, now, done=1)  # the latest is there by the minute alone

    found = app.stats(since=72 * 3600)

    assert (len(found), {each.seconds for each in found}) == (72 * 4, {900})
    assert [each.done for each in found if each.done] == [5, 7, 1]
    assert sum(each.done for each in app.stats(since=24 * 3600, width=3600)) == 13


def test_old_counts_are_forgotten(app: Face, now: int) -> None:
    for width, ago in ((MINUTE, 10), (MINUTE, 300), (QUARTER, 300), (QUARTER, 75 * 60)):
        add(app, width, (now - ago) // width * width, done=1)

    app.ask(lambda: forget_minutes(now))

    which = {
        "queue": None,
        "kind": None,
        "by_queue": False,
        "by_kind": False,
        "first": now - 80 * 60,
        "last": now + 1,
    }
    left = [app.ask(lambda width=width: _rows(**which, width=width)) for width in (1, 15)]
    expire_by_themselves = app.traits.joins_pipeline  # on Redis, hours later
    assert [len(rows) for rows in left] == ([2, 2] if expire_by_themselves else [1, 1])


def _rows(**which: Any) -> Any:
    return (yield Step("minutes", which))


@pytest.mark.parametrize(
    "asked", [{"by": "worker"}, {"since": -1}, {"since": 1e9, "width": 60}, {"queue": ""}, {"width": "wide"}]
)
def test_stats_that_make_no_sense_are_refused(app: Face, asked: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        app.stats(**asked)
