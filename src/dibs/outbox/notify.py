"""Hear of new messages at once, where the database can tell: PostgreSQL's NOTIFY. Hints may be lost; the poll
is the promise."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from dibs.outbox.database import Home

Hear = Callable[[str], None]

GLANCE = 0.5  # seconds between two looks at whether a thread should stop


async def listen(home: Home, hear: Hear) -> None:
    """Call `hear` with the name of a broker whenever a message for it was committed; until cancelled.

    Returns at once where nothing can be heard: another database, or a driver that can't.
    """
    if home.statements.database != "postgresql":
        return
    if home.lends_threads:
        await _in_thread(home, hear)
        return
    async with home.awaited_engine().connect() as connection:
        raw = (await connection.get_raw_connection()).driver_connection
        try:
            if hasattr(raw, "add_listener"):
                await _by_asyncpg(raw, home.statements.channel, hear)
            elif hasattr(raw, "notifies"):
                await _by_psycopg(raw, home.statements.channel, hear)
        finally:
            await connection.invalidate()  # it listens: nobody else should be given it


async def _by_asyncpg(connection: Any, channel: str, hear: Hear) -> None:
    ended = asyncio.Event()
    connection.add_termination_listener(lambda _: ended.set())
    await connection.add_listener(channel, lambda *hint: hear(hint[3]))
    await ended.wait()
    raise ConnectionError("the listening connection ended")


async def _by_psycopg(connection: Any, channel: str, hear: Hear) -> None:
    await connection.set_autocommit(True)
    await connection.execute(f'listen "{channel}"')
    async for hint in connection.notifies():
        hear(hint.payload)


async def _in_thread(home: Home, hear: Hear) -> None:
    """The same on an engine that blocks."""
    stop = threading.Event()
    loop = asyncio.get_running_loop()

    def pass_on(hint: str) -> None:
        loop.call_soon_threadsafe(hear, hint)

    try:
        await asyncio.to_thread(_block, home, pass_on, stop)
    finally:
        stop.set()


def _block(home: Home, hear: Hear, stop: threading.Event) -> None:
    with home.blocking_engine().connect() as connection:
        raw = connection.connection.driver_connection
        try:
            if not hasattr(raw, "notifies") or not callable(raw.notifies):  # psycopg2 has a list of them
                return
            raw.autocommit = True
            raw.execute(f'listen "{home.statements.channel}"')
            while not stop.is_set():
                for hint in raw.notifies(timeout=GLANCE):
                    hear(hint.payload)
        finally:
            connection.invalidate()
