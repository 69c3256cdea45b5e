"""A store as the faces use it: run an operation, in either colour, again where that may help."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from dibs.clock import monotonic
from dibs.contract import SETTLEMENT_COLUMNS, STOP_HINT, Traits
from dibs.drift import SchemaProblem
from dibs.engines.connections import bind_async, bind_sync, has_begun
from dibs.engines.memory.engine import Memory
from dibs.engines.mysql.engine import MySQL
from dibs.engines.mysql.pools import AsyncMySQL, SyncMySQL
from dibs.engines.mysql.pools import store_name as mysql_name
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.pools import AsyncPostgres, SyncPostgres
from dibs.engines.postgresql.pools import store_name as postgresql_name
from dibs.engines.redis.engine import Redis
from dibs.engines.redis.nodes import Nodes
from dibs.engines.redis.pipelines import bind_pipeline
from dibs.engines.redis.pools import AsyncRedis, SyncRedis
from dibs.engines.sql import schema_version
from dibs.engines.sqlite.file import SqliteFile
from dibs.engines.stepped import SteppedMySQL, SteppedPostgreSQL, SteppedSQLite
from dibs.engines.trouble import Tries, TryAgain
from dibs.errors import BadRequest, SchemaOutdated, UnknownEngine, UnsupportedConnection
from dibs.jobs import NEW_JOB_COLUMNS
from dibs.scripts import Rows, Script, Step, run, run_async
from dibs.settings import Settings

T = TypeVar("T")

# Seconds between two looks at who was asked to stop, where nobody announces it: the longer the more a look
# costs, which reads whatever is running, and never so long that a cancel takes a second.
STOP_GLANCE, LONGEST_STOP_GLANCE = 0.25, 0.75
SQLITE_GLANCE = 0.02  # seconds between two looks at whether somebody committed to the file

# Questions after which a waiting worker may find something to do.
ANNOUNCED = frozenset(
    {
        *("enqueue", "enqueue_pipeline", "retry", "recover", "set_queue", "echo", "delete"),
        *("release_train", "arrive"),
    }
)
MOVED = frozenset({"sweep", "enqueue_tick"})  # the same, if they moved anything

_POLICY = NEW_JOB_COLUMNS.index("slot_policy")
_TRAIN, _SLOT = SETTLEMENT_COLUMNS.index("train"), SETTLEMENT_COLUMNS.index("slot")

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
    def check_schema(self) -> list[SchemaProblem]: ...
    async def check_schema_async(self) -> list[SchemaProblem]: ...
    async def leave_loop(self) -> None:
        """Give back what belongs to the running event loop, which is about to end."""

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` whenever there may be something new; never returns, may raise `TryAgain`."""


def connect(settings: Settings) -> Store:
    """The store that a URL names; nothing is opened yet."""
    scheme = settings.url.split("://", 1)[0].split("+", 1)[0].lower()
    try:
        _ = urlsplit(settings.url).port
    except ValueError:  # whose message quotes the URL, and what it takes for a port may be a password
        raise BadRequest(
            "the URL of the store can't be read: check its host and its port, a number; in a password write "
            "/ : # ? @ as %2F %3A %23 %3F %40"
        ) from None
    match scheme:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(settings)
        case "postgresql" | "postgres":
            return PostgresStore(settings)
        case "mysql" | "mariadb":
            return MysqlStore(settings)
        case "redis" | "rediss" | "valkey" | "valkeys":
            return RedisStore(settings)
        case _:
            is_one = "://" in settings.url and scheme.isalnum()  # else it may be a password that we quote
            named = f"{scheme!r} URLs" if is_one else "a URL that does not begin with NAME://"
            raise UnknownEngine(
                f"no store for {named}; dibs knows memory://, sqlite:///file.db, "
                "postgresql://host/database, mysql://host/database, mariadb://host/database and redis://host"
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
        if not self._hear:
            return
        if step.question in ANNOUNCED or (rows and step.question in MOVED):
            self._tell(step.params.get("hint", ""))
            if step.question == "enqueue" and any(job[_POLICY] == "preempt" for job in step.params["jobs"]):
                self._tell(STOP_HINT)  # whoever has the slot
        elif step.question == "cancel":
            for worker in {row["worker"] for row in rows}:
                self._tell("" if worker is None else STOP_HINT + worker)
        elif step.question in ("settle", "exchange") and (
            "steps" in step.params or any(map(_opens_gate, step.params["settlements"]))
        ):
            self._tell("")

    def _tell(self, hint: str) -> None:
        for hear in list(self._hear):
            hear(hint)


def _opens_gate(settlement: Sequence[Any]) -> bool:
    return settlement[_TRAIN] is not None or settlement[_SLOT] is not None


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
            hear(STOP_HINT)  # whatever was asked to stop before we listened
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

    def check_schema(self) -> list[SchemaProblem]:
        return []  # nor can they be wrong

    async def check_schema_async(self) -> list[SchemaProblem]:
        return []

    def _refuse(self, within: Any) -> None:
        if within is not None:
            raise UnsupportedConnection(
                "memory:// has no transactions to work within; leave within= out, "
                "or use sqlite:///, postgresql:// or mysql://"
            )


class SqliteStore:
    """A SQLite file. Awaited calls run on the file's own thread, whole operations at a time."""

    traits = SteppedSQLite.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = SteppedSQLite(settings.prefix)
        self._path = _sqlite_path(settings.url)
        if self._path == ":memory:":
            self.traits = replace(SteppedSQLite.traits, durable=False, shared=False)
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

    def check_schema(self) -> list[SchemaProblem]:
        return _again(lambda _: self._file.check_schema())

    async def check_schema_async(self) -> list[SchemaProblem]:
        return await self._on_thread(self.check_schema)

    def _open_beside(self, within: Any) -> None:
        """Making the tables would wait for the caller's own transaction, so it has to come first."""
        if self._migrated:
            return
        if self.schema_version() >= schema_version("sqlite"):
            self._migrated = True
            return
        if has_begun(within) and self._path != ":memory:":
            raise UnsupportedConnection(
                "this app's tables are not made yet, and your open transaction keeps dibs from making them; "
                "call app.open() (or app.sync.open()) once before you begin"
            )
        self.open()

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Commits of others show in `data_version`, which costs a few microseconds to read."""
        with self._listeners.listening(hear):
            before: int | None = None
            told: set[tuple[Any, int, str]] = set()
            while True:
                await asyncio.sleep(SQLITE_GLANCE)
                now = self._file.changes_by_others()
                if now is None or now == before or (asked := self._file.asked_to_cancel()) is None:
                    continue
                before = now
                hear("")
                for worker in {worker for _, _, worker in asked - told}:
                    hear(STOP_HINT + worker)
                told = asked

    async def _on_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._file.own_thread(), work)


class DatabaseStore:
    """A database behind a server: a pool of connections in each colour, tables of a certain version."""

    _engine: PostgreSQL | MySQL
    _name: str
    _sync: Any
    _async: Any
    _checked = False

    def run(self, operation: Operation[T], within: Any = None) -> T:
        self.open()
        if within is not None:
            return run(operation(Tries()), bind_sync(within, self._engine, None))
        return _again(lambda tries: run(operation(tries), self._execute))

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            await self.open_async()
        if within is not None:
            return await run_async(operation(Tries()), bind_async(within, self._engine, None))
        return await _again_async(lambda tries: run_async(operation(tries), self._execute_async))

    def _execute(self, step: Step) -> Rows:
        rows: Rows = self._sync.execute(step)
        return rows

    async def _execute_async(self, step: Step) -> Rows:
        rows: Rows = await self._async.execute(step)
        return rows

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
        await self._async.leave_loop()

    def migrate(self) -> list[int]:
        return _again(lambda _: self._sync.migrate())

    async def migrate_async(self) -> list[int]:
        return await _again_async(lambda _: self._async.migrate())

    def schema_version(self) -> int:
        version: int = _again(lambda _: self._sync.schema_version())
        return version

    async def schema_version_async(self) -> int:
        return await _again_async(lambda _: self._async.schema_version())

    def check_schema(self) -> list[SchemaProblem]:
        return _again(lambda _: self._sync.check_schema())

    async def check_schema_async(self) -> list[SchemaProblem]:
        return await _again_async(lambda _: self._async.check_schema())

    def _check(self, found: int) -> None:
        needed = schema_version(self._engine.dialect.name)
        if found < needed:
            raise SchemaOutdated(found, needed, self._name)
        self._checked = True


class PostgresStore(DatabaseStore):
    """A PostgreSQL database: asyncpg for awaited calls, psycopg for blocking ones."""

    traits = SteppedPostgreSQL.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = engine = SteppedPostgreSQL(settings.prefix)
        self._name = postgresql_name(settings.url)
        self._sync = SyncPostgres(engine, settings.url, settings.pool_size, settings.pooled)
        self._async = AsyncPostgres(engine, settings.url, settings.pool_size, settings.pooled)
        # Says nothing but LISTEN, so it needs no session of a certain kind.
        self._ears = AsyncPostgres(engine, _listen_url(settings), 1, pooled=True)

    async def listen(self, hear: Callable[[str], None]) -> None:
        await self._ears.listen(hear)


class MysqlStore(DatabaseStore):
    """A MySQL or MariaDB database: asyncmy for awaited calls, PyMySQL for blocking ones."""

    traits = SteppedMySQL.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = engine = SteppedMySQL(settings.prefix)
        self._name = mysql_name(settings.url)
        self._sync = SyncMySQL(engine, settings.url, settings.pool_size)
        self._async = AsyncMySQL(engine, settings.url, settings.pool_size)
        self._listeners = Listeners()

    def _execute(self, step: Step) -> Rows:
        rows = super()._execute(step)
        self._listeners.announce(step, rows)
        return rows

    async def _execute_async(self, step: Step) -> Rows:
        rows = await super()._execute_async(step)
        self._listeners.announce(step, rows)
        return rows

    def open(self) -> None:
        if not self._checked:
            _again(lambda _: self._sync.check())
        super().open()

    async def open_async(self) -> None:
        if not self._checked:
            await _again_async(lambda _: self._async.check())
        await super().open_async()

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Nothing is announced here: workers look for new jobs by themselves, we for who should stop."""
        with self._listeners.listening(hear):
            pause = STOP_GLANCE
            told: set[tuple[Any, int, str]] = set()
            while True:
                await asyncio.sleep(pause)
                begun = monotonic()
                rows = await self._async.asked_to_stop()
                pause = min(max(50 * (monotonic() - begun), STOP_GLANCE), LONGEST_STOP_GLANCE)
                asked = {(row["id"], row["token"], row["worker"]) for row in rows}
                for worker in {worker for _, _, worker in asked - told}:
                    hear(STOP_HINT + worker)
                told = asked


class RedisStore:
    """A Redis or Valkey server, or one slot of a cluster of them."""

    traits = Redis.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = Redis(settings.prefix)
        self._nodes = Nodes(settings.url)
        self._sync = SyncRedis(self._engine, self._nodes, settings.pool_size)
        self._async = AsyncRedis(self._engine, self._nodes, settings.pool_size)
        self._checked = False

    def run(self, operation: Operation[T], within: Any = None) -> T:
        self.open()
        if within is not None:
            return run(operation(Tries()), bind_pipeline(within, self._engine, self._nodes, "sync"))
        return _again(lambda tries: run(operation(tries), self._sync.execute))

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            await self.open_async()
        if within is not None:
            return run(operation(Tries()), bind_pipeline(within, self._engine, self._nodes, "async"))
        return await _again_async(lambda tries: run_async(operation(tries), self._async.execute))

    async def listen(self, hear: Callable[[str], None]) -> None:
        await self._async.listen(hear)

    def open(self) -> None:
        if not self._checked:
            _again(lambda _: self._sync.open())
            self._checked = True

    async def open_async(self) -> None:
        if not self._checked:
            await _again_async(lambda _: self._async.open())
            self._checked = True

    def close(self) -> None:
        self._sync.close()

    async def close_async(self) -> None:
        await self._async.close()
        self._sync.close()

    async def leave_loop(self) -> None:
        await self._async.leave_loop()

    def migrate(self) -> list[int]:
        self.open()
        return []

    async def migrate_async(self) -> list[int]:
        await self.open_async()
        return []

    def schema_version(self) -> int:
        return schema_version("postgresql")  # it has no tables, and is always of the newest shape

    async def schema_version_async(self) -> int:
        return self.schema_version()

    def check_schema(self) -> list[SchemaProblem]:
        return []  # nor can they be wrong

    async def check_schema_async(self) -> list[SchemaProblem]:
        return []


def _listen_url(settings: Settings) -> str:
    """Where to LISTEN, which a pooler in transaction mode can't do."""
    if settings.listen_url is None:
        return settings.url
    if not settings.listen_url.lower().startswith("postgres"):
        raise BadRequest(
            f"listen_url is a {settings.listen_url.partition(':')[0]!r} URL and the store is PostgreSQL: "
            "give the server's own address of the same database"
        )
    return settings.listen_url


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
