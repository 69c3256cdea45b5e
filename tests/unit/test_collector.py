"""`dibs work` and Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dibs.cli.commands.work import YOUNG, spare_the_collector


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("chosen", "then"),
    [
        ((700, 10, 10), (YOUNG, 10, 10)),
        ((50_000, 5, 7), (50_000, 5, 7)),
        ((0, 10, 10), (0, 10, 10)),
    ],
    ids=["Python's own", "a higher one", "none at all"],
)
def test_a_worker_looks_for_garbage_less_often_unless_somebody_chose_otherwise(
    chosen: tuple[int, int, int], then: tuple[int, int, int]
) -> None:
    gc.set_threshold(*chosen)

    spare_the_collector()

    assert gc.get_threshold() == then
