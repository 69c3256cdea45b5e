"""What each route does, seen over HTTP."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from dibs import Dibs, Job, NewJob
from dibs.errors import SchemaOutdated, StoreUnavailable, UnknownEngine, UnsafeStore
from dibs.integrations.fastapi import lifespan, models
from dibs.jobs.ids import new_id
from dibs.outbox import Outbox, Standing
from tests.support.internals import age, store_of
from tests.support.web_apps import client_of, make_web


@pytest.fixture
def client(web: FastAPI) -> Iterator[TestClient]:
    with client_of(web) as client:
        yield client


def make(app: Dibs, kind: str = "work", **options: Any) -> Job:
    [job] = app.sync.enqueue(NewJob(kind, **options))
    return job


def running(app: Dibs, **options: Any) -> Any:
    return app.sync.claim_job(make(app, **options).id, worker="pod-a")


def pass_time(app: Dibs, seconds: float) -> None:
    age(app, seconds)


# -- look -----------------------------------------------------------------------------------------


def test_a_job_is_shown_whole_and_as_the_document_says(app: Dibs, client: TestClient) -> None:
    claim = running(app, args={"n": 1}, tags=["a"], meta={"m": [None]})
    claim.fail("broken", retry=False)

    answer = client.get(f"/jobs/{claim.job.id}")

    assert answer.status_code == 200
    stored = msgspec.to_builtins(app.sync.get(claim.job.id))
    assert stored["errors"][0].pop("traceback") is None
    assert answer.json() == stored
    shown = models.Job.model_validate(answer.json())
    assert (shown.state, shown.errors[0].message, shown.args) == ("failed", "broken", {"n": 1})


def test_models_describe_exactly_what_is_answered() -> None:
    assert set(models.Job.model_fields) == set(Job.__struct_fields__)


def test_jobs_are_found_page_by_page_newest_first(app: Dibs, client: TestClient) -> None:
    ids = [str(make(app).id) for _ in range(5)]

    first = client.get("/jobs", params={"limit": 3}).json()
    second = client.get("/jobs", params={"limit": 3, "after": first["next"]}).json()

    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids[::-1]
    assert second["next"] is None
    assert first["jobs"][0]["args"] == {}
    models.JobPage.model_validate(first)


def test_jobs_are_found_by_what_is_asked_for(app: Dibs, client: TestClient) -> None:
    mail = make(app, "send", queue="mail", tags=["a", "b"])
    claim = running(app)

    def found(**params: Any) -> list[str]:
        return [job["id"] for job in client.get("/jobs", params=params).json()["jobs"]]

    assert found(queue="mail") == found(kind="send") == found(tag=["a", "b"]) == [str(mail.id)]
    assert found(state=["running", "failed"]) == [str(claim.job.id)]
    assert found(pipeline_id=str(new_id())) == []


@pytest.mark.parametrize("text", ['["csv", 7, null, 2026]', '["csv",7,null,2026]'])
def test_a_slot_is_found_by_its_parts_however_they_are_spaced(
    app: Dibs, client: TestClient, text: str
) -> None:
    job = make(app, slot=("csv", 7, None, 2026))
    named = make(app, slot="csv")

    def found(slot: str) -> list[str]:
        return [each["id"] for each in client.get("/jobs", params={"slot": slot}).json()["jobs"]]

    assert found(text) == [str(job.id)]
    assert found("csv") == [str(named.id)]
    assert client.get("/jobs", params={"slot": "[7"}).status_code == 400


def test_a_page_is_never_longer_than_two_hundred(app: Dibs, client: TestClient) -> None:
    app.sync.enqueue(*(NewJob("work") for _ in range(205)))

    assert len(client.get("/jobs", params={"limit": 10**30}).json()["jobs"]) == 200


@pytest.mark.parametrize(
    "params",
    [{"limit": 0}, {"limit": "x"}, {"after": "x"}, {"state": "lost"}, {"queue": "x" * 201}],
    ids=repr,
)
def test_a_malformed_request_is_refused_with_422(client: TestClient, params: dict[str, Any]) -> None:
    answer = client.get("/jobs", params=params)

    assert answer.status_code == 422
    models.Invalid.model_validate(answer.json())


def test_why_a_job_is_not_running(app: Dibs, client: TestClient) -> None:
    job = make(app, delay=3600)

    answer = client.get(f"/jobs/{job.id}/why").json()

    assert answer["code"] == "scheduled"
    assert answer["text"] == str(app.sync.why(job.id))


def test_a_pipeline_is_counted(app: Dibs, client: TestClient) -> None:
    claim = running(app)
    claim.succeed(then=[NewJob("next"), NewJob("next")])
    [half] = app.sync.claim(kinds=["next"])
    half.progress(0.5)

    answer = client.get(f"/pipelines/{claim.job.id}").json()

    assert {state: n for state, n in answer["counts"].items() if n} == {
        "succeeded": 1,
        "ready": 1,
        "running": 1,
    }
    assert answer["progress"] == pytest.approx(0.5)


def test_a_pipeline_is_counted_whole_however_many_jobs_it_has(app: Dibs, client: TestClient) -> None:
    pipeline = new_id()
    first, *_ = app.sync.enqueue(*(NewJob("work", pipeline_id=pipeline) for _ in range(1003)))
    app.sync.cancel(first.id)

    answer = client.get(f"/pipelines/{pipeline}").json()

    assert (answer["counts"]["ready"], answer["counts"]["cancelled"]) == (1002, 1)
    assert answer["progress"] == pytest.approx(1 / 1003)


def test_a_filter_that_does_not_exist_is_named(client: TestClient) -> None:
    answer = client.get("/jobs?state=failed&nonsense=1")

    assert answer.status_code == 422
    [mistake] = answer.json()["detail"]
    assert mistake["loc"] == ["query", "nonsense"]
    assert "kind" in mistake["msg"]


def test_a_permission_may_have_a_parameter_of_its_own(app: Dibs) -> None:
    async def by_key(key: str) -> str:
        return key

    with client_of(make_web(app, read=by_key)) as client:
        assert client.get("/jobs?key=k").status_code == 200


def test_the_doctors_findings_are_listed(app: Dibs, client: TestClient) -> None:
    app.sync.enqueue(NewJob("stranger"))

    findings = client.get("/doctor").json()["findings"]

    said = {models.Finding.model_validate(each).topic for each in findings}
    assert said == {each.topic for each in app.sync.doctor()}
    assert any("start one: dibs work" in str(each["advice"]) for each in findings)


def test_queues_and_workers_are_listed(app: Dibs, client: TestClient) -> None:
    make(app, queue="mail")

    [queue] = client.get("/queues").json()["queues"]

    assert queue == {"name": "mail", "paused": False, "limit": None, "counts": {"ready": 1}}
    assert client.get("/workers").json() == {"workers": []}


# -- act ------------------------------------------------------------------------------------------


def test_a_job_is_enqueued_with_all_that_is_said_of_it(app: Dibs, client: TestClient) -> None:
    said = {"queue": "mail", "priority": 5, "tags": ["a"], "meta": {"m": 1}, "max_attempts": 7}

    answer = client.post("/jobs", json={"kind": "send", "args": {"n": 1}, "delay": 60, **said})

    assert answer.status_code == 201
    job = app.sync.get(answer.json()["id"])
    assert job is not None
    assert (job.kind, job.args, job.state, job.tags) == ("send", {"n": 1}, "scheduled", ["a"])
    assert (job.queue, job.priority, job.max_attempts, job.meta) == ("mail", 5, 7, {"m": 1})


def test_a_job_may_say_that_its_train_is_to_be_held(app: Dibs, client: TestClient) -> None:
    body = {"kind": "send", "train": "t", "on_failed": "hold", "on_cancelled": "hold"}

    job = client.post("/jobs", json=body).json()
    client.post(f"/jobs/{job['id']}/cancel")

    assert [train.name for train in app.sync.trains.held()] == ["t"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/queues/mail/limit", {"limit": True}),
        ("/jobs/delete", {"kind": "send", "expect": True}),
        ("/jobs", {"kind": "send", "max_attempts": True}),
        ("/jobs", {"kind": "send", "priority": "5"}),
    ],
)
def test_a_number_is_neither_a_text_nor_true(client: TestClient, path: str, body: dict[str, Any]) -> None:
    assert client.post(path, json=body).status_code == 422


def test_a_job_that_is_sent_twice_is_stored_once(app: Dibs, client: TestClient) -> None:
    body = {"kind": "send", "id": str(new_id())}

    answers = [client.post("/jobs", json=body), client.post("/jobs", json=body)]

    assert [answer.status_code for answer in answers] == [201, 200]
    assert len(app.sync.find()) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"kind": "a", "colour": 1}', 422),
        (b'{"kind": "a", "priority": 1e99}', 422),
        (b'{"kind": NaN, "args": NaN}', 422),
        (b'{"kind": "\\ud800", "queue": 3}', 422),
        (b'{"kind": "a\\u0000"}', 400),
        (b'{"kind": "a", "args": {"x": NaN}}', 400),
        (b'{"kind": "a", "args": {"x": "\\ud800"}}', 400),
        (b'{"kind": "a", "delay": Infinity}', 422),
        (b'{"kind": "a", "run_at": "2030-01-01T00:00:00"}', 422),
        (b'{"kind": "a", "args": {"x": "' + b"x" * 110_000 + b'"}}', 400),
        (b'{"kind": "a", "args": {"x": "' + b"x" * 200_000 + b'"}}', 413),
        (b'{"kind": "a", "args": ' + b'{"x":' * 20_000, 400),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_what_can_not_be_enqueued_is_refused_and_nothing_written(
    app: Dibs, client: TestClient, body: bytes, status: int
) -> None:
    answer = client.post("/jobs", content=body, headers={"content-type": "application/json"})

    assert answer.status_code == status
    assert answer.json()["detail"]
    assert app.sync.find() == []


def test_a_body_without_a_length_is_bounded_as_it_comes(app: Dibs, client: TestClient) -> None:
    pieces = iter([b'{"kind": "a", "args": {"x": "', *[b"x" * 10_000] * 30, b'"}}'])

    assert client.post("/jobs", content=pieces).status_code == 413


def test_a_stale_job_is_recovered_with_all_its_attempts(
    app: Dibs, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    claim = running(app)
    pass_time(app, 60 + 1801)

    with caplog.at_level(logging.INFO, "dibs"):
        answer = client.post(f"/jobs/{claim.job.id}/recover")

    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["state"], shown["attempts"], shown["worker"]) == ("ready", 0, None)
    assert f"recover {claim.job.id}, by writer" in caplog.text


def test_a_job_that_is_not_stale_is_not_recovered(
    app: Dibs, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    claim = running(app)
    pass_time(app, 60 + 1700)

    answer = client.post(f"/jobs/{claim.job.id}/recover")

    assert answer.status_code == 409
    assert "may still be running at pod-a" in answer.json()["detail"]
    assert app.sync.get(claim.job.id).state == "running"
    assert "recover" not in caplog.text


def test_jobs_are_cancelled_and_retried(app: Dibs, client: TestClient) -> None:
    job = make(app)

    cancelled = client.post(f"/jobs/{job.id}/cancel", json={"reason": "no need"})
    again = client.post(f"/jobs/{job.id}/cancel")
    retried = client.post(f"/jobs/{job.id}/retry")

    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert cancelled.json()["message"] == "no need"
    assert (again.status_code, "already been cancelled" in again.json()["detail"]) == (409, True)
    assert (retried.status_code, retried.json()["state"]) == (200, "ready")


def test_jobs_are_searched(app: Dibs, client: TestClient) -> None:
    job = make(app, args={"order_id": 42})
    make(app, args={"order_id": 43}), running(app, queue="slow")

    found = client.get("/jobs", params={"q": "args.order_id:42 kind:w*"}).json()
    at_pod = client.get("/jobs", params={"worker": "pod-a", "since": "2h"}).json()
    bad = [client.get("/jobs", params=given) for given in ({"q": "colour:red"}, {"since": "soon"})]

    models.JobPage.model_validate(found)
    assert [each["id"] for each in found["jobs"]] == [str(job.id)]
    assert (found["next"], found["searched"], found["complete"]) == (None, 3, True)
    assert [(each["queue"], at_pod["searched"]) for each in at_pod["jobs"]] == [("slow", None)]
    assert [answer.status_code for answer in bad] == [400, 400]
    assert "known are state, kind" in bad[0].json()["detail"]


def test_all_that_match_are_changed(app: Dibs, client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs")
    for _ in range(3):
        make(app, "send", queue="mail")
    make(app, "other")

    preview = client.post("/jobs/cancel", json={"kind": "send", "preview": True})
    assert "cancel" not in caplog.text
    other = client.post("/jobs/cancel", json={"kind": "send", "expect": 2, "reason": "no need"})
    done = client.post("/jobs/cancel", json={"q": "kind:send", "expect": 3, "reason": "no need"})
    retried = client.post("/jobs/retry", json={"state": ["cancelled"], "queue": "mail", "since": "1h"})
    gone = client.post("/jobs/delete", json={"q": "send queue:mail"})

    assert preview.json() == {"matched": 3, "changed": 0}
    assert (other.status_code, other.json()["detail"][:32]) == (409, "3 jobs match now, not 2: nothing")
    assert [each.json() for each in (done, retried, gone)] == [{"matched": 3, "changed": 3}] * 3
    assert app.sync.counts() == {**dict.fromkeys(app.sync.counts(), 0), "ready": 1}
    assert '"q":"kind:send"' in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"reason": "x"}, {"colour": "red"}, {"q": "colour:red"}, {"expect": -1}, {"q": " "}),
        *({"tags": []}, {"state": []}, {"state": [], "queue": "default"}),
    ],
    ids=repr,
)
def test_an_act_on_everything_must_be_meant(app: Dibs, client: TestClient, body: dict[str, Any]) -> None:
    make(app)

    answers = [client.post(f"/jobs/{act}", json=body) for act in ("retry", "cancel", "delete")]

    assert {answer.status_code for answer in answers} <= {400, 422}
    assert len(app.sync.find(state="ready")) == 1
    assert client.post("/jobs/delete", json={"expect": 1}).json() == {"matched": 1, "changed": 1}


@pytest.mark.parametrize("route", ["", "/why", "/events", "/recover", "/cancel", "/retry"])
def test_a_job_that_never_was_is_not_found(client: TestClient, route: str) -> None:
    method = "GET" if route in ("", "/why", "/events") else "POST"

    answers = [client.request(method, f"/jobs/{id}{route}") for id in (new_id(), "nonsense")]

    assert [answer.status_code for answer in answers] == [404, 422]


@pytest.mark.parametrize("route", ["", "/events"])
def test_a_pipeline_that_never_was_is_not_found(client: TestClient, route: str) -> None:
    assert client.get(f"/pipelines/{new_id()}{route}").status_code == 404


@pytest.mark.parametrize("name", ["mail", "a/b", "ü ?#", "paused"])
def test_queues_are_paused_and_resumed(app: Dibs, client: TestClient, name: str) -> None:
    quoted = "".join(f"%{byte:02x}" for byte in name.encode())

    paused = client.post(f"/queues/{quoted}/pause").json()
    assert app.sync.queues()[0].paused
    resumed = client.post(f"/queues/{quoted}/resume").json()

    assert (paused["name"], paused["paused"], resumed["paused"]) == (name, True, False)


def held_train(app: Dibs, name: str) -> list[Job]:
    jobs = app.sync.enqueue(*(NewJob("work", train=name, on_failed="hold") for _ in range(2)))
    claim = app.sync.claim_job(jobs[0].id)
    assert claim is not None
    claim.fail("broken", retry=False)
    return jobs


def test_a_held_train_is_shown_and_released(app: Dibs, client: TestClient) -> None:
    first, second = held_train(app, "dest_1")
    make(app, train="dest_2")

    [held] = client.get("/trains?held=true").json()["trains"]
    names = [train["name"] for train in client.get("/trains").json()["trains"]]
    released = client.post("/trains/dest_1/release")
    again = client.post("/trains/dest_1/release")

    assert (held["name"], held["head"]["id"], held["held"]) == ("dest_1", str(first.id), True)
    assert names == ["dest_1", "dest_2"]
    assert (released.status_code, released.json()["head"]["id"]) == (200, str(second.id))
    assert (again.status_code, "is not held" in again.json()["detail"]) == (409, True)
    assert client.post("/trains/nowhere/release").status_code == 404


def test_trains_come_page_by_page_held_or_not(app: Dibs, client: TestClient) -> None:
    for n in range(5):
        held_train(app, f"held_{n}")
    make(app, train="other")

    def pages(**params: Any) -> list[list[str]]:
        found, after = [], None
        while not found or after is not None:
            page = client.get("/trains", params={**params, "limit": 2, **({"after": after} if after else {})})
            models.Trains.model_validate(page.json())
            found.append([train["name"] for train in page.json()["trains"]])
            after = page.json()["next"]
        return found

    assert pages(held=True) == [["held_0", "held_1"], ["held_2", "held_3"], ["held_4"]]
    assert pages() == [["held_0", "held_1"], ["held_2", "held_3"], ["held_4", "other"], []]


# -- how it is doing ------------------------------------------------------------------------------


def test_a_process_that_reaches_its_store_is_healthy(client: TestClient) -> None:
    answer = client.get("/healthz", headers={"authorization": ""})

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_a_store_that_can_not_be_reached_is_said(tmp_path: Path) -> None:
    app = Dibs(f"sqlite:///{tmp_path}/no/such/folder/jobs.db")
    with client_of(make_web(app)) as client:
        health, jobs = client.get("/healthz"), client.get("/jobs")
    app.sync.close()

    assert (health.status_code, health.json()) == (503, {"status": "unhealthy"})
    assert (jobs.status_code, jobs.headers["retry-after"]) == (503, "2")


class NotAllowed(StoreUnavailable):
    """An error that an engine may define for itself."""


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("no answer"),
        NotAllowed("permission denied for table dibs_jobs"),
        UnsafeStore("may lose jobs"),
        UnknownEngine("no driver for this"),
        SchemaOutdated(1, 2),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_store_that_can_not_be_used_says_why(
    app: Dibs, client: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(store_of(app), "run_async", refuse)

    answer = client.get("/jobs")

    assert (answer.status_code, answer.json()) == (503, {"detail": str(error)})


def test_metrics_tell_how_far_behind_the_relay_is(app: Dibs) -> None:
    class Told:
        async def standings(self) -> list[Standing]:
            return [Standing("default", {"pending": 2, "published": 5}, 12.5)]

    with client_of(make_web(app, outbox=Told())) as client:
        lines = client.get("/metrics").text.splitlines()

    assert 'dibs_outbox_messages{broker="default",status="pending"} 2' in lines
    assert 'dibs_outbox_lag_seconds{broker="default"} 12.5' in lines


@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgresql", "mariadb", "mysql"], indirect=True)
def test_metrics_tell_of_the_outbox_that_lives_beside_the_jobs(engine: str, url: str) -> None:
    app = Dibs(url)
    app.sync.open()
    if engine != "memory":
        outbox = Outbox(url).sync
        outbox.publish("orders", 1, brokers=["a", "b"])
        outbox.mark_published(outbox.claim_batch("w1", target_broker="b"))
        outbox.close()
    with client_of(make_web(app, lifespan=lifespan(app, worker=False))) as client:
        lines = client.get("/metrics").text.splitlines()
    app.sync.close()

    assert ('dibs_outbox_messages{broker="a",status="pending"} 1' in lines) == (engine != "memory")
    assert ('dibs_outbox_messages{broker="b",status="published"} 1' in lines) == (engine != "memory")
    assert ('dibs_outbox_lag_seconds{broker="b"} 0.0' in lines) == (engine != "memory")


def test_a_store_without_an_outbox_has_metrics_all_the_same(tmp_path: Path) -> None:
    app = Dibs(f"sqlite:///{tmp_path}/jobs.db")
    app.sync.open()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as beside:
        beside.execute("drop table dibs_outbox")
        with client_of(make_web(app)) as client:
            answer = client.get("/metrics")
        tables = {name for (name,) in beside.execute("select name from sqlite_master")}
    app.sync.close()

    assert (answer.status_code, "dibs_outbox_messages{" in answer.text) == (200, False)
    assert "dibs_outbox" not in tables


def test_metrics_tell_of_held_trains(app: Dibs, client: TestClient) -> None:
    assert "dibs_trains_held 0" in client.get("/metrics").text.splitlines()
    held_train(app, "north")
    held_train(app, "south")

    assert "dibs_trains_held 2" in client.get("/metrics").text.splitlines()


def test_metrics_tell_what_waits_and_what_was_done(app: Dibs, client: TestClient) -> None:
    make(app, queue='say "hi"\\')
    claim = running(app, queue="mail")
    claim.succeed()
    running(app, queue="mail")._held.give_up()  # as a lost lease would set it
    running(app, queue="mail")
    pass_time(app, 10)

    answer = client.get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'dibs_jobs{queue="mail",state="running"} 2' in lines
    assert 'dibs_jobs{queue="say \\"hi\\"\\\\",state="ready"} 1' in lines
    assert 'dibs_claims_total{queue="mail",kind="work"} 3' in lines
    assert 'dibs_lost_leases_total{queue="mail",kind="work"} 1' in lines
    assert 'dibs_settles_total{queue="mail",kind="work",outcome="succeeded"} 1' in lines
    assert 'dibs_job_duration_seconds_count{queue="mail",kind="work"} 1' in lines
    [oldest] = [line for line in lines if line.startswith("dibs_oldest_ready_seconds{")]
    assert float(oldest.rpartition(" ")[2]) >= 10
    app.sync.pause('say "hi"\\')
    assert (
        "\ndibs_oldest_ready_seconds{" not in client.get("/metrics").text
    )  # no alert for what was asked for
