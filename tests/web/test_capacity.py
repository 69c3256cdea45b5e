"""A service that is exposed: slow and silent clients, and many of them, shut no operator out."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from dibs.app.guards import StreamLimit, most_connections
from dibs.integrations import service as service_module
from dibs.integrations.fastapi import requests
from dibs.integrations.service import limited_to
from tests.support.web_apps import EventReader, make_web, on_a_port

TOKEN, READ_TOKEN = "t0ken-of-the-operator", "t0ken-of-a-reader"
FILES = 256


def connected(port: int, said: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.sendall(said)
    return client


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /jobs HTTP/1.1\r\nHost: x\r\n",
        b"POST /jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_request_that_takes_too_long_ends(app: Dibs, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "HEAD_LIMIT", 0.3)
    monkeypatch.setattr(service_module, "BODY_LIMIT", 0.3)

    with on_a_port(make_web(app), http=limited_to(50)) as port, connected(port, said) as client:
        assert ended(client)


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_the_routes_mind_the_time_of_a_body_on_any_server(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_LIMIT", 0.3)
    head = b"POST /jobs HTTP/1.1\r\nhost: x\r\nauthorization: writer\r\ncontent-length: 9\r\n\r\n{"

    with on_a_port(make_web(app)) as port, connected(port, head) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 408")


def test_requests_on_one_connection_have_a_deadline_each(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "HEAD_LIMIT", 0.5)

    with on_a_port(make_web(app), http=limited_to(50)) as port:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(8):
            asking.request("GET", "/healthz")
            assert asking.getresponse().read() == b'{"status":"ok"}'
            time.sleep(0.1)
        asking.close()


def test_one_client_has_at_most_half_of_the_streams() -> None:
    limit = StreamLimit(1024)
    assert (limit.most, most_connections(1024)) == (416, 832)
    with ExitStack() as stack:
        for _ in range(208):
            assert limit.refusal("ann") is None
            stack.enter_context(limit.counted("ann"))

        assert limit.refusal("ann") == "208 streams of yours are open already"
        assert limit.refusal("bob") is None
        for n in range(208):
            stack.enter_context(limit.counted(str(n)))
        assert limit.refusal("bob") == "416 streams are open already"
    assert limit.refusal("ann") is None
    assert not limit._open


@pytest.fixture
def service(tmp_path: Path) -> Iterator[int]:
    """Serve a store from a process that may open few files."""
    command = [sys.executable, "-m", "dibs.cli", "--url", f"sqlite:///{tmp_path}/jobs.db", "serve"]
    words = ["--port", "0", "--json", "--token", TOKEN, "--read-token", READ_TOKEN]
    few = (FILES, FILES)
    server = subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, few),
    )
    try:
        assert server.stdout is not None
        yield int(json.loads(server.stdout.readline())["url"].rpartition(":")[2])
    finally:
        server.kill()
        server.communicate()


def asked(port: int, path: str, **headers: str) -> int:
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    asking.request("GET", path, headers=headers)
    answer = asking.getresponse()
    answer.read()
    asking.close()
    return answer.status


@contextmanager
def crowd(port: int, said: bytes) -> Iterator[None]:
    """Open more connections than the service may have files."""
    with ExitStack() as stack:
        for _ in range(2 * FILES):
            stack.enter_context(connected(port, said))
        yield


@pytest.mark.parametrize("said", [b"", b"GET /jobs HTTP/1.1\r\n"], ids=["silent", "slow"])
def test_a_crowd_without_a_secret_shuts_nobody_out(service: int, said: bytes) -> None:
    with crowd(service, said):
        assert asked(service, "/healthz") == 200
        assert asked(service, "/jobs", authorization=f"Bearer {TOKEN}") == 200


def test_a_reader_with_many_streams_shuts_the_operator_not_out(service: int) -> None:
    async def follow(token: str, number: int) -> list[Any]:
        secret = f"Bearer {token}"
        return [await EventReader.open(service, "/events", authorization=secret) for _ in range(number)]

    async def fill() -> list[int]:
        read = await follow(READ_TOKEN, 40)
        own = await follow(TOKEN, 1)
        for path in ("/healthz", "/jobs"):
            status = await asyncio.to_thread(asked, service, path, authorization=f"Bearer {TOKEN}")
            assert status == 200
        statuses = [stream.status for stream in (*read, *own)]
        for stream in (*read, *own):
            await stream.close()
        return statuses

    *read, own = asyncio.run(fill())
    most = StreamLimit(FILES).most // 2
    assert (read, own) == ([200] * most + [503] * (40 - most), 200)
