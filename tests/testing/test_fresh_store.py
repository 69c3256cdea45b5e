"""An app on an empty store for the time of a block."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dibs import BadRequest, Dibs, NewJob
from dibs.testing import fresh_store
from dibs.testing.sync import run_pending
from tests.support.faces import Face, Make


def test_what_happens_inside_stays_inside(app: Face, make: Make) -> None:
    before = make.ready("outside")

    with fresh_store(app.app) as same:
        assert same is app.app
        assert app.find() == []
        make.ready("inside")

    assert [job.id for job in app.find()] == [before.id]


def test_registered_jobs_stay_and_tasks_enqueue_there(app: Face) -> None:
    @app.job
    def double(n: int) -> int:
        return 2 * n

    with fresh_store(app.app):
        app.enqueue_task(double, 21)
        [job] = run_pending(app.app)

    assert job.result == 42
    assert app.find() == []


def test_each_block_begins_empty_and_the_usual_store_is_back_after_an_error(app: Face, make: Make) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), fresh_store(app.app):
            assert app.find() == []
            make.ready()
            _ = 1 / 0

    assert app.find() == []
    make.ready()
    assert len(app.find()) == 1


def test_the_blocking_face_alone_will_do() -> None:
    with fresh_store(Dibs("memory://").sync) as app:
        app.enqueue(NewJob("work"))

        assert app.counts()["ready"] == 1


def test_code_with_transactions_gets_a_file(tmp_path: Path) -> None:
    app, shop = Dibs("memory://").sync, sqlite3.connect(tmp_path / "shop.db")

    with fresh_store(app, f"sqlite:///{tmp_path}/shop.db"):
        app.open()
        with shop:
            app.enqueue(NewJob("work"), within=shop)
        assert app.counts()["ready"] == 1

    shop.close()
    assert app.counts()["ready"] == 0


def test_a_server_is_refused_before_anything_is_swapped() -> None:
    app = Dibs("memory://").sync

    with pytest.raises(BadRequest, match=r"\$DIBS_URL"):
        with fresh_store(app, "postgresql://localhost/shop"):
            pass

    assert app.counts()["ready"] == 0
