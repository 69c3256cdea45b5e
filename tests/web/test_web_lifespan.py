"""The app is open and its worker runs as long as the web app does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs import BadRequest, Dibs, Job
from dibs.integrations.fastapi import lifespan
from tests.support.web_apps import client_of, make_web


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Dibs]:
    app = Dibs(f"sqlite:///{tmp_path}/jobs.db")

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    yield app
    app.sync.close()


def enqueued(client: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/jobs", json={"kind": "double", "args": {"n": 21}}).json()
    return answer


def test_jobs_run_inside_of_the_web_app(app: Dibs) -> None:
    with client_of(make_web(app, lifespan=lifespan(app))) as client:
        job = app.sync.wait(enqueued(client)["id"], timeout=60)
        assert client.get("/healthz").status_code == 200

    assert (job.state, job.result) == ("succeeded", 42)


@pytest.mark.parametrize("setting", ["false", "0", "off", "No"])
def test_a_setting_keeps_the_worker_from_running(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("RUN_WORKER", setting)
    web = make_web(app, lifespan=lifespan(app, worker=True))

    with client_of(web) as client:
        assert web.state.dibs.worker is None
        assert enqueued(client)["state"] == "ready"


@pytest.mark.parametrize("setting", ["", " "])
def test_an_empty_setting_says_nothing(app: Dibs, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("RUN_WORKER", setting)
    web = make_web(app, lifespan=lifespan(app))

    with client_of(web):
        assert web.state.dibs.worker is not None


def test_so_does_the_code(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_WORKER", "true")
    web = make_web(app, lifespan=lifespan(app, worker=False))

    with client_of(web):
        assert web.state.dibs.worker is None


def test_a_setting_that_is_neither_is_refused(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_WORKER", "maybe")

    with (
        pytest.raises(BadRequest, match="RUN_WORKER='maybe'"),
        client_of(make_web(app, lifespan=lifespan(app))),
    ):
        pass


def test_a_worker_that_broke_makes_the_web_app_unhealthy(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    web = make_web(app, lifespan=lifespan(app))
    with client_of(web) as client:
        living = web.state.dibs
        living.worker._state.error = RuntimeError("bad luck")
        living.worker._state.changed()
        client.post("/jobs", json={"kind": "double", "args": {"n": 1}})
        deadline = time.monotonic() + 60
        while client.get("/healthz").status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.01)

        assert client.get("/healthz").json() == {"status": "unhealthy"}
    assert "bad luck" in caplog.text


def test_importing_dibs_imports_no_web_framework() -> None:
    heavy = "{'fastapi', 'starlette', 'pydantic', 'uvicorn'} & set(sys.modules)"
    said = f"import sys, dibs, dibs.cli; print(sorted({heavy}))"

    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_handlers_get_their_time_to_end(app: Dibs) -> None:
    begun = asyncio.Event()

    @app.job
    async def slow() -> str:
        begun.set()
        await asyncio.sleep(0.3)
        return "done"

    async def live() -> Job:
        web = make_web(app)
        async with lifespan(app)(web):
            job = await slow.enqueue()
            await begun.wait()
        async with app:
            return await app.get(job.id)  # type: ignore[return-value]

    assert asyncio.run(live()).result == "done"
