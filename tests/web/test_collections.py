"""Slots, pipelines and schedules over HTTP; a job deleted, a queue limited."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from dibs import Dibs, NewJob, PipelineInfo, ScheduleInfo, Slot
from dibs.integrations.fastapi import models
from dibs.jobs.ids import new_id
from tests.support.web_apps import client_of, make_web


@pytest.fixture
def client(web: FastAPI) -> Iterator[TestClient]:
    with client_of(web) as client:
        yield client


def test_models_describe_exactly_what_is_answered() -> None:
    for model, shown in (
        (models.Schedule, ScheduleInfo),
        (models.Slot, Slot),
        (models.PipelineRow, PipelineInfo),
    ):
        assert set(model.model_fields) == set(shown.__dataclass_fields__)


def test_a_job_is_deleted_unless_it_runs(app: Dibs, client: TestClient) -> None:
    running, waiting = app.sync.enqueue(NewJob("work"), NewJob("work"))
    app.sync.claim_job(running.id)

    answers = [client.delete(f"/jobs/{id}") for id in (waiting.id, running.id, new_id(), "nonsense")]

    assert [answer.status_code for answer in answers] == [204, 409, 404, 422]
    assert [job.id for job in app.sync.find()] == [running.id]


def test_a_waiting_job_gets_another_priority_and_time(app: Dibs, client: TestClient) -> None:
    waiting, running = app.sync.enqueue(NewJob("work", priority=1), NewJob("work", priority=2))
    app.sync.claim_job(running.id)

    changed = client.patch(f"/jobs/{waiting.id}", json={"priority": 5, "delay": 60})

    assert (changed.json()["priority"], changed.json()["state"]) == (5, "scheduled")
    assert client.patch(f"/jobs/{running.id}", json={"priority": 5}).status_code == 409
    assert client.patch(f"/jobs/{new_id()}", json={"priority": 5}).status_code == 404
    assert client.patch(f"/jobs/{waiting.id}", json={}).status_code == 400
    assert client.patch(f"/jobs/{waiting.id}", json={"state": "ready"}).status_code == 422


def test_arguments_are_shown_only_where_the_app_says_so(app: Dibs) -> None:
    app.sync.schedules.put("a", "0 6 * * *", NewJob("work", args={"secret": 1}))

    with client_of(make_web(app, fields=())) as client:
        answers = [
            client.get("/schedules"),
            client.post("/schedules/a/pause"),
            client.post("/schedules/a/run"),
        ]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert all("secret" not in answer.text for answer in answers)


def test_a_queue_is_limited_and_the_limit_lifted(app: Dibs, client: TestClient) -> None:
    limited = client.post("/queues/mail/limit", json={"limit": 5})
    assert [queue.limit for queue in app.sync.queues()] == [5]
    lifted = client.post("/queues/mail/limit", json={"limit": None})

    assert (limited.json()["limit"], lifted.json()["limit"]) == (5, None)
    for wrong in ({}, {"limit": -1}, {"limit": "x"}, {"limit": 5, "more": 1}):
        assert client.post("/queues/mail/limit", json=wrong).status_code == 422


def test_slots_are_listed_and_one_is_shown_by_its_key(app: Dibs, client: TestClient) -> None:
    first, *_ = app.sync.enqueue(
        *(NewJob("work", slot=("csv", 7)) for _ in range(3)), NewJob("work", slot="b")
    )
    app.sync.claim_job(first.id)

    page = client.get("/slots", params={"limit": 1}).json()
    rest = client.get("/slots", params={"after": page["next"]}).json()
    one = client.get("/slots", params={"key": '["csv", 7]'}).json()

    models.SlotPage.model_validate(page)
    assert [slot["key"] for slot in (*page["slots"], *rest["slots"])] == ['["csv",7]', "b"]
    assert (one["current"]["id"], one["running"], one["waiting"]) == (str(first.id), 1, 2)
    assert client.get("/slots?key=nothing").json() == {
        "key": "nothing",
        "current": None,
        "running": 0,
        "waiting": 0,
    }
    assert client.get("/slots?key=[").status_code == 400


def test_a_slot_without_waiting_jobs_shows_the_one_that_ran_last(app: Dibs, client: TestClient) -> None:
    [job] = app.sync.enqueue(NewJob("work", slot="csv"))
    claim = app.sync.claim_job(job.id)
    assert claim is not None
    claim.succeed()

    assert client.get("/slots?key=csv").json()["current"]["id"] == str(job.id)
    assert client.get("/slots").json() == {"slots": [], "next": None}


def test_pipelines_are_listed_page_by_page(app: Dibs, client: TestClient) -> None:
    for name in ("one", "two", "three"):
        pipeline = app.sync.pipeline(name)
        pipeline.add(NewJob("work"))
        pipeline.enqueue()

    page = client.get("/pipelines?limit=2").json()
    rest = client.get("/pipelines", params={"after": page["next"]}).json()

    models.PipelinePage.model_validate(page)
    assert [one["name"] for one in (*page["pipelines"], *rest["pipelines"])] == ["three", "two", "one"]
    assert (page["pipelines"][0]["counts"]["ready"], page["pipelines"][0]["progress"]) == (1, 0.0)


def test_a_schedule_is_shown_paused_resumed_and_run(
    app: Dibs, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    app.sync.schedules.put("a/b ü", "0 6 * * *", NewJob("work", args={"n": 1}))
    caplog.set_level(logging.INFO, "dibs")

    paused = client.post("/schedules/a%2Fb%20%C3%BC/pause")
    resumed = client.post("/schedules/a%2Fb%20%C3%BC/resume")
    ran = client.post("/schedules/a%2Fb%20%C3%BC/run")
    [shown] = client.get("/schedules").json()["schedules"]

    assert (paused.json()["paused"], resumed.json()["paused"]) == (True, False)
    assert ran.status_code == 200
    assert ran.json()["meta"] == {"schedule": "a/b ü", "tick": ran.json()["run_at"].replace("Z", "+00:00")}
    assert shown == resumed.json()
    assert (shown["rule"], shown["args"], shown["origin"]) == ("0 6 * * *", {"n": 1}, "store")
    for act in ("pause_schedule", "resume_schedule", "run_schedule"):
        assert f"{act} a/b ü" in caplog.text


@pytest.mark.parametrize("act", ["pause", "resume", "run"])
def test_an_unknown_schedule_is_not_found(client: TestClient, act: str) -> None:
    assert client.post(f"/schedules/nothing/{act}").status_code == 404


ABOUT_ALL = ["GET /slots", "GET /pipelines", "GET /schedules", "GET /slots?key=csv", "POST /schedules/a/run"]


@pytest.mark.parametrize("route", [*ABOUT_ALL, "POST /queues/mail/limit", "POST /schedules/a/pause"])
def test_a_tenant_sees_and_changes_nothing_of_all(app: Dibs, route: str) -> None:
    app.sync.schedules.put("a", "0 6 * * *", NewJob("work"))
    app.sync.enqueue(NewJob("work", slot="csv", tags=["tenant-8"]))
    method, path = route.split()
    body: dict[str, Any] = {"json": {"limit": 5}} if "limit" in path else {}

    with client_of(make_web(app, scope=lambda: {"tags": ["tenant-7"]})) as client:
        answer = client.request(method, path, **body)

    assert answer.status_code == 403
    assert (len(app.sync.find()), app.sync.schedules.list()[0].paused) == (1, False)


def test_the_jobs_of_others_are_not_deleted(app: Dibs) -> None:
    [theirs] = app.sync.enqueue(NewJob("work", tags=["tenant-8"]))

    with client_of(make_web(app, scope=lambda: {"tags": ["tenant-7"]})) as client:
        assert client.delete(f"/jobs/{theirs.id}").status_code == 404
        assert client.patch(f"/jobs/{theirs.id}", json={"priority": 1}).status_code == 404
    assert app.sync.get(theirs.id) is not None


def test_a_slot_that_is_the_scope_is_shown(app: Dibs) -> None:
    app.sync.enqueue(NewJob("work", slot="csv"), NewJob("work", slot="other"))

    with client_of(make_web(app, scope=lambda: {"slot": "csv"})) as client:
        assert client.get("/slots?key=csv").json()["waiting"] == 1
        assert client.get("/slots?key=other").status_code == 403
        assert client.get("/slots").status_code == 403
