"""`/healthz`: what a worker reports of itself, and that no client can keep it from that."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs, NewJob, StoreUnavailable, Worker
from dibs.worker import health
from dibs.worker.health import Health, answering
from tests.support.internals import store_of
from tests.support.servers import free_port
from tests.support.workers import Process, look, processes, read_record, wait_until, write_jobs

on_memory = pytest.mark.parametrize("engine", ["memory"], indirect=True)
on_sqlite = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)


@asynccontextmanager
async def served(reason: str | None = None) -> AsyncIterator[int]:
    async def report() -> Health:
        return Health(reason=reason, about={"running": 2})

    async with answering(report, host="127.0.0.1", port=0) as port:
        yield port


async def send(port: int, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return the response to these bytes: status, headers, body; status 0 if there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    except ConnectionResetError:
        return 0, {}, b""
    finally:
        writer.close()
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]) if first else 0, dict(line.split(": ", 1) for line in lines), body


GET = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"


# -- The response -------------------------------------------------------------------------------


async def test_a_healthy_worker_has_status_200() -> None:
    async with served() as port:
        status, headers, body = await send(port, GET)

    assert (status, json.loads(body)) == (200, {"status": "ok", "running": 2})
    assert headers["Content-Type"] == "application/json"
    assert int(headers["Content-Length"]) == len(body)


async def test_an_unhealthy_worker_has_status_503_and_the_reason() -> None:
    async with served("the store is lost") as port:
        status, _, body = await send(port, GET)

    assert status == 503
    assert json.loads(body) == {"status": "unhealthy", "reason": "the store is lost", "running": 2}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /healthz?verbose=1 HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /healthz\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\xff\xfe\r\n\r\n", 400),
        (b"GET /healthz SPDY/9\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000, 400),
    ],
    ids=["query", "elsewhere", "post", "no version", "tls", "other protocol", "endless"],
)
async def test_other_requests_are_refused(data: bytes, status: int) -> None:
    async with served() as port:
        answered, _, _ = await send(port, data)
        again, _, _ = await send(port, GET)

    assert answered in (status, 0 if len(data) > 50_000 else status)  # a reset may overtake the response
    assert again == 200


async def test_head_has_no_body() -> None:
    async with served() as port:
        status, headers, body = await send(port, b"HEAD /healthz HTTP/1.1\r\n\r\n")

    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 0


async def test_silent_clients_are_disconnected_and_delay_no_other_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "CLIENT_TIMEOUT", 1.0)
    async with served() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(health.MOST_CLIENTS - 1)]
        status, _, _ = await send(port, GET)
        ends = [await asyncio.wait_for(reader.read(), 5) for reader, _ in silent]
        for _, writer in silent:
            writer.close()

    assert status == 200
    assert set(ends) == {b""}


async def test_of_too_many_clients_the_last_are_disconnected_at_once() -> None:
    async with served() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(health.MOST_CLIENTS)]
        await asyncio.sleep(0.1)
        status, _, _ = await send(port, GET)
        for _, writer in silent:
            writer.close()
        again = await wait_until(lambda: _is_answered(port))

    assert (status, again) == (0, True)


async def _is_answered(port: int) -> bool:
    return (await send(port, GET))[0] == 200


# -- What a worker says -------------------------------------------------------------------------


@on_memory
async def test_a_worker_is_healthy_while_it_works(app: Dibs) -> None:
    go = asyncio.Event()

    @app.job
    async def work() -> None:
        await go.wait()

    worker = Worker(app)
    before = worker.health()
    running = asyncio.create_task(worker.run())
    await work.enqueue()
    at_work = await wait_until(lambda: worker.health().about["running"] == 1 and worker.health())
    worker.stop()
    stopping = worker.health()
    go.set()
    await running

    assert before.reason == "the worker is not started"
    assert (at_work.reason, at_work.about["worker"]) == (None, worker.name)
    assert stopping.reason == "the worker is stopping"


@on_memory
async def test_a_worker_that_lost_its_store_is_not_healthy_until_it_is_back(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.job(lambda: None, name="never")
    store, run_async = store_of(app), store_of(app).run_async
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await wait_until(lambda: worker.health().reason is None)

    async def away(*_: Any) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(store, "run_async", away)
    worker._hear("")
    lost = await wait_until(lambda: worker.health().reason)
    monkeypatch.setattr(store, "run_async", run_async)
    await wait_until(lambda: worker.health().reason is None)
    worker.stop()
    await running

    assert lost.startswith("the store has been lost for 0.")
    assert lost.endswith("it is away")


@on_memory
async def test_only_a_worker_that_is_to_end_gives_up_on_a_store_that_stays_away(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.job(lambda: None, name="never")

    async def away(*_: Any) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(store_of(app), "run_async", away)
    monkeypatch.setattr("dibs.worker.health.LONGEST_ABSENCE", 0.3)
    waits = Worker(app)
    waiting = asyncio.create_task(waits.run())

    with pytest.raises(StoreUnavailable, match="it is away"):
        await Worker(app).run(until_idle=True)

    assert not waiting.done()
    waits.stop()
    await waiting


async def test_the_back_off_stays_short_however_often_the_store_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(health.asyncio, "sleep", note)
    noted = health.WorkerHealth()
    for _ in range(2000):  # an hour; 0.1 * 2**1024 is no float any more
        await noted.wait_for_store(StoreUnavailable("it is away"), until_idle=False)

    assert max(pauses) <= 1.5 * health.LONGEST_BACK_OFF


def test_silence_of_the_store_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = health.WorkerHealth()
    noted.becomes("working")
    noted.store_answered()
    now = health.monotonic()

    monkeypatch.setattr(health, "monotonic", lambda: now + 35)
    assert noted.report(10, {}).reason is None
    monkeypatch.setattr(health, "monotonic", lambda: now + 41)
    assert noted.report(10, {}).reason == "nothing was heard from the store for 41 s"


def test_a_worker_without_hints_is_healthy_with_a_note() -> None:
    noted = health.WorkerHealth()
    noted.becomes("working")
    noted.store_answered()

    deaf = noted.report(10, {}, "no such channel")

    notes = ["hears no wake-ups and looks every second instead: no such channel"]
    assert (deaf.reason, deaf.about) == (None, {"notes": notes})
    assert noted.report(10, {}).about == {}


# -- `dibs work --health-port` ------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Any]:
    with processes(tmp_path, url) as start:
        yield start


def check(port: int, *, timeout: float = 5) -> tuple[int, Any]:
    """Return status and body; status 0 if there was no response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except OSError:
        return 0, None
    finally:
        connection.close()


def numbers_of(port: int) -> list[str]:
    """Return the lines of the metrics; none if a busy machine could not make them in time."""
    with suppress(ConnectionError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        return response.read().decode().splitlines()
    return []


@on_sqlite
def test_dibs_work_serves_health_checks(start: Any, url: str, tmp_path: Path, port: int) -> None:
    file = write_jobs(tmp_path)
    store = Dibs(url).sync
    worker: Process = start("--health-port", str(port), "--grace", "20s")
    look(lambda: check(port)[0] == 200)
    store.enqueue(NewJob("quick", {"seconds": 2}))
    look(lambda: read_record(file).runs())

    worker.send(signal.SIGTERM)
    status, body = look(lambda: (answer := check(port))[0] != 200 and answer)

    assert (status, body["reason"], body["running"]) == (503, "the worker is stopping", 1)
    assert worker.ended() == 0
    store.close()


@on_sqlite
@pytest.mark.parametrize("count", [1, 2])
def test_dibs_work_serves_metrics(start: Any, url: str, tmp_path: Path, port: int, count: int) -> None:
    write_jobs(tmp_path)
    store = Dibs(url).sync
    start("--health-port", str(port), "--processes", str(count))
    look(lambda: check(port)[0] == 200)
    job, _ = store.enqueue(NewJob("quick"), NewJob("stranger"))
    store.wait(job.id, timeout=30)
    store.close()

    settled = 'dibs_settles_total{process="?",queue="default",kind="quick",outcome="succeeded"} 1'
    wanted = (
        [settled.replace("?", str(n)) for n in (1, 2)]
        if count == 2
        else [settled.replace('process="?",', "")]
    )
    numbers = look(lambda: any(one in (got := numbers_of(port)) for one in wanted) and got)

    assert [line for line in numbers if line.startswith("dibs_jobs{") and 'state="ready"' in line] == [
        'dibs_jobs{queue="default",state="ready"} 1'
    ]
    assert sum(line.startswith("# TYPE dibs_job_duration_seconds ") for line in numbers) == 1


@on_sqlite
def test_a_blocked_event_loop_does_not_respond(start: Any, url: str, tmp_path: Path, port: int) -> None:
    (tmp_path / "jobs.py").write_text(
        "import time\nfrom dibs import Dibs\napp = Dibs()\n"
        "@app.job\nasync def block():\n    open('began', 'w').close()\n    time.sleep(3)\n"
    )
    store = Dibs(url).sync
    start("--health-port", str(port))
    look(lambda: check(port)[0] == 200)
    [job] = store.enqueue(NewJob("block"))
    look((tmp_path / "began").exists)

    assert check(port, timeout=1)[0] == 0
    look(lambda: check(port)[0] == 200)
    assert store.wait(job.id, timeout=30).state == "succeeded"
    store.close()


@on_sqlite
@pytest.mark.parametrize("count", [1, 2])
def test_a_port_that_is_taken_is_an_error_before_any_work(start: Any, tmp_path: Path, count: int) -> None:
    write_jobs(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker: Process = start("--health-port", str(port), "--processes", str(count))

        assert worker.ended() == 1
    assert f"can't answer health checks on 127.0.0.1:{port}" in worker.said()
    assert "Traceback" not in worker.said()


@on_sqlite
def test_a_supervisor_reports_the_health_of_all_its_processes(start: Any, tmp_path: Path, port: int) -> None:
    write_jobs(tmp_path)
    supervisor: Process = start("--processes", "2", "--health-port", str(port))
    _, well = look(lambda: (answer := check(port))[0] == 200 and answer)
    first, second = supervisor.children

    os.kill(second, signal.SIGKILL)
    _, dead = look(lambda: (answer := check(port))[0] == 503 and answer)
    look(lambda: check(port)[0] == 200)
    os.kill(first, signal.SIGSTOP)
    _, frozen = look(lambda: (answer := check(port))[0] == 503 and answer)
    os.kill(first, signal.SIGCONT)
    look(lambda: check(port)[0] == 200)
    supervisor.send(signal.SIGTERM)

    assert [process["status"] for process in well["processes"]] == ["ok", "ok"]
    assert dead["reason"].startswith("process 2 of 2: it does not answer")
    assert frozen["reason"].startswith("process 1 of 2: it does not answer")
    assert supervisor.ended() == 0
