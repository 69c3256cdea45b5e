"""RabbitMQ and NATS."""

from __future__ import annotations

import functools
import re
import subprocess

from tests.support.servers.processes import HOST, beside, free_port
from tests.support.servers.server import Server


class RabbitMQ(Server):
    """A RabbitMQ node with a name, a cookie and an Erlang port mapper of its own."""

    name = "RabbitMQ"
    binary = "rabbitmq-server"
    package = "rabbitmq-server"
    hello = b"AMQP\x00\x00\x09\x01"
    greeting = b"RabbitMQ"

    def __init__(self) -> None:
        self._mapper: subprocess.Popen[bytes] | None = None
        self._mapper_port, self._distribution_port = free_port(), free_port()
        super().__init__()

    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/"

    @functools.cached_property
    def version(self) -> str:
        found = re.search(r"RabbitMQ (\d[\d.]*)", self.log.read_text(errors="replace"))
        return found[1] if found else "unknown"

    def start(self) -> None:
        if self._mapper is None:
            command = [self._find("epmd"), "-port", str(self._mapper_port), "-address", HOST]
            self._mapper = self._spawn(command, self._environment())
        super().start()

    def remove(self) -> None:
        super().remove()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()

    def _command(self) -> list[str]:
        return [beside(self._find("rabbitmq-server"), "/usr/lib/rabbitmq/bin"), "-noinput"]

    def _environment(self) -> dict[str, str]:
        files = {
            f"RABBITMQ_{key}": str(self.folder / key.lower())
            for key in (
                "MNESIA_BASE",
                "LOG_BASE",
                "CONFIG_FILE",
                "ADVANCED_CONFIG_FILE",
                "CONF_ENV_FILE",
                "ENABLED_PLUGINS_FILE",
            )
        }
        return files | {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"dibs{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_LOGS": "-",
            "ERL_EPMD_PORT": str(self._mapper_port),
            # Lets the script exec Erlang, so that the pid we signal is the server's.
            "RABBITMQ_ALLOW_INPUT": "yes",
        }


class Nats(Server):
    """A NATS server with JetStream on disk."""

    name = "NATS"
    binary = "nats-server"
    package = "nats-server"
    greeting = b"INFO"

    def __init__(self, password: str | None = None) -> None:
        self._password = password
        super().__init__()

    def url(self) -> str:
        who = "" if self._password is None else f"dibs:{self._password}@"
        return f"nats://{who}{HOST}:{self.port}"

    def _command(self) -> list[str]:
        place = ["-a", HOST, "-p", str(self.port)]
        doorman = [] if self._password is None else ["--user", "dibs", "--pass", self._password]
        return [self._find("nats-server"), "-js", "-sd", str(self.folder / "data"), *place, *doorman]
