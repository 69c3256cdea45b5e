"""Every engine does what memory does: given the same random operations, a user sees the same."""

from __future__ import annotations

import pytest
from hypothesis import Phase

from tests.model.agreement import check_agreement
from tests.model.beside import RedisStore, SqlStore


def test_sqlite_does_what_memory_does(sqlite: SqlStore) -> None:
    check_agreement(sqlite, examples=120)


def test_postgresql_does_what_memory_does(postgres: SqlStore) -> None:
    check_agreement(postgres, examples=40)


def test_mariadb_does_what_memory_does(mariadb_beside: SqlStore) -> None:
    check_agreement(mariadb_beside, examples=30)


def test_mysql_does_what_memory_does(mysql_beside: SqlStore) -> None:
    check_agreement(mysql_beside, examples=15)


def test_redis_does_what_memory_does(on_redis: RedisStore) -> None:
    check_agreement(on_redis, examples=50)


LOST_RULES = {
    "anybody settles": ("settle_ended", "and job.token = :token", ""),
    "a lease ends at once": ("expired", "job.lease_until <=", "job.claimed_at <="),
    "the less urgent first": ("near", "ready.priority desc", "ready.priority"),
    "pausing a queue does not keep its jobs": ("wanted", "and not coalesce(setting.paused, 0)", ""),
    "a retried job keeps its attempts": (
        "retry_finished",
        "    0,\n    case",
        "    attempts,\n    case",
    ),
}


@pytest.mark.parametrize(("block", "text", "instead"), LOST_RULES.values(), ids=LOST_RULES)
def test_a_store_that_lost_a_rule_no_longer_agrees(
    sqlite: SqlStore, block: str, text: str, instead: str
) -> None:
    sqlite.take_out(block, text, instead)

    with pytest.raises(AssertionError):
        check_agreement(sqlite, examples=200, phases=[Phase.generate])


LOST_IN_LUA = {
    "anybody settles": ("settle", " and job.token == token", ""),
    "a lease ends at once": ("sweep", "':leases', '-inf', now,", "':leases', '-inf', '+inf',"),
    "the less urgent first": ("enqueue", "32767 - job.priority", "32767 + job.priority"),
    "pausing a queue does not keep its jobs": ("claim_job", " or paused[job.queue]", ""),
    "a retried job keeps its attempts": ("retry", "'attempts', 0, ", ""),
    "a finished job keeps its unique key": (
        "settle",
        "  if not keeps_key(job) then\n    free_key(job)\n  end\n",
        "",
    ),
}


@pytest.mark.parametrize(("question", "text", "instead"), LOST_IN_LUA.values(), ids=LOST_IN_LUA)
def test_a_script_that_lost_a_rule_no_longer_agrees(
    on_redis: RedisStore, question: str, text: str, instead: str
) -> None:
    on_redis.take_out(question, text, instead)

    with pytest.raises(AssertionError):
        check_agreement(on_redis, examples=200, phases=[Phase.generate])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_sqlite_does_what_memory_does_at_length(sqlite: SqlStore) -> None:
    check_agreement(sqlite, examples=2000, derandomize=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_redis_does_what_memory_does_at_length(on_redis: RedisStore) -> None:
    check_agreement(on_redis, examples=800, derandomize=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_postgresql_does_what_memory_does_at_length(postgres: SqlStore) -> None:
    check_agreement(postgres, examples=800, derandomize=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_mariadb_does_what_memory_does_at_length(mariadb_beside: SqlStore) -> None:
    check_agreement(mariadb_beside, examples=600, derandomize=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_mysql_does_what_memory_does_at_length(mysql_beside: SqlStore) -> None:
    check_agreement(mysql_beside, examples=400, derandomize=False)
