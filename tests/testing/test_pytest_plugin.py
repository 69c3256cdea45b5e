"""The pytest fixtures of dibs, run in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

JOBS = """
    from dibs import Dibs

    app = Dibs("postgresql://nowhere.invalid/shop")

    @app.job(queue="mail")
    async def send_receipt(order_id: int) -> str:
        return f"receipt {order_id}"
"""


def _pytest(folder: Path, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / name.replace("_ini", ".ini").replace("_py", ".py")).write_text(dedent(text))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


INI = """
    [pytest]
    dibs_app = jobs:app
    pythonpath = .
"""


def test_the_app_is_put_on_an_empty_store_for_each_test(tmp_path: Path) -> None:
    code, output = _pytest(
        tmp_path,
        pytest_ini=INI,
        jobs_py=JOBS,
        test_mail_py="""
            import pytest
            from jobs import send_receipt
            from dibs.testing.sync import assert_enqueued, run_pending

            @pytest.mark.parametrize("order", [1, 2])
            def test_a_receipt_is_sent_once(dibs_app, dibs_clock, order):
                send_receipt.using(delay=60).sync.enqueue(order)
                assert_enqueued(dibs_app, send_receipt, queue="mail", count=1)
                dibs_clock.advance(minutes=2)
                [job] = run_pending(dibs_app)
                assert job.result == f"receipt {order}"
        """,
    )

    assert code == 0, output
    assert "2 passed" in output


def test_another_store_is_a_fixture_away(tmp_path: Path) -> None:
    code, output = _pytest(
        tmp_path,
        pytest_ini=INI,
        jobs_py=JOBS,
        conftest_py="""
            import pytest

            @pytest.fixture
            def dibs_url(tmp_path):
                return f"sqlite:///{tmp_path}/jobs.db"
        """,
        test_mail_py="""
            def test_it_is_durable(dibs_app):
                assert dibs_app.traits.durable
        """,
    )

    assert code == 0, output


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("", "Set dibs_app in pytest's settings"),
        ("dibs_app = nowhere:app", "No module named 'nowhere'. Write MODULE:APP"),
        ("dibs_app = jobs:shop", "has no attribute 'shop'. Write MODULE:APP"),
        ("dibs_app = jobs:send_receipt", "is a Task, not a Dibs app"),
    ],
    ids=["nothing", "module", "name", "other"],
)
def test_a_setting_that_is_wrong_says_how_to_right_it(tmp_path: Path, setting: str, says: str) -> None:
    code, output = _pytest(
        tmp_path,
        pytest_ini=f"[pytest]\npythonpath = .\n{setting}\n",
        jobs_py=JOBS,
        test_mail_py="def test_it(dibs_app): ...",
    )

    assert code == 1
    assert says in output


def test_tests_that_do_not_use_dibs_do_not_pay_for_it(tmp_path: Path) -> None:
    code, output = _pytest(
        tmp_path,
        test_other_py="""
            import sys

            def test_other():
                assert "_dibs_pytest" in sys.modules
                assert "dibs" not in sys.modules
        """,
    )

    assert code == 0, output


def test_a_test_without_the_fixture_reaches_no_store_if_that_is_forbidden(tmp_path: Path) -> None:
    code, output = _pytest(
        tmp_path,
        pytest_ini=INI + "    dibs_forbid_store = true\n",
        jobs_py=JOBS,
        test_mail_py="""
            import asyncio
            import pytest
            from dibs import Dibs, NewJob, Refused
            from jobs import app, send_receipt

            def test_forgetful():
                with pytest.raises(Refused, match="this test uses postgresql://nowhere.invalid/shop"):
                    send_receipt.sync.enqueue(7)
                with pytest.raises(Refused, match="take the fixture dibs_app"):
                    asyncio.run(send_receipt.enqueue(7))
                app.sync.close()

            def test_careful(dibs_app):
                assert send_receipt.sync.enqueue(7).is_new

            def test_in_memory():
                assert len(Dibs("memory://").sync.enqueue(NewJob("work"))) == 1
        """,
    )

    assert (code, "3 passed" in output) == (0, True), output
