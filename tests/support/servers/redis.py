"""Redis, alone and as a cluster."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Mapping
from typing import Self

from tests.support.servers.processes import HOST, POLL_SECONDS, START_SECONDS, ServerFailed, free_port, tail
from tests.support.servers.server import Server, used


class Redis(Server):
    """A Redis that writes every change to its append-only file."""

    name = "Redis"
    binary = "redis-server"
    package = "redis-server"
    hello = b"PING\r\n"
    greeting = b"+PONG"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.settings = settings or {}
        super().__init__()

    def url(self, database: int = 0) -> str:
        return f"redis://{HOST}:{self.port}/{database}"

    def say(self, *commands: str) -> str:
        """These commands, on a connection of their own; the replies as they come."""
        reply = ""
        with socket.create_connection((HOST, self.port), timeout=5) as talk:
            for words in commands:
                talk.sendall(f"{words}\r\n".encode())
                reply += talk.recv(65536).decode()
        return reply

    def _command(self) -> list[str]:
        options = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            **self.settings,
        }
        if int(self.version.split(".")[0]) >= 7:  # before, nobody asked
            options["enable-debug-command"] = "yes"
        flags = ([f"--{key}", value] for key, value in options.items())
        return [self._find("redis-server"), *itertools.chain.from_iterable(flags)]


class RedisCluster:
    """Three masters that share the slots; each may be stopped and killed on its own."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        cluster = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "save": ""}
        # The usual port for talk between nodes, 10000 above the other, may be somebody's.
        self.nodes = [
            Redis({**cluster, "cluster-port": str(free_port()), **(settings or {})}) for _ in range(3)
        ]

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        used["Redis Cluster"] = f"{self.nodes[0].version}, 3 masters"
        if not self._is_whole():
            self._share_slots()
        deadline = time.monotonic() + START_SECONDS
        while not self._is_whole():
            if time.monotonic() > deadline:
                raise ServerFailed(f"the cluster did not come together:\n{tail(self.nodes[0].log)}")
            time.sleep(POLL_SECONDS)

    def url(self) -> str:
        """The address of the last node, where the slot of the prefix `dibs` is."""
        return self.nodes[-1].url()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.remove()

    def _share_slots(self) -> None:
        first, *others = self.nodes
        for place, node in enumerate(self.nodes):
            slots = range(place * 5462, min((place + 1) * 5462, 16384))
            node.say(f"CLUSTER ADDSLOTS {' '.join(map(str, slots))}")
        for node in others:
            node.say(f"CLUSTER MEET {HOST} {first.port} {first.settings['cluster-port']}")

    def _is_whole(self) -> bool:
        return all("cluster_state:ok" in node.say("CLUSTER INFO") for node in self.nodes)
