"""What the doctor finds on a Redis that really is set up like that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
import redis

from dibs import Dibs, Finding, NewJob
from tests.support.fault_stores import face_of, wait_until
from tests.support.servers import HOST, Redis


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(own_redis: Redis) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(own_redis.url(), decode_responses=True)) as client:
        yield client


def findings(url: str, face: str = "sync") -> list[Finding]:
    owner = Dibs(url)
    with face_of(owner, face) as app, closing(owner.sync):
        found: list[Finding] = app.doctor()
        return found


def said(topic: str, found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.level, one.sentence) for one in found if one.topic == topic]


def test_a_server_that_writes_every_change_to_disk_is_well(own_redis: Redis, face: str) -> None:
    found = findings(own_redis.url(), face)

    assert {one.topic for one in found if one.level != "ok"} == {"workers"}
    [(_, sentence)] = said("durability", found)
    assert "appendonly yes, appendfsync always" in sentence


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"appendfsync": "everysec"}, [("note", "appendfsync is everysec")]),
        ({"appendonly": "no"}, [("warning", "appendonly is no")]),
        ({"appendonly": "no", "save": ""}, [("warning", "appendonly is no"), ("warning", "save is off")]),
    ],
    ids=["everysec", "snapshots", "nothing"],
)
def test_what_a_crash_would_lose_is_said(
    own_redis: Redis, client: redis.Redis, settings: dict[str, str], words: list[tuple[str, str]]
) -> None:
    for name, value in settings.items():
        client.config_set(name, value)

    found = said("durability", findings(own_redis.url()))

    assert [(level, sentence.split(":")[0]) for level, sentence in found] == words


def test_who_may_not_see_the_configuration_hears_the_rest(
    own_redis: Redis, client: redis.Redis, face: str
) -> None:
    client.config_set("appendonly", "no")
    client.execute_command("ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all", "-config")
    url = own_redis.url().replace("redis://", "redis://app:s3cret@")

    found = findings(url, face)

    assert [level for level, _ in said("durability", found)] == ["warning"]
    assert said("wake-ups", found)[0][0] == "ok"


def test_a_server_that_evicts_is_a_problem(own_redis: Redis, client: redis.Redis, face: str) -> None:
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "allkeys-lru")

    [refused] = findings(own_redis.url(), face)
    allowed = said("memory", findings(f"{own_redis.url()}?allow_eviction=true", face))

    assert refused.level == "problem"
    assert "allkeys-lru" in refused.sentence
    assert [level for level, _ in allowed] == ["problem", "ok"]


def test_a_replica_is_a_problem(own_redis: Redis, client: redis.Redis, face: str) -> None:
    with Redis() as replica, closing(redis.Redis.from_url(replica.url(), decode_responses=True)) as follower:
        client.config_set("repl-diskless-sync-delay", "0")
        follower.replicaof(HOST, own_redis.port)
        wait_until(lambda: follower.info("replication")["master_link_status"] == "up")

        found = said("writable", findings(replica.url(), face))

    assert [level for level, _ in found] == ["problem"]
    assert "standby" in found[0][1]


def test_the_oldest_ready_job_is_found_among_all_priorities(own_redis: Redis) -> None:
    """Ready jobs are ordered by priority first; the oldest may be anywhere."""
    now = datetime.now(UTC)
    with closing(Dibs(own_redis.url()).sync) as app:
        for priority, minutes in ((-32767, 5), (0, 20), (7, 10), (32767, 1)):
            jobs = [
                NewJob("work", priority=priority, run_at=now - timedelta(minutes=minutes - late))
                for late in (0, 0.5)
            ]
            app.enqueue(*jobs)

        [(_, sentence)] = said("waiting", app.doctor())

    assert "8 ready, the oldest for 20 min" in sentence
