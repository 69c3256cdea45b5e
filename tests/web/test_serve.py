"""`dibs serve`: credentials, hosts, origins, and security headers."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from dibs import Dibs, NewJob
from dibs.app.guards import MOST_ADDRESSES, MOST_WRONG, Throttle
from dibs.cli import app as cli
from dibs.clock import SECOND
from dibs.integrations.service import Credentials, make_service
from dibs.operations import upkeep
from tests.support.internals import run_script
from tests.support.web_apps import EventReader

TOKEN, READ_TOKEN, BASIC = "t0ken-of-a-writer", "t0ken-of-a-reader", "alice:pass:word"
WRITER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = Dibs("memory://")
    service = make_service(app, Credentials(token=TOKEN, read_token=READ_TOKEN, basic=BASIC))
    with TestClient(service, base_url="http://localhost:8000") as client:
        yield client


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "reads", "writes"),
    [
        ("", 401, 401),
        (f"Bearer {TOKEN}", 200, 201),
        (f"bearer {TOKEN}", 200, 201),
        (f"Bearer {READ_TOKEN}", 200, 403),
        (f"Bearer {TOKEN}x", 401, 401),
        ("Bearer ", 401, 401),
        (basic(BASIC), 200, 201),
        (basic("alice:wrong"), 401, 401),
        ("Basic %%%", 401, 401),
        (f"Token {TOKEN}", 401, 401),
    ],
)
def test_a_request_with_a_secret_is_served(
    client: TestClient, authorization: str, reads: int, writes: int
) -> None:
    headers = {"authorization": authorization}

    looked = client.get("/jobs", headers=headers)
    changed = client.post("/jobs", json={"kind": "work"}, headers=headers)

    assert (looked.status_code, changed.status_code) == (reads, writes)
    assert ("www-authenticate" in looked.headers) == (reads == 401)


def test_a_client_that_guesses_has_to_wait(app: Dibs) -> None:
    clock = [1000.0]
    service = make_service(app, Credentials(token=TOKEN, throttle=Throttle(lambda: clock[0])))
    guesser, other = (
        TestClient(service, base_url="http://localhost", client=(address, 1))
        for address in ("10.0.0.1", "10.0.0.2")
    )
    for n in range(MOST_WRONG):
        assert guesser.get("/jobs", headers={"authorization": f"Bearer {n}"}).status_code == 401
        assert guesser.get("/jobs").status_code == 401  # a request without a secret is no guess
    clock[0] += 15.5

    refused = guesser.get("/jobs", headers=WRITER)

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "45")
    assert guesser.get("/healthz").status_code == 200
    assert other.get("/jobs", headers=WRITER).status_code == 200
    clock[0] += 45
    assert guesser.get("/jobs", headers=WRITER).status_code == 200


def test_guesses_are_counted_by_network_and_forgotten_in_time() -> None:
    clock = [0.0]
    throttle = Throttle(lambda: clock[0])
    for n in range(MOST_WRONG):
        throttle.note(f"2001:db8::{n:x}")
        throttle.note("::ffff:10.0.0.1")

    assert throttle.wait("2001:db8::ffff") == throttle.wait("10.0.0.1") == 60
    assert throttle.wait("2001:db8:0:1::1") == throttle.wait(None) == 0
    for n in range(MOST_ADDRESSES):
        throttle.note(f"host-{n}")
    assert len(throttle._wrong) == MOST_ADDRESSES
    clock[0] = 60.0
    assert throttle.wait("10.0.0.1") == 0


@pytest.mark.parametrize("path", ["/jobs", "/queues", "/workers", "/metrics", "/openapi.json", "/events"])
def test_nothing_but_health_is_open(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401
    assert client.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/"])
def test_there_are_no_pages_that_load_scripts_from_elsewhere(client: TestClient, path: str) -> None:
    assert client.get(path, headers=WRITER).status_code == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("", 400),
        ("[::1", 400),
    ],
)
def test_a_host_name_that_is_not_ours_is_refused(client: TestClient, host: str, status: int) -> None:
    assert client.get("/jobs", headers={**WRITER, "host": host}).status_code == status
    assert client.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({}, 201),
        ({"sec-fetch-site": "same-origin", "origin": "http://localhost:8000"}, 201),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
    ],
    ids=repr,
)
def test_a_page_from_elsewhere_changes_nothing(client: TestClient, said: dict[str, str], status: int) -> None:
    answer = client.post("/jobs", json={"kind": "work"}, headers={**WRITER, **said})

    assert answer.status_code == status


@pytest.mark.parametrize("path", ["/jobs", "/healthz", "/nowhere"])
def test_responses_have_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers

    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers


def test_the_document_is_there_with_the_permission_to_read(client: TestClient) -> None:
    document = client.get("/openapi.json", headers={"authorization": f"Bearer {READ_TOKEN}"}).json()

    assert "/jobs/{id}/recover" in document["paths"]


# -- the command ----------------------------------------------------------------------------------


def refused(*words: str, code: int = 1, **environment: str) -> str:
    clean = {"DIBS_TOKEN": "", "DIBS_READ_TOKEN": "", "DIBS_BASIC": "", **environment}
    done = CliRunner().invoke(cli, ["serve", "--url", "memory://", *words], env=clean)
    assert done.exit_code == code
    return done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_are_not_listened_to_without_a_secret(host: str) -> None:
    assert "it needs no token or password" in refused("--host", host)


def test_a_secret_that_is_none_is_refused() -> None:
    assert "USER:PASSWORD" in refused("--basic", "alice", code=2)
    assert "USER:PASSWORD" in refused(DIBS_BASIC="alice:", code=2)


def test_an_address_that_can_not_be_listened_on_is_refused() -> None:
    assert "can't listen on 192.0.2.1" in refused("--host", "192.0.2.1", DIBS_TOKEN=TOKEN)


def test_a_store_without_tables_is_said_before_anything_is_served(tmp_path: Path) -> None:
    assert "can't open" in refused("--url", f"sqlite:///{tmp_path}/no/jobs.db")


@contextmanager
def served(
    url: str, *words: str, log: IO[str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    command = [sys.executable, "-m", "dibs.cli", "--url", url, "serve", "--port", "0", "--json", *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=kept)
    try:
        assert server.stdout is not None
        yield server, json.loads(server.stdout.readline())
    finally:
        server.kill()
        server.communicate()


def test_on_this_machine_a_token_for_one_run_is_enough(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Dibs(url).sync as store:
        [job] = store.enqueue(NewJob("work"))

    async def follow(port: int, token: str) -> list[str]:
        stranger = await EventReader.open(port, "/jobs", authorization="Bearer guess")
        await stranger.close()
        stream = await EventReader.open(port, f"/jobs/{job.id}/events", authorization=f"Bearer {token}")
        first = await stream.next()
        server.send_signal(signal.SIGTERM)
        return [str(stranger.status), first["event"], *(event["event"] for event in await stream.rest())]

    with served(url) as (server, said):
        port = int(said["url"].rpartition(":")[2])
        heard = asyncio.run(follow(port, said["token"]))
        code = server.wait(60)

    assert heard == ["401", "snapshot", "resync"]
    assert code == 0
    assert said["store"] == url


@pytest.mark.parametrize("trusted", [True, False])
def test_only_a_trusted_proxy_says_where_a_request_comes_from(tmp_path: Path, trusted: bool) -> None:
    words = ["--trust-proxy", "127.0.0.1"] if trusted else []
    with served(f"sqlite:///{tmp_path}/jobs.db", *words) as (_, said):
        asking = http.client.HTTPConnection("127.0.0.1", int(said["url"].rpartition(":")[2]), timeout=60)

        def asked(token: str, client: str) -> int:
            headers = {"authorization": f"Bearer {token}", "x-forwarded-for": client}
            asking.request("GET", "/jobs", headers=headers)
            answer = asking.getresponse()
            answer.read()
            return answer.status

        for n in range(MOST_WRONG):
            assert asked(f"wrong {n}", "10.0.0.1") == 401
        statuses = [asked(said["token"], client) for client in ("10.0.0.1", "10.0.0.2")]
        asking.close()

    assert statuses == ([429, 200] if trusted else [429, 429])


@pytest.fixture
def by_hand(tmp_path: Path) -> Callable[..., tuple[list[str], list[str]]]:
    """Change a served store as alice, and return the log, line by line."""
    url = f"sqlite:///{tmp_path}/jobs.db"

    def served_and_changed(*words: str) -> tuple[list[str], list[str]]:
        with Dibs(url).sync as store:
            left, waiting = store.enqueue(NewJob("left"), NewJob("waiting"))
            store.claim_job(left.id, worker="pod-a")
            run_script(store, lambda: upkeep.age(24 * 3600 * SECOND))
        routes = [
            f"/jobs/{left.id}/recover",
            f"/jobs/{waiting.id}/cancel",
            f"/jobs/{waiting.id}/retry",
            "/queues/mail/pause",
            "/queues/mail/resume",
        ]
        headers = {"authorization": basic(BASIC), "content-type": "application/json"}
        with (
            (tmp_path / "log").open("w") as log,
            served(url, "--basic", BASIC, *words, log=log) as (_, said),
        ):
            asking = http.client.HTTPConnection("127.0.0.1", int(said["url"].rpartition(":")[2]), timeout=60)
            answers = []
            for path, body in [("/jobs", '{"kind": "new"}'), *((route, "{}") for route in routes)]:
                asking.request("POST", path, body, headers)
                answer = asking.getresponse()
                answers.append(answer.read())
                assert answer.status in (200, 201), answers[-1]
            asking.close()
        ids = [json.loads(answers[0])["id"], left.id, waiting.id, waiting.id, "mail", "mail"]
        verbs = ["enqueue", "recover", "cancel", "retry", "pause", "resume"]
        done = [f"{verb} {id}, by alice" for verb, id in zip(verbs, ids, strict=True)]
        return done, (tmp_path / "log").read_text().splitlines()

    return served_and_changed


def test_a_change_by_hand_is_a_log_line_with_the_user(
    by_hand: Callable[..., tuple[list[str], list[str]]],
) -> None:
    done, lines = by_hand()

    assert [line.partition(" ! ")[2] for line in lines] == done


def test_the_log_may_be_json(by_hand: Callable[..., tuple[list[str], list[str]]]) -> None:
    done, lines = by_hand("--log-json")

    told = [json.loads(line) for line in lines]
    assert [one["message"] for one in told] == done
    assert {(one["event"], one["by"], one["level"]) for one in told} == {("acted", "alice", "notice")}
