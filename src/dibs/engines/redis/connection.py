"""Where a Redis store is, whether it may be used, and what its errors mean.

All keys of a store share one hash tag, so in a cluster they live in one slot, on one node: we speak to that
node alone and follow when the cluster says that the slot has moved. Nothing here waits for anything.
"""

import re
from collections.abc import Generator
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from dibs.engines.redis.doctor import OLDEST, read_info
from dibs.engines.retries import TryAgain, not_permitted
from dibs.errors import BadRequest, StoreRefused, StoreUnavailable, UnknownEngine, UnsafeStore

DEFAULT_PORT = 6379
YES, NO = ("1", "true", "yes"), ("0", "false", "no")

# Replies after which the same question may be answered: a node that starts, stops, follows another one, or
# gives its slot away; a disk that is full for the moment; somebody's endless script.
AGAIN = (
    *("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED"),
    *("MISCONF", "NOREPLICAS", "BUSY"),
)
REFUSED = ("NOAUTH", "WRONGPASS")
NOT_PERMITTED = "NOPERM"

# Inside a script, versions before 7 put an error's code behind a dash, after words of their own.
_CODE = re.compile(r"^([A-Z]{3,})\b|: -([A-Z]{3,}) ")

Command = tuple[str | bytes, ...]


def driver() -> Any:
    try:
        import redis.asyncio  # noqa: F401
        from redis import exceptions
    except ImportError:
        raise UnknownEngine("redis is not installed; run: pip install 'dibs[redis]'") from None
    return exceptions


class Nodes:
    """The node to speak to: the URL's own, or where the cluster sent us."""

    def __init__(self, url: str) -> None:
        scheme, rest = url.split("://", 1)
        parts = urlsplit(f"{scheme.split('+')[0].replace('valkey', 'redis')}://{rest}")
        options = dict(parse_qsl(parts.query))
        self.allows_eviction = _truth(options.pop("allow_eviction", "no"))
        self._url = urlunsplit(parts._replace(query=urlencode(options)))
        self._user = unquote(parts.username) if parts.username else None
        self._start = (parts.hostname or "localhost", parts.port or DEFAULT_PORT)
        self._at = self._start
        self._others: list[tuple[str, int]] = []
        self.database = parts.path.removeprefix("/") or "0"
        if not self.database.isdecimal():  # redis-py would take the first one
            raise BadRequest(f"{self.database!r} is no database of Redis: they have numbers, redis://host/0")

    @property
    def name(self) -> str:
        """For people: host, port and database, never a password."""
        host, port = self._at
        return f"Redis at {host}:{port}, database {self.database}"

    def options(self) -> dict[str, Any]:
        """What a connection of either colour is made with; its class is told by `connection_class`."""
        from redis.connection import parse_url

        host, port = self._at
        try:
            return {**parse_url(self._url), "host": host, "port": port}
        except ValueError as error:
            raise BadRequest(f"the URL of the store can't be read: {error}") from None

    def moved(self, host: str, port: int) -> None:
        self._at = (host or self._at[0], port)

    def lost(self) -> None:
        """The node does not answer: ask the next one that we know of where the slot is now."""
        known = [self._start, *(node for node in self._others if node != self._start)]
        place = known.index(self._at) + 1 if self._at in known else 0
        self._at = known[place % len(known)]

    def learn(self, slots: Any) -> None:
        """All nodes of a cluster, from the reply to CLUSTER SLOTS."""
        nodes = (tuple(node[:2]) for _, _, *nodes in slots for node in nodes)
        self._others = [(str(host), int(port)) for host, port in dict.fromkeys(nodes) if host]

    def judge(self, error: BaseException, *, done: bool = False) -> BaseException:
        """What an error means for the operation; `done` says that a part of it was done already."""
        exceptions = driver()
        code = _code_of(error)
        if isinstance(error, exceptions.MovedError):
            self.moved(error.host, error.port)
        if code in AGAIN:
            return TryAgain(error, self.name, unsure=done, read_only=code == "READONLY")
        if code == "OOM":
            return StoreUnavailable(
                f"{self.name} is full and refuses to store more (OOM); running jobs can still end. "
                "Raise its maxmemory, or prune finished jobs"
            )
        if code == NOT_PERMITTED:
            advice = "let it run scripts on its keys and hear its channel with ACL SETUSER"
            return not_permitted(self.name, self._user, str(error), advice)
        if code in REFUSED or isinstance(error, exceptions.AuthenticationError):
            return self._refused(error, "the user and the password in the URL")
        if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
            return TryAgain(error, self.name, unsure=True)
        return error

    def unreachable(self, error: BaseException) -> BaseException:
        """Connecting failed, so nothing can have been done."""
        judged = self.judge(error)
        if isinstance(judged, driver().ResponseError):  # the greeting failed, as for a database it has not
            judged = self._refused(error, "the URL")
        self.lost()
        if isinstance(judged, TryAgain):
            judged.unsure = False
        return judged

    def _refused(self, error: BaseException, to_check: str) -> StoreRefused:
        return StoreRefused(f"{self.name} refused us: {error}; check {to_check}, then try again")

    def check(self, info: str, engine: Any) -> "Generator[Command, Any, None]":
        """Refuse a server that is too old, or that may drop jobs when its memory is full."""
        facts = read_info(info)
        version = facts.get("redis_version", "0")
        if _numbers(version) < _numbers(OLDEST):
            raise UnknownEngine(
                f"{self.name} is version {version}; dibs needs Redis {OLDEST} or newer, or Valkey"
            )
        policy = facts.get("maxmemory_policy", "noeviction")
        if facts.get("maxmemory", "0") != "0" and policy != "noeviction" and not self.allows_eviction:
            raise UnsafeStore(
                f"{self.name} drops keys when its memory is full (maxmemory-policy is {policy}), so jobs "
                "would be lost without a word: set maxmemory-policy to noeviction, use another instance, or "
                "add ?allow_eviction=true to the URL if losing jobs is fine"
            )
        engine.in_cluster = facts.get("cluster_enabled", "0") == "1"
        if engine.in_cluster:
            self.learn((yield ("CLUSTER", "SLOTS")))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def _truth(word: str) -> bool:
    if word.lower() not in YES + NO:
        raise BadRequest(f"allow_eviction={word!r} in the URL of the store: write true or false")
    return word.lower() in YES


def _code_of(error: BaseException) -> str:
    """The first word of an error reply; redis-py keeps some of them only as the class."""
    exceptions = driver()
    classes = {
        exceptions.MovedError: "MOVED",
        exceptions.AskError: "ASK",
        exceptions.TryAgainError: "TRYAGAIN",
        exceptions.MasterDownError: "MASTERDOWN",
        exceptions.ClusterDownError: "CLUSTERDOWN",
        exceptions.BusyLoadingError: "LOADING",
        exceptions.ReadOnlyError: "READONLY",
        exceptions.OutOfMemoryError: "OOM",
        exceptions.NoPermissionError: "NOPERM",
    }
    for cls, code in classes.items():
        if isinstance(error, cls):
            return code
    if not isinstance(error, exceptions.ResponseError):
        return ""
    match = _CODE.search(str(error))
    return (match[1] or match[2]) if match else ""
