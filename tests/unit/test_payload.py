"""Payloads: what goes through JSON and comes back, and what is refused at the door."""

import dataclasses
import enum
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from dibs import BadRequest
from dibs.jobs.payload import check_moment, check_name, check_whole, decode, decoder, encode
from tests.support.param_names import named

LIMIT = 1024 * 1024


class Colour(enum.Enum):
    red = "red"


@dataclasses.dataclass
class Point:
    x: int
    label: str | None = None


class Line(msgspec.Struct):
    start: Point
    end: Point


class Person(pydantic.BaseModel):
    name: str
    born: date
    friends: list["Person"] = []


ANN = Person(name="ann", born=date(1990, 1, 1), friends=[Person(name="bob", born=date(1991, 1, 1))])

ROUND_TRIPS = [
    (int, 5),
    (float, 1.5),
    (str, "ä🦊\n"),
    (bool, True),
    (None, None),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3)))),
    (date, date(2024, 2, 29)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (UUID, UUID(int=1)),
    (Decimal, Decimal("1.10")),
    (bytes, b"\x00\xff"),
    (Colour, Colour.red),
    (Point, Point(1, "a")),
    (Line, Line(Point(1), Point(2))),
    (Person, ANN),
    (list[Person], [ANN]),
    (dict[str, Point], {"a": Point(1)}),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (Person | None, ANN),
    (int | None, None),
    (Any, {"a": [1, None]}),
    (list[object], [1, "a", None]),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=named)
def test_a_value_comes_back_as_its_annotation_says(annotation: Any, value: Any) -> None:
    text = encode(value, "args", LIMIT)

    assert decoder(annotation)(text) == value


def test_text_stays_text_on_the_way() -> None:
    assert encode({"a": "ä"}, "args", LIMIT) == '{"a":"ä"}'
    assert decode('{"a":[1,null]}') == {"a": [1, None]}


@pytest.mark.parametrize(
    "value",
    [
        Point(1, "a\x00"),
        Line(Point(1), Point(2, "\x00")),
        Person(name="a\x00", born=date(2020, 1, 1)),
        {"deep": [Point(float("nan"))]},  # type: ignore[arg-type]
        Point,
        Person,
        ValueError("x"),
        iter([]),
    ],
    ids=named,
)
def test_what_hides_inside_is_found(value: Any) -> None:
    with pytest.raises(BadRequest, match="args"):
        encode(value, "args", LIMIT)


class Stubborn(pydantic.BaseModel):
    x: int = 0

    @pydantic.model_serializer
    def refuse(self) -> Any:
        raise RuntimeError("never")


def test_a_model_that_fails_to_dump_is_the_callers_mistake() -> None:
    with pytest.raises(BadRequest, match="args"):
        encode(Stubborn(), "args", LIMIT)


def test_a_pydantic_model_that_does_not_fit_is_refused_on_reading() -> None:
    with pytest.raises((msgspec.ValidationError, ValueError)):
        decoder(Person)('{"name": 5}')


@pytest.mark.parametrize("plain", ["safe", 7, 1.5, {"safe": ["text", 3]}], ids=repr)
def test_what_extends_a_plain_type_is_stored_as_it(plain: Any) -> None:
    assert decode(encode(_extended(plain), "args", LIMIT)) == plain


def test_what_extends_a_plain_type_is_checked_like_it() -> None:
    for refused in (float("nan"), "\x00", 2**70):
        with pytest.raises(BadRequest):
            encode([_extended(refused)], "args", LIMIT)


def _extended(value: Any) -> Any:
    """The same of classes that extend those of the value and its parts."""
    match value:
        case dict():
            return {_extended(name): _extended(part) for name, part in value.items()}
        case list():
            return [_extended(part) for part in value]
        case _:
            return type("Extended", (type(value),), {"__str__": lambda _: "shown"})(value)


def test_the_size_counts_in_bytes() -> None:
    assert encode("ää", "args", 6)
    with pytest.raises(BadRequest, match="6 bytes as JSON and at most 5"):
        encode("ää", "args", 5)


@pytest.mark.parametrize("name", ["x", "x" * 200, "🦊", "a b", "\u2028", "a\xa0b", "\u200d"], ids=named)
def test_names_that_are_fine(name: str) -> None:
    assert check_name(name, "queue") == name


@pytest.mark.parametrize(
    "name", ["", "x" * 201, "\x1f", "\x7f", "\x80", "\x9f", "a\ud800", "\udfff", None, 5], ids=named
)
def test_names_that_are_not(name: object) -> None:
    with pytest.raises(BadRequest, match="queue"):
        check_name(name, "queue")


@pytest.mark.parametrize("value", [0, 11, "5", 5.0, None, True], ids=named)
def test_whole_numbers_have_bounds(value: object) -> None:
    assert check_whole(10, "n", 1, 10) == 10
    with pytest.raises(BadRequest, match="n"):
        check_whole(value, "n", 1, 10)


@pytest.mark.parametrize("value", [datetime(2026, 1, 1), "2026-01-01", 5, date(2026, 1, 1)], ids=named)
def test_moments_have_a_zone(value: object) -> None:
    with pytest.raises(BadRequest, match="run_at"):
        check_moment(value, "run_at")
