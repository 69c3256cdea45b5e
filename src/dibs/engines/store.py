"""Stores: what each of them can do, on both faces, what some of them share, and which one a URL names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from dibs import faces
from dibs.engines.retries import Tries
from dibs.engines.sql.blocks import schema_version
from dibs.errors import BadRequest, UnknownEngine
from dibs.faces import Calls
from dibs.operations.questions import Traits
from dibs.operations.scripts import Script
from dibs.settings import Settings
from dibs.text import split_url

T = TypeVar("T")

# An operation starts anew at every try, so it is given as a function that makes its script.
Operation = Callable[[Tries], Script[T]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaProblem:
    """A part of the tables that is not as dibs needs it. Example: `await app.check_schema()`"""

    what: Literal["version", "table", "column", "index"]
    table: str
    name: str
    expected: str
    found: str | None = None
    """None when it is missing."""

    def __str__(self) -> str:
        of = f" of {self.table}" if self.what in ("column", "index") else ""
        if self.what == "version":
            versions = f"{self.found} and this dibs needs {self.expected}"
            return f"the store has schema version {versions}; run `dibs migrate`"
        if self.found is None:
            should = f"; it should be: {self.expected}" if self.expected else "; run `dibs migrate`"
            return f"the {self.what} {self.name}{of} is missing{should}"
        return f"the {self.what} {self.name}{of} is wrong: it is {self.found} and should be {self.expected}"


class Store(Protocol):
    """One place where jobs are kept."""

    traits: Traits

    def run(self, operation: Operation[T], within: Any = None) -> T: ...
    async def run_async(self, operation: Operation[T], within: Any = None) -> T: ...
    def open(self) -> None: ...
    async def open_async(self) -> None: ...
    def close(self) -> None: ...
    async def close_async(self) -> None: ...
    def migrate(self) -> list[int]: ...
    async def migrate_async(self) -> list[int]: ...
    def schema_version(self) -> int: ...
    async def schema_version_async(self) -> int: ...
    def check_schema(self) -> list[SchemaProblem]: ...
    async def check_schema_async(self) -> list[SchemaProblem]: ...
    async def leave_loop(self) -> None:
        """Close what belongs to the running event loop, which is about to end."""

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` at every hint; never return, may raise `TryAgain`."""


class Tables:
    """A store that opens, migrates and checks its tables by scripts, each written once for both faces."""

    def _opening(self) -> Calls[None]:
        raise NotImplementedError

    def _migrating(self) -> Calls[list[int]]:
        raise NotImplementedError

    def _reading_version(self) -> Calls[int]:
        raise NotImplementedError

    def _checking(self) -> "Calls[list[SchemaProblem]]":
        raise NotImplementedError

    def open(self) -> None:
        faces.run(self._opening())

    async def open_async(self) -> None:
        await faces.run_async(self._opening())

    def migrate(self) -> list[int]:
        return faces.run(self._migrating())

    async def migrate_async(self) -> list[int]:
        return await faces.run_async(self._migrating())

    def schema_version(self) -> int:
        return faces.run(self._reading_version())

    async def schema_version_async(self) -> int:
        return await faces.run_async(self._reading_version())

    def check_schema(self) -> list[SchemaProblem]:
        return faces.run(self._checking())

    async def check_schema_async(self) -> list[SchemaProblem]:
        return await faces.run_async(self._checking())


class Pooled:
    """A store that has a pool of connections for each face."""

    _sync: Any
    _async: Any

    def close(self) -> None:
        self._sync.close()

    async def close_async(self) -> None:
        await self._async.close()
        self._sync.close()

    async def leave_loop(self) -> None:
        await self._async.leave_loop()


class WithoutTables(Tables):
    """A store with nothing to migrate and nothing to check."""

    def _opening(self) -> Calls[None]:
        yield from ()

    def _migrating(self) -> Calls[list[int]]:
        yield from self._opening()
        return []

    def _reading_version(self) -> Calls[int]:
        yield from ()
        return schema_version("postgresql")  # always up to date

    def _checking(self) -> "Calls[list[SchemaProblem]]":
        yield from ()
        return []


# -- Which store a URL names --------------------------------------------------------------------


def hosts_of(url: str) -> list[tuple[str, int | None]]:
    """Return hosts and ports of `scheme://user:password@h1:5432,h2:5432/…`; the host is '' if left out."""
    places = split_url(url).netloc.rpartition("@")[2].split(",")
    parts = [urlsplit(f"//{place}") for place in places]
    return [(one.hostname or "", one.port) for one in parts]


def spoken_hosts(url: str, unnamed: str) -> str:
    """Return the hosts of a URL for a message, never a password."""
    return ", ".join(f"{host or unnamed}{f':{port}' if port else ''}" for host, port in hosts_of(url))


def connect(settings: Settings) -> Store:
    """Return the store that a URL names; nothing is opened yet."""
    name, is_url, _ = settings.url.partition("://")
    scheme = name.split("+", 1)[0].lower() if is_url else ""
    if len(hosts_of(settings.url)) > 1 and not (scheme.startswith("postgres") or "+sentinel" in name):
        raise BadRequest(
            "the URL of the store can't be read: several hosts only after postgresql:// and redis+sentinel://"
        )
    match scheme:
        case "memory":
            from dibs.engines.memory.engine import MemoryStore

            return MemoryStore()
        case "sqlite":
            from dibs.engines.sqlite.store import SqliteStore

            return SqliteStore(settings)
        case "postgresql" | "postgres":
            from dibs.engines.sql.store import PostgresStore

            return PostgresStore(settings)
        case "mysql" | "mariadb":
            from dibs.engines.sql.store import MysqlStore

            return MysqlStore(settings)
        case "redis" | "rediss" | "valkey" | "valkeys":
            from dibs.engines.redis.store import RedisStore

            return RedisStore(settings)
        case _:
            is_one = scheme.isalnum()  # else it may be a password that we quote
            named = f"{scheme!r} URLs" if is_one else "a URL that does not begin with NAME://"
            raise UnknownEngine(
                f"no store for {named}; dibs knows memory://, sqlite:///file.db, "
                "postgresql://host/database, mysql://host/database, mariadb://host/database and redis://host"
            )
