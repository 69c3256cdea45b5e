"""What a worker does now and then. The statements are tested elsewhere; here, that they are asked at all."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from working import finished, working

from dibs import Dibs, NewJob
from dibs.worker import chores


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


async def test_a_worker_lets_a_train_go_on_whose_head_was_deleted_by_hand(
    app: Dibs, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores, "MEND_EVERY", 0.0)

    @app.job
    async def work() -> None: ...

    first, second = await app.enqueue(*(NewJob("work", train="t") for _ in range(2)))
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("delete from dibs_jobs where id = ?", [str(first.id)])
        connection.commit()
    async with working(app):
        assert (await finished(app, second)).state == "succeeded"


async def test_a_worker_removes_what_need_not_be_kept(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "PRUNE_EVERY", 0.0)
    asked = []
    monkeypatch.setattr(app._core, "retention", lambda: asked.append("retention") or [])

    @app.job
    async def work() -> None: ...

    async with working(app):
        await finished(app, await work.enqueue())

    assert asked
