"""The search language: what its words are read as, and that stores look for nothing a match lacks."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import BadRequest
from dibs.jobs.job import Job, JobError
from dibs.jobs.search import ArgTerm, TextTerms, Value, is_like, parse_search
from dibs.jobs.states import JobState

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = TEXT | NUMBERS | st.booleans() | st.none()


MOMENT = datetime(2026, 11, 16, tzinfo=UTC)


def a_job(**about: Any) -> Job:
    given: dict[str, Any] = {"id": UUID(int=1), "kind": "work", "queue": "default", "args": {}, "priority": 0}
    given |= {"state": JobState.failed, "attempts": 1, "max_attempts": 3, "run_at": MOMENT}
    return Job(**{**given, "enqueued_at": MOMENT, **about})


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.text(max_size=40))
def test_any_text_is_a_search_or_is_refused(text: str) -> None:
    with suppress(BadRequest):
        assert parse_search(text).text is not None


@given(st.lists(st.tuples(st.sampled_from(["", "error:", "tag:", 'args.a."b.c":']), TEXT), max_size=5))
def test_quotes_keep_a_value_as_it_is(words: list[tuple[str, str]]) -> None:
    search = parse_search(" ".join(name + quoted(text) for name, text in words))

    values = {name: [Value(text, exact=True) for word, text in words if word == name] for name, _ in words}
    assert list(search.text.words) == values.get("", [])
    assert list(search.text.errors) == values.get("error:", [])
    assert search.filter.get("tags", []) == [value.text for value in values.get("tag:", [])]
    wanted = [ArgTerm(("a", "b.c"), value) for value in values.get('args.a."b.c":', [])]
    assert list(search.text.args) == wanted


@given(SCALARS, TEXT)
def test_an_argument_matches_the_search_for_it(value: object, key: str) -> None:
    word = quoted(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
    search = parse_search(f"args.x.{quoted(key)}:{word}")
    args = {"x": {key: value}}

    assert search.text.match(a_job(args=args))
    _assert_needles(search.text, args=args)


@given(TEXT, TEXT, st.data())
def test_an_error_matches_the_search_for_a_part_of_it(type: str, message: str, data: st.DataObject) -> None:
    line = f"{type}: {message}"
    start = data.draw(st.integers(0, len(line) - 1))
    part = line[start : data.draw(st.integers(start + 1, len(line)))]
    error = JobError(attempt=1, token=1, at=MOMENT, worker="w", type=type, message=message)

    for terms in (TextTerms(errors=(Value(part, True),)), TextTerms(words=(Value(part, True),))):
        assert terms.match(a_job(errors=[error]))
        _assert_needles(terms, errors=[error])


@given(st.lists(st.sampled_from("ab*"), max_size=8), st.text("ab", max_size=8))
def test_a_pattern_fits_as_the_expression_does(pattern: list[str], text: str) -> None:
    joined = "*" + "".join(pattern)
    assert is_like(text, joined) == bool(re.fullmatch(joined.replace("*", ".*"), text))


def test_a_long_pattern_is_read_once() -> None:
    assert not is_like("a" * 100_000, "*a" * 900 + "*b*")


def _assert_needles(terms: TextTerms, **texts: object) -> None:
    """Whatever matches must hold in its stored text what the stores look for."""
    stored = {name: msgspec.json.encode(value).decode().lower() for name, value in texts.items()}
    needles = terms.needles
    for name, needle in needles.items():
        held = stored.get("args") if name == "in_args" else stored.get("errors")
        assert needle is None or (held is not None and needle in held)


def test_needles_are_the_longest_pieces() -> None:
    job: Job = a_job(kind="send")
    search = parse_search('args.order_id:42 error:"ab: longer" x* yyyy*')

    assert search.text.needles == {"in_args": "42", "in_errors": "longer", "in_text": "yyyy"}
    assert not search.text.match(job)
