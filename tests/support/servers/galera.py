"""A cluster of MariaDB nodes that replicate synchronously (Galera)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Self

import pymysql

from tests.support.servers.processes import HOST, MissingServer, find_binary, free_port
from tests.support.servers.sql import MariaDB

PROVIDERS = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib/libgalera_smm.so")


def provider() -> str:
    """The library that replicates, on a machine that has all it needs."""
    find_binary("rsync", "rsync")
    find_binary("lsof", "lsof")
    for place in PROVIDERS:
        if Path(place).exists():
            return place
    raise MissingServer("there is no libgalera_smm.so here; install the package galera-4")


class GaleraNode(MariaDB):
    """One node; the first one begins the cluster, the others copy its data when they join."""

    name = "Galera"

    def __init__(self, joins: list[int]) -> None:
        self.cluster_port, self._joins = free_port(), joins
        super().__init__()

    def _command(self) -> list[str]:
        options = f"base_port={self.cluster_port};gmcast.listen_addr=tcp://{HOST}:{self.cluster_port};"
        options += f"ist.recv_addr={HOST}:{free_port()};gcache.size=8M"
        return [
            *super()._command(),
            "--wsrep-on=ON",
            f"--wsrep-provider={provider()}",
            f"--wsrep-provider-options={options}",
            f"--wsrep-cluster-address=gcomm://{','.join(f'{HOST}:{port}' for port in self._joins)}",
            f"--wsrep-node-address={HOST}:{self.cluster_port}",
            f"--wsrep-sst-receive-address={HOST}:{free_port()}",
            "--wsrep-sst-method=rsync",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        ]

    def _answers(self) -> bool:
        """Wait until the node has the data, not only until it listens."""
        if not super()._answers():
            return False
        try:
            with closing(self.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("show status like 'wsrep_ready'")
                return bool(cursor.fetchall()[0][1] == "ON")
        except pymysql.MySQLError:
            return False


class Galera:
    """Three nodes; any of them takes changes."""

    def __init__(self) -> None:
        self.nodes: list[GaleraNode] = []

    def __enter__(self) -> Self:
        for _ in range(3):
            node = GaleraNode([other.cluster_port for other in self.nodes])
            self.nodes.append(node)
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in reversed(self.nodes):
            node.remove()

    def fresh_database(self) -> list[str]:
        """The addresses of a new, empty database, one per node."""
        name = self.nodes[0].fresh_database().rpartition("/")[2]
        return [node.url(name) for node in self.nodes]
