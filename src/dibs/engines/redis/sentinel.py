"""Sentinel: ask its processes where the primary is, before each connection to it.

A primary that fails is replaced by one of its replicas, and only Sentinel knows by which. So nothing is
remembered, and a server that Sentinel names is asked for its role: Sentinel may not have noticed yet.
"""

from collections.abc import Generator, Mapping
from typing import Any
from urllib.parse import unquote

from msgspec import Struct, structs

from dibs.engines.hosts import hosts_of
from dibs.engines.redis.protocol import Address, Command, ReplyError
from dibs.engines.retries import TryAgain
from dibs.errors import BadRequest

PORT = 26379
OPTIONS = ("sentinel_user", "sentinel_password")


class Asked(Struct, frozen=True):
    """A command for one Sentinel; the answer is None where that fails."""

    at: Address
    command: Command


Finding = Generator[Asked, Any, tuple[str, int]]


class Sentinels(Struct, frozen=True):
    """The processes of Sentinel that a URL names, and the name of the primary that they watch."""

    primary: str
    at: tuple[Address, ...]

    @property
    def name(self) -> str:
        """Their hosts and the primary for messages, never a password."""
        places = ", ".join(f"{one.host}:{one.port}" for one in self.at)
        return f"the primary {self.primary!r} of the Sentinels at {places}"

    def find(self) -> Finding:
        """Return host and port of the primary, from the first Sentinel that knows them."""
        for one in self.at:
            found = yield Asked(one, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.primary))
            if found:
                return found[0], int(found[1])
        raise TryAgain(ConnectionError("no Sentinel answers, or none knows it"), self.name)


def sentinels_of(url: str, path: str, options: Mapping[str, str], node: Address) -> Sentinels:
    """Read `redis+sentinel://h1:26379,h2:26379/mymaster/0`; `node` has the TLS settings."""
    if not (primary := unquote(path.strip("/").partition("/")[0])):
        raise BadRequest(
            "the URL of the store names no primary; write redis+sentinel://host:26379/mymaster/0 with the "
            "name that Sentinel has for it"
        )
    login = {"user": options.get("sentinel_user"), "password": options.get("sentinel_password")}
    base = structs.replace(node, database="0", **login)
    places = [(host or "localhost", port or PORT) for host, port in hosts_of(url)]
    return Sentinels(primary, tuple(structs.replace(base, host=host, port=port) for host, port in places))


def check_role(role: Any) -> None:
    """Refuse a server that is no primary, or no longer; Sentinel will name another one."""
    if role[0] != "master":
        raise ReplyError(f"READONLY this server is a {role[0]}, not the primary")
