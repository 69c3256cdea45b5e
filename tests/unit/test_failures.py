"""Failures: whatever an exception is like, recording it is safe."""

from datetime import UTC, datetime

import msgspec
import pytest

from dibs import JobError
from dibs.jobs import Job, JobState
from dibs.jobs.ids import new_id
from dibs.jobs.outcomes import MOST_ERRORS, describe, error_entry, errors_text, safe_text


class Hostile(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class Liar(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_ordinary_exception_is_described_whole() -> None:
    kind, message, trace = describe(_raised(ValueError("no such order")))

    assert (kind, message) == ("ValueError", "no such order")
    assert trace is not None
    assert "test_failures.py" in trace


def test_a_type_of_a_module_carries_its_name() -> None:
    assert describe(msgspec.ValidationError("x"))[0] == "msgspec.ValidationError"


@pytest.mark.parametrize("error", [Hostile(), Liar()], ids=["raises", "lies"])
def test_a_message_that_can_not_be_read_says_so(error: Exception) -> None:
    _, message, _ = describe(_raised(error))

    assert "could not be read" in message


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x" * 10_000_000),
        ValueError("\ud800\x00"),
        type("E", (Exception,), {"__qualname__": "\ud800\x00" + "x" * 10_000})("y"),
        type("E", (Exception,), {"__module__": None})("y"),
        KeyError(),
        ExceptionGroup("many", [ValueError("x")] * 10),
    ],
    ids=["huge", "surrogate", "odd name", "no module", "empty", "group"],
)
def test_whatever_it_is_it_can_be_stored(error: Exception) -> None:
    described = describe(_raised(error))

    for text in described:
        assert text is None or "\x00" not in text
        assert text is None or len(text.encode()) < 40_000


def test_a_traceback_tells_what_an_error_was_raised_from() -> None:
    try:
        try:
            raise KeyError("user_id")
        except KeyError as missing:
            raise ExceptionGroup("many", [_raised(ValueError("one of them"))]) from missing
    except ExceptionGroup as error:
        trace = describe(error)[2]

    assert trace is not None
    assert "\nbecause of KeyError: 'user_id'\n  File" in trace
    assert "\nbecause of ValueError: one of them\n  File" in trace


def test_errors_that_name_each_other_end_somewhere() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    many = ExceptionGroup("many", [ValueError(str(number)) for number in range(10_000)])

    assert (describe(first)[2] or "").count("because of") == 1
    assert (describe(many)[2] or "").count("because of") < 20


def test_a_deep_traceback_keeps_its_end() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("bottom")

    with pytest.raises(ValueError) as caught:
        deep(500)

    trace = describe(caught.value)[2]
    assert trace is not None
    assert len(trace) < 20_000


def test_of_very_many_errors_the_newest_are_kept() -> None:
    earlier = [
        JobError(
            attempt=n, token=n, at=datetime(2026, 1, 1, tzinfo=UTC), worker=None, type="E", message=str(n)
        )
        for n in range(MOST_ERRORS)
    ]

    text = errors_text(earlier, _entry("newest"))

    kept = msgspec.json.decode(text, type=list[JobError])
    assert len(kept) == MOST_ERRORS
    assert (kept[0].message, kept[-1].message) == ("1", "newest")


def test_without_errors_there_is_an_empty_list() -> None:
    assert errors_text([], None) == "[]"
    assert len(msgspec.json.decode(errors_text([], _entry("x")))) == 1


def test_text_is_cut_with_its_length_told() -> None:
    assert safe_text("x" * 20, 10) == "xxxxxxxxxx… (20 characters)"
    assert safe_text("x" * 10, 10) == "x" * 10


def _entry(message: str) -> dict[str, object]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    job = Job(*(new_id(), "kind", "default", {}, 0, JobState.running, 1, 3, at, at), worker="w", token=1)
    return error_entry(job, at, type="E", message=message)
