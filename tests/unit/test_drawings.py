"""What the page draws, as values: lanes, graphs, charts, and waiting jobs by reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from dibs import Dibs, NewJob
from dibs.dashboard.charts import HEIGHT, activity
from dibs.dashboard.drawings import CHART_WIDTH, graph, lanes
from dibs.dashboard.rendering import as_json, relative, shown
from dibs.dashboard.waiting import Backlogs, rates, reasons
from dibs.jobs.ids import new_id
from dibs.jobs.job import Job, JobError
from dibs.jobs.states import JobState
from dibs.operations.minutes import BUCKETS, Histogram, MinuteStats
from dibs.operations.queries import Queue
from dibs.operations.settle import Refusal
from dibs.operations.upkeep import WorkerInfo

BEGIN = datetime(2026, 11, 18, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def job(**about: Any) -> Job:
    plain = {"id": new_id(None), "kind": "greet", "queue": "q", "args": {}, "priority": 0, "max_attempts": 3}
    times = {"run_at": BEGIN, "enqueued_at": BEGIN}
    return Job(**{**plain, **times, "state": JobState.running, "attempts": 1, **about})


def died(token: int, seconds: float, worker: str) -> JobError:
    return JobError(
        attempt=1, token=token, at=at(seconds), worker=worker, type="LeaseLost", message="worker died"
    )


def test_each_worker_has_a_lane_with_its_tokens() -> None:
    again = job(worker="b", token=9, claimed_at=at(10), attempts=2, errors=[died(4, 10, "a")])

    drawn = lanes(again, [], at(20))

    assert drawn is not None
    assert [(lane.worker, [(bar.sort, bar.token) for bar in lane.bars]) for lane in drawn.lanes] == [
        ("a", [("lost", 4)]),
        ("b", [("running", 9)]),
    ]
    [bar] = drawn.lanes[1].bars
    assert bar.x == pytest.approx(CHART_WIDTH / 2, abs=5)


def test_a_late_write_is_drawn_on_the_lane_of_the_worker_that_tried_it() -> None:
    late = Refusal(at=at(40), worker="a", token=4, tried="succeeded")
    done = job(
        state=JobState.succeeded,
        worker="b",
        token=9,
        claimed_at=at(10),
        finished_at=at(20),
        attempts=2,
        errors=[died(4, 10, "a")],
    )

    drawn = lanes(done, [late], at(60))

    assert drawn is not None
    zombie, holder = drawn.lanes
    assert (zombie.worker, holder.worker, holder.marks) == ("a", "b", ())
    [mark] = zombie.marks
    assert (mark.sort, mark.says) == ("refused", "a success with token 4 was refused")
    assert mark.x > holder.bars[0].x + holder.bars[0].width


def test_an_attempt_that_began_at_an_unknown_time_is_drawn_as_long_as_it_may_have_been() -> None:
    again = job(worker="c", token=9, claimed_at=at(30), errors=[died(4, 10, "a"), died(6, 30, "b")])

    drawn = lanes(again, [], at(40))

    assert drawn is not None
    bars = [lane.bars[0] for lane in drawn.lanes]
    assert [bar.vague for bar in bars] == [True, True, False]
    assert bars[1].x == pytest.approx(bars[0].x + bars[0].width, abs=1)


def test_a_job_that_was_never_claimed_has_no_lanes() -> None:
    assert lanes(job(state=JobState.ready, attempts=0), [], at(1)) is None


def test_jobs_stand_to_the_right_of_what_they_wait_for() -> None:
    app = Dibs("memory://").sync
    pipeline = app.pipeline("p")
    first = pipeline.add(NewJob("a"))
    middle = [pipeline.add(NewJob("b"), after=[first]) for _ in range(2)]
    pipeline.add(NewJob("c"), after=middle)
    pipeline.enqueue()
    found = app.pipelines.get(pipeline.id)
    assert found is not None

    drawn = graph(found)

    x = {box.job.kind: box.x for box in drawn.boxes}
    assert x["a"] < x["b"] < x["c"]
    assert len(drawn.lines) == 4
    assert len({(box.x, box.y) for box in drawn.boxes}) == 4


def minute(number: int, done: int, failed: int, waited: int) -> MinuteStats:
    counts = tuple(done if bucket == waited else 0 for bucket in range(BUCKETS))
    histogram = Histogram(counts)
    about = {"at": at(number * 60), "seconds": 60, "queue": None, "kind": None}
    return MinuteStats(**about, done=done, failed=failed, latency=histogram, duration=histogram)


def test_charts_fill_their_height_and_leave_gaps_where_nothing_was_measured() -> None:
    drawn = activity([minute(0, 10, 10, 3), minute(1, 0, 0, 0), minute(2, 5, 0, 3)])

    assert drawn is not None
    assert drawn.bars[0].done + drawn.bars[0].failed == HEIGHT
    assert drawn.bars[2].done == HEIGHT / 4
    assert (drawn.done, drawn.failed, drawn.most) == (15, 10, "20 per minute")
    assert [path.count("M") for _, path in drawn.lines] == [2, 2]


def test_without_an_ended_attempt_there_is_no_chart() -> None:
    assert activity([minute(0, 0, 0, 0)]) is None


def test_a_rate_is_of_the_minutes_since_the_first_one_that_was_counted() -> None:
    mail = [msgspec.structs.replace(minute(number, 30, 10, 3), queue="mail") for number in (2, 3)]
    slow = [msgspec.structs.replace(minute(3, 2, 0, 3), queue="slow")]

    assert rates([*mail, *slow], at(4 * 60 + 20)) == {"mail": 40.0, "slow": 1.0}
    assert rates(slow, at(5 * 60)) == {"slow": 1.0}
    assert rates([], at(0)) == {}


def backlogs(**about: Any) -> Backlogs:
    nothing: dict[str, Any] = {"queues": [], "workers": [], "pairs": [], "held": [], "unserved": {}}
    return Backlogs(**{**nothing, **about})


def queue(name: str, *, paused: bool = False, limit: int | None = None, **counts: int) -> Queue:
    return Queue(name=name, paused=paused, limit=limit, counts=counts)


def test_every_waiting_job_has_one_reason() -> None:
    about = {"queues": None, "kinds": ["greet"], "concurrency": 10, "running": 0}
    a_worker = WorkerInfo(name="w", started_at=BEGIN, seen_at=BEGIN, **about)
    waiting = backlogs(
        queues=[
            queue("mail", paused=True, ready=9),
            queue("slow", limit=1, running=1, ready=4),
            queue("default", ready=70, blocked=20, scheduled=7),
        ],
        workers=[a_worker],
        held=[("north", 15)],
        unserved={("default", "legacy"): 61},
    )

    found = [(reason.jobs, reason.says, reason.stuck) for reason in reasons(waiting)]

    assert found == [
        (14, "behind the held train north", True),
        (9, "in the paused queue mail", True),
        (61, "of the kind legacy which no worker knows", True),
        (4, "in the queue slow, which runs as many as its limit of 1 allows", False),
        (9, "for a free worker", False),
        (6, "behind another job of their train, slot or pipeline", False),
        (7, "due later", False),
    ]


def test_without_workers_that_is_the_reason() -> None:
    [reason] = reasons(backlogs(queues=[queue("default", ready=3)]))

    assert (reason.jobs, reason.says) == (3, "for a worker: none was heard of lately")


@pytest.mark.parametrize(
    ("seconds", "says"), [(0.3, "now"), (4, "4 s ago"), (-90, "in 90 s"), (7200, "2 h ago")]
)
def test_times_are_said_as_people_say_them(seconds: float, says: str) -> None:
    assert relative(BEGIN, at(seconds)) == says


def test_long_text_is_cut_and_says_how_long_it_is() -> None:
    assert shown("x" * 1_000_000, 10) == "xxxxxxxxxx… (1,000,000 characters in all)"


def test_json_with_deceiving_characters_is_still_that_json() -> None:
    value = {"a": "\u202e\u200b\U000e0041\x9b", "n": 2**63 - 1}

    assert json.loads(as_json(value)) == value
    assert as_json(value, 0).isascii()
