"""The first enqueue of a process: a producer that lives for a moment pays for opening the store each time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from dibs import Dibs
from tests.support.proxy import FaultProxy
from tests.support.servers import PostgreSQL, Redis

PRODUCER = """
import asyncio, json, sys
from dibs import Dibs
app = Dibs(sys.argv[1])

@app.job
def work(n: int) -> None: ...

job = work.sync.enqueue(1) if sys.argv[2] == "sync" else asyncio.run(work.enqueue(1))
blocks = getattr(getattr(app._core.store._engine, "dialect", None), "blocks", {})
print(json.dumps({"id": str(job.id), "modules": sorted(sys.modules), "blocks": list(blocks)}))
"""


@pytest.fixture(params=["redis", "postgresql"])
def way(request: pytest.FixtureRequest) -> Iterator[tuple[FaultProxy, str]]:
    """A proxy, and the address of a fresh store behind it."""
    if request.param == "redis":
        server: Redis = request.getfixturevalue("own_redis")
        url = server.url()
    else:
        database: PostgreSQL = request.getfixturevalue("postgresql")
        url = database.fresh_database(request.getfixturevalue("template"))
        server = database  # type: ignore[assignment]
    with FaultProxy(server.port) as proxy:
        yield proxy, url.replace(f":{server.port}/", f":{proxy.port}/")


# With Redis: greeting, INFO, the script. With PostgreSQL: TLS refused, login, is there a pooler, which schema
# version, the insert.
MOST_ROUND_TRIPS = {"redis": {"sync": 3, "async": 3}, "postgresql": {"sync": 6, "async": 7}}


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_fresh_process_stores_its_first_job_in_few_round_trips(
    way: tuple[FaultProxy, str], face: str
) -> None:
    proxy, url = way
    _produce(url, face)  # the first process of all may have to send the text of a script
    before = proxy.round_trips

    produced = _produce(url, face)

    store = url.partition(":")[0]
    assert proxy.round_trips - before <= MOST_ROUND_TRIPS[store][face]
    with Dibs(url).sync as app:
        assert app.get(produced["id"]) is not None


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_fresh_process_loads_only_what_its_store_needs(way: tuple[FaultProxy, str], face: str) -> None:
    _, url = way

    produced = _produce(url, face)

    drivers = {"redis", "psycopg", "asyncpg", "asyncmy", "pymysql", "opentelemetry", "sqlalchemy"}
    own = {"redis": set(), "postgresql": {"asyncpg" if face == "async" else "psycopg"}}
    assert drivers.intersection(produced["modules"]) == own[url.partition(":")[0]]
    assert len(produced["blocks"]) <= 3  # of a hundred statements: no others were put together


def _produce(url: str, face: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PRODUCER, url, face], capture_output=True, text=True, check=True
    )
    produced: dict[str, Any] = json.loads(done.stdout)
    return produced
