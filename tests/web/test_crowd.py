"""Many clients that watch jobs through one process: they cost the store next to nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from dibs import Dibs, NewJob
from tests.support.servers import PostgreSQL
from tests.support.web_apps import EventReader

ROOT = Path(__file__).parents[2]
UVICORN = [sys.executable, "-m", "uvicorn", "tests.support.crowd_app:web", "--log-level", "warning"]


@pytest.mark.parametrize("clients", [20, pytest.param(1000, marks=pytest.mark.long)])
def test_clients_that_wait_hold_no_connection_to_the_store(
    postgresql: PostgreSQL, clients: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgresql.create_database(name := f"crowd_{clients}")
    app = Dibs(url)
    app.sync.migrate()
    jobs = app.sync.enqueue(*(NewJob("work") for _ in range(clients)))
    app.sync.close()

    async def crowd(port: int, pid: int) -> None:
        first = await EventReader.open(port, f"/jobs/{jobs[0].id}/events")
        await first.next()
        with psycopg.connect(postgresql.url("postgres"), autocommit=True) as store:
            few, memory = _connections(store, name), _memory(pid)
            rest = [await EventReader.open(port, f"/jobs/{job.id}/events") for job in jobs[1:]]
            await asyncio.gather(*(stream.next() for stream in rest))
            each = (_memory(pid) - memory) / (clients - 1)
            if clients >= 1000:
                queries = await _queries_once_quiet(store, name)
                with capsys.disabled():
                    print(f"\n{clients} clients: {few} connections, {queries} queries/s, {each:.0f} KB each")
                assert each < 200
            assert _connections(store, name) <= few
        await _all_hear_the_end(url, [first, *rest])

    with _served(url) as (port, pid):
        asyncio.run(crowd(port, pid))


async def _all_hear_the_end(url: str, streams: list[EventReader]) -> None:
    async with Dibs(url) as app:
        await app.cancel_many(queue="default")
    for stream in streams:
        assert [event["event"] for event in await stream.rest()] == ["change", "end"]


def _connections(store: psycopg.Connection, database: str) -> int:
    row = store.execute("select count(*) from pg_stat_activity where datname = %s", [database]).fetchone()
    assert row is not None
    return int(row[0])


async def _queries_once_quiet(store: psycopg.Connection, database: str) -> float:
    """Return the queries per second once polling has slowed down; the server counts with some delay."""
    for _ in range(20):
        before = _transactions(store, database)
        await asyncio.sleep(3)
        queries = (_transactions(store, database) - before) / 3
        if 0 < queries <= 2:
            return queries
    raise AssertionError(f"{queries} queries a second for clients that only wait")


def _transactions(store: psycopg.Connection, database: str) -> int:
    store.execute("select pg_stat_clear_snapshot()")
    row = store.execute("select xact_commit from pg_stat_database where datname = %s", [database]).fetchone()
    assert row is not None
    return int(row[0])


def _memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@contextmanager
def _served(url: str) -> Iterator[tuple[int, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.listen(2048)
        server = subprocess.Popen(
            [*UVICORN, "--fd", str(listening.fileno())],
            cwd=ROOT,
            env={**os.environ, "DIBS_URL": url},
            pass_fds=[listening.fileno()],
        )
        try:
            _wait_until_healthy(listening.getsockname()[1], server)
            yield listening.getsockname()[1], server.pid
        finally:
            server.terminate()
            server.wait(30)


def _wait_until_healthy(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            if b" 200 " in client.recv(100):
                return
    raise AssertionError("the server did not start")
