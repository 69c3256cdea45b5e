"""A Redis that is full, evicts, follows another one, restarts, or is a cluster: said clearly, none lost."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis

from dibs import BadRequest, Dibs, NewJob, NotPermitted, StoreUnavailable, UnknownEngine, UnsafeStore
from dibs.engines import hints
from dibs.engines.hints import hint_of
from dibs.engines.redis import connection as redis_nodes
from dibs.engines.redis.connection import RedisNode
from dibs.engines.redis.protocol import BrokenReply, ReplyError
from dibs.engines.retries import TryAgain
from tests.support import proxy as proxies
from tests.support.fault_stores import face_of, wait_until
from tests.support.param_names import named
from tests.support.proxy import FaultProxy
from tests.support.redis_checks import everything, misplaced
from tests.support.servers import Redis, RedisCluster, free_port


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(own_redis: Redis) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(own_redis.url(), decode_responses=True)) as client:
        yield client


@pytest.fixture
def app(own_redis: Redis) -> Iterator[Dibs]:
    app = Dibs(own_redis.url())
    yield app
    app.sync.close()


# -- Memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_a_server_that_evicts_is_refused(
    own_redis: Redis, client: redis.Redis, face: str, policy: str
) -> None:
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", policy)

    with face_of(Dibs(own_redis.url()), face) as app:
        for call in (app.open, app.counts):
            with pytest.raises(UnsafeStore, match=rf"{policy}.*noeviction"):
                call()
    with face_of(Dibs(f"{own_redis.url()}?allow_eviction=true"), face) as app:
        assert app.enqueue(NewJob("work"))[0].is_new
        app.sync.close() if face == "async" else app.close()


def test_a_policy_without_a_limit_evicts_nothing(own_redis: Redis, client: redis.Redis, app: Dibs) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")

    assert app.sync.enqueue(NewJob("work"))[0].is_new


def test_a_full_server_refuses_new_jobs_clearly_and_lets_running_ones_end(
    client: redis.Redis, app: Dibs
) -> None:
    app.sync.enqueue(NewJob("work"), NewJob("work"), NewJob("work"))
    held = app.sync.claim(limit=2)
    client.config_set("maxmemory", "1mb")

    with pytest.raises(StoreUnavailable, match=r"OOM.*maxmemory"):
        app.sync.enqueue(NewJob("more"))
    held[0].succeed("well")
    held[1].fail("badly")
    [third] = app.sync.claim()
    third.succeed()

    counts = app.sync.counts()
    assert (counts["succeeded"], counts["scheduled"], counts["running"], counts["ready"]) == (2, 1, 0, 0)
    assert misplaced(client) == []


def test_a_version_that_is_too_old_is_refused() -> None:
    asking = RedisNode("redis://host").check("redis_version:6.0.9\r\n", None)

    with pytest.raises(UnknownEngine, match=r"6\.0\.9.*6\.2"):
        next(asking)


# -- Errors -------------------------------------------------------------------------------------

AGAIN = [
    ReplyError("LOADING Redis is loading the dataset in memory"),
    ReplyError("READONLY You can't write against a read only replica."),
    ReplyError("CLUSTERDOWN The cluster is down"),
    ReplyError("MASTERDOWN Link with MASTER is down"),
    ReplyError("TRYAGAIN Multiple keys request during rehashing of slot"),
    ReplyError("ASK 7 127.0.0.1:7001"),
    ReplyError("MISCONF Redis is configured to save RDB snapshots"),
    ReplyError("NOREPLICAS Not enough good replicas to write."),
    ReplyError("BUSY Redis is busy running a script."),
    ReplyError("ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write"),
    ReplyError("ERR max number of clients reached"),
    ReplyError("ERR max number of clients + cluster connections reached"),
]


@pytest.mark.parametrize("error", AGAIN, ids=lambda error: str(error)[:40])
def test_an_error_that_passes_is_tried_again(error: Exception) -> None:
    judged = RedisNode("redis://host").judge(error)

    assert isinstance(judged, TryAgain)
    assert not judged.unsure
    assert "Redis at host:6379" in str(judged.final(waited=1))


@pytest.mark.parametrize(
    "error",
    [
        ReplyError("WRONGPASS invalid username-password pair"),
        ReplyError("NOPERM this user has no permissions to run the 'eval' command"),
    ],
    ids=named,
)
def test_an_error_that_stays_is_said(error: Exception) -> None:
    judged = RedisNode("redis://:s3cret@host").judge(error)

    assert isinstance(judged, StoreUnavailable | NotPermitted)
    assert str(error) in str(judged)
    assert "s3cret" not in str(judged)


def test_a_server_with_too_many_connections_is_waited_for(
    own_redis: Redis, client: redis.Redis, face: str
) -> None:
    with client.client() as known:  # its connection stays open, even where another one is refused
        known.config_set("maxclients", 1)
        lift = threading.Timer(0.3, known.config_set, ("maxclients", 1000))
        lift.start()
        try:
            with face_of(Dibs(own_redis.url()), face) as app:
                assert app.counts()["ready"] == 0
        finally:
            lift.join()


def test_a_broken_connection_leaves_us_unsure() -> None:
    for error in (BrokenReply("no end"), TimeoutError("slow"), OSError("gone")):
        judged = RedisNode("redis://host").judge(error)

        assert isinstance(judged, TryAgain)
        assert judged.unsure


def test_a_server_that_became_a_replica_is_waited_for(client: redis.Redis, app: Dibs, face: str) -> None:
    with face_of(app, face) as faced:
        faced.enqueue(NewJob("work"))
        client.replicaof("127.0.0.1", 1)
        promote = threading.Timer(0.3, client.replicaof, ("no", "one"))
        promote.start()
        try:
            [claim] = faced.claim()
            claim.succeed()

            assert faced.counts()["succeeded"] == 1
        finally:
            promote.join()


def test_a_replica_that_stays_one_is_said(client: redis.Redis, app: Dibs) -> None:
    app.sync.open()
    client.replicaof("127.0.0.1", 1)

    with pytest.raises(StoreUnavailable, match="read only replica"):
        app.sync.enqueue(NewJob("work"))


# -- More than one script takes -------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_bulk_enqueue_cut_between_its_pieces_is_stored_once_and_all_new(
    own_redis: Redis, app: Dibs, face: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "QUIET_SECONDS", 0.005)
    news = [NewJob("work", {"n": n}) for n in range(2500)]
    with FaultProxy(own_redis.port, ready=b"") as proxy, ExitStack() as stack:
        through = Dibs(f"redis://127.0.0.1:{proxy.port}/0")
        stack.callback(through.sync.close)
        faced = stack.enter_context(face_of(through, face))
        (proxy.cut_before if moment == "before" else proxy.cut_after)(str(news[1500].id).encode())

        jobs = faced.enqueue(*news)

    assert proxy.fired == 1
    assert [(job.id, job.is_new) for job in jobs] == [(new.id, True) for new in news]
    assert app.sync.counts()["ready"] == 2500


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem, signed by itself for localhost, and key.pem."""
    folder = tmp_path_factory.mktemp("tls")
    new = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*new.split(), *names], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def tls_port(certificate: Path) -> Iterator[int]:
    port = free_port()
    files = {"tls-cert-file": f"{certificate}/cert.pem", "tls-key-file": f"{certificate}/key.pem"}
    others = {"tls-port": str(port), "tls-ca-cert-file": f"{certificate}/cert.pem", "tls-auth-clients": "no"}
    with Redis({**files, **others}):
        yield port


def test_tls_checks_the_certificate_unless_the_url_says_otherwise(
    tls_port: int, certificate: Path, face: str
) -> None:
    address = f"rediss://localhost:{tls_port}/0"
    for options in (f"?ssl_ca_certs={certificate}/cert.pem", "?ssl_cert_reqs=none"):
        with face_of(Dibs(address + options), face) as app:
            assert app.enqueue(NewJob("work"))[0].is_new

    with (
        face_of(Dibs(address), face) as app,
        pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        app.counts()


@pytest.mark.parametrize(
    "options", ["?ssl_cert_reqs=maybe", "?ssl_check_hostname=maybe", "?socket_timeout=3"]
)
def test_an_option_of_the_url_that_means_nothing_is_refused(options: str) -> None:
    with pytest.raises(BadRequest, match=options[1:].partition("=")[0]):
        Dibs(f"rediss://host{options}")


# -- Killed ---------------------------------------------------------------------------------------


def test_what_was_acknowledged_survives_kill_nine(own_redis: Redis, client: redis.Redis, app: Dibs) -> None:
    """Every change is on disk before it is acknowledged (appendfsync always); see docs/guarantees.md."""
    enqueued, done, over = _Told(), _Told(), threading.Event()
    threads = [
        threading.Thread(target=deed, args=(Dibs(own_redis.url()).sync, told, over))
        for deed, told in (
            (_enqueue_on, enqueued),
            (_enqueue_on, enqueued),
            (_work_on, done),
            (_work_on, done),
        )
    ]
    for thread in threads:
        thread.start()

    for _ in range(3):
        before = len(done.ids)
        wait_until(lambda before=before: len(done.ids) > before + 30)
        own_redis.kill()
        own_redis.start()
    over.set()
    for thread in threads:
        thread.join(60)

    stored = {job.id: job.state for state in ("ready", "running", "succeeded") for job in _all(app, state)}
    assert enqueued.ids <= stored.keys(), "an acknowledged job is gone"
    assert {stored[id] for id in done.ids} == {"succeeded"}, "an acknowledged success is gone"
    assert misplaced(client) == []
    assert len(done.ids) > 90


class _Told:
    def __init__(self) -> None:
        self.ids: set[Any] = set()


def _enqueue_on(app: Any, told: _Told, over: threading.Event) -> None:
    with app:
        while not over.is_set():
            news = [NewJob("work") for _ in range(5)]
            try:
                told.ids |= {job.id for job in app.enqueue(*news)}
            except StoreUnavailable:
                time.sleep(0.05)


def _work_on(app: Any, told: _Told, over: threading.Event) -> None:
    with app:
        while not over.is_set():
            try:
                for claim in app.claim(limit=3, lease=600):
                    claim.succeed()
                    told.ids.add(claim.job.id)
            except StoreUnavailable:
                time.sleep(0.05)


def _all(app: Dibs, state: str) -> list[Any]:
    found: list[Any] = []
    while page := app.sync.find(state=state, limit=1000, after=found[-1].id if found else None):
        found += page
    return found


# -- Wake-ups -------------------------------------------------------------------------------------


def test_a_burst_of_enqueues_is_announced_a_few_times_not_each_time(
    client: redis.Redis, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "MODERATE", 1.0)  # seconds: however slow this machine is, it is a burst
    app.sync.open()
    with client.pubsub() as listening:
        listening.subscribe("{dibs}:wake")
        began = time.monotonic()
        for _ in range(200):
            app.sync.enqueue(NewJob("work", queue="mail"))
        spent = time.monotonic() - began
        heard = []
        while message := listening.get_message(timeout=0.3):
            heard += [message["data"]] if message["type"] == "message" else []

    assert set(heard) == {hint_of("mail", ["work"])}
    assert 1 <= len(heard) <= spent / 0.02 + 1


# -- A cluster ------------------------------------------------------------------------------------


@pytest.fixture
def own_cluster() -> Iterator[RedisCluster]:
    with RedisCluster({"appendonly": "no"}) as cluster:
        yield cluster


@pytest.mark.parametrize("node", [0, 1, 2])
def test_any_node_of_a_cluster_leads_to_the_store(redis_cluster: RedisCluster, face: str, node: int) -> None:
    with face_of(Dibs(redis_cluster.nodes[node].url()), face) as app:
        [job] = app.enqueue(NewJob("work", queue=f"from-{node}"))
        [claim] = app.claim(queues=[f"from-{node}"])
        claim.succeed()

        assert app.get(job.id).state == "succeeded"
        if face == "sync":
            app.close()


def test_a_slot_on_its_way_to_another_node_changes_nothing_half(own_cluster: RedisCluster) -> None:
    *_, target, home = own_cluster.nodes
    with (
        closing(redis.Redis.from_url(home.url(), decode_responses=True)) as here,
        closing(redis.Redis.from_url(target.url(), decode_responses=True)) as there,
        Dibs(home.url()).sync as app,
    ):
        [job] = app.enqueue(NewJob("work"))
        app.enqueue(NewJob("work"))
        slot = here.cluster("KEYSLOT", "{dibs}")
        ids = {"here": here.cluster("MYID"), "there": there.cluster("MYID")}
        there.cluster("SETSLOT", slot, "IMPORTING", ids["here"])
        here.cluster("SETSLOT", slot, "MIGRATING", ids["there"])
        before = everything(here)

        for call in (lambda: app.enqueue(NewJob("work")), lambda: app.claim_job(job.id)):
            with pytest.raises(StoreUnavailable):
                call()
        assert everything(here) == before

        _move_all(here, target.port, slot)
        for node in (here, there):
            node.cluster("SETSLOT", slot, "NODE", ids["there"])
        assert app.claim_job(job.id) is not None
        assert misplaced(there) == []


def _move_all(here: redis.Redis, port: int, slot: int) -> None:
    while keys := here.cluster("GETKEYSINSLOT", slot, 100):
        here.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)


def test_a_node_that_is_gone_is_looked_for_at_the_others(own_cluster: RedisCluster) -> None:
    first, _, home = own_cluster.nodes
    with Dibs(first.url()).sync as app:
        app.enqueue(NewJob("work"))

        first.kill()
        assert app.counts()["ready"] == 1
        home.restart()
        wait_until(lambda: _answers(app))


def _answers(app: Any) -> bool:
    try:
        return sum(app.counts().values()) == 0  # it keeps nothing on disk
    except StoreUnavailable:
        return False


@pytest.mark.parametrize("login", ["clerk", "clerk:", "clerk:any"])
def test_a_user_without_a_password_logs_in(own_redis: Redis, client: redis.Redis, login: str) -> None:
    client.execute_command("ACL", "SETUSER", "clerk", "on", "nopass", "~*", "&*", "+@all")

    with Dibs(own_redis.url().replace("redis://", f"redis://{login}@")).sync as app:
        assert app.counts()["ready"] == 0


def test_the_name_of_a_store_never_tells_its_password() -> None:
    assert RedisNode("rediss://user:s3cret@host:1/2").name == "Redis at host:1, database 2"
    assert redis_nodes.RedisNode("valkey://host").name == "Redis at host:6379, database 0"
