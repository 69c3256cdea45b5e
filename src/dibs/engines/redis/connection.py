"""The node of a Redis store: its address, whether it may be used, what its errors mean, what it reports.

All keys of a store share one hash tag, so in a cluster they are in one slot, on one node. dibs connects to
that node alone and follows when the cluster says that the slot has moved. Nothing here does I/O.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct, structs

from dibs.engines.redis.protocol import Address, Command, ReplyError, tls_context, truth
from dibs.engines.redis.scripts import Scripts
from dibs.engines.retries import TryAgain, not_permitted
from dibs.engines.store import hosts_of
from dibs.errors import BadRequest, StoreRefused, StoreUnavailable, UnknownEngine, UnsafeStore
from dibs.operations.scripts import Row

OLDEST, OLDEST_VALKEY = "6.2", "7.2"
DEFAULT_PORT = 6379

# Replies after which the same question may succeed: a node that starts, stops, becomes a replica, or gives
# its slot away; a disk that is full for the moment; an endless script of another client.
AGAIN = (
    *("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED"),
    *("MISCONF", "NOREPLICAS", "BUSY"),
)
FULL = "max number of clients"  # an error without a code of its own
REFUSED = ("NOAUTH", "WRONGPASS")
NOT_PERMITTED = "NOPERM"


class RedisNode:
    """The node to connect to: the URL's own, or the one that the cluster named."""

    def __init__(self, url: str) -> None:
        scheme, rest = url.split("://", 1)
        parts = urlsplit(f"redis://{rest}")
        options = dict(parse_qsl(parts.query))
        self.allows_eviction = truth("allow_eviction", options, "no")
        is_watched = "+sentinel" in scheme.lower()
        path = parts.path.strip("/").partition("/")[2] if is_watched else parts.path.removeprefix("/")
        self.database = path or options.get("db", "0")
        if not self.database.isdecimal():
            raise BadRequest(f"{self.database!r} is no database of Redis: they have numbers, redis://host/0")
        ours = ("allow_eviction", "db", *(SENTINEL_OPTIONS if is_watched else ()))
        self._user = unquote(parts.username) if parts.username else None
        [(host, port), *_] = hosts_of(url)
        self._start = (host or "localhost", port or DEFAULT_PORT)
        self._at = self._start
        self._address = Address(
            host=self._at[0],
            port=self._at[1],
            user=self._user,
            password=unquote(parts.password) if parts.password else None,
            database=self.database,
            tls=tls_context(
                {name: value for name, value in options.items() if name not in ours},
                wanted=scheme.split("+")[0].lower() in ("rediss", "valkeys"),
            ),
        )
        self._cluster: list[tuple[str, int]] = []
        self.sentinels = sentinels_of(url, parts.path, options, self._address) if is_watched else None

    @property
    def name(self) -> str:
        """Host, port and database for messages, never a password."""
        host, port = self._at
        where = self.sentinels.name if self.sentinels is not None else f"{host}:{port}"
        return f"Redis at {where}, database {self.database}"

    @property
    def address(self) -> Address:
        """Where to connect now."""
        host, port = self._at
        return structs.replace(self._address, host=host, port=port)

    def found(self, primary: tuple[str, int]) -> Address:
        """Turn to the server that Sentinel has named."""
        self._at = primary
        return self.address

    def moved(self, error: ReplyError) -> None:
        """Turn to the node that has the slot: `MOVED 3999 host:6381`, without a host if it is the same."""
        host, _, port = str(error).split()[2].rpartition(":")
        self._at = (host or self._at[0], int(port))

    def lost(self) -> None:
        """Turn to the next known node, which will say where the slot is now."""
        known = [self._start, *(node for node in self._cluster if node != self._start)]
        following = known.index(self._at) + 1 if self._at in known else 0
        self._at = known[following % len(known)]

    def learn(self, slots: Any) -> None:
        """Remember all nodes of a cluster, from the reply to CLUSTER SLOTS."""
        nodes = (tuple(node[:2]) for _, _, *nodes in slots for node in nodes)
        self._cluster = [(str(host), int(port)) for host, port in dict.fromkeys(nodes) if host]

    def judge(self, error: BaseException, *, done: bool = False) -> BaseException:
        """Return what an error means for the operation; `done`: a part of it was done already."""
        if isinstance(error, TryAgain):
            return error
        code = error.code if isinstance(error, ReplyError) else ""
        if code == "MOVED":
            self.moved(error)  # type: ignore[arg-type]
        if code in AGAIN or (isinstance(error, ReplyError) and str(error).startswith(FULL)):
            return TryAgain(error, self.name, unsure=done, read_only=code == "READONLY")
        if code == "OOM":
            return StoreUnavailable(
                f"{self.name} is full and refuses to store more (OOM); running jobs can still end. "
                "Raise its maxmemory, or prune finished jobs"
            )
        if code == NOT_PERMITTED:
            advice = "let it run scripts on its keys and subscribe to its channel with ACL SETUSER"
            return not_permitted(self.name, self._user, str(error), advice)
        if code in REFUSED:
            return self._refused(error, "the user and the password in the URL")
        if isinstance(error, OSError):
            return TryAgain(error, self.name, unsure=True)
        return error

    def unreachable(self, error: BaseException) -> BaseException:
        """Return what a failure to connect means: nothing can have been done."""
        judged = self.judge(error)
        if isinstance(judged, ReplyError):  # as for a database that does not exist
            judged = self._refused(error, "the URL")
        self.lost()
        if isinstance(judged, TryAgain):
            judged.unsure = False
        return judged

    def _refused(self, error: BaseException, to_check: str) -> StoreRefused:
        return StoreRefused(f"{self.name} refused us: {error}; check {to_check}, then try again")

    def check(self, info: str, scripts: Scripts) -> "Generator[Command, Any, None]":
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
                "would be lost silently: set maxmemory-policy to noeviction, use another instance, or "
                "add ?allow_eviction=true to the URL if losing jobs is fine"
            )
        scripts.in_cluster = facts.get("cluster_enabled", "0") == "1"
        if scripts.in_cluster:
            self.learn((yield ("CLUSTER", "SLOTS")))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


# -- Sentinel: ask its processes where the primary is, before each connection to it --------------

# A primary that fails is replaced by one of its replicas, and only Sentinel knows by which. So nothing is
# remembered, and a server that Sentinel names is asked for its role: Sentinel may not have noticed yet.

SENTINEL_PORT = 26379
SENTINEL_OPTIONS = ("sentinel_user", "sentinel_password")


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
    places = [(host or "localhost", port or SENTINEL_PORT) for host, port in hosts_of(url)]
    return Sentinels(primary, tuple(structs.replace(base, host=host, port=port) for host, port in places))


def check_role(role: Any) -> None:
    """Refuse a server that is no primary, or no longer; Sentinel will name another one."""
    if role[0] != "master":
        raise ReplyError(f"READONLY this server is a {role[0]}, not the primary")


# -- What a server reports about itself: facts for the doctor, no opinion -------------------------


def read_info(info: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info.splitlines() if ":" in line)


def server_facts(info: Mapping[str, str], fsync: Sequence[str], save: Sequence[str]) -> Iterator[Row]:
    """Yield facts from the replies to INFO and to two CONFIG GETs, which are empty where forbidden."""
    yield from _version_facts(info)
    yield _fact("isolation", "own connections", "one script at a time")
    yield from _persistence_facts(info, dict(zip(fsync[::2], fsync[1::2], strict=True)), save)
    if info.get("role") == "slave":
        yield _fact("standby", "server", "on")
    yield from _capacity_facts(info)


def _version_facts(info: Mapping[str, str]) -> Iterator[Row]:
    is_valkey = info.get("server_name") == "valkey"
    name = "Valkey" if is_valkey else "Redis"
    yield _fact("version", name, info["valkey_version" if is_valkey else "redis_version"])
    yield _fact("needs", name, OLDEST_VALKEY if is_valkey else OLDEST)


def _persistence_facts(
    info: Mapping[str, str], fsync: Mapping[str, str], save: Sequence[str]
) -> Iterator[Row]:
    """Yield how often the file is forced to disk, and snapshots, only where they matter."""
    appends = info.get("aof_enabled") == "1"
    yield _fact("setting", "appendonly", "yes" if appends else "no")
    if appends and "appendfsync" in fsync:
        yield _fact("setting", "appendfsync", fsync["appendfsync"])
    if not appends and list(save) == ["save", ""]:
        yield _fact("setting", "save", "off")
    for name, status in (
        ("append-only file", "aof_last_write_status"),
        ("snapshot", "rdb_last_bgsave_status"),
    ):
        if info.get(status, "ok") != "ok":
            yield _fact("failing", name, info[status])


def _capacity_facts(info: Mapping[str, str]) -> Iterator[Row]:
    yield _fact("setting", "maxmemory-policy", info.get("maxmemory_policy", "noeviction"))
    yield _fact("memory", "used", info["used_memory"])
    if info.get("maxmemory", "0") != "0":
        yield _fact("memory", "most", info["maxmemory"])
    yield _fact("connections", "used", info["connected_clients"])
    if "maxclients" in info:
        yield _fact("connections", "most", info["maxclients"])


def _fact(fact: str, about: str, value: str) -> Row:
    return {"fact": fact, "about": about, "value": value}
