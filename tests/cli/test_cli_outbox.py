"""`dibs outbox …`: relay, list, redrive, prune, as people type them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dibs.outbox import Outbox
from tests.support.commands import UNKNOWN, answer, dibs, lines
from tests.support.servers import PostgreSQL, Redis, free_port


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def outbox(url: str) -> Outbox:
    return Outbox(url)


def asked(port: int, path: str) -> str:
    """Return the response, or nothing if no process listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return str(reply.read().decode())
    except urllib.error.HTTPError as refusal:
        return str(refusal.read().decode())
    except OSError:
        return ""


def test_an_outbox_without_messages_says_that_it_may_never_have_been_used(url: str, outbox: Outbox) -> None:
    dibs("migrate", "--url", url)

    done = dibs("outbox", "list", "--url", url)

    assert (done.exit_code, done.stderr) == (0, "no such messages\n")
    assert done.stdout == "total: no messages; this outbox was never published to, or was pruned\n"


def test_messages_are_listed(url: str, outbox: Outbox) -> None:
    id = outbox.sync.publish("orders", {"n": 1}, key="order-1", headers={"a": "b"})
    outbox.sync.publish("orders", {"n": 2}, max_attempts=1)
    outbox.sync.mark_failed(outbox.sync.claim_batch("w1")[1], "no \x1b[31mroute")

    [message] = answer("outbox", "list", "--url", url, "--status", "processing")
    assert (message["id"], message["payload"], message["headers"]) == (str(id), {"n": 1}, {"a": "b"})
    [abandoned] = answer("outbox", "list", "--url", url, "--status", "abandoned", "--topic", "orders")
    assert abandoned["attempts"] == 1

    done = dibs("outbox", "list", "--url", url, "--status", "abandoned")
    heading, row, total = lines(done.stdout)
    assert heading.split() == ["id", "status", "broker", "topic", "key", "attempts", "created", "about"]
    assert "no \\x1b[31mroute" in row
    assert total == "total: 1 processing, 1 abandoned"
    assert answer("outbox", "list", "--url", url) == []


def test_abandoned_messages_are_redriven(url: str, outbox: Outbox) -> None:
    ids = [outbox.sync.publish("orders", {"n": n}, max_attempts=1) for n in range(3)]
    outbox.sync.mark_failed(outbox.sync.claim_batch("w1"), "poison")

    wrong = dibs("outbox", "redrive", ids[0], "nonsense", "--url", url)
    done = dibs("outbox", "redrive", ids[0], UNKNOWN, "--url", url)
    assert (wrong.exit_code, wrong.stdout, len(lines(wrong.stderr))) == (2, "", 1)
    assert (done.exit_code, done.stdout) == (1, "1 message redriven\n")
    assert len(lines(done.stderr)) == 1
    assert answer("outbox", "redrive", "--all", "--url", url) == {"redriven": 2}
    assert outbox.sync.counts()["pending"] == 3
    assert dibs("outbox", "redrive", ids[0], "--url", url).exit_code == 1  # not abandoned any more
    assert dibs("outbox", "redrive", "--url", url).exit_code == 2
    assert dibs("outbox", "redrive", ids[0], "--all", "--url", url).exit_code == 2


def test_published_messages_are_pruned(url: str, outbox: Outbox) -> None:
    outbox.sync.publish("orders", 1)
    outbox.sync.mark_published(outbox.sync.claim_batch("w1"))

    assert answer("outbox", "prune", "--older-than", "1h", "--url", url) == {"pruned": 0}
    done = dibs("outbox", "prune", "--older-than", "0", "--url", url)
    assert (done.exit_code, done.stdout) == (0, "1 message removed\n")


def test_what_is_wrong_is_said_in_a_line(url: str) -> None:
    for words in (
        ["outbox", "relay", "--broker", "kafka://here", "--url", url],
        ["outbox", "relay", "--broker", "nats://here", "--url", "redis://localhost"],
        ["outbox", "list", "--url", "memory://"],
    ):
        done = dibs(*words)
        assert (done.exit_code, len(lines(done.stderr))) == (1, 1), done.stderr
    assert dibs("outbox", "relay", "--url", url).exit_code == 2
    assert dibs("outbox", "list", "--status", "lost", "--url", url).exit_code == 2


def test_a_relay_publishes_until_a_signal(url: str, outbox: Outbox, redis_server: Redis) -> None:
    redis_server.say("SELECT 8", "FLUSHDB")
    outbox.sync.publish("orders", {"n": 1})
    port = free_port()
    words = ["outbox", "relay", "--url", url, "--log-json", "-v", "--health-port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "dibs.cli", *words],
        env={**os.environ, "DIBS_BROKER": redis_server.url(8)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while outbox.sync.counts()["published"] < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        while 'relay_published_total{broker="default",topic="orders"} 1' not in asked(port, "/metrics"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        numbers, health = asked(port, "/metrics").splitlines(), json.loads(asked(port, "/healthz"))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()

    assert 'dibs_outbox_messages{broker="default",status="published"} 1' in numbers
    assert 'dibs_outbox_lag_seconds{broker="default"} 0.0' in numbers
    assert 'dibs_relay_duration_seconds_count{broker="default"} 1' in numbers
    assert (health["status"], health["published"]) == ("ok", 1)
    assert process.returncode == 0
    events = [json.loads(line).get("event") for line in said.splitlines()]
    assert "outbox_published" in events
    assert json.loads(said.splitlines()[-1])["published"] == 1
    assert redis_server.say("SELECT 8", "XLEN orders") == "+OK\r\n:1\r\n"


def test_a_relay_ends_when_idle_with_until_idle(url: str, outbox: Outbox, redis_server: Redis) -> None:
    outbox.sync.publish("orders", {"n": 1}, brokers=["events"])

    done = dibs(
        *("outbox", "relay", "--until-idle", "--url", url), "--broker", f"events={redis_server.url(8)}"
    )

    assert done.exit_code == 0
    assert outbox.sync.counts()["published"] == 1


def test_a_relay_without_its_broker_says_so(url: str, outbox: Outbox) -> None:
    outbox.sync.publish("orders", {"n": 1})
    port, closed = free_port(), free_port()
    words = ["outbox", "relay", "--url", url, "--broker", f"redis://127.0.0.1:{closed}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dibs.cli", *words, "--health-port", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while "unhealthy" not in (said := asked(port, "/healthz")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()

    assert json.loads(said)["reason"].startswith("broker default: ")


def test_a_relay_waits_for_a_database_that_is_not_there_yet(redis_server: Redis) -> None:
    port, closed = free_port(), free_port()
    words = ["outbox", "relay", "--url", f"postgresql://127.0.0.1:{closed}/shop", "--broker"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dibs.cli", *words, redis_server.url(8), "--health-port", str(port)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while "unhealthy" not in (said := asked(port, "/healthz")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()

    assert (process.returncode, "Traceback" in told) == (0, False), told
    assert "does not answer" in json.loads(said)["reason"]


def test_a_relay_that_is_not_let_in_ends_with_a_line(
    url: str, outbox: Outbox, own_redis: Redis, postgresql: PostgreSQL
) -> None:
    own_redis.say("CONFIG SET requirepass secret")
    outbox.sync.publish("orders", {"n": 1})

    refused = dibs("outbox", "relay", "--url", url, "--broker", own_redis.url())
    nowhere = dibs("outbox", "relay", "--url", postgresql.url("nowhere"), "--broker", own_redis.url())

    assert (refused.exit_code, nowhere.exit_code) == (1, 1)
    assert "refused us: " in lines(refused.stderr)[-1]
    assert "can't be used: " in lines(nowhere.stderr)[-1]
