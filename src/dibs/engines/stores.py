"""A store as the faces use it: run an operation, in either colour, again where that may help."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from dibs.contract import Traits
from dibs.engines.connections import bind_async, bind_sync
from dibs.engines.memory import Memory
from dibs.engines.pools import AsyncPostgres, SyncPostgres
from dibs.engines.postgresql import PostgreSQL
from dibs.engines.sql import schema_version
from dibs.engines.sqlite import SQLite
from dibs.engines.sqlite_file import SqliteFile
from dibs.engines.trouble import Tries, TryAgain
from dibs.errors import BadRequest, SchemaOutdated, UnknownEngine, UnsupportedConnection
from dibs.scripts import Rows, Script, Step, run, run_async
from dibs.settings import Settings

T = TypeVar("T")

SQLITE_GLANCE = 0.02  # seconds between two looks at whether somebody committed to the file

# Questions after which a waiting worker may find something to do.
ANNOUNCED = frozenset({"enqueue", "retry", "recover", "set_queue"})

# An operation is started anew for every try, so it is given as a way to make its script.
Operation = Callable[[Tries], Script[T]]


class Store(Protocol):
    """One place where jobs live."""

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
    async def leave_loop(self) -> None:
        """Give back what belongs to the running event loop, which is about to end."""

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` whenever there may be something new; never returns, may raise `TryAgain`."""


def connect(settings: Settings) -> Store:
    """The store that a URL names; nothing is opened yet."""
    scheme = settings.url.split("://", 1)[0].split("+", 1)[0].lower()
    try:
        _ = urlsplit(settings.url).port
    except ValueError as error:
        raise BadRequest(f"the URL of the store can't be read: {error}") from None
    match scheme:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(settings)
        case "postgresql" | "postgres":
            return PostgresStore(settings)
        case _:
            raise UnknownEngine(
                f"no store for {scheme!r} URLs; dibs knows memory://, sqlite:///file.db and "
                "postgresql://host/database"
            )


class Listeners:
    """Those of this process who wait for something new in a store that can't announce it itself."""

    def __init__(self) -> None:
        self._hear: list[Callable[[str], None]] = []

    @contextmanager
    def listening(self, hear: Callable[[str], None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def announce(hint: str) -> None:
            with suppress(RuntimeError):  # its loop has just ended
                loop.call_soon_threadsafe(hear, hint)

        self._hear.append(announce)
        try:
            yield
        finally:
            self._hear.remove(announce)

    def announce(self, step: Step, rows: Rows) -> None:
        if self._hear and (step.question in ANNOUNCED or (rows and step.question == "sweep")):
            for hear in list(self._hear):
                hear("")


class MemoryStore:
    """The store of one process: answers at once, in any thread, in either colour."""

    traits = Memory.traits

    def __init__(self) -> None:
        self._engine = Memory()
        self._listeners = Listeners()

    def run(self, operation: Operation[T], within: Any = None) -> T:
        self._refuse(within)
        return run(operation(Tries()), self._execute)

    def _execute(self, step: Step) -> Rows:
        rows = self._engine.execute(step)
        self._listeners.announce(step, rows)
        return rows

    async def listen(self, hear: Callable[[str], None]) -> None:
        with self._listeners.listening(hear):
            await asyncio.Event().wait()

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        return self.run(operation, within)

    def open(self) -> None: ...
    async def open_async(self) -> None: ...
    def close(self) -> None: ...
    async def close_async(self) -> None: ...
    async def leave_loop(self) -> None: ...

    def migrate(self) -> list[int]:
        return []

    async def migrate_async(self) -> list[int]:
        return []

    def schema_version(self) -> int:
        return schema_version("sqlite")  # it has no tables, and is always of the newest shape

    async def schema_version_async(self) -> int:
        return self.schema_version()

    def _refuse(self, within: Any) -> None:
        if within is not None:
            raise UnsupportedConnection(
                "memory:// has no transactions to work within; leave within= out, "
                "or use sqlite:/// or postgresql://"
            )


class SqliteStore:
    """A SQLite file. Awaited calls run on the file's own thread, whole operations at a time."""

    traits = SQLite.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = SQLite(settings.prefix)
        self._path = _sqlite_path(settings.url)
        self._file = SqliteFile(self._engine, self._path)
        self._listeners = Listeners()
        self._migrated = False

    def run(self, operation: Operation[T], within: Any = None) -> T:
        if within is not None:
            self._open_beside(within)
            return run(operation(Tries()), bind_sync(within, self._engine, self._path))
        self.open()
        return _again(lambda tries: run(operation(tries), self._execute))

    def _execute(self, step: Step) -> Rows:
        rows = self._file.execute(step)
        self._listeners.announce(step, rows)
        return rows

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if within is not None:
            if not self._migrated:  # else the thread may be waiting for this very transaction
                await self._on_thread(lambda: self._open_beside(within))
            return await run_async(operation(Tries()), bind_async(within, self._engine, self._path))
        return await self._on_thread(lambda: self.run(operation))

    def open(self) -> None:
        if not self._migrated:
            _again(lambda _: self._file.migrate())
            self._migrated = True

    async def open_async(self) -> None:
        await self._on_thread(self.open)

    def close(self) -> None:
        self._file.close()

    async def close_async(self) -> None:
        await asyncio.to_thread(self.close)

    async def leave_loop(self) -> None: ...

    def migrate(self) -> list[int]:
        self._migrated = True
        return _again(lambda _: self._file.migrate())

    async def migrate_async(self) -> list[int]:
        return await self._on_thread(self.migrate)

    def schema_version(self) -> int:
        return _again(lambda _: self._file.schema_version())

    async def schema_version_async(self) -> int:
        return await self._on_thread(self.schema_version)

    def _open_beside(self, within: Any) -> None:
        """Making the tables would wait for the caller's own transaction, so it has to come first."""
        if self._migrated:
            return
        if self.schema_version() >= schema_version("sqlite"):
            self._migrated = True
            return
        if isinstance(within, sqlite3.Connection) and within.in_transaction:
            raise UnsupportedConnection(
                "this app's tables are not made yet, and your open transaction keeps dibs from making them; "
                "call app.open() (or app.sync.open()) once before you begin"
            )
        self.open()

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Commits of others show in `data_version`, which costs a few microseconds to read."""
        with self._listeners.listening(hear):
            before: int | None = None
            while True:
                await asyncio.sleep(SQLITE_GLANCE)
                now = self._file.changes_by_others()
                if now is not None and now != before:
                    before = now
                    hear("")

    async def _on_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._file.own_thread(), work)


class PostgresStore:
    """A PostgreSQL database: asyncpg for awaited calls, psycopg for blocking ones."""

    traits = PostgreSQL.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = PostgreSQL(settings.prefix)
        self._sync = SyncPostgres(self._engine, settings.url, settings.pool_size)
        self._async = AsyncPostgres(self._engine, settings.url, settings.pool_size)
        self._checked = False

    def run(self, operation: Operation[T], within: Any = None) -> T:
        self.open()
        if within is not None:
            return run(operation(Tries()), bind_sync(within, self._engine, None))
        return _again(lambda tries: run(operation(tries), self._sync.execute))

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            await self.open_async()
        if within is not None:
            return await run_async(operation(Tries()), bind_async(within, self._engine, None))
        return await _again_async(lambda tries: run_async(operation(tries), self._async.execute))

    async def listen(self, hear: Callable[[str], None]) -> None:
        await self._async.listen(hear)

    def open(self) -> None:
        if not self._checked:
            self._check(self.schema_version())

    async def open_async(self) -> None:
        if not self._checked:
            self._check(await self.schema_version_async())

    def close(self) -> None:
        self._sync.close()

    async def close_async(self) -> None:
        await self._async.close()
        self._sync.close()

    async def leave_loop(self) -> None:
        await self._async.close()

    def migrate(self) -> list[int]:
        return _again(lambda _: self._sync.migrate())

    async def migrate_async(self) -> list[int]:
        return await _again_async(lambda _: self._async.migrate())

    def schema_version(self) -> int:
        return _again(lambda _: self._sync.schema_version())

    async def schema_version_async(self) -> int:
        return await _again_async(lambda _: self._async.schema_version())

    def _check(self, found: int) -> None:
        needed = schema_version("postgresql")
        if found < needed:
            raise SchemaOutdated(found, needed)
        self._checked = True


def _again(work: Callable[[Tries], T]) -> T:
    """Run the whole of it again on a deadlock, a lost race or a lost connection."""
    tries = Tries()
    while True:
        try:
            return work(tries)
        except TryAgain as trouble:
            time.sleep(tries.pause(trouble))


async def _again_async(work: Callable[[Tries], Awaitable[T]]) -> T:
    tries = Tries()
    while True:
        try:
            return await work(tries)
        except TryAgain as trouble:
            await asyncio.sleep(tries.pause(trouble))


def _sqlite_path(url: str) -> str:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://` for a store in memory."""
    parts = urlsplit(url)
    if parts.netloc or parts.query:
        raise BadRequest(f"{url!r} is not a SQLite URL; write sqlite:///jobs.db")
    return unquote(parts.path.removeprefix("/")) or ":memory:"
