"""Values of classes that extend str, int or datetime, and times of other zones: stored and answered plain."""

import enum
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dibs import BadRequest, Job, NewJob
from tests.support.faces import Face


class Name(str):
    """Like SQLAlchemy's quoted_name, or a translated text: not what a driver expects."""

    __slots__ = ("more",)

    def __str__(self) -> str:
        return "not this"


class Word(enum.StrEnum):
    mail = "mail"


class Old(str, enum.Enum):  # noqa: UP042
    """Its text is not its value."""

    mail = "mail"


class Policy(enum.StrEnum):
    hold = "hold"


class Level(enum.IntEnum):
    high = 7


class Number(int):
    def __int__(self) -> int:
        return -1


class Moment(datetime):
    """Like those of pandas, pendulum and freezegun."""


NAMES = [Name("mail"), Word.mail, Old.mail]
NUMBERS = [Level.high, Number(7)]
names = pytest.mark.parametrize("name", NAMES, ids=["class", "StrEnum", "enum"])
numbers = pytest.mark.parametrize("number", NUMBERS, ids=["IntEnum", "class"])


def stored(app: Face, **options: Any) -> Job:
    """As it was answered, which is as it is found."""
    [job] = app.enqueue(NewJob(**{"kind": "work"} | options))
    assert app.get(job.id).run_at == job.run_at
    for name in ("kind", "queue", "unique", "train", "slot", "tags", "priority", "max_attempts", "run_at"):
        answered, found = getattr(job, name), getattr(app.get(job.id), name)
        assert (answered, type(answered)) == (found, type(found))
    return job


@names
@pytest.mark.parametrize("field", ["kind", "queue", "unique", "train", "slot"])
def test_a_name_of_any_class_is_stored_as_text(app: Face, field: str, name: str) -> None:
    job = stored(app, **{field: name})

    assert (getattr(job, field), type(getattr(job, field))) == ("mail", str)


@names
def test_tags_of_any_class_are_stored_as_texts(app: Face, name: str) -> None:
    job = stored(app, tags=[name, "x"])

    assert job.tags == ["mail", "x"]
    assert [found.id for found in app.find(tags=[name])] == [job.id]


@names
def test_who_claims_and_where_may_be_of_any_class(app: Face, name: str) -> None:
    app.enqueue(NewJob("mail", queue="mail"))

    [claim] = app.claim(queues=[name], kinds=[name], worker=name)

    assert (claim.job.worker, type(claim.job.worker)) == ("mail", str)
    assert app.get(claim.job.id).worker == "mail"


@names
def test_queues_and_trains_are_found_by_names_of_any_class(app: Face, name: str) -> None:
    [job] = app.enqueue(NewJob("mail", queue="mail", train="mail"))

    app.pause(name)
    assert app.claim(queues=["mail"]) == []
    app.resume(name)
    app.limit(name, 3)

    assert [(queue.name, queue.paused, queue.limit) for queue in app.queues()] == [("mail", False, 3)]
    assert app.counts(name)["ready"] == 1
    assert app.trains.get(name).head.id == job.id
    assert [found.id for found in app.find(queue=name, kind=name, train=name)] == [job.id]


@names
def test_what_people_wrote_may_be_of_any_class(app: Face, name: str) -> None:
    [job, other] = app.enqueue(NewJob("work"), NewJob("work"))

    app.cancel(job.id, name)
    claim = app.claim_job(other.id)
    claim.progress(0.5, name)
    claim.fail(name, retry=False)

    assert app.get(other.id).message == "mail"
    assert app.get(other.id).errors[-1].message == "mail"


@numbers
def test_numbers_of_any_class_are_stored_plain(app: Face, number: int) -> None:
    job = stored(app, priority=number, max_attempts=number, slot="s", slot_limit=number)

    assert (job.priority, type(job.priority)) == (7, int)
    assert (job.max_attempts, type(job.max_attempts)) == (7, int)
    assert [found.id for found in app.find(limit=number)] == [job.id]
    assert len(app.claim(limit=number)) == 1
    app.limit("default", number)
    assert [queue.limit for queue in app.queues()] == [7]


ZONES = [UTC, timezone(timedelta(hours=5)), ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")]


@pytest.mark.parametrize("kind", [datetime, Moment])
@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_a_time_of_any_zone_and_class_is_answered_in_utc(app: Face, zone: tzinfo, kind: type) -> None:
    given = kind(2040, 7, 1, 12, 30, 15, 123456, tzinfo=zone)

    job = stored(app, run_at=given)

    assert job.run_at == given
    assert (job.run_at.tzinfo, type(job.run_at)) == (UTC, datetime)
    assert app.get(job.id).run_at.tzinfo == UTC


def test_of_an_hour_that_comes_twice_the_second_one_is_kept(app: Face) -> None:
    twice = datetime(2040, 10, 28, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))

    early, late = stored(app, run_at=twice), stored(app, run_at=twice.replace(fold=1))

    assert late.run_at - early.run_at == timedelta(hours=1)


class Nowhere(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        return None


def test_a_zone_that_does_not_say_where_it_is_counts_as_none(app: Face) -> None:
    with pytest.raises(BadRequest, match="time zone"):
        app.enqueue(NewJob("work", run_at=datetime(2040, 1, 1, tzinfo=Nowhere())))


def test_enums_in_arguments_are_stored_by_value(app: Face) -> None:
    [job] = app.enqueue(
        NewJob("work", args={"a": Old.mail, "b": {Word.mail: Level.high}}, meta={Word.mail: 1})
    )

    assert app.get(job.id).args == {"a": "mail", "b": {"mail": 7}}
    assert app.get(job.id).meta == {"mail": 1}


def test_options_of_a_kind_may_be_of_any_class(app: Face) -> None:
    options: dict[str, Any] = {"queue": Name("mail"), "priority": Number(7), "max_attempts": Level.high}

    @app.job(**options, on_failed=Policy.hold, slot=Name("s_{n}"), slot_policy=Name("drop"))
    def work(n: int) -> None: ...

    job = stored(app, args={"n": 1})

    assert (job.queue, job.priority, job.max_attempts, job.slot) == ("mail", 7, 7, "s_1")
