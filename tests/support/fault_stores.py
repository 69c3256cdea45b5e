"""What the fault tests share: a store to hurt, raw hands on its tables, processes that obey."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from copy import copy
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pymysql

from dibs import Dibs, NewJob, Worker
from dibs.app.claims import Claim
from dibs.operations.claim import ClaimRequest
from dibs.operations.scripts import Script, Step
from dibs.operations.settle import Renewal
from dibs.operations.settle import exchange as exchange_script
from dibs.operations.settle import renew as renew_script
from tests.support.internals import core_of, engine_of, run_script, store_of
from tests.support.matrix import MYSQLS
from tests.support.servers import mysql_connection

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
ACTOR = Path(__file__).with_name("fault_process.py")


class MysqlHands(pymysql.Connection):
    """A connection to MariaDB that is used as one of psycopg's; ids are given as they are."""

    def execute(self, text: str, params: Sequence[Any] | None = None) -> Any:
        cursor = self.cursor()
        cursor.execute(text, params and [one.bytes if isinstance(one, UUID) else one for one in params])
        return cursor

    @contextlib.contextmanager
    def transaction(self, *, force_rollback: bool = False) -> Iterator[None]:
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        (self.rollback if force_rollback else self.commit)()


# -- A place where jobs live --------------------------------------------------------------------


class Place:
    """One empty store of one test; every app and connection made here ends with the test."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self.spoilt = False
        self.broken_by: Callable[[Dibs], object] = lambda app: None
        self._apps: list[Dibs] = []
        self._raw: psycopg.Connection[Any] | MysqlHands | None = None
        self._ends = contextlib.ExitStack()

    def app(self, url: str | None = None, **options: Any) -> Dibs:
        """An app of its own, as another process would have; memory has only one."""
        if self.kind == "memory" and self._apps:
            return self._apps[0]
        app = Dibs(url or self.url, **options)
        self.broken_by(app)
        self._apps.append(app)
        return app

    def apps(self, many: int) -> list[Dibs]:
        """That many apps, each with a warm connection, so that a race starts at the statement."""
        made = [self.app() for _ in range(many)]
        for app in made:
            app.sync.counts()
        return made

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """Say this to the store behind dibs' back, in autocommit."""
        self.spoilt |= not text.lstrip().startswith("select")
        if self.kind == "sqlite":
            with contextlib.closing(self.connect()) as connection:
                return connection.execute(text, params).fetchall()
        if self._raw is None:
            self._raw = self.connect()
        cursor = self._raw.execute(text, params or None)
        return list(cursor.fetchall()) if cursor.description else []

    def connect(self) -> Any:
        """A connection of the test's own, in autocommit; the caller closes it."""
        if self.kind == "sqlite":
            path = self.url.removeprefix("sqlite:///")
            return sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        if self.kind in MYSQLS:
            return mysql_connection(self.url, cls=MysqlHands)
        return psycopg.connect(self.url, autocommit=True)

    def close(self) -> None:
        for app in self._apps:
            app.sync.close()
        if self._raw is not None:
            self._raw.close()
        self._ends.close()

    def until_closed(self, context: AbstractContextManager[T]) -> T:
        """Something of the test's own that ends with this place."""
        return self._ends.enter_context(context)


Places = Callable[[str], Place]
"""Makes an empty store of the engine that is named."""


def renew(app: Dibs, claims: Sequence[Any], lease: float) -> dict[Any, Renewal]:
    """Renew all of these in one statement, as the keeper does."""
    pairs = [(claim.job.id, claim.token) for claim in claims]
    standing = run_script(app, lambda: renew_script(pairs, round(lease * 1_000_000)))
    return {id: one for (id, _), one in standing.items()}


def exchange(
    app: Dibs, claims: Sequence[Any], then: Sequence[NewJob] = (), lease: int = 60_000_000, **wish: Any
) -> tuple[list[Any], list[Any]]:
    """Let these claims succeed, with these children, and claim the next ones, in one commit."""
    settled = [claim._held.settled_by(claim._held.succeeded(None), then) for claim in claims]
    asked = ClaimRequest(worker="exchanger", lease=lease, leases={}, **wish)
    (lost, _), jobs = run_script(app, lambda: exchange_script(settled, asked))
    return [one.id for one in lost], jobs


def write_after_the_look(app: Dibs, new: NewJob) -> Any:
    """What the store answers to a repeated enqueue that did not see the job when it looked."""

    def script(*_: Any) -> Script[Any]:
        [answer] = yield Step("enqueue", {"jobs": [core_of(app).registry.prepare(new)], "fresh": False})
        return answer

    return store_of(app).run(script)


def blocks(app: Dibs) -> dict[str, str]:
    """The statements of this app's dialect, by name."""
    return dict(engine_of(app).dialect.blocks.all())


class StaleMutant(Exception):
    """The statement was reworded, so what the mutant would break is not there."""


def mutate(app: Dibs, block: str, old: str, new: str) -> None:
    """Break one statement of this app; a text that is not there would be no mutant at all."""
    texts = copy(engine_of(app).dialect.blocks)
    if old not in texts[block]:
        raise StaleMutant(f"{block} does not say {old!r} any more; reword the mutant")
    texts[block] = texts[block].replace(old, new)
    object.__setattr__(engine_of(app).dialect, "blocks", texts)


# -- Many at once -------------------------------------------------------------------------------


def together(*works: Callable[[], T]) -> list[T]:
    """Run all of these at the same moment, each in a thread; their answers, in order."""
    barrier = threading.Barrier(len(works))

    def started(work: Callable[[], T]) -> T:
        barrier.wait(PATIENCE_SECONDS)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(started, work) for work in works]]


def answers_within(seconds: float, work: Callable[[], T], *, then: Callable[[], object]) -> list[T]:
    """[what `work` answers], or [] when it is still busy after that long; `then` sets it free."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return [future.result(seconds)]
        except TimeoutError:
            return []
        finally:
            then()


def wait_until(holds: Callable[[], T], *, seconds: float = PATIENCE_SECONDS) -> T:
    """What `holds()` answers as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"{holds} did not come true within {seconds} s"
        time.sleep(0.01)
    return answer


# -- Both faces of an app -----------------------------------------------------------------------


class Driven:
    """The awaited face of an app or a claim, driven by a loop of its own: same calls, blocking."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner, self._runner = inner, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **options: self._wrapped(self._runner.run(found(*args, **options)))

    def _wrapped(self, answer: Any) -> Any:
        match answer:
            case Claim():
                return Driven(answer, self._runner)
            case list():
                return [self._wrapped(one) for one in answer]
            case _:
                return answer


@contextlib.contextmanager
def face_of(app: Dibs, face: str) -> Iterator[Any]:
    """`app.sync`, or the async app behind the same blocking calls."""
    if face == "sync":
        yield app.sync
        return
    with asyncio.Runner() as runner:
        yield Driven(app, runner)
        runner.run(app.close())


# -- Workers ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def working(app: Dibs, concurrency: int = 2) -> Iterator[Worker]:
    """A worker on a thread of its own; an error that ends it fails the test."""
    worker = Worker(app, concurrency=concurrency)
    ended: list[BaseException] = []

    async def run() -> None:
        async with app:
            await worker.run(handle_signals=False)

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield worker
    finally:
        wait_until(lambda: worker._state._run or ended)  # a stop before the run begins would be forgotten
        worker.stop()
        thread.join(30)
    assert ended == []


# -- Processes that obey ------------------------------------------------------------------------


class Actor:
    """Another process with an app of its own; it does one thing after the other, as told."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ACTOR), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, deed: str, **given: Any) -> Any:
        self.tell(deed, **given)
        return self.hear()

    def tell(self, deed: str, **given: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"deed": deed, **given}) + "\n")
        self._process.stdin.flush()

    def hear(self, seconds: float = 120.0) -> Any:
        assert self._process.stdout is not None
        heard, _, _ = select.select([self._process.stdout], [], [], seconds)
        assert heard, f"the process said nothing for {seconds} s"
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()}"
        return json.loads(line)

    def stop(self) -> None:
        """SIGSTOP, and wait until the process really stands."""
        self._process.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        )

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self._process.kill()
        self._process.wait()

    def wait_for_death(self) -> int:
        return self._process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


@contextlib.contextmanager
def actors(url: str, many: int) -> Iterator[list[Actor]]:
    """That many processes, all connected and waiting for a word."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(Actor(url)) for _ in range(many)]
        for actor in made:
            assert actor.hear() == "here"
        yield made


# -- A journal of what really happened to the rows ----------------------------------------------

_PG_JOURNAL = """
create table journal (n bigserial primary key, job uuid, became text, token bigint);
create function note() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' or old.state <> new.state or old.token is distinct from new.token then
        insert into journal (job, became, token) values (new.id, new.state, new.token);
    end if;
    return null;
end $$;
create trigger note after insert or update on dibs_jobs for each row execute function note();
create trigger note after insert or update on dibs_finished for each row execute function note();
"""

_SQLITE_JOURNAL = """
create table journal (n integer primary key, job text, became text, token integer);
create trigger note_new after insert on dibs_jobs begin
    insert into journal (job, became, token) values (new.id, new.state, new.token);
end;
create trigger note_change after update on dibs_jobs
when old.state <> new.state or old.token is not new.token begin
    insert into journal (job, became, token) values (new.id, new.state, new.token);
end;
create trigger note_end after insert on dibs_finished begin
    insert into journal (job, became, token) values (new.id, new.state, new.token);
end;
"""


_MARIADB_JOURNAL = """
create table journal (n bigint auto_increment primary key, job binary(16), became text, token bigint);
create trigger note_new after insert on dibs_jobs for each row
    insert into journal (job, became, token) values (new.id, new.state, new.token);
create trigger note_change after update on dibs_jobs for each row
    insert into journal (job, became, token)
    select new.id, new.state, new.token from dual
    where old.state <> new.state or not (old.token <=> new.token);
create trigger note_end after insert on dibs_finished for each row
    insert into journal (job, became, token) values (new.id, new.state, new.token);
"""


def keep_journal(place: Place) -> Callable[[Any], list[tuple[str, int | None]]]:
    """Write down every state of every job from now on; answers how to read one job's."""
    if place.kind == "sqlite":
        place.app().sync.migrate()
        with contextlib.closing(place.connect()) as connection:
            connection.executescript(_SQLITE_JOURNAL)
        return lambda id: place.sql("select became, token from journal where job = ? order by n", str(id))
    if place.kind == "redis":
        return place.until_closed(Monitor(place.url)).states_of
    if place.kind in MYSQLS:
        for statement in filter(str.strip, _MARIADB_JOURNAL.split(";\n")):
            place.sql(statement)
        return lambda id: place.sql(
            "select became, token from journal where job = %s order by n", UUID(str(id))
        )
    place.sql(_PG_JOURNAL)
    return lambda id: place.sql("select became, token from journal where job = %s order by n", id)


class Monitor:
    """Hears every command that a Redis executes, those of scripts too."""

    _WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname, parts.port)
        self._heard: list[list[str]] = []
        self._changed = threading.Condition()

    def states_of(self, id: Any) -> list[tuple[str, int | None]]:
        """What was written of this job's state and token, up to now."""
        self._wait_for(f"mark-{time.monotonic_ns()}")
        states: list[tuple[str, int | None]] = []
        for command, *words in self._heard:
            if command == "HSET" and words[0].endswith(f":job:{id}"):
                fields = dict(zip(words[1::2], words[2::2], strict=True))
                last = states[-1] if states else ("", None)
                now = fields.get("state", last[0]), int(fields["token"]) if "token" in fields else last[1]
                states += [now] if now != last else []
        return states

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(self._address)
        self._socket.sendall(b"MONITOR\r\n")
        self._lines = self._socket.makefile("rb")
        assert self._lines.readline() == b"+OK\r\n"
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._lines.close()
        self._socket.close()

    def _hear(self) -> None:
        for line in self._lines:
            with self._changed:
                self._heard.append(self._WORD.findall(line.decode()) or [""])
                self._changed.notify_all()

    def _wait_for(self, mark: str) -> None:
        with socket.create_connection(self._address) as talk:
            talk.sendall(f"ECHO {mark}\r\n".encode())
            with self._changed:
                assert self._changed.wait_for(lambda: any(mark in words for words in self._heard[-99:]), 10)
