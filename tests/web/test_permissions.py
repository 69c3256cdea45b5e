"""Every route and its permission; and jobs within a scope."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from dibs import BadRequest, Dibs, NewJob
from dibs.integrations.fastapi import router
from dibs.jobs.ids import new_id
from tests.support.internals import core_of, store_of
from tests.support.web_apps import READER, WRITER, client_of, make_web, may_read, may_write, on_a_port

JOB = new_id()

# The status for a client without a name, a reader and a writer. A new route must be entered here.
OPEN, LOOK, CHANGE = (200, 200, 200), (401, 200, 200), (401, 403, 200)
ROUTES: dict[tuple[str, str], tuple[int, int, int]] = {
    ("GET", "/jobs"): LOOK,
    ("GET", "/jobs/{id}"): LOOK,
    ("GET", "/jobs/{id}/why"): LOOK,
    ("GET", "/jobs/{id}/events"): LOOK,
    ("GET", "/pipelines/{id}"): LOOK,
    ("GET", "/pipelines/{id}/events"): LOOK,
    ("GET", "/events"): LOOK,
    ("GET", "/queues"): LOOK,
    ("GET", "/workers"): LOOK,
    ("GET", "/metrics"): LOOK,
    ("GET", "/doctor"): LOOK,
    ("GET", "/healthz"): OPEN,
    ("POST", "/jobs"): (401, 403, 201),
    ("POST", "/jobs/{id}/recover"): (401, 403, 409),
    ("POST", "/jobs/{id}/cancel"): CHANGE,
    ("POST", "/jobs/{id}/retry"): CHANGE,
    ("POST", "/jobs/retry"): CHANGE,
    ("POST", "/jobs/cancel"): CHANGE,
    ("POST", "/jobs/delete"): CHANGE,
    ("GET", "/trains"): LOOK,
    ("POST", "/trains/{name:path}/release"): (401, 403, 404),
    ("POST", "/queues/{name:path}/pause"): CHANGE,
    ("POST", "/queues/{name:path}/resume"): CHANGE,
    ("POST", "/queues/{name:path}/limit"): CHANGE,
    ("DELETE", "/jobs/{id}"): (401, 403, 204),
    ("PATCH", "/jobs/{id}"): CHANGE,
    ("GET", "/slots"): LOOK,
    ("GET", "/pipelines"): LOOK,
    ("GET", "/schedules"): LOOK,
    ("POST", "/schedules/{name:path}/pause"): CHANGE,
    ("POST", "/schedules/{name:path}/resume"): CHANGE,
    ("POST", "/schedules/{name:path}/run"): CHANGE,
}
BODIES = {
    ("POST", "/jobs"): {"kind": "work"},
    ("PATCH", "/jobs/{id}"): {"priority": 5},
    ("POST", "/queues/{name:path}/limit"): {"limit": 5},
    **{("POST", f"/jobs/{act}"): {"kind": "work"} for act in ("retry", "cancel", "delete")},
}
ENDLESS = {("GET", "/events")}  # one side must disconnect
WHO = [{}, READER, WRITER]
by_whom = pytest.mark.parametrize("who", range(len(WHO)), ids=["nobody", "reader", "writer"])


def test_every_route_is_in_the_table(app: Dibs) -> None:
    there = {
        (method, route.path)
        for route in router(app, insecure=True).routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }

    assert there == set(ROUTES)


@by_whom
@pytest.mark.parametrize("route", sorted(set(ROUTES) - ENDLESS), ids=" ".join)
def test_each_route_needs_the_right_permission(
    app: Dibs, web: FastAPI, route: tuple[str, str], who: int
) -> None:
    method, path = route
    state = "cancelled" if "retry" in path or "events" in path else "ready"
    [job] = app.sync.enqueue(NewJob("work", id=JOB, pipeline_id=JOB))
    app.sync.schedules.put("mail", "0 0 * * *", NewJob("work"))
    if state == "cancelled":
        app.sync.cancel(job.id)
    with client_of(web, headers=WHO[who]) as client:
        body = {"json": BODIES[route]} if route in BODIES else {}
        url = path.replace("{id}", str(JOB)).replace("{name:path}", "mail")

        answer = client.request(method, url, **body)

    assert answer.status_code == ROUTES[route][who]


@by_whom
@pytest.mark.parametrize("route", sorted(ENDLESS), ids=" ".join)
def test_each_endless_route_needs_the_right_permission(
    web: FastAPI, route: tuple[str, str], who: int
) -> None:
    method, path = route
    with on_a_port(web) as port:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asking.request(method, path, headers=WHO[who])

        status = asking.getresponse().status
        asking.close()

    assert status == ROUTES[route][who]


@pytest.mark.parametrize(
    "given", [{}, {"read": may_read}, {"write": may_write}], ids=lambda given: str(list(given))
)
def test_without_permissions_there_is_no_router(app: Dibs, given: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"no permission to .*insecure=True"):
        router(app, **given)


def test_insecure_serves_every_client(app: Dibs) -> None:
    with client_of(make_web(app, read=None, write=None, insecure=True), headers={}) as client:
        assert client.get("/jobs").status_code == 200
        assert client.post("/jobs", json={"kind": "work"}).status_code == 201


def test_permissions_may_be_plain_functions(app: Dibs) -> None:
    with client_of(make_web(app, read=may_read, write=may_write), headers=READER) as client:
        assert client.get("/jobs").status_code == 200
        assert client.post("/jobs", json={"kind": "work"}).status_code == 403


# -- scopes ---------------------------------------------------------------------------------------


def of_tenant(request: Request) -> dict[str, Any]:
    tenant = request.headers.get("tenant")
    if tenant is None:
        raise HTTPException(403, "whose jobs?")
    return {"tags": [f"tenant-{tenant}"]}


def of_queue(request: Request) -> dict[str, Any]:
    return {"queue": request.headers["tenant"]}


@pytest.fixture
def by_tag(app: Dibs) -> Iterator[TestClient]:
    with client_of(make_web(app, scope=Depends(of_tenant)), {**WRITER, "tenant": "7"}) as client:
        yield client


@pytest.fixture
def by_queue(app: Dibs) -> Iterator[TestClient]:
    with client_of(make_web(app, scope=of_queue), {**WRITER, "tenant": "seven"}) as client:
        yield client


def test_a_tenant_finds_only_its_own_jobs(app: Dibs, by_tag: TestClient) -> None:
    mine, _ = app.sync.enqueue(NewJob("work", tags=["tenant-7", "big"]), NewJob("work", tags=["tenant-8"]))

    assert [job["id"] for job in by_tag.get("/jobs").json()["jobs"]] == [str(mine.id)]
    assert [job["id"] for job in by_tag.get("/jobs?tag=big").json()["jobs"]] == [str(mine.id)]
    assert by_tag.get("/jobs?tag=tenant-8").json()["jobs"] == []


@pytest.mark.parametrize("q", ["", "kind:work", "broken", "tag:tenant-8", "kind:*", "since:1h"])
def test_a_tenant_searches_and_changes_only_its_own_jobs(app: Dibs, by_tag: TestClient, q: str) -> None:
    mine, other = app.sync.enqueue(*(NewJob("work", tags=[f"tenant-{n}"]) for n in (7, 8)))
    for job in (mine, other):
        claim = app.sync.claim_job(job.id)
        assert claim is not None
        claim.fail("broken", retry=False)
    own = q != "tag:tenant-8"

    found = by_tag.get("/jobs", params={"q": q}).json()["jobs"]
    acted = [by_tag.post(f"/jobs/{act}", json={"q": q}).json() for act in ("retry", "cancel", "delete")]

    assert [job["id"] for job in found] == [str(mine.id)] * own
    assert acted == [{"matched": own, "changed": own}] * 3
    untouched = app.sync.get(other.id)
    assert untouched is not None
    assert untouched.state == "failed"


def test_a_search_tells_nothing_of_parts_that_are_not_shown(app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("work", args={"card": 4111}))
    claim = app.sync.claim_job(job.id)
    assert claim is not None
    claim.fail("no card", retry=False)
    with client_of(make_web(app, fields=("result",))) as client:
        refused = [client.get("/jobs", params={"q": q}) for q in ("args.card:4111", "error:card")]
        preview = client.post("/jobs/delete", json={"q": "args.card:4111", "preview": True})
        found = [client.get("/jobs", params={"q": q}).json()["jobs"] for q in ("card", "work")]

    assert [answer.status_code for answer in (*refused, preview)] == [400] * 3
    assert "can't search by args: they are not shown" in preview.json()["detail"]
    assert [len(jobs) for jobs in found] == [0, 1]


def test_a_search_cannot_name_another_queue(app: Dibs, by_queue: TestClient) -> None:
    app.sync.enqueue(NewJob("work", queue="seven"), NewJob("work", queue="eight"))

    assert by_queue.get("/jobs", params={"q": "queue:eight"}).status_code == 400
    assert by_queue.get("/jobs", params={"queue": "eight"}).status_code == 403
    assert by_queue.post("/jobs/delete", json={"queue": "eight"}).status_code == 403
    assert by_queue.post("/jobs/delete", json={"q": "queue:e*"}).json() == {"matched": 0, "changed": 0}
    assert by_queue.post("/jobs/delete", json={"q": "queue:*"}).json() == {"matched": 1, "changed": 1}


@pytest.mark.parametrize("route", ["", "/why", "/events", "/recover", "/cancel", "/retry"])
def test_the_jobs_of_others_are_unknown_to_a_tenant(app: Dibs, by_tag: TestClient, route: str) -> None:
    [theirs] = app.sync.enqueue(NewJob("work", tags=["tenant-8"], pipeline_id=JOB))
    method = "GET" if route in ("", "/why", "/events") else "POST"

    answers = [by_tag.request(method, f"/jobs/{id}{route}") for id in (theirs.id, new_id())]

    assert [answer.status_code for answer in answers] == [404, 404]
    assert by_tag.get(f"/pipelines/{JOB}").status_code == 404
    assert app.sync.get(theirs.id) == theirs.__class__(**{**_fields(theirs), "is_new": False})


def test_a_tenant_sees_its_own_part_of_a_pipeline(app: Dibs, by_tag: TestClient) -> None:
    tags = [["tenant-7"], ["tenant-7"], ["tenant-8"]]
    app.sync.enqueue(*(NewJob("work", pipeline_id=JOB, tags=each) for each in tags))

    assert by_tag.get(f"/pipelines/{JOB}").json()["counts"]["ready"] == 2


def _fields(job: Any) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


def test_what_a_tenant_enqueues_is_its_own(app: Dibs, by_tag: TestClient, by_queue: TestClient) -> None:
    tagged = by_tag.post("/jobs", json={"kind": "work", "tags": ["big"]}).json()
    queued = by_queue.post("/jobs", json={"kind": "work"}).json()
    elsewhere = by_queue.post("/jobs", json={"kind": "work", "queue": "eight"})

    assert tagged["tags"] == ["big", "tenant-7"]
    assert queued["queue"] == "seven"
    assert elsewhere.status_code == 403
    assert len(app.sync.find()) == 2


# Keys by which jobs of different tenants affect each other.
PLACES: list[dict[str, Any]] = [
    {"slot": "s1", "slot_policy": "drop"},
    {"slot": ["csv", 7]},
    {"train": "t1"},
    {"unique": "nightly"},
    {"pipeline_id": str(JOB)},
]
in_each_place = pytest.mark.parametrize("place", PLACES, ids=lambda place: next(iter(place)))


def in_place(place: dict[str, Any]) -> NewJob:
    """Enqueue a job of tenant 8 with this key."""
    slot = place.get("slot")
    kept = {**place, "slot": tuple(slot) if isinstance(slot, list) else slot}
    return NewJob("work", tags=["tenant-8"], args={"secret": 1}, **kept)


@in_each_place
def test_a_tenant_enqueues_no_job_where_jobs_of_others_may_be(
    app: Dibs, by_tag: TestClient, place: dict[str, Any]
) -> None:
    [theirs] = app.sync.enqueue(in_place(place))

    answer = by_tag.post("/jobs", json={"kind": "work", **place})

    assert (answer.status_code, next(iter(place)) in answer.json()["detail"]) == (403, True)
    assert [(job.id, job.state) for job in app.sync.find()] == [(theirs.id, theirs.state)]


@in_each_place
def test_it_may_where_the_app_says_so(app: Dibs, place: dict[str, Any]) -> None:
    web = make_web(app, scope=of_tenant, shared=[next(iter(place))])
    with client_of(web, {**WRITER, "tenant": "7"}) as client:
        answer = client.post("/jobs", json={"kind": "work", **place})

    assert answer.status_code == 201


@in_each_place
def test_without_a_scope_every_key_may_be_named(web: FastAPI, place: dict[str, Any]) -> None:
    with client_of(web) as client:
        assert client.post("/jobs", json={"kind": "work", **place}).status_code == 201


@pytest.mark.parametrize("name", ["slot", "train"])
def test_a_place_that_the_kind_makes_of_the_arguments_is_one_that_the_tenant_chose(
    app: Dibs, name: str
) -> None:
    own = Dibs("memory://")
    core_of(own).use(store_of(app))

    @own.job(name="bill", **{name: "customer-{customer}"})
    def bill(customer: int) -> None: ...

    with client_of(make_web(own, scope=of_tenant), {**WRITER, "tenant": "7"}) as client:
        answer = client.post("/jobs", json={"kind": "bill", "args": {"customer": 8}})

    assert answer.status_code == 403
    assert own.sync.find() == []


def test_only_such_places_can_be_shared(app: Dibs) -> None:
    with pytest.raises(BadRequest, match="shared="):
        make_web(app, scope=of_tenant, shared=["tags"])


@pytest.mark.parametrize("slot", [("csv", 7), ["csv", 7], '["csv",7]'], ids=repr)
def test_a_slot_may_be_the_scope_however_it_is_written(app: Dibs, slot: Any) -> None:
    with client_of(make_web(app, scope=lambda: {"slot": slot})) as client:
        mine = client.post("/jobs", json={"kind": "work", "slot": ["csv", 7]})
        implied = client.post("/jobs", json={"kind": "work"})
        elsewhere = client.post("/jobs", json={"kind": "work", "slot": ["csv", 8]})

        assert (mine.status_code, implied.status_code, elsewhere.status_code) == (201, 201, 403)
        assert client.get(f"/jobs/{mine.json()['id']}").status_code == 200
        assert len(client.get("/jobs").json()["jobs"]) == 2
        assert len(client.get("/jobs", params={"slot": '["csv", 7]'}).json()["jobs"]) == 2
        assert client.get("/jobs", params={"slot": '["csv", 8]'}).status_code == 403


@pytest.mark.parametrize("name", ["train", "slot"])
def test_a_scope_of_the_text_none_has_no_job_without_a_name(app: Dibs, name: str) -> None:
    [theirs] = app.sync.enqueue(NewJob("work"))
    routes = ["", "/why", "/events", "/recover", "/cancel", "/retry"]

    with client_of(make_web(app, scope=lambda: {name: str(None)})) as client:
        answers = [
            client.request("GET" if route in routes[:3] else "POST", f"/jobs/{theirs.id}{route}")
            for route in routes
        ]
        again = client.post("/jobs", json={"kind": "work", "id": str(theirs.id)})
        listed = client.get("/jobs").json()["jobs"]

    assert [answer.status_code for answer in answers] == [404] * len(routes)
    assert (again.status_code, listed, app.sync.get(theirs.id).state) == (409, [], "ready")


@pytest.mark.parametrize(
    "scope", [JOB, str(JOB), str(JOB).upper(), f"{{{JOB}}}"], ids=["id", "text", "capitals", "braces"]
)
def test_a_pipeline_may_be_the_scope_however_it_is_written(app: Dibs, scope: Any) -> None:
    _, theirs, _ = app.sync.enqueue(*(NewJob("work", pipeline_id=id) for id in (JOB, new_id(), None)))
    app.sync.cancel_many(state="ready")

    with client_of(make_web(app, scope=lambda: {"pipeline_id": scope})) as client:
        followed = [client.get(f"/pipelines/{id}/events") for id in (JOB, theirs.pipeline_id)]

        assert len(client.get("/jobs").json()["jobs"]) == 1
        assert client.post("/jobs", json={"kind": "work"}).json()["pipeline_id"] == str(JOB)
        assert client.get(f"/jobs/{theirs.id}").status_code == 404
    assert [answer.status_code for answer in followed] == [200, 404]


@pytest.mark.parametrize("policy", ["wait", "drop", "replace", "preempt"])
def test_a_shared_slot_ends_no_job_of_another_tenant(app: Dibs, policy: str) -> None:
    web = make_web(app, scope=of_tenant, shared=["slot"])
    with client_of(web, {**WRITER, "tenant": "7"}) as client:
        answer = client.post("/jobs", json={"kind": "work", "slot": "s", "slot_policy": policy})

    assert answer.status_code == (201 if policy in ("wait", "drop") else 403)


def test_the_unique_key_of_another_tenants_job_shows_nothing_of_it(app: Dibs) -> None:
    app.sync.enqueue(NewJob("work", unique="nightly", tags=["tenant-8"], args={"secret": 1}))

    with client_of(make_web(app, scope=of_tenant, shared=["unique"]), {**WRITER, "tenant": "7"}) as client:
        answer = client.post("/jobs", json={"kind": "work", "unique": "nightly"})

    assert answer.status_code == 409
    assert "secret" not in answer.text


@pytest.mark.parametrize("name", ["slot", "train"])
def test_why_tells_a_tenant_nothing_of_the_jobs_of_others(app: Dibs, by_tag: TestClient, name: str) -> None:
    theirs, mine = app.sync.enqueue(
        NewJob("their_kind", tags=["tenant-8"], **{name: "shared"}),
        NewJob("work", tags=["tenant-7"], **{name: "shared"}),
    )
    app.sync.claim_job(theirs.id, worker="their-pod")

    why = by_tag.get(f"/jobs/{mine.id}/why").json()

    assert (why["code"], "another job" in why["text"]) == (name, True)
    assert not any(told in why["text"] for told in (str(theirs.id), "their_kind", "their-pod"))


def test_why_tells_a_tenant_nothing_of_a_step_of_others(app: Dibs, by_tag: TestClient) -> None:
    pipeline = app.pipeline("nightly")
    first = pipeline.add(NewJob("their_kind", tags=["tenant-8"]))
    last = pipeline.add(NewJob("work", tags=["tenant-7"]), after=[first])
    pipeline.sync.enqueue()

    why = by_tag.get(f"/jobs/{last.id}/why").json()

    assert why["code"] == "parent"
    assert not any(told in why["text"] for told in (str(first.id), "their_kind"))


def test_why_tells_a_tenant_nothing_of_another_tenants_parent(app: Dibs, by_tag: TestClient) -> None:
    pipeline = app.pipeline("nightly")
    first = pipeline.add(NewJob("their_kind", tags=["tenant-8"]))
    own = pipeline.add(NewJob("work", tags=["tenant-7"]), after=[first])
    last = pipeline.add(NewJob("work", tags=["tenant-7"]), after=[own])
    pipeline.sync.enqueue()

    why = by_tag.get(f"/jobs/{last.id}/why").json()

    assert why["code"] == "parent"
    assert not any(told in why["text"] for told in (str(first.id), "their_kind"))


def test_why_tells_a_tenant_not_how_many_jobs_of_others_run(
    app: Dibs, by_tag: TestClient, by_queue: TestClient
) -> None:
    app.sync.limit("seven", 1)
    [other] = app.sync.enqueue(NewJob("work", queue="seven"))
    app.sync.claim_job(other.id)
    [mine] = app.sync.enqueue(NewJob("work", queue="seven", tags=["tenant-7"]))

    texts = [client.get(f"/jobs/{mine.id}/why").json()["text"] for client in (by_tag, by_queue)]

    assert "runs 1 now" not in texts[0]
    assert "runs 1 now" in texts[1]


def test_why_names_what_is_the_tenants_own(app: Dibs, by_tag: TestClient) -> None:
    ahead, mine = app.sync.enqueue(*(NewJob("work", tags=["tenant-7"], train="t1") for _ in range(2)))

    assert str(ahead.id) in by_tag.get(f"/jobs/{mine.id}/why").json()["text"]


def test_a_released_train_shows_a_tenant_only_its_own_job(app: Dibs, by_tag: TestClient) -> None:
    tags = ["tenant-7", "tenant-8"]
    mine, _theirs = app.sync.enqueue(
        *(NewJob("work", train="t1", on_failed="hold", tags=[tag]) for tag in tags)
    )
    claim = app.sync.claim_job(mine.id)
    assert claim is not None
    claim.fail("broken", retry=False)

    released = by_tag.post("/trains/t1/release")

    assert (released.status_code, released.json()["head"]) == (200, None)
    assert by_tag.post("/trains/t1/release").status_code == 404


@pytest.mark.parametrize("path", ["/queues", "/workers", "/metrics", "/doctor"])
def test_the_whole_store_is_not_for_a_tenant(by_tag: TestClient, path: str) -> None:
    assert by_tag.get(path).status_code == 403


def test_the_scope_of_a_queue_shows_and_pauses_only_that(app: Dibs, by_queue: TestClient) -> None:
    app.sync.enqueue(NewJob("work", queue="seven"), NewJob("work", queue="eight"))

    assert [queue["name"] for queue in by_queue.get("/queues").json()["queues"]] == ["seven"]
    assert by_queue.post("/queues/seven/pause").status_code == 200
    assert by_queue.post("/queues/eight/pause").status_code == 403
    assert by_queue.get("/jobs?queue=eight").status_code == 403


def test_a_scope_may_refuse(app: Dibs) -> None:
    with client_of(make_web(app, scope=of_tenant)) as client:
        assert client.get("/jobs").status_code == 403


@pytest.mark.parametrize(
    "filter", [{"colour": "red"}, {"queue": None}, {"tags": []}, {"pipeline_id": "None"}, None], ids=repr
)
def test_a_scope_that_is_no_filter_is_the_apps_own_fault(app: Dibs, filter: Any) -> None:
    with (
        client_of(make_web(app, scope=lambda: filter)) as client,
        pytest.raises(TypeError, match="scope="),
    ):
        client.get("/jobs")
