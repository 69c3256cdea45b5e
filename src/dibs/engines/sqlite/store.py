"""A SQLite file as a store."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import unquote

from dibs.engines.hints import Listeners
from dibs.engines.retries import Tries, again
from dibs.engines.sql.blocks import schema_version
from dibs.engines.sql.within import bind, has_begun
from dibs.engines.sqlite.engine import SQLite
from dibs.engines.sqlite.file import SqliteFile
from dibs.engines.store import Operation, SchemaProblem, Tables
from dibs.errors import BadRequest, UnsupportedConnection
from dibs.faces import Call, Calls, make
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step, run, run_async
from dibs.settings import Settings
from dibs.text import without_password

T = TypeVar("T")

POLL = 0.02  # seconds between two polls for commits of other connections


class SqliteStore(Tables):
    """A SQLite file. The async face runs whole operations on the file's own thread."""

    traits = SQLite.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = SQLite(settings.prefix)
        self._path = _sqlite_path(settings.url)
        if self._path == ":memory:":
            self.traits = replace(SQLite.traits, durable=False, shared=False)
        self._file = SqliteFile(self._engine, self._path)
        self._listeners = Listeners()
        self._migrated = False

    def run(self, operation: Operation[T], within: Any = None) -> T:
        if within is not None:
            self._open_beside(within)
            return run(operation(Tries()), bind(within, self._engine, self._path, "sync"))
        self._open()
        return again(lambda tries: run(operation(tries), self._execute))

    def _execute(self, step: Step) -> Rows:
        rows = self._file.execute(step)
        self._listeners.announce(step, rows)
        return rows

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if within is not None:
            if not self._migrated:  # else the thread may be waiting for this transaction
                await self._on_thread(lambda: self._open_beside(within))
            return await run_async(operation(Tries()), bind(within, self._engine, self._path, "async"))
        return await self._on_thread(lambda: self.run(operation))

    def _opening(self) -> Calls[None]:
        yield self._on_file(self._open)

    def _open(self) -> None:
        if not self._migrated:
            again(lambda _: self._file.migrate())
            self._migrated = True

    def close(self) -> None:
        self._file.close()

    async def close_async(self) -> None:
        await asyncio.to_thread(self.close)

    async def leave_loop(self) -> None: ...

    def _migrating(self) -> Calls[list[int]]:
        self._migrated = True
        return (yield from make(self._on_file(lambda: again(lambda _: self._file.migrate()))))

    def _reading_version(self) -> Calls[int]:
        return (yield from make(self._on_file(lambda: again(lambda _: self._file.schema_version()))))

    def _checking(self) -> Calls[list[SchemaProblem]]:
        return (yield from make(self._on_file(lambda: again(lambda _: self._file.check_schema()))))

    def _on_file(self, work: Callable[[], T]) -> Call[T]:
        return Call(work, lambda: self._on_thread(work))

    def _open_beside(self, within: Any) -> None:
        """Create the tables before the caller's transaction, which it would wait for."""
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
        self._open()

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Poll `data_version`, which shows commits of other connections and costs a few microseconds."""
        with self._listeners.listening(hear):
            before: int | None = None
            reported: set[tuple[Any, int, str]] = set()
            while True:
                await asyncio.sleep(POLL)
                now = self._file.changes_by_others()
                if now is None or now == before or (asked := self._file.asked_to_cancel()) is None:
                    continue
                before = now
                hear("")
                for worker in {worker for _, _, worker in asked - reported}:
                    hear(STOP_HINT + worker)
                reported = asked

    async def _on_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._file.own_thread(), work)


def _sqlite_path(url: str) -> str:
    """Return the path of `sqlite:///relative.db` or `sqlite:////absolute.db`; `sqlite://` is in memory.

    Not by `urlsplit`: it ends the path at a #, so that another file would be used.
    """
    path = url.partition("://")[2]
    if path[:1] not in ("", "/") or "?" in path or "\x00" in unquote(path):
        raise BadRequest(f"{without_password(url)} is not a SQLite URL; write sqlite:///jobs.db")
    return unquote(path[1:]) or ":memory:"
