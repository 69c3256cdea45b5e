"""The benchmarks run: small, and with nothing to say about speed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks import against, by_hand, on_mariadb, on_redis, on_snapshots, on_tables, on_trains
from tests.support.servers import MariaDB, PostgreSQL

JOBS = 600


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (by_hand, on_mariadb):
        monkeypatch.setattr(module, "BULK", JOBS)
        monkeypatch.setattr(module, "STOCK", JOBS)


def _measured(results: list[Any]) -> None:
    assert [result.dibs > 0 and result.raw > 0 for result in results] == [True] * 5


def test_by_hand_on_postgresql(postgresql: PostgreSQL) -> None:
    url = postgresql.create_database("bench_by_hand")

    _measured(asyncio.run(by_hand.on_postgresql(url, rounds=1, seconds=0.01)))


def test_by_hand_on_sqlite(tmp_path: Path) -> None:
    _measured(by_hand.on_sqlite(tmp_path / "jobs.db", rounds=1, seconds=0.01))


def test_by_hand_on_mariadb(mariadb: MariaDB) -> None:
    url = mariadb.create_database("bench_by_hand")

    _measured(asyncio.run(on_mariadb.on_mariadb(url, rounds=1, seconds=0.01)))


def test_the_bare_statements_of_a_worker_drain_all(postgresql: PostgreSQL) -> None:
    url = postgresql.create_database("bench_drain")

    async def drain() -> float:
        app = by_hand.Dibs(url)
        await app.migrate()
        await app.enqueue(*by_hand.jobs(JOBS))
        await app.close()
        return await against._raw_drain(url, JOBS)

    assert asyncio.run(drain()) > 0


def test_jobs_are_drained_beside_a_snapshot(postgresql: PostgreSQL, mariadb: MariaDB) -> None:
    assert "held snapshot" in on_snapshots.beside_a_snapshot(postgresql, "PostgreSQL", JOBS)
    assert "held snapshot" in on_snapshots.beside_a_snapshot(mariadb, "MariaDB", JOBS)


def test_trains_and_plain_jobs_beside_a_crowd(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_trains, "CROWD", 1000)
    monkeypatch.setattr(on_trains, "PLAIN", JOBS)
    urls = [postgresql.create_database(f"bench_trains_{n}") for n in range(3)]

    assert "| s | jobs/s |" in on_trains.drain(urls[0], rounds=1, length=20)
    assert "beside 1,000 blocked" in on_trains.beside_a_crowd(urls[1], urls[2], rounds=1)


def test_the_others_can_be_imported() -> None:
    assert callable(on_redis.drain)
    assert callable(on_tables.batches)
