"""Many claim at once, with real threads, tasks and processes: each row exactly once, no error, no noise."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from dibs import tables
from dibs.tables import sync
from tests.support.table_databases import ASYNC_DRIVERS, SYNC_DRIVERS, Desk
from tests.support.user_tables import Report

READY = Report.status == "ready"
SIZES = [
    pytest.param(8, 240, id="small"),
    pytest.param(16, 5000, id="full-size", marks=pytest.mark.long),
]
CLAIM: dict[str, Any] = {
    "where": READY,
    "set": {"status": "taken", "attempts": Report.attempts + 1},
    "limit": 7,
    "order_by": [Report.rank.desc(), Report.id],
}


def fill(desk: Desk, rows: int) -> None:
    desk.insert(
        Report.__table__,
        *(
            {"id": number, "status": "ready", "priority": number % 5, "attempts": 0}
            for number in range(1, rows + 1)
        ),
    )


def judge(desk: Desk, taken: list[list[int]], rows: int, caplog: pytest.LogCaptureFixture) -> None:
    assert Counter(Counter(id for one in taken for id in one).values()) == {1: rows}, "twice, or never"
    assert desk.look(Report.attempts, Report.status) == [(1, "taken")] * rows
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
@pytest.mark.parametrize(("claimers", "rows"), SIZES)
def test_many_threads_claim_every_row_exactly_once(
    desk: Desk, strategy: Any, claimers: int, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    fill(desk, rows)
    together = threading.Barrier(claimers)

    def drain(_: int) -> list[int]:
        together.wait()
        taken: list[int] = []
        while some := sync.claim_rows(desk.tested, Report, **CLAIM, strategy=strategy):
            taken += [row.id for row in some]
        return taken

    with ThreadPoolExecutor(claimers) as threads:
        taken = list(threads.map(drain, range(claimers)))

    judge(desk, taken, rows, caplog)


@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
@pytest.mark.parametrize(
    ("claimers", "rows", "strategy"),
    [
        pytest.param(8, 240, None, id="small"),
        pytest.param(8, 240, "portable", id="small-portable"),
        pytest.param(16, 5000, None, id="full-size", marks=pytest.mark.long),
    ],
)
def test_many_tasks_claim_every_row_exactly_once(
    desk: Desk, claimers: int, rows: int, strategy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(desk, rows)

    async def drain() -> list[int]:
        taken: list[int] = []
        while some := await tables.claim_rows(desk.tested, Report, **CLAIM, strategy=strategy):
            taken += [row.id for row in some]
        return taken

    async def drain_at_once() -> list[list[int]]:
        return await asyncio.gather(*(drain() for _ in range(claimers)))

    judge(desk, desk.run(drain_at_once()), rows, caplog)


# -- processes ------------------------------------------------------------------------------------

PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from sqlalchemy import create_engine
from tests.support.user_tables import Report
from dibs.tables.sync import claim_rows

engine = create_engine(sys.argv[2])
engine.connect().close()
print("open", flush=True)
sys.stdin.readline()
values = {"status": "taken", "attempts": Report.attempts + 1}
order = [Report.rank.desc(), Report.id]
while some := claim_rows(
    engine, Report, where=Report.status == "ready", set=values, limit=7, order_by=order,
    strategy=sys.argv[3] or None,
):
    print(*(row.id for row in some))
engine.dispose()
"""


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
@pytest.mark.parametrize(
    ("processes", "rows", "strategy"),
    [
        pytest.param(2, 150, None, id="small"),
        pytest.param(8, 5000, None, id="full-size", marks=pytest.mark.long),
        pytest.param(8, 5000, "portable", id="full-size-portable", marks=pytest.mark.long),
    ],
)
def test_many_processes_claim_every_row_of_a_users_table_exactly_once(
    desk: Desk, processes: int, rows: int, strategy: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    fill(desk, rows)
    url = desk.home.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", PROCESS, str(Path(__file__).parents[2]), url, strategy or ""]

    running = [
        subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(processes)
    ]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "open\n"
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    said = [one.communicate(timeout=240) for one in running]

    assert [(one.returncode, errors) for one, (_, errors) in zip(running, said, strict=True)] == (
        [(0, "")] * processes
    )
    judge(desk, [[int(id) for id in output.split()] for output, _ in said], rows, caplog)


# -- the planner ----------------------------------------------------------------------------------

NAIVE = """
    update report set status = 'taken'
    where status = 'ready' and id in (
        select id from report where status = 'ready' order by id limit 3 for update skip locked
    )
    returning id
"""


@pytest.fixture
def misled(desk: Desk) -> Desk:
    """Make fifty rows ready in a table with statistics that say none is."""
    desk.insert(Report.__table__, *({"id": id, "status": "done", "attempts": 0} for id in range(1000, 3000)))
    with desk.home.begin() as connection:
        connection.execute(text("alter table report set (autovacuum_enabled = off)"))
        connection.execute(text("analyze report"))
    fill(desk, 50)
    return desk


@pytest.mark.parametrize("driver", ["postgresql+psycopg"])
def test_the_recipe_bites_a_naive_claim_of_rows(misled: Desk) -> None:
    with misled.home.begin() as connection:
        taken = connection.execute(text(NAIVE)).all()

    assert len(taken) > 3, "the recipe is harmless here, so the test below proves nothing"


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+asyncpg"])
def test_never_more_rows_than_the_limit_whatever_the_planner_believes(misled: Desk, strategy: Any) -> None:
    for _ in range(7):  # by the sixth time a driver has prepared it
        rows = misled.claim(Report, **{**CLAIM, "limit": 3, "order_by": Report.id}, strategy=strategy)
        assert len(rows) == 3

    assert sum(status == "taken" for _, status in misled.look(Report.id, Report.status)) == 21
