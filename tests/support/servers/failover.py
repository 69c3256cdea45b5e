"""Servers with a standby that takes over: PostgreSQL with streaming replication, Redis with Sentinel."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from typing import Self
from urllib.parse import urlsplit

import redis

from tests.support.servers.processes import HOST, START_SECONDS, ServerFailed, free_port, guarded, run_command
from tests.support.servers.redis import Redis
from tests.support.servers.server import Server
from tests.support.servers.sql import PostgreSQL

WATCHED = "mymaster"


def _wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise ServerFailed(f"{what} did not happen within {START_SECONDS} s")
        time.sleep(0.02)


# -- PostgreSQL ---------------------------------------------------------------------------------


class Standby(PostgreSQL):
    """A copy of a running PostgreSQL that follows it until it is promoted."""

    def __init__(self, primary: PostgreSQL) -> None:
        self._primary = primary
        super().__init__()

    def _prepare(self) -> None:
        self._data = self.folder / "data"
        copy = [self._find("pg_basebackup"), "-h", HOST, "-p", str(self._primary.port), "-U", "postgres"]
        options = ["-D", str(self._data), "-R", "-X", "stream", "-c", "fast", "--no-sync"]
        run_command([*guarded(self.account, "KILL"), *copy, *options], folder=self.folder)
        with (self._data / "postgresql.conf").open("a") as config:
            config.writelines(f"{key} = '{value}'\n" for key, value in self._configuration().items())

    def stop_following(self) -> None:
        with self.connect() as connection:
            connection.execute("alter system set primary_conninfo = ''")
            connection.execute("select pg_reload_conf()")
            reads = "select count(*) from pg_stat_wal_receiver"
            _wait(lambda: connection.execute(reads).fetchone() == (0,), "the end of the replication")


class PostgresPair:
    """A primary and its standby, and the address of both."""

    def __init__(self, *, synchronous: bool) -> None:
        self.primary = PostgreSQL()
        self.primary.start()
        self.standby = Standby(self.primary)
        self.standby.start()
        with self.primary.connect() as connection:
            if synchronous:
                connection.execute("alter system set synchronous_standby_names = '*'")
                connection.execute("select pg_reload_conf()")
            wanted = ("sync" if synchronous else "async",)
            states = "select sync_state from pg_stat_replication"
            _wait(lambda: connection.execute(states).fetchone() == wanted, "the replication")

    @property
    def url(self) -> str:
        places = f"{HOST}:{self.primary.port},{HOST}:{self.standby.port}"
        return f"postgresql://postgres@{places}/postgres?target_session_attrs=read-write"

    def wait_for_standby(self) -> None:
        """Wait until the standby has all that was committed by now."""
        with self.primary.connect() as connection:
            [written] = connection.execute("select pg_current_wal_lsn()").fetchone()
        with self.standby.connect() as connection:
            replayed = f"select pg_last_wal_replay_lsn() >= '{written}'"
            _wait(lambda: connection.execute(replayed).fetchone() == (True,), "the replay")

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        with self.standby.connect() as connection:
            connection.execute("select pg_promote()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.standby.remove()
        self.primary.remove()


# -- Redis with Sentinel --------------------------------------------------------------------------


class Sentinel(Server):
    """One process of Sentinel that watches one primary."""

    name = "Sentinel"
    binary = "redis-server"
    package = "redis-server"
    hello = b"PING\r\n"
    greeting = b"+PONG"

    def __init__(self, port: int, down_after: float = 1.0) -> None:
        self._watched, self._down_after = port, round(down_after * 1000)
        super().__init__()

    def _prepare(self) -> None:
        (self.folder / "sentinel.conf").write_text(
            f"port {self.port}\nbind {HOST}\ndir {self.folder}\n"
            f"sentinel monitor {WATCHED} {HOST} {self._watched} 1\n"
            f"sentinel down-after-milliseconds {WATCHED} {self._down_after}\n"
            f"sentinel failover-timeout {WATCHED} 5000\n"
        )

    def _command(self) -> list[str]:
        return [self._find("redis-server"), str(self.folder / "sentinel.conf"), "--sentinel"]


class WatchedRedis(Redis):
    """A Redis whose address is that of the Sentinels that watch it."""

    sentinels = ""

    def url(self, database: int = 0) -> str:
        return f"redis+sentinel://{self.sentinels}/{WATCHED}/{database}"


def primary_url(url: str) -> str:
    """The address that any client of Redis takes: of the primary that the Sentinels name now."""
    parts = urlsplit(url)
    if parts.scheme != "redis+sentinel":
        return url
    places = [place.rsplit(":", 1) for place in parts.netloc.split(",")]
    _, name, database = parts.path.split("/")
    sentinels = [(host, int(port)) for host, port in reversed(places)]  # the first one is not there
    host, port = redis.Sentinel(sentinels).discover_master(name)
    return f"redis://{host}:{port}/{database}"


class RedisPair:
    """A primary, its replica, a Sentinel that watches them, and the address of that."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        settings = settings or {}
        self.primary, self.replica = WatchedRedis(settings), Redis(settings)
        self.primary.start()
        self.replica.settings = {**settings, "replicaof": f"{HOST} {self.primary.port}"}
        self.replica.start()
        _wait(lambda: "master_link_status:up" in self.replica.say("INFO replication"), "the replication")
        self.sentinel = Sentinel(self.primary.port)
        self.sentinel.start()
        # Its first Sentinel is not there: the next one is asked.
        self.primary.sentinels = f"{HOST}:{free_port()},{HOST}:{self.sentinel.port}"
        _wait(self._knows_replica, "the discovery of the replica")

    @property
    def url(self) -> str:
        return self.primary.url()

    def fail_over(self) -> None:
        """Kill the primary, and wait until Sentinel has promoted the replica."""
        self.primary.kill()
        _wait(lambda: "role:master" in self.replica.say("INFO replication"), "the promotion")

    def _knows_replica(self) -> bool:
        with contextlib.suppress(OSError):
            return "slaves=1" in _sentinel_info(self.sentinel.port)
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.sentinel, self.replica, self.primary):
            server.remove()


def _sentinel_info(port: int) -> str:
    with socket.create_connection((HOST, port), timeout=5) as talk:
        talk.sendall(b"INFO sentinel\r\n")
        return talk.recv(65536).decode()
