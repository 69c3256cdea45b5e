"""Annotations of handlers: each is resolved for itself, where the function was written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from dibs import BadRequest, Context, Dibs, NewJob

if TYPE_CHECKING:
    from decimal import Decimal
    from decimal import Decimal as Point


@pytest.fixture
def app() -> Iterator[Dibs]:
    app = Dibs("memory://")
    yield app
    app.sync.close()


@pytest.fixture
def got() -> list[Any]:
    return []


def run(app: Dibs, kind: str, **args: Any) -> None:
    [job] = app.sync.enqueue(NewJob(kind, args))
    done = app.sync.run_job(job.id)
    assert done is not None
    assert done.state == "succeeded", done.errors


def test_a_class_of_the_function_around_is_known(app: Dibs, got: list[Any]) -> None:
    @dataclass
    class Pair:
        left: int
        right: int

    @app.job
    def add(pair: Pair, more: list[Pair], when: datetime) -> None:
        got.extend([pair, *more, when])

    run(app, "add", pair={"left": 1, "right": 2}, more=[{"left": 3, "right": 4}], when="2030-01-01T00:00:00Z")

    assert got == [Pair(1, 2), Pair(3, 4), datetime(2030, 1, 1, tzinfo=UTC)]


def test_what_is_around_comes_before_what_is_in_the_module(app: Dibs, got: list[Any]) -> None:
    from decimal import Decimal as datetime

    @app.job
    def work(when: datetime) -> None:
        got.append(when)

    run(app, "work", when="5.0")

    assert got == [datetime("5.0")]


def test_names_of_those_who_only_call_are_not_looked_at(app: Dibs) -> None:
    from decimal import Decimal

    assert Decimal
    with pytest.warns(UserWarning, match="'amount'"):
        app.job(of_the_module)


def of_the_module(amount: Decimal) -> None:
    pass


def test_an_annotation_that_cannot_be_resolved_leaves_only_its_own_argument_unchecked(
    app: Dibs, got: list[Any]
) -> None:
    with pytest.warns(UserWarning, match=r"'amount' of 'pay'.*'Decimal'.*TYPE_CHECKING"):

        @app.job
        def pay(amount: Decimal, when: datetime, ctx: Context) -> None:
            got.extend([amount, when, ctx.job.kind])

    run(app, "pay", amount="1.50", when="2030-01-01T00:00:00Z")

    assert got == ["1.50", datetime(2030, 1, 1, tzinfo=UTC), "pay"]
    with pytest.raises(BadRequest, match="when"):
        app.sync.enqueue(NewJob("pay", {"amount": "1.50", "when": "soon"}))


def test_what_is_answered_needs_no_type(app: Dibs) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @app.job
        def work(n: int) -> Point:
            raise AssertionError

    with pytest.raises(BadRequest, match="don't fit"):
        app.sync.enqueue(work.new("many"))  # type: ignore[arg-type]


def test_the_context_goes_by_any_name_it_was_imported_under(app: Dibs, got: list[Any]) -> None:
    from dibs import Context as Ctx

    @app.job
    def work(n: int, here: Ctx) -> None:
        got.extend([n, here.job.kind])

    run(app, "work", n=1)

    assert got == [1, "work"]


def test_a_context_that_may_be_left_out_is_injected(app: Dibs, got: list[Any]) -> None:
    @app.job
    def maybe(n: int, ctx: Context | None = None) -> None:
        got.append(ctx and ctx.job.kind)

    @app.job
    def noted(ctx: Annotated[Context, "who runs it"], n: int) -> None:
        got.append(ctx.job.kind)

    run(app, "maybe", n=1)
    run(app, "noted", n=1)

    assert got == ["maybe", "noted"]
    with pytest.raises(BadRequest, match="ctx"):
        app.sync.enqueue(NewJob("maybe", {"n": 1, "ctx": None}))
