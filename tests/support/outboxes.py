"""Both faces of an outbox behind one sync handle, with access to its database."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from dibs.outbox import Message, Outbox
from tests.support.servers import mysql_connection

TIMES = ("available_at", "locked_until", "created_at", "published_at")


def database_of(outbox: Outbox) -> Any:
    """Return the database behind both faces of an outbox."""
    return outbox._database


def statements_of(outbox: Outbox) -> Any:
    """Return the SQL of an outbox."""
    return database_of(outbox).statements


class Box:
    """An outbox as a test uses it: the verbs of `Outbox`, always sync."""

    def __init__(self, face: str, outbox: Outbox, url: str, runner: asyncio.Runner) -> None:
        self.face = face
        self.outbox = outbox
        self.url = url
        self._runner = runner

    def wait_for(self, value: Any) -> Any:
        return self._runner.run(_awaited(value)) if inspect.isawaitable(value) else value

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine, whichever face this is."""
        return self._runner.run(coroutine)

    def __getattr__(self, name: str) -> Any:
        if self.face == "sync":
            return getattr(self.outbox.sync, name)
        return lambda *args, **kwargs: self.wait_for(getattr(self.outbox, name)(*args, **kwargs))

    def publish_keys(self, keys: str, topic: str = "orders") -> list[Any]:
        """Publish a message for each letter, numbered from 0; a dot is a message without a key."""
        return [
            self.publish(topic, {"n": number}, key=None if key == "." else key)
            for number, key in enumerate(keys)
        ]

    def age(self, seconds: float) -> None:
        """Let time pass: everything in the outbox becomes this much older."""
        micros = round(seconds * 1_000_000)
        shift = {
            "sqlite": f"{{0}} = {{0}} - {micros}",
            "mysql": f"{{0}} = {{0}} - interval {micros} microsecond",
            "postgresql": f"{{0}} = {{0}} - interval '{micros} microseconds'",
        }[statements_of(self.outbox).database]
        self.execute(f"update dibs_outbox set {', '.join(shift.format(name) for name in TIMES)}")

    def execute(self, sql: str) -> None:
        with contextlib.closing(beside(self.url)) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            connection.commit()

    def race(self, times: int, call: Callable[[int], Any]) -> list[Any]:
        """Make the same call from several threads at once."""
        gate = threading.Barrier(times)

        def one(number: int) -> Any:
            gate.wait()
            return call(number)

        with ThreadPoolExecutor(times) as threads:
            return list(threads.map(one, range(times)))


async def _awaited(value: Any) -> Any:
    return await value


def beside(url: str) -> Any:
    """Open another connection to the same database."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    if url.startswith("mysql"):
        return mysql_connection(url, autocommit=False)
    return psycopg.connect(url)


@contextlib.contextmanager
def open_box(face: str, url: str, **options: Any) -> Iterator[Box]:
    with asyncio.Runner() as runner:
        outbox = Outbox(url, **options)
        try:
            yield Box(face, outbox, url, runner)
        finally:
            runner.run(outbox.close())


def numbers(messages: list[Message]) -> list[int]:
    return [message.payload["n"] for message in messages]


def eventually(true: Callable[[], Any], seconds: float = 30) -> Any:
    """Call until the result is true; return the last result after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (result := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return result


async def eventually_async(true: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := true()) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return result
