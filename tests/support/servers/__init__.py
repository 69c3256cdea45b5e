"""Private servers for tests: installed binaries, temporary folders, free ports, ended by pid."""

from tests.support.servers.brokers import Nats, RabbitMQ
from tests.support.servers.galera import Galera
from tests.support.servers.mysql import MySQLServer
from tests.support.servers.processes import (
    HOST,
    MissingServer,
    ServerFailed,
    find_binary,
    free_port,
    wait_until_gone,
)
from tests.support.servers.redis import Redis, RedisCluster
from tests.support.servers.server import Server, not_tested, used
from tests.support.servers.sql import MariaDB, PgBouncer, PostgreSQL, mysql_connection

__all__ = [
    "HOST",
    "Galera",
    "MariaDB",
    "MissingServer",
    "MySQLServer",
    "Nats",
    "PgBouncer",
    "PostgreSQL",
    "RabbitMQ",
    "Redis",
    "RedisCluster",
    "Server",
    "ServerFailed",
    "find_binary",
    "free_port",
    "mysql_connection",
    "not_tested",
    "used",
    "wait_until_gone",
]
