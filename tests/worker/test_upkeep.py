"""Rare upkeep of a worker: that it is done at all; its statements are tested elsewhere."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from dibs import Dibs, NewJob
from dibs.operations import upkeep
from dibs.operations.scripts import Row, Rows, Script
from dibs.worker import upkeep as worker_upkeep
from tests.support.internals import core_of, store_of
from tests.support.workers import finished, working


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


async def test_a_worker_lets_a_train_continue_after_its_head_was_deleted_by_hand(
    app: Dibs, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_upkeep, "MEND_EVERY", 0.0)

    @app.job
    async def work() -> None: ...

    first, second = await app.enqueue(*(NewJob("work", train="t") for _ in range(2)))
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("delete from dibs_jobs where id = ?", [str(first.id)])
        connection.commit()
    async with working(app):
        assert (await finished(app, second)).state == "succeeded"


async def test_a_round_of_mending_takes_a_few_pages_a_second_and_then_rests(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "GATES", 2)
    monkeypatch.setattr(worker_upkeep, "PAGES", 2)
    looks: list[tuple[int, list[str]]] = []
    mend = upkeep.mend

    def looked(after: Row | None) -> Script[Rows]:
        page = yield from mend(after)
        looks.append((second, [row["name"] for row in page]))
        return page

    monkeypatch.setattr(upkeep, "mend", looked)
    await app.enqueue(*(NewJob("work", train=f"t{n}") for n in range(5)))
    mine = worker_upkeep.RareUpkeep(core_of(app))

    for second in range(25):
        await mine.do(second)

    end = next(second for second, names in looks if not names)
    assert {name for second, names in looks for name in names if second < 3} >= {f"t{n}" for n in range(5)}
    assert all(count <= 2 for count in Counter(second for second, _ in looks).values())
    assert 2 <= end < 10
    assert [second for second, _ in looks if second > end] == []
    assert mine.seconds(24) == math.inf


async def test_workers_share_the_load_of_mending(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "GATES", 2)
    monkeypatch.setattr(worker_upkeep, "PAGES", 1)
    await app.enqueue(*(NewJob("work", train=f"t{n}") for n in range(5)))
    for name in ("one", "other", "third"):
        await store_of(app).run_async(
            lambda _, name=name: upkeep.tick(name, None, [], concurrency=1, running=0)
        )
    mine = worker_upkeep.RareUpkeep(core_of(app))

    await mine.do(0.0)

    assert mine.seconds(0.0) == 3 * worker_upkeep.PAUSE


async def test_a_worker_removes_what_need_not_be_kept(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_upkeep, "PRUNE_EVERY", 0.0)
    asked = []
    monkeypatch.setattr(core_of(app), "retention", lambda: asked.append("retention") or [])

    @app.job
    async def work() -> None: ...

    async with working(app):
        await finished(app, await work.enqueue())

    assert asked
