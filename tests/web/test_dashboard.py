"""The page over HTTP: closed by default, correct below any prefix, text of jobs is text."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import unquote

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from dibs import BadRequest, Dibs, LeaseLost, NewJob
from dibs.dashboard import Dashboard, TokenLogin
from dibs.dashboard.acts import ACTS
from dibs.operations.upkeep import tick
from tests.support.internals import age

PAGES = ["", "jobs", "queues", "trains", "slots", "pipelines", "schedules", "workers", "outbox", "health"]
TOKEN, READ_TOKEN = "t" * 20, "r" * 20


def client_of(web: object, **options: object) -> TestClient:
    return TestClient(web, follow_redirects=False, **options)  # type: ignore[arg-type]


def role_of(request: Request) -> str | None:
    return {"reader": "read", "writer": "write"}.get(request.headers.get("x-user", ""))


@pytest.fixture
def page(app: Dibs) -> Iterator[TestClient]:
    with client_of(Dashboard(app, authorize=role_of), headers={"x-user": "writer"}) as client:
        yield client


def act(client: TestClient, what: str, *, back: str = "jobs", **more: str) -> object:
    """Press a button as a browser does: with the token of the page that has it."""
    token = re.search(r'name="token_of_form" value="([^"]+)"', client.get("/jobs").text)
    assert token is not None
    return client.post("/act", data={"token_of_form": token[1], "act": what, "back": back, **more})


def test_it_is_not_built_without_permissions(app: Dibs) -> None:
    with pytest.raises(BadRequest, match="authorize="):
        Dashboard(app)


def test_your_login_is_an_exception_of_your_framework(app: Dibs) -> None:
    def authorize(request: Request) -> str:
        raise HTTPException(303, headers={"Location": "/login"})

    web = Starlette(routes=[Mount("/ops", Dashboard(app, authorize=authorize))])
    with client_of(web) as client:
        answer = client.get("/ops/jobs")

    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_and_says_which_it_is(page: TestClient, app: Dibs, name: str) -> None:
    app.sync.enqueue(NewJob("greet", train="t"), NewJob("greet", train="t"))

    response = page.get(f"/{name}")

    assert response.status_code == 200
    assert f'data-page="{name or "overview"}"' in response.text
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", [*PAGES, "jobs/{id}", "pipelines/{id}"])
def test_no_link_is_absolute_and_nothing_is_inline(page: TestClient, app: Dibs, name: str) -> None:
    first = NewJob("greet", args={"n": 1})
    pipeline = app.sync.pipeline("p")
    pipeline.add(first)
    pipeline.enqueue()

    text = page.get("/" + name.format(id=pipeline.id if "pipelines" in name else first.id)).text

    assert not re.search(r'(href|src|action)="(/|[a-z]+:)', text)
    assert not re.search(r"<style|<script(?! src)|\sstyle=|\son[a-z]+=", text)
    assert text.count(f'data-job="{first.id}"') <= 1


def test_each_job_has_one_row_with_its_whole_id(page: TestClient, app: Dibs) -> None:
    jobs = app.sync.enqueue(*(NewJob("greet") for _ in range(5)))

    found = re.findall(r'data-job="([^"]+)"', page.get("/jobs").text)

    assert sorted(found) == sorted(str(job.id) for job in jobs)


@pytest.mark.parametrize(
    "text",
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "{{ 7*7 }}"],
)
def test_text_of_jobs_is_text(page: TestClient, app: Dibs, text: str) -> None:
    [job] = app.sync.enqueue(NewJob(text, args={text: text}, queue=text, train=text, tags=[text]))

    for path in ("/", "/jobs", f"/jobs/{job.id}", "/queues", "/trains", f"/jobs?q={text}"):
        shown = page.get(path).text
        assert "<script>alert" not in shown
        assert "<img src=x" not in shown
        assert 'href="javascript' not in shown
        assert text != "{{ 7*7 }}" or ">49<" not in shown


def test_signs_that_deceive_are_written_out(page: TestClient, app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("greet", args={"a": "\u202eevil\u200b\x1b[31m"}))

    shown = page.get(f"/jobs/{job.id}").text

    assert not set("\u202e\u200b\x1b") & set(shown)
    assert "\\u202eevil\\u200b" in shown


def test_large_integers_keep_their_digits(page: TestClient, app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("greet", args={"n": 2**63 - 1}))

    assert str(2**63 - 1) in page.get(f"/jobs/{job.id}").text


def test_long_arguments_and_results_are_there_whole(page: TestClient, app: Dibs) -> None:
    numbers = [10**15 + n for n in range(5000)]
    [job] = app.sync.enqueue(NewJob("greet", args={"numbers": numbers}))
    app.sync.claim_job(job.id).succeed(numbers)  # type: ignore[union-attr]

    shown = html.unescape(page.get(f"/jobs/{job.id}").text)

    args, result = (re.search(rf'<pre id="{id}">(.*?)</pre>', shown, re.DOTALL) for id in ("args", "result"))
    assert (json.loads(args[1]), json.loads(result[1])) == ({"numbers": numbers}, numbers)  # type: ignore[index]
    assert "characters in all" not in shown


@pytest.mark.parametrize("prefix", ["/", "/a/b/"])
def test_it_works_below_any_prefix(app: Dibs, prefix: str) -> None:
    [job] = app.sync.enqueue(NewJob("greet"))
    web = Starlette(routes=[Mount(prefix.rstrip("/"), Dashboard(app, insecure=True))])

    with TestClient(web) as client:
        assert 'data-page="overview"' in client.get(prefix).text
        assert 'data-page="job"' in client.get(f"{prefix}jobs/{job.id}").text
        assert client.get(f"{prefix}static/dibs.css").status_code == 200


def test_a_path_without_its_slash_leads_to_the_page(app: Dibs) -> None:
    web = Starlette(routes=[Mount("/a/b", Dashboard(app, insecure=True))])

    with TestClient(web) as client:
        assert 'data-page="overview"' in client.get("/a/b").text


@pytest.mark.parametrize(("path", "leads_to"), [("jobs/?q=kind:a", "../jobs?q=kind:a"), ("jobs/1/", "../1")])
def test_a_page_with_one_slash_too_many_leads_to_the_page(page: TestClient, path: str, leads_to: str) -> None:
    response = page.get(f"/{path}")

    assert (response.status_code, response.headers["location"]) == (303, leads_to)


# -- acts ---------------------------------------------------------------------------------------


def test_a_button_cancels_and_says_so_on_the_next_page(page: TestClient, app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("greet"))

    response = act(page, f"cancel job {job.id}", back="jobs?q=kind:greet")

    assert (response.status_code, response.headers["location"]) == (303, "jobs?q=kind:greet")  # type: ignore[attr-defined]
    assert "greet is cancelled" in page.get("/jobs").text
    assert "greet is cancelled" not in page.get("/jobs").text
    assert app.sync.get(job.id).state == "cancelled"  # type: ignore[union-attr]


def test_a_held_train_is_released(page: TestClient, app: Dibs) -> None:
    head, behind = app.sync.enqueue(*(NewJob("greet", train="t", on_cancelled="hold") for _ in range(2)))
    app.sync.cancel(head.id)
    assert 'data-act="release"' in page.get("/trains").text

    act(page, "release train t")

    assert app.sync.get(behind.id).state == "ready"  # type: ignore[union-attr]


def test_queues_are_paused_limited_and_resumed(page: TestClient, app: Dibs) -> None:
    act(page, "pause queue my mail")
    act(page, "limit queue my mail", limit="3")
    [queue] = app.sync.queues()
    assert (queue.name, queue.paused, queue.limit) == ("my mail", True, 3)

    act(page, "resume queue my mail")
    act(page, "limit queue my mail", limit="")

    assert not [one for one in app.sync.queues() if one.paused or one.limit]


def test_a_job_runs_again_with_other_arguments(page: TestClient, app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("greet", args={"n": 1}, queue="mail", tags=["x"]))

    response = act(page, f"again job {job.id}", args='{"n": 2}')

    [newest] = app.sync.find(limit=1)
    assert response.headers["location"] == f"jobs/{newest.id}"  # type: ignore[attr-defined]
    assert (newest.args, newest.queue, newest.tags) == ({"n": 2}, "mail", ["x"])


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("cancel job 01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e", 404),
        ("cancel job nonsense", 400),
        ("explode job 01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e", 400),
        ("release train none", 404),
        ("", 400),
    ],
)
def test_what_cannot_be_done_is_an_error_with_a_reason(page: TestClient, what: str, status: int) -> None:
    response = act(page, what)

    assert response.status_code == status  # type: ignore[attr-defined]
    assert "data-said" in response.text  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("limit queue mail", {"limit": "9" * 5000}),
        ("cancel-all search kind:*", {"expect": "9" * 5000}),
        ("cancel job nonsense", {f"more_{number}": "" for number in range(200)}),
    ],
    ids=["limit", "expect", "inputs"],
)
def test_a_form_of_absurd_size_is_refused(page: TestClient, what: str, more: dict[str, str]) -> None:
    response = act(page, what, **more)

    assert response.status_code == 400  # type: ignore[attr-defined]
    assert len(response.text) < 10_000  # type: ignore[attr-defined]


# -- what a page shows --------------------------------------------------------------------------


TWINS = [
    ("queues", ["dibs queues pause NAME", "/queues/NAME/resume", 'app.limit("NAME", 5)']),
    ("trains", ["dibs trains release NAME", "/trains/NAME/release", 'app.trains.release("NAME")']),
    ("schedules", ["dibs schedules run NAME", "/schedules/NAME/pause", 'app.schedules.delete("NAME")']),
    (
        "jobs?q=kind:greet",
        ["dibs jobs retry --all --search kind:greet", "/jobs/cancel", "app.delete_many(q="],
    ),
    ("jobs/{id}", ["dibs jobs cancel {id}", "-X DELETE", "dibs enqueue greet", "app.recover("]),
    ("pipelines/{pipeline}", ["dibs jobs cancel --all --pipeline-id {pipeline}", "app.pipelines.retry("]),
]


@pytest.mark.parametrize(("path", "twins"), TWINS)
def test_each_act_is_shown_as_command_and_curl_and_python(
    page: TestClient, app: Dibs, path: str, twins: list[str]
) -> None:
    names = world_of(app)

    shown = html.unescape(page.get("/" + path.format(**names)).text)

    assert [twin for twin in twins if twin.format(**names) not in shown] == []


@pytest.mark.parametrize("path", ["", "queues"])
def test_a_queue_says_what_comes_in_fails_and_waits_longest(page: TestClient, app: Dibs, path: str) -> None:
    app.sync.enqueue(*(NewJob("greet", queue="mail", max_attempts=1) for _ in range(7)))
    for claim in app.sync.claim(limit=2):
        claim.fail("broken")
    age(app.sync, 90)

    [row] = re.findall(r'<tr data-queue="mail">.*?</tr>', page.get(f"/{path}").text, re.DOTALL)

    cells = [re.sub("<.*?>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
    assert cells[1:10] == ["5", "0", "0", "0", "2", "7", "0", "90 s", "–"]


def test_workers_say_what_they_run_and_which_dibs(page: TestClient, app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("greet"))
    about = {"concurrency": 4, "running": 0}
    app._core.store.run(lambda _: tick("pod-a", ["mail"], ["greet"], version="0.1.0", **about))
    app.sync.claim_job(job.id, worker="pod-a")

    text = re.sub("<.*?>", "", page.get("/workers").text)

    assert re.search(r"pod-a 1 of 4 busy\s+dibs 0.1.0 · queues mail · kinds greet", text)


def test_a_late_write_is_said_and_drawn_where_it_was_refused(page: TestClient, app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("greet"))
    zombie = app.sync.claim_job(job.id, worker="pod-a", lease=1)
    assert zombie is not None
    age(app.sync, 2)
    app.sync.sweep()
    app.sync.claim_job(job.id, worker="pod-b").succeed("done")  # type: ignore[union-attr]
    with pytest.raises(LeaseLost):
        zombie.succeed("late")

    text = page.get(f"/jobs/{job.id}").text

    assert 'data-mark="refused"' in text
    assert f'data-refused="{zombie.token}"' in text
    assert f"a success with token {zombie.token} was refused" in text


def test_a_running_job_says_from_when_on_it_can_be_recovered(page: TestClient, app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("greet"))
    app.sync.claim_job(job.id, lease=60)

    text = page.get(f"/jobs/{job.id}").text

    assert re.search(r'data-act="recover"[^>]*disabled', text)
    assert re.search(r"possible <time[^>]*>in 3[01] min</time>, if", text)


# -- permissions --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*(f"/{name}" for name in PAGES), "/events?of=jobs", "/jobs/1", "/nope"])
def test_without_a_role_every_page_is_closed(app: Dibs, path: str) -> None:
    with client_of(Dashboard(app, authorize=role_of)) as client:
        response = client.get(path)

    assert response.status_code == 403
    assert "greet" not in response.text


def _failed(app: Dibs, kind: str) -> bool:
    return len(app.sync.find(kind=kind, state="failed")) == 1


def _schedules(app: Dibs) -> dict[str, bool]:
    return {one.name: one.paused for one in app.sync.schedules.list()}


# What each button would change, and what is so as long as it did not.
CHANGES: list[tuple[str, Callable[[Dibs], bool]]] = [
    ("retry job {failed}", lambda app: _failed(app, "break")),
    ("cancel job {id}", lambda app: app.sync.counts()["cancelled"] == 0),
    ("recover job {failed}", lambda app: _failed(app, "break")),
    ("delete job {id}", lambda app: len(app.sync.find(kind="greet")) == 1),
    ("again job {id}", lambda app: len(app.sync.find(kind="greet")) == 1),
    ("pause queue default", lambda app: not app.sync.queues()[0].paused),
    ("limit queue default", lambda app: app.sync.queues()[0].limit is None),
    ("release train t", lambda app: len(app.sync.trains.held()) == 1),
    ("run schedule nightly", lambda app: app.sync.find(kind="report") == []),
    ("resume queue held back", lambda app: any(one.paused for one in app.sync.queues())),
    ("retry-all search tag:tenant-1 kind:break", lambda app: _failed(app, "break")),
    ("cancel-all search tag:tenant-1 kind:greet", lambda app: app.sync.counts()["cancelled"] == 0),
    ("delete-all search tag:tenant-1 kind:greet", lambda app: len(app.sync.find(kind="greet")) == 1),
    ("pause schedule nightly", lambda app: _schedules(app)["nightly"] is False),
    ("delete schedule nightly", lambda app: "nightly" in _schedules(app)),
    ("resume schedule asleep", lambda app: _schedules(app)["asleep"] is True),
    ("cancel pipeline {pipeline}", lambda app: app.sync.counts()["cancelled"] == 0),
    ("retry pipeline {ended}", lambda app: _failed(app, "over")),
    ("redrive message {id}", lambda app: True),
    ("verify store all", lambda app: True),
]


def world_of(app: Dibs) -> dict[str, str]:
    """Store a bit of everything of one tenant."""
    own = {"tags": ["tenant-1"]}
    [job, failed, _] = app.sync.enqueue(
        NewJob("greet", **own),
        NewJob("break", train="t", on_failed="hold", max_attempts=1, **own),
        NewJob("break", train="t", **own),
    )
    app.sync.claim_job(failed.id).fail("broken")  # type: ignore[union-attr]
    pipeline = app.sync.pipeline("p")
    pipeline.add(NewJob("extract", **own))
    pipeline.enqueue()
    ended = app.sync.pipeline("ended")
    last = ended.add(NewJob("over", max_attempts=1, **own))
    ended.enqueue()
    app.sync.claim_job(last.id).fail("broken")  # type: ignore[union-attr]
    app.sync.schedules.put("nightly", "0 3 * * *", NewJob("report"))
    app.sync.schedules.put("asleep", "0 3 * * *", NewJob("report"))
    app.sync.schedules.pause("asleep")
    app.sync.pause("held back")
    ids = {"id": job.id, "failed": failed.id, "pipeline": pipeline.id, "ended": ended.id}
    return {name: str(id) for name, id in ids.items()}


def test_every_act_is_in_this_table() -> None:
    known = {(what.split()[1], what.split()[0]) for what, _ in CHANGES}

    assert known == {(target, act) for target, acts in ACTS.items() for act in acts}


@pytest.mark.parametrize(("what", "is_unchanged"), CHANGES)
@pytest.mark.parametrize("user", ["nobody", "reader", "other site", "same site", "old form", "other tenant"])
def test_nothing_changes_without_the_right(
    app: Dibs, what: str, is_unchanged: Callable[[Dibs], bool], user: str
) -> None:
    names = world_of(app)
    scope = (lambda _: {"tags": ["tenant-2"]}) if user == "other tenant" else None
    name = {"nobody": "", "reader": "reader"}.get(user, "writer")
    with client_of(Dashboard(app, authorize=role_of, scope=scope), headers={"x-user": name}) as client:
        client.get("/jobs", headers={"x-user": "writer"})  # a form token, as if the role had been lost since
        form = {"token_of_form": client.cookies["dibs_form"], "act": what.format(**names), "args": "{}"}
        headers = {
            "other site": {"sec-fetch-site": "cross-site"},
            "same site": {"sec-fetch-site": "same-site"},
        }
        if user == "old form":
            form["token_of_form"] = "x" * 43

        response = client.post(
            "/act", data={**form, "limit": "1", "expect": "1"}, headers=headers.get(user, {})
        )

    # Another tenant's search finds nothing, which is another number than the one that was previewed.
    assert response.status_code in ((409,) if "search" in what and user == "other tenant" else (403, 404))
    assert is_unchanged(app)


@pytest.mark.parametrize(
    ("what", "is_unchanged"), [one for one in CHANGES if not re.search("message|store", one[0])]
)
def test_the_same_buttons_work_for_a_writer(
    page: TestClient, app: Dibs, what: str, is_unchanged: Callable[[Dibs], bool]
) -> None:
    response = act(page, what.format(**world_of(app)), args="{}", limit="1", expect="1")

    assert (response.status_code, is_unchanged(app)) in [(303, False), (409, True)]  # type: ignore[attr-defined]


OPEN = ["", "jobs", "jobs/{id}", "jobs/{failed}", "pipelines/{pipeline}"]


@pytest.mark.parametrize(
    ("path", "user"),
    [
        *((path, "nobody") for path in [*PAGES, *OPEN, "events?of=jobs/{id}"]),
        *((path, "other tenant") for path in [*PAGES, *OPEN]),
    ],
)
def test_nothing_is_told_without_the_right(app: Dibs, path: str, user: str) -> None:
    names = world_of(app)
    scope = (lambda _: {"tags": ["tenant-2"]}) if user == "other tenant" else None
    name = "" if user == "nobody" else "writer"
    with client_of(Dashboard(app, authorize=role_of, scope=scope), headers={"x-user": name}) as client:
        response = client.get("/" + path.format(**names))

    shown = response.text.replace(names["id"], "").replace(names["failed"], "").replace(names["pipeline"], "")
    assert not re.search("greet|break|extract|nightly|tenant-1|broken", shown)
    assert response.status_code == 403 if user == "nobody" else response.status_code in (200, 403, 404)


def test_a_tenant_sees_only_its_jobs(app: Dibs) -> None:
    mine, other = app.sync.enqueue(NewJob("mine", tags=["a"]), NewJob("secret", tags=["b"]))
    with client_of(
        Dashboard(app, authorize=role_of, scope=lambda _: {"tags": ["a"]}), headers={"x-user": "writer"}
    ) as client:
        pages = {path: client.get(path) for path in ["/", "/jobs", "/jobs?q=state:ready", f"/jobs/{mine.id}"]}

        assert all(page.status_code == 200 and "secret" not in page.text for page in pages.values())
        assert client.get(f"/jobs/{other.id}").status_code == 404
        for path in ("/queues", "/trains", "/workers", "/outbox", "/health", "/events?of=queues"):
            assert client.get(path).status_code == 403


def test_only_fields_that_are_allowed_are_shown(app: Dibs) -> None:
    app.sync.enqueue(NewJob("greet", args={"card": "4111"}, meta={"ip": "10.0.0.9"}, max_attempts=1))
    [claim] = app.sync.claim()
    claim.fail("broken at 4111")
    with client_of(Dashboard(app, authorize=role_of, fields=()), headers={"x-user": "writer"}) as client:
        shown = [client.get(path).text for path in ("/", "/jobs", f"/jobs/{claim.job.id}")]

    assert not any("4111" in text or "10.0.0.9" in text for text in shown)


# -- login --------------------------------------------------------------------------------------


@pytest.fixture
def login(app: Dibs) -> TokenLogin:
    return TokenLogin(token=TOKEN, read_token=READ_TOKEN)


@pytest.fixture
def door(app: Dibs, login: TokenLogin) -> Iterator[TestClient]:
    with client_of(Dashboard(app, authorize=login)) as client:
        yield client


def test_without_a_session_pages_lead_to_the_login(door: TestClient) -> None:
    response = door.get("/jobs/1?a=b")
    assert (response.status_code, response.headers["location"]) == (303, "../login?next=jobs%2F1%3Fa%3Db")

    form = door.get("/login")

    assert form.status_code == 200
    assert "www-authenticate" not in form.headers
    assert re.search(r'<input[^>]*type="password"[^>]*name="token"', form.text)


def test_the_token_opens_a_session_in_a_cookie_no_script_can_read(door: TestClient) -> None:
    response = door.post("/login?next=jobs%3Fq%3Dkind:a", data={"token": TOKEN})

    assert (response.status_code, response.headers["location"]) == (303, "jobs?q=kind:a")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    assert 'data-page="jobs"' in door.get("/jobs").text


def test_a_page_below_the_path_of_another_keeps_its_own_login(door: TestClient) -> None:
    own = door.post("/login", data={"token": TOKEN}).cookies["dibs_session"]
    door.cookies.clear()

    both = {"cookie": f"dibs_session={own}; dibs_session={'o' * 43}"}

    assert door.get("/jobs", headers=both).status_code == 200


def test_pages_on_two_ports_of_a_host_keep_their_logins(app: Dibs) -> None:
    webs = [client_of(Dashboard(app, authorize=TokenLogin(token=TOKEN))) for _ in range(2)]
    cookies: dict[str, str] = {}  # a browser sends them to all ports of the host
    for port, web in enumerate(webs, 8000):
        cookies |= dict(web.post(f"http://localhost:{port}/login", data={"token": TOKEN}).cookies)

    for port, web in enumerate(webs, 8000):
        sent = {"cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
        assert web.get(f"http://localhost:{port}/jobs", headers=sent).status_code == 200


def test_the_cookie_is_secure_behind_tls(app: Dibs, login: TokenLogin) -> None:
    with client_of(Dashboard(app, authorize=login), base_url="https://testserver") as client:
        assert "Secure" in client.post("/login", data={"token": TOKEN}).headers["set-cookie"]


@pytest.mark.parametrize(
    "next", ["//evil.example", "https://evil.example", "/etc", "jobs/..//x", "\\\\evil", "jobs\r\nx: y"]
)
def test_a_login_leads_nowhere_else(door: TestClient, next: str) -> None:
    response = door.post("/login", params={"next": next}, data={"token": TOKEN})

    assert response.headers["location"] == "./"


def test_wrong_tokens_are_throttled(door: TestClient) -> None:
    answers = [door.post("/login", data={"token": f"wrong {n}"}).status_code for n in range(21)]

    assert answers == [401] * 20 + [429]
    assert door.post("/login", data={"token": TOKEN}).status_code == 429


def test_a_code_logs_in_once(door: TestClient, login: TokenLogin) -> None:
    code = login.new_code()

    assert door.get(f"/login?code={code}").status_code == 303
    door.cookies.clear()
    assert door.get(f"/login?code={code}").status_code == 401


def test_a_log_out_ends_the_session(door: TestClient) -> None:
    door.post("/login", data={"token": TOKEN})
    session = dict(door.cookies)
    door.get("/jobs")

    door.post("/logout", data={"token_of_form": door.cookies["dibs_form"]})

    assert door.get("/jobs", headers={"cookie": f"dibs_session={session['dibs_session']}"}).status_code == 303


def test_a_bearer_token_is_enough_for_programs(door: TestClient, app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("greet"))
    reader, writer = ({"authorization": f"Bearer {token}"} for token in (READ_TOKEN, TOKEN))

    assert door.get("/jobs", headers=reader).status_code == 200
    form = {"act": f"cancel job {job.id}"}
    assert door.post("/act", data=form, headers=reader).status_code == 403
    assert door.post("/act", data=form, headers=writer).status_code == 303
    assert app.sync.get(job.id).state == "cancelled"  # type: ignore[union-attr]


def test_a_reader_has_no_buttons(door: TestClient, app: Dibs) -> None:
    names = world_of(app)
    door.post("/login", data={"token": READ_TOKEN})

    for path in (*PAGES, *OPEN, "jobs?q=state:failed"):
        page = door.get("/" + path.format(**names))
        assert page.status_code == 200
        assert "data-act" not in page.text
        assert re.findall('<form method="post" action="([^"]+)"', page.text) == [
            "../logout" if "{" in path else "logout"
        ]


# -- search -------------------------------------------------------------------------------------


def test_a_search_finds_jobs_by_their_arguments_and_counts_them(page: TestClient, app: Dibs) -> None:
    app.sync.enqueue(*(NewJob("greet", args={"order_id": n}, queue="mail") for n in (41, 42)))

    text = page.get("/jobs", params={"q": "queue:mail args.order_id:42"}).text

    assert len(re.findall("data-job=", text)) == 1
    assert 'data-found="1"' in text


def test_each_word_of_a_search_can_be_left_out(page: TestClient) -> None:
    text = page.get("/jobs", params={"q": 'state:failed queue:mail args.name:"Ann B" late'}).text

    links = [html.unescape(unquote(link)) for link in re.findall(r'class="word" href="([^"]+)"', text)]
    assert links == [
        'jobs?q=state:failed args.name:"Ann B" late',
        "jobs?q=state:failed queue:mail late",
        'jobs?q=state:failed queue:mail args.name:"Ann B"',
    ]


def test_a_search_that_means_nothing_says_what_is_possible(page: TestClient) -> None:
    response = page.get("/jobs", params={"q": "colour:red"})

    assert response.status_code == 400
    assert "state, kind, queue" in response.text


@pytest.mark.parametrize("q", ["args.card:4111", "error:4111", "4111"])
def test_what_may_not_be_seen_may_not_be_searched(app: Dibs, q: str) -> None:
    app.sync.enqueue(NewJob("greet", args={"card": 4111}))
    with client_of(Dashboard(app, authorize=role_of, fields=()), headers={"x-user": "writer"}) as client:
        assert client.get("/jobs", params={"q": q}).status_code == 403


def test_pages_of_a_search_follow_each_other(page: TestClient, app: Dibs) -> None:
    app.sync.enqueue(*(NewJob("greet") for _ in range(60)), NewJob("other"))

    first = page.get("/jobs", params={"q": "kind:greet"}).text
    link = re.search(r'rel="next" href="([^"]+)"', first)
    assert link is not None
    second = page.get("/" + link[1].replace("&amp;", "&")).text

    ids = [re.findall('data-job="([^"]+)"', text) for text in (first, second)]
    assert [len(one) for one in ids] == [50, 10]
    assert not set(ids[0]) & set(ids[1])


# -- all that match -----------------------------------------------------------------------------


def bulk(client: TestClient, q: str, name: str, **typed: str) -> object:
    """Press the button for all that match, as a browser does; return the response."""
    text = client.get("/jobs", params={"q": q}).text
    [form] = [one for one in re.findall(r"<form.*?</form>", text, re.DOTALL) if f'data-act="{name}"' in one]
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form))
    button = re.search(r'<button name="act" value="([^"]+)"', form)
    assert button is not None
    return client.post("/act", data={**fields, "act": button[1], **typed})


def test_all_that_match_are_retried_and_the_result_is_said(page: TestClient, app: Dibs) -> None:
    jobs = app.sync.enqueue(*(NewJob("greet", max_attempts=1) for _ in range(3)), NewJob("other"))
    for job in jobs[:3]:
        app.sync.claim_job(job.id).fail("broken")  # type: ignore[union-attr]
    assert 'data-count="3"' in page.get("/jobs", params={"q": "kind:greet"}).text

    response = bulk(page, "kind:greet", "retry-all")

    assert response.status_code == 303  # type: ignore[attr-defined]
    assert "3 of 3 run again" in page.get("/jobs").text
    assert app.sync.counts()["ready"] == 4


@pytest.mark.parametrize(
    ("q", "numbers", "counts"),
    [
        ("state:failed", {"retry": 60, "delete": 60}, 1),
        ("state:ready", {"cancel": 70, "delete": 70}, 1),
        ("state:ready,failed", {"retry": 60, "cancel": 70, "delete": 130}, 3),
        ("kind:greet", {"retry": 60, "cancel": 75, "delete": 130}, 4),
        ("kind:greet state:running,failed,ready", {"retry": 60, "cancel": 75, "delete": 130}, 4),
    ],
)
def test_a_search_counts_only_what_its_states_leave_open(
    page: TestClient, app: Dibs, monkeypatch: pytest.MonkeyPatch, q: str, numbers: dict[str, int], counts: int
) -> None:
    app.sync.enqueue(*(NewJob("greet", max_attempts=1) for _ in range(135)))
    for claim in app.sync.claim(limit=60):
        claim.fail("broken")
    app.sync.claim(limit=5)
    asked: list[object] = []
    count = app.count
    monkeypatch.setattr(app, "count", lambda **filter: asked.append(filter) or count(**filter))

    text = page.get("/jobs", params={"q": q}).text

    shown = {act: int(number) for act, number in re.findall(r'data-act="(\w+)-all" data-count="(\d+)"', text)}
    assert (shown, len(asked)) == (numbers, counts)


def test_a_search_by_text_that_went_as_far_as_it_may_is_not_repeated(
    page: TestClient, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.operations.search.MOST_SEARCHED", 10)
    app.sync.enqueue(*(NewJob("greet", args={"n": n}) for n in range(30)))
    asked: list[object] = []
    search = app.search
    monkeypatch.setattr(app, "search", lambda *given, **more: asked.append(given) or search(*given, **more))

    text = page.get("/jobs", params={"q": "args.n:25"}).text

    assert 'data-found="1">1+ jobs found' in text
    assert "Looked at the texts of the newest 10 jobs" in text
    assert len(asked) == 1


def test_what_an_act_could_not_change_is_said(page: TestClient, app: Dibs) -> None:
    for _ in range(2):  # the second has the key of the first, which can't be retried then
        app.sync.enqueue(NewJob("greet", unique="only one", max_attempts=1))
        app.sync.claim()[0].fail("broken")

    bulk(page, "kind:greet", "retry-all")

    assert "1 of 2 run again; 1 had moved on" in page.get("/jobs").text


def test_more_than_a_page_found_by_text_have_their_numbers(page: TestClient, app: Dibs) -> None:
    jobs = app.sync.enqueue(*(NewJob("greet", max_attempts=1) for _ in range(70)))
    for claim in app.sync.claim(limit=60):
        claim.fail("Timeout: no answer")
    app.sync.cancel(jobs[-1].id, "Timeout of the customer")

    text = page.get("/jobs", params={"q": "error:Timeout"}).text

    assert 'data-found="60"' in text
    assert dict(re.findall(r'data-act="(\w+-all)" data-count="(\d+)"', text)) == {
        "retry-all": "60",
        "delete-all": "60",
    }


def test_above_a_hundred_the_number_is_typed(page: TestClient, app: Dibs) -> None:
    app.sync.enqueue(*(NewJob("greet") for _ in range(120)))

    assert bulk(page, "kind:greet", "cancel-all").status_code == 400  # type: ignore[attr-defined]
    assert app.sync.counts()["cancelled"] == 0
    assert bulk(page, "kind:greet", "cancel-all", confirm="120").status_code == 303  # type: ignore[attr-defined]

    assert app.sync.counts()["cancelled"] == 120


def test_when_another_number_matches_nothing_is_changed(page: TestClient, app: Dibs) -> None:
    app.sync.enqueue(NewJob("greet"), NewJob("greet"))

    response = bulk(page, "kind:greet", "delete-all", expect="1")

    assert response.status_code == 409  # type: ignore[attr-defined]
    assert app.sync.counts()["ready"] == 2


def test_a_tenant_changes_only_its_own_jobs_in_bulk(app: Dibs) -> None:
    app.sync.enqueue(*(NewJob("greet", tags=[tag]) for tag in "aab"))
    web = Dashboard(app, authorize=role_of, scope=lambda _: {"tags": ["a"]})
    with client_of(web, headers={"x-user": "writer"}) as client:
        bulk(client, "kind:greet", "cancel-all")

    assert {job.state.value for job in app.sync.find(tags="b")} == {"ready"}
    assert {job.state.value for job in app.sync.find(tags="a")} == {"cancelled"}
