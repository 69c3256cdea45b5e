"""The plan guard: with 100,000 jobs around it, each hot statement reads only what it is about."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest
import scenes
from rig import Place, blocks

from dibs.engines.sql import placeholders
from servers import PostgreSQL

AROUND = 100_000
READY, RUNNING = 20, 200
MOST_BUFFERS = 500  # 8 kB each; a walk over the jobs around would be some thousands
MOST_STEPS = 60_000  # of SQLite's machine; a walk over the jobs around would be a million

SETTLEMENT = {
    "ids": [uuid4()],
    "tokens": [1],
    "states": ["succeeded"],
    "settled_as": ["succeeded"],
    "delays": [None],
    "refunds": [False],
    "results": [None],
    "errors": ["[]"],
    "messages": [None],
    "pipelines": [None],
}
WISH = {
    "worker": "planner",
    "lease": 60_000_000,
    "leases": "{}",
    "limit": 3,
    "look": True,
    "job": uuid4(),
    "queues": None,
    "kinds": None,
    "walk": True,
}
NAMED = {**WISH, "queues": ["default"], "kinds": ["work"], "walk": False}


@pytest.fixture(scope="module")
def surrounded(postgresql: PostgreSQL, template: str) -> str:
    """A template: 100,000 scheduled, 100,000 finished, some running, a few ready; no statistics."""

    def fill(url: str) -> None:
        place = Place("postgresql", url)
        for table in ("dibs_jobs", "dibs_finished"):
            place.sql(f"alter table {table} set (autovacuum_enabled = off)")
        _surround(place)
        place.close()

    name = "dibs_surrounded"
    if name not in postgresql._templates:
        fill(postgresql.create_database(name, template=template))
        postgresql._templates.add(name)
    return name


def _surround(place: Place) -> None:
    scenes.crowd(place, AROUND, state="scheduled")
    scenes.crowd(place, AROUND, state="succeeded", table="dibs_finished")
    scenes.crowd(place, RUNNING, state="running")
    scenes.crowd(place, READY, state="ready", kind="work")
    scenes.crowd(place, READY, state="ready", kind="work", queue="other")


@pytest.fixture(params=["analyzed", "never analyzed"])
def crowded(request: pytest.FixtureRequest, postgresql: PostgreSQL, surrounded: str) -> Iterator[Place]:
    place = Place("postgresql", postgresql.fresh_database(surrounded))
    if request.param == "analyzed":
        place.sql("analyze")
    yield place
    place.close()
    postgresql.drop_database(place.url.rpartition("/")[2])


HOT: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "claim by walking": ("claim", WISH, "dibs_jobs_ready"),
    "claim of named lines": ("claim", NAMED, "dibs_jobs_ready"),
    "claim of named queues": ("claim", {**WISH, "queues": ["default", "other"]}, "dibs_jobs_ready"),
    "claim within limits": ("claim_within_limits", WISH, "dibs_jobs_ready"),
    "claim by id": ("claim_job", WISH, "dibs_jobs_pkey"),
    "exchange by walking": ("exchange", {**SETTLEMENT, **WISH}, "dibs_jobs_ready"),
    "exchange of named lines": ("exchange", {**SETTLEMENT, **NAMED}, "dibs_jobs_ready"),
    "settle": ("settle", SETTLEMENT, "dibs_jobs_pkey"),
    "renew": ("renew", {"ids": [uuid4()], "tokens": [1], "lease": 1}, "dibs_jobs_pkey"),
    "stage": ("stage", {"limit": 500}, "dibs_jobs_due"),
    "sweep": ("sweep", {"limit": 500}, "dibs_jobs_leases"),
}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_postgresql_reads_only_what_a_statement_is_about(crowded: Place, mode: str) -> None:
    texts = blocks(crowded.app())
    crowded.sql("update dibs_jobs set run_at = now() where id in "
                "(select id from dibs_jobs where state = 'scheduled' limit 5)")  # fmt: skip
    crowded.sql("update dibs_jobs set lease_until = now() where id in "
                "(select id from dibs_jobs where state = 'running' limit 5)")  # fmt: skip
    crowded.sql(f"set plan_cache_mode = {mode}")

    plans = {name: _explain(crowded, texts[block], given) for name, (block, given, _) in HOT.items()}

    for name, plan in plans.items():
        nodes = list(_nodes(plan))
        walked = [node["Node Type"] for node in nodes if _walks(node)]
        used = {node.get("Index Name") for node in nodes}
        read = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        assert walked == [], f"{name} walks over dibs_jobs: {walked}"
        assert HOT[name][2] in used, f"{name} does not use {HOT[name][2]}"
        assert 0 < read <= MOST_BUFFERS, f"{name} reads {read} buffers"


def _explain(place: Place, text: str, given: Mapping[str, Any]) -> Any:
    """The plan of the statement as it was really run, with all that it read; nothing is kept."""
    statement, order = placeholders(text, "numeric")
    connection = place._raw
    assert connection is not None
    with contextlib.closing(connection.cursor()) as cursor:
        with connection.transaction(force_rollback=True):
            cursor.execute(f"prepare hot as {statement}")
            values = ", ".join(_literal(given[name]) for name in order)
            cursor.execute(f"explain (analyze, buffers, format json) execute hot({values})")
            [(plan,)] = cursor.fetchall()
        cursor.execute("deallocate hot")
    return plan[0]["Plan"]


def _literal(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool() | int():
            return str(value).lower()
        case list():
            return "'" + json.dumps(value, default=str).replace("[", "{").replace("]", "}") + "'"
        case _:
            return f"'{value}'"


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _walks(node: Mapping[str, Any]) -> bool:
    """A whole-table scan of the live jobs, or an index scan that throws most of its rows away."""
    if node.get("Relation Name") != "dibs_jobs" or not node["Actual Loops"]:
        return False
    thrown = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return node["Node Type"] == "Seq Scan" or thrown * node["Actual Loops"] > 10 * RUNNING


# -- SQLite -------------------------------------------------------------------------------------

SQLITE_HOT: dict[str, tuple[Mapping[str, Any], str]] = {
    "lines": ({"queues": None, "kinds": None}, "dibs_jobs_ready"),
    "near": ({"queue": "default", "kind": "work", "limit": 3}, "dibs_jobs_ready"),
    "wanted": ({"job": "none"}, "sqlite_autoindex_dibs_jobs_1"),
    "overdue": ({}, "dibs_jobs_due"),
    "expired": ({"limit": 500}, "dibs_jobs_leases"),
    "stage": ({"limit": 500}, "dibs_jobs_due"),
    "renew": ({"id": "none", "token": 1, "lease": 1}, "sqlite_autoindex_dibs_jobs_1"),
    "lease": (
        {"worker": "w", "token": 1, "leases": "{}", "lease": 1, "ids": '["none"]'},
        "sqlite_autoindex_dibs_jobs_1",
    ),
}


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
def test_sqlite_reads_only_what_a_statement_is_about(sqlite: Place, analyzed: bool) -> None:
    app = sqlite.app()
    app.sync.migrate()
    _surround(sqlite)
    connection = sqlite.connect()
    if analyzed:
        connection.execute("analyze")

    with contextlib.closing(connection):
        for name, (given, index) in SQLITE_HOT.items():
            text = blocks(app)[name]
            plan = [row[3] for row in connection.execute(f"explain query plan {text}", given)]
            steps = _steps(connection, text, given)

            assert any(index in line for line in plan), f"{name} does not use {index}: {plan}"
            assert not [line for line in plan if _is_walk(line)], f"{name} walks: {plan}"
            assert steps <= MOST_STEPS, f"{name} takes {steps} steps"
    before = _claim_steps(sqlite)
    assert before <= MOST_STEPS, f"a claim takes {before} steps"


def _is_walk(line: str) -> bool:
    """A scan of the whole table, by whatever name the statement calls it, that no index narrows."""
    tables = ("ready", "job", "due", "dead", "dibs_jobs", "other", "next")
    return any(line == f"SCAN {table}" for table in tables)


def _steps(connection: Any, text: str, given: Mapping[str, Any]) -> int:
    """How many steps SQLite's machine makes of it, in thousands rounded up; nothing is kept."""
    counted = [0]

    def count() -> None:
        counted[0] += 1

    connection.execute("begin")
    connection.set_progress_handler(count, 1000)
    connection.execute(text, given).fetchall()
    connection.set_progress_handler(None, 0)
    connection.execute("rollback")
    return counted[0] * 1000


def _claim_steps(place: Place) -> int:
    app = place.app()
    app.sync.counts()
    counted = [0]

    def count() -> None:
        counted[0] += 1

    connection = app._core.store._file._connection
    connection.set_progress_handler(count, 1000)
    assert len(app.sync.claim(limit=3)) == 3
    connection.set_progress_handler(None, 0)
    return counted[0] * 1000
