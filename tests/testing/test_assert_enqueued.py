"""Assertions about what was enqueued, and what they say when they fail."""

from datetime import UTC, datetime
from unittest.mock import ANY
from uuid import UUID

import pytest

from dibs import BadRequest, NewJob
from dibs.testing import assert_enqueued, assert_not_enqueued
from tests.support.faces import Face, Make
from tests.support.internals import core_of
from tests.support.param_names import named


@pytest.fixture
def receipts(app: Face) -> list[str]:
    """Store three jobs, two of a registered kind."""

    @app.job(queue="mail")
    async def send_receipt(order_id: int, copies: int = 1) -> None: ...

    for order in (41, 42):
        app.enqueue_task(send_receipt, order, copies=2)
    app.enqueue(NewJob("audit", args={"order_id": 42}, tags=["slow", "eu"], meta={"by": "web"}, delay=60))
    return ["send_receipt", "audit"]


def test_a_job_is_found_by_kind_or_task_and_answered(app: Face, receipts: list[str]) -> None:
    task = core_of(app.app).registry.tasks["send_receipt"]

    found = assert_enqueued(app.app, task)

    assert [job.args["order_id"] for job in found] == [41, 42]
    assert assert_enqueued(app.app.sync, "send_receipt") == found


@pytest.mark.parametrize(
    "asked",
    [
        {"args": {"order_id": 42}},
        {"args": {"order_id": 42, "copies": 2}, "queue": "mail"},
        {"args": {"order_id": ANY}, "count": 2},
        {"args": {}, "count": 2},
        {"state": "ready", "attempts": 0, "unique": None, "priority": 0},
        {"args": {"order_id": 40}, "count": 0},
    ],
    ids=named,
)
def test_only_what_is_asked_for_matters(app: Face, receipts: list[str], asked: dict[str, object]) -> None:
    assert_enqueued(app.app, "send_receipt", **asked)


def test_tags_and_meta_are_asked_for_in_part(app: Face, receipts: list[str]) -> None:
    assert_enqueued(app.app, "audit", tags=["eu"], meta={"by": "web"}, state="scheduled", count=1)
    assert_enqueued(app.app, "audit", tags="slow")
    assert_not_enqueued(app.app, "audit", tags=["eu", "us"])
    assert_not_enqueued(app.app, "audit", meta={"by": "cli"})


def test_values_are_compared_as_the_store_has_them(app: Face) -> None:
    moment, id = datetime(2026, 1, 2, tzinfo=UTC), UUID(int=7)
    app.enqueue(NewJob("bill", args={"at": moment, "customer": id}))

    assert_enqueued(app.app, "bill", args={"at": moment, "customer": id})
    assert_not_enqueued(app.app, "bill", args={"at": moment.replace(year=2027)})


def test_finished_jobs_were_enqueued(app: Face, make: Make) -> None:
    make.succeeded("work", result=5)

    assert_enqueued(app.app, "work", state="succeeded", result=5)


def test_a_failure_shows_the_nearest_first(app: Face, receipts: list[str]) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_enqueued(app.app, "send_receipt", args={"order_id": 42, "copies": 3}, queue="mail")

    assert str(raised.value) == (
        "send_receipt with args={'order_id': 42, 'copies': 3}, queue='mail' was not enqueued.\n"
        "What was enqueued, the nearest first:\n"
        "  send_receipt {'order_id': 42, 'copies': 2}  queue='mail' state='ready'\n"
        "      args.copies is 2, not 3\n"
        "  send_receipt {'order_id': 41, 'copies': 2}  queue='mail' state='ready'\n"
        "      args.order_id is 41, not 42\n"
        "      args.copies is 2, not 3\n"
        "  audit {'order_id': 42}  queue='default' state='scheduled'\n"
        "      args.copies is missing, expected 3\n"
        "      queue is 'default', not 'mail'"
    )


def test_a_failure_guesses_what_was_meant(app: Face, receipts: list[str]) -> None:
    with pytest.raises(AssertionError, match="no kind 'send_recipt' here; did you mean 'send_receipt'"):
        assert_enqueued(app.app, "send_recipt")


def test_a_failure_says_when_there_is_nothing(app: Face) -> None:
    with pytest.raises(AssertionError, match=r"^work was not enqueued.\nNothing was enqueued at all.$"):
        assert_enqueued(app.app, "work")


def test_a_failure_shows_only_a_few(app: Face, make: Make) -> None:
    for _ in range(7):
        make.ready("work")

    with pytest.raises(AssertionError, match="… and 2 more"):
        assert_enqueued(app.app, "other")


def test_a_wrong_number_is_a_failure(app: Face, receipts: list[str]) -> None:
    with pytest.raises(AssertionError, match=r"send_receipt was enqueued 2 times, expected once"):
        assert_enqueued(app.app, "send_receipt", count=1)


def test_what_should_not_be_there_is_shown(app: Face, receipts: list[str]) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_not_enqueued(app.app, "send_receipt", args={"order_id": 42})

    assert str(raised.value) == (
        "send_receipt with args={'order_id': 42} was enqueued once:\n"
        "  send_receipt {'order_id': 42, 'copies': 2}  queue='mail' state='ready'"
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"color": "red"}, "a job has no 'color'; there are id, kind"),
        ({"args": [42]}, "asked for by name"),
    ],
    ids=named,
)
def test_a_question_that_makes_no_sense_is_refused(app: Face, asked: dict[str, object], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        assert_enqueued(app.app, "work", **asked)


def test_more_jobs_than_a_page_are_searched(app: Face) -> None:
    app.enqueue(*[NewJob("many", args={"n": n}) for n in range(1001)])

    assert len(assert_enqueued(app.app, "many", count=1001)) == 1001
    assert_enqueued(app.app, "many", args={"n": 0})
