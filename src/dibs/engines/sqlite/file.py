"""The connection to a SQLite file that dibs owns: one per process, used by one thread at a time."""

import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from dibs.engines.pools import inherited
from dibs.engines.retries import TryAgain
from dibs.engines.sql.blocks import schema_version
from dibs.engines.sql.engine import Copy, Plan, Query
from dibs.engines.sql.migrations import pending, schema_table
from dibs.engines.sql.schema_check import check_sqlite
from dibs.engines.sqlite.engine import OLDEST, SQLite
from dibs.engines.store import SchemaProblem
from dibs.errors import (
    SchemaOutdated,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
    UnknownEngine,
    UnsupportedConnection,
)
from dibs.operations.scripts import Rows, Step, run
from dibs.text import spoken

T = TypeVar("T")

BUSY_TIMEOUT = 30
OWN_TIMEOUT = 1  # seconds, where this thread itself may hold the lock
FORK_WAIT = 1  # seconds for a thread that is in the file while another one forks

# Functions that return whether this thread has a transaction of its own open on a file.
OWN_TRANSACTIONS: list[Callable[[str], bool]] = []
OLDEST_SQLITE = tuple(map(int, OLDEST.split(".")))
WHAT_TO_DO = {
    "SQLITE_CANTOPEN": "its folder must exist, and you must be allowed to write there",
    "SQLITE_NOTADB": "name another file: this one holds something else",
    "SQLITE_READONLY": "you must be allowed to write to it and to its folder",
    "SQLITE_FULL": "make room on its disk, then try again",
    "SQLITE_IOERR": "check its disk, then try again",
    "SQLITE_CORRUPT": "restore a backup",
}
REFUSING = ("SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_READONLY")  # until an operator has done that


class SqliteFile:
    """One connection to one file, used by one thread at a time."""

    def __init__(self, engine: SQLite, path: str) -> None:
        self._engine = engine
        self.path = path
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._thread = _writer_thread()
        _files.add(self)

    def own_thread(self) -> ThreadPoolExecutor:
        """Return the thread for the async face, a new one after fork()."""
        self._mind_fork()
        return self._thread

    def changes_by_others(self) -> int | None:
        """Return a number that changes when another connection commits; None while ours is busy."""
        return self._if_idle(lambda connection: int(connection.execute("pragma data_version").fetchone()[0]))

    def asked_to_cancel(self) -> set[tuple[Any, int, str]] | None:
        """Return (id, token, worker) of running jobs that were cancelled; None while ours is busy."""
        sql = self._engine.dialect.blocks["asked_to_cancel"]
        return self._if_idle(lambda connection: set(connection.execute(sql)))

    def _if_idle(self, read: Callable[[sqlite3.Connection], T]) -> T | None:
        """Query without waiting for a busy connection, as an event loop must."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return read(self._opened())
        except sqlite3.Error as error:
            raise self._sorted(error) from error
        finally:
            self._lock.release()

    def execute(self, step: Step) -> Rows:
        with self._lock, self._waiting() as connection:
            try:
                return self._execute(connection, step)
            except BaseException as error:
                if connection.in_transaction:
                    connection.execute("rollback")
                if isinstance(error, sqlite3.Error):
                    raise self._sorted(error, step.question) from error
                raise

    @contextmanager
    def _waiting(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection; wait only briefly for a lock that this thread itself may hold."""
        connection = self._opened()
        if not self._is_in_own_way():
            yield connection
            return
        connection.execute(f"pragma busy_timeout = {OWN_TIMEOUT * 1000}")
        try:
            yield connection
        finally:
            connection.execute(f"pragma busy_timeout = {BUSY_TIMEOUT * 1000}")

    def _is_in_own_way(self) -> bool:
        return any(is_open_on(self.path) for is_open_on in OWN_TRANSACTIONS)

    def schema_version(self) -> int:
        with self._lock:
            connection = self._opened()
            table = self._engine.dialect.rename("dibs_schema")
            known = "select 1 from sqlite_master where type = 'table' and name = ?"
            if connection.execute(known, [table]).fetchone() is None:
                return 0
            [version] = connection.execute(f"select max(version) from {table}").fetchone()  # noqa: S608
            return int(version)

    def migrate(self) -> list[int]:
        with self._lock:
            if self.schema_version() >= schema_version("sqlite"):
                return []
            connection = self._opened()
            try:
                connection.execute("begin immediate")
                steps = self._migrate(connection)
                connection.execute("commit")
            except sqlite3.Error as error:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise self._sorted(error) from error
            return steps

    def _migrate(self, connection: sqlite3.Connection) -> list[int]:
        create, versions = schema_table(self._engine.dialect)
        connection.execute(create)
        applied = {version for (version,) in connection.execute(versions)}
        steps = pending(self._engine.dialect, applied)
        for _, statement in steps:
            connection.execute(statement)
        return sorted({version for version, _ in steps})

    def check_schema(self) -> list[SchemaProblem]:
        with self._lock:
            return check_sqlite(self._opened(), self._engine.dialect, self.schema_version())

    def close(self) -> None:
        with self._lock:
            self._mind_fork()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._thread.shutdown(wait=True)
            self._thread = _writer_thread()

    def _execute(self, connection: sqlite3.Connection, step: Step) -> Rows:
        query = sqlite_query(connection, self._engine)
        if not self._engine.needs_transaction(step):
            return run(self._engine.answer(step), query)
        plan = begun(self._engine.answer(step))  # what it prepares, it prepares without the lock
        connection.execute("begin immediate")
        rows = run(plan, query)
        connection.execute("commit")
        return rows

    def _opened(self) -> sqlite3.Connection:
        self._mind_fork()
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _mind_fork(self) -> None:
        if os.getpid() != self._pid:
            inherited.extend([self._connection, self._thread])
            self._pid, self._connection, self._lock = os.getpid(), None, threading.RLock()
            self._thread = _writer_thread()

    def _connect(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise UnknownEngine(f"SQLite {sqlite3.sqlite_version} is too old; dibs needs {OLDEST}")
        try:
            connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False,
                uri=self.path.startswith("file:"),
            )  # fmt: skip
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
        except sqlite3.Error as error:
            if _errorname(error).startswith("SQLITE_BUSY"):  # another process is switching it to WAL
                raise TryAgain(error, f"SQLite file {self.path}") from error
            raise _unusable(self.path, error, opened=False) from error
        return connection

    def _sorted(self, error: sqlite3.Error, question: str | None = None) -> BaseException:
        name = _errorname(error)
        if name == "SQLITE_BUSY" and self._is_in_own_way():
            return UnsupportedConnection(
                f"SQLite file {self.path} is locked, and this thread has a transaction open on it: pass "
                "within=connection to enqueue in that, or wait for its end"
            )
        if name == "SQLITE_BUSY":
            return locked_file(self.path, question, BUSY_TIMEOUT)
        if "no such table" in str(error) or "no such column" in str(error):
            return SchemaOutdated(0, schema_version("sqlite"), f"SQLite file {self.path}")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CONSTRAINT")):
            return TryAgain(error, f"SQLite file {self.path}")
        return unusable(self.path, error) or error


def begun(plan: Plan) -> Plan:
    """Run a plan up to its first query; return the rest of it."""
    first = next(plan)

    def rest() -> Plan:
        step = first
        try:
            while True:
                step = plan.send((yield step))
        except StopIteration as end:
            rows: Rows = end.value
            return rows
        finally:
            plan.close()

    return rest()


def sqlite_query(connection: sqlite3.Connection, engine: SQLite) -> Any:
    """Return a function that runs the queries of a plan; the caller takes care of the transaction."""

    def query(query: Query | Copy) -> Rows:
        assert isinstance(query, Query)
        sql = engine.dialect.blocks[query.name]
        cursor = connection.cursor()
        cursor.row_factory = None
        if query.many:
            cursor.executemany(sql, query.params)
            return []
        cursor.execute(sql, query.params)
        if cursor.description is None:
            return []
        return engine.read([column[0] for column in cursor.description], cursor.fetchall())

    return query


def _errorname(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "") or ""


def unusable(path: str, error: BaseException | None) -> StoreUnavailable | None:
    """Return the error that says what is wrong with the file and what to do; None for other errors."""
    if not isinstance(error, sqlite3.Error) or not (name := _errorname(error)).startswith(tuple(WHAT_TO_DO)):
        return None
    return _unusable(path, error, opened=not name.startswith("SQLITE_CANTOPEN"))


def _unusable(path: str, error: sqlite3.Error, *, opened: bool) -> StoreUnavailable:
    """Return the error with the advice by the start of its name, such as SQLITE_READONLY_DBMOVED."""
    name = _errorname(error)
    kind = StoreRefused if name.startswith(REFUSING) else StoreUnavailable
    fitting = (advice for known, advice in WHAT_TO_DO.items() if name.startswith(known))
    what = f"SQLite file {path}" if opened else f"SQLite can't open {path}"
    return kind(f"{what}: {error}; {next(fitting, 'check the URL, then try again')}")


LOCKS = Path("/proc/locks")  # Linux; opening the file to ask for its locks would drop our own ones
WRITER = (120, 120)  # the bytes of the `-shm` file that the writer of a WAL database locks


def locked_file(path: str, question: str | None, waited: float) -> StoreBusy:
    """Return the error for a file that another connection has written to for too long."""
    what = f"`{question}`" if question else "dibs"
    return StoreBusy(
        f"SQLite file {path} is locked: {what} has waited {spoken(waited)} for a lock that "
        f"{_holder(path)} holds, and has changed nothing; it is writing, or was stopped in the middle of a "
        f"write (state T in `ps`): end it or let it go on, then try again"
    )


def _holder(path: str) -> str:
    if (pid := writer_of(path)) is None:
        return f"another process (`fuser -v {path}` lists the ones that have it open)"
    if pid == os.getpid():
        return f"another connection of this process, {pid},"
    return f"process {pid}"


def writer_of(path: str) -> int | None:
    """Return the process that has the file locked for writing, where the system shows it."""
    with suppress(OSError, ValueError):
        inode = Path(f"{path}-shm").stat().st_ino
        for line in LOCKS.read_text().splitlines():
            words = line.split()  # 1: POSIX ADVISORY WRITE 4711 08:01:131 120 120
            is_its = "WRITE" in words and words[-3].split(":")[-1] == str(inode)
            if is_its and (int(words[-2]), int(words[-1])) == WRITER:
                return int(words[-4])
    return None


_files: "WeakSet[SqliteFile]" = WeakSet()


_forking = threading.local()


def _before_fork() -> None:
    """Keep other threads out of SQLite: what they have locked there a child would find locked for good."""
    _forking.held = [lock for file in list(_files) if (lock := file._lock).acquire(timeout=FORK_WAIT)]


def _after_fork() -> None:
    for lock in _forking.held:
        lock.release()


def _leave_parent() -> None:
    """Give the child new locks: a thread that it does not have may hold the old ones."""
    for file in list(_files):
        file._mind_fork()


if sys.platform != "win32":
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_leave_parent)


def _writer_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="dibs-sqlite")
