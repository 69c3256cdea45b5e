"""A claim reads about as many rows as it returns, however many are published or waiting."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from dibs.engines.sql.blocks import placeholders
from tests.support.outboxes import Box, beside, database_of, statements_of

ROWS, KEYS, LIMIT = 20_000, 50, 100
MOST_READ = 6 * LIMIT * 4  # of anything: rows by way of an index, or pages


@pytest.fixture
def face() -> str:
    return "sync"


@pytest.fixture
def deep(box: Box) -> Iterator[Any]:
    """Very many published messages, and as many open ones in a few keys, of which some are held."""
    numbers = f"with recursive n (i) as (select 1 union all select i + 1 from n where i < {ROWS}) "
    now = {"sqlite": "0", "mysql": "utc_timestamp(6)", "postgresql": "now()"}[
        statements_of(box.outbox).database
    ]
    columns = (
        "message_id, broker, topic, message_key, payload, headers, status, attempts, max_attempts, "
        "available_at, created_at, published_at"
    )
    key = {"mysql": f"concat('key-', i % {KEYS})"}.get(
        statements_of(box.outbox).database, f"'key-' || (i % {KEYS})"
    )
    padded = {"sqlite": "printf('%012d', i)", "mysql": "lpad(i, 12, '0')"}
    tail = padded.get(statements_of(box.outbox).database, "lpad(cast(i as text), 12, '0')")
    with contextlib.closing(beside(box.url)) as connection:
        cursor = connection.cursor()
        if box.url.startswith("mysql"):
            cursor.execute(f"set session max_recursive_iterations = {ROWS}")
        for place, (status, published) in enumerate((("published", now), ("pending", "null"))):
            head = f"'00000000-0000-7000-800{place}-'"
            id = f"concat({head}, {tail})" if box.url.startswith("mysql") else f"{head} || {tail}"
            values = f"{id}, 'default', 't', {key}, '1', '{{}}', '{status}', 0, 10"
            select = f"select {values}, {now}, {now}, {published} from n"
            if box.url.startswith("mysql"):
                cursor.execute(f"insert into dibs_outbox ({columns}) {numbers} {select}")
            else:
                cursor.execute(f"{numbers} insert into dibs_outbox ({columns}) {select}")
        connection.commit()
        cursor.execute(f"update dibs_outbox set locked_until = {_soon(box)} where message_key < 'key-2'")
        connection.commit()
        yield cursor


def _soon(box: Box) -> str:
    later = {"sqlite": str(2**62), "mysql": "utc_timestamp(6) + interval 1 hour"}
    return later.get(statements_of(box.outbox).database, "now() + interval '1 hour'")


def _claim(box: Box) -> tuple[str, dict[str, Any]]:
    given = {"worker": "w", "limit": LIMIT, "window": 4 * LIMIT, "broker": "default", "lock": 1_000_000}
    return statements_of(box.outbox).blocks["claim"], given


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("analyzed", [False, True])
def test_a_deep_outbox_costs_a_claim_nothing_on_postgresql(box: Box, deep: Any, analyzed: bool) -> None:
    deep.connection.autocommit = True
    deep.execute("vacuum (analyze) dibs_outbox" if analyzed else "vacuum dibs_outbox")  # after other tests
    if not analyzed:
        deep.execute("delete from pg_statistic where starelid = 'dibs_outbox'::regclass")
    sql, _ = placeholders(_claim(box)[0], "pyformat")

    deep.execute(f"explain (analyze, buffers, format json) {sql}", _claim(box)[1])
    [(plans,)] = deep.fetchall()

    plan = (plans if isinstance(plans, list) else json.loads(plans))[0]["Plan"]
    assert plan["Actual Rows"] > KEYS // 2
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 4 * MOST_READ
    assert _most_rows(plan) < MOST_READ


def _most_rows(plan: dict[str, Any]) -> int:
    """Return the greatest number of rows that any node of the query plan read, all loops together."""
    seen = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return max([seen * plan["Actual Loops"], *(_most_rows(one) for one in plan.get("Plans", []))])


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_deep_outbox_costs_a_claim_nothing_on_sqlite(box: Box, deep: Any) -> None:
    steps: list[int] = []
    deep.connection.set_progress_handler(lambda: steps.append(1) and None, 1000)
    sql, given = _claim(box)

    rows = deep.execute(sql, given).fetchall()

    assert len(rows) > KEYS // 2
    assert len(steps) < 1000  # thousands of instructions: reading all that is open would take more
    deep.connection.rollback()


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
def test_a_claim_on_mariadb_reads_what_is_open_at_most_once(box: Box, deep: Any) -> None:
    box.claim_batch("w0", 1, "default")
    with database_of(box.outbox).sync_engine().connect() as connection:
        before = _reads(connection)

    messages = box.claim_batch("w", LIMIT, "default")

    with database_of(box.outbox).sync_engine().connect() as connection:
        assert _reads(connection) - before < ROWS * 1.5
    assert len(messages) > KEYS // 2


def _reads(connection: Any) -> int:
    """Return how many rows this session has read; the pool has one."""
    from sqlalchemy import text

    rows = connection.execute(text("show session status like 'Handler_read%'")).fetchall()
    return sum(int(number) for _, number in rows)
