"""Connections to Redis that dibs owns, a few for each face.

A pool executes one step at a time: it takes a connection, calls the scripts of the answer, reads their
replies. `RedisNode` sorts errors into `TryAgain`, an error that says what to do, and bugs.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, TypeGuard, TypeVar

from dibs.engines.pools import AsyncPool, Pool, SyncPool
from dibs.engines.redis.connection import Asked, RedisNode, check_role
from dibs.engines.redis.engine import Redis
from dibs.engines.redis.protocol import AsyncConnection, Command, ReplyError, SyncConnection
from dibs.engines.redis.scripts import OptionalCommand, ScriptCall
from dibs.engines.retries import TryAgain
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step, run, run_async

T = TypeVar("T")

SENTINEL_TIMEOUT = 1.0  # seconds for a Sentinel to answer, before the next one is asked
QUIET = 10  # seconds without a message on the listening connection; then it is pinged

# A script is called by its digest; its text is sent only to a server that does not know it.
Request = ScriptCall | OptionalCommand | Command
Requests = Generator[Request, Any, T]


def _by_digest(engine: Redis, request: Request) -> Command:
    match request:
        case ScriptCall(script, argument):
            return ("EVALSHA", script.digest, "1", engine.scripts.key, argument)
        case OptionalCommand(words):
            return words
    return request


def _by_text(engine: Redis, call: ScriptCall) -> Command:
    return ("EVAL", call.script.text, "1", engine.scripts.key, call.argument)


class RedisPool(Pool):
    """What the pools of both faces have in common."""

    def __init__(self, engine: Redis, node: RedisNode, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._node = node

    def _opening(self) -> Requests[Rows]:
        """Check before the first question whether this server may be used."""
        yield from self._node.check((yield ("INFO",)), self._engine.scripts)
        return []

    def _sorted(self, error: BaseException) -> BaseException:
        return self._node.judge(error)


# -- Async --------------------------------------------------------------------------------------


class AsyncRedis(RedisPool, AsyncPool):
    """Connections of the async face, one set per event loop."""

    async def execute(self, step: Step) -> Rows:
        return await self._send(lambda: self._engine.answer(step))

    async def open(self) -> None:
        await self._send(self._opening)

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Pass on every hint until the connection ends, then raise; the listener begins again."""
        connection = await self._connect()
        try:
            connection.send(("SUBSCRIBE", self._engine.channel))
            while True:
                what, *rest = await self._next_message(connection)
                if what == "subscribe":
                    hear("")  # hints for jobs, sent before we listened,
                    hear(STOP_HINT)  # and for requests to stop
                elif what == "message":
                    hear(rest[1])
        except Exception as error:
            raise self._node.judge(error) from error
        finally:
            self._drop(connection)

    async def _next_message(self, connection: AsyncConnection) -> Any:
        """Return the next message; a connection without a reply even to a PING is half-open, and dead."""
        for ping in (True, False):
            try:
                async with asyncio.timeout(QUIET):
                    return await connection.read()
            except TimeoutError:
                if ping:
                    connection.send(("PING",))
        raise TryAgain(ConnectionError("the listening connection fell silent"), self._node.name)

    async def _send(self, make: Callable[[], Requests[Rows]]) -> Rows:
        done = False

        async def ask(request: Request) -> Any:
            nonlocal done
            reply = await self._ask(connection, request)
            done = True
            return reply

        async with self._connection(lambda error: self._node.judge(error, done=done)) as connection:
            return await run_async(make(), ask)

    async def _ask(self, connection: AsyncConnection, request: Request) -> Any:
        try:
            return await connection.ask(_by_digest(self._engine, request))
        except ReplyError as error:
            if not _is_unknown_script(request, error):
                return _without_optional(error, request)
        return await connection.ask(_by_text(self._engine, request))

    async def _connect(self) -> AsyncConnection:
        made = AsyncConnection()
        try:
            if (watched := self._node.sentinels) is None:
                await made.connect(self._node.address)
            else:
                await made.connect(self._node.found(await run_async(watched.find(), _reply_of)))
                check_role(await made.ask(("ROLE",)))
        except BaseException as error:
            made.close()
            raise self._node.unreachable(error) from error
        return made

    async def _after(self, connection: AsyncConnection, error: BaseException) -> None:
        """Keep a connection that has read its whole reply; close it after any other error."""
        if _is_plain_refusal(error):
            self._idle.append(connection)
            return
        self._drop(connection)
        self._drop_idle()

    async def _end(self, connection: AsyncConnection) -> None:
        await connection.end()

    def _drop(self, connection: AsyncConnection) -> None:
        with suppress(RuntimeError):
            connection.close()


async def _reply_of(asked: Asked) -> Any:
    """Return the reply of one Sentinel; None if it does not answer, or not that."""
    sentinel = AsyncConnection()
    try:
        async with asyncio.timeout(SENTINEL_TIMEOUT):
            await sentinel.connect(asked.at)
            return await sentinel.ask(asked.command)
    except (OSError, ReplyError):
        return None
    finally:
        sentinel.close()


# -- Sync ---------------------------------------------------------------------------------------


class SyncRedis(RedisPool, SyncPool):
    """Connections of the sync face, shared by the threads of one process."""

    def execute(self, step: Step) -> Rows:
        return self._send(lambda: self._engine.answer(step))

    def open(self) -> None:
        self._send(self._opening)

    def _send(self, make: Callable[[], Requests[Rows]]) -> Rows:
        done = False

        def ask(request: Request) -> Any:
            nonlocal done
            reply = self._ask(connection, request)
            done = True
            return reply

        with self._connection(lambda error: self._node.judge(error, done=done)) as connection:
            return run(make(), ask)

    def _ask(self, connection: SyncConnection, request: Request) -> Any:
        try:
            return connection.ask(_by_digest(self._engine, request))
        except ReplyError as error:
            if not _is_unknown_script(request, error):
                return _without_optional(error, request)
        return connection.ask(_by_text(self._engine, request))

    def _connect(self) -> SyncConnection:
        made = SyncConnection()
        try:
            if (watched := self._node.sentinels) is None:
                made.connect(self._node.address)
            else:
                made.connect(self._node.found(run(watched.find(), _reply_to)))
                check_role(made.ask(("ROLE",)))
        except BaseException as error:
            made.close()
            raise self._node.unreachable(error) from error
        return made

    def _after(self, connection: SyncConnection, error: BaseException) -> None:
        if _is_plain_refusal(error):
            self._idle.append(connection)
            return
        connection.close()
        self._drop_idle()

    def _end(self, connection: SyncConnection) -> None:
        connection.close()


def _reply_to(asked: Asked) -> Any:
    sentinel = SyncConnection()
    try:
        sentinel.connect(asked.at, SENTINEL_TIMEOUT)
        return sentinel.ask(asked.command)
    except (OSError, ReplyError):
        return None
    finally:
        sentinel.close()


def _is_unknown_script(request: Request, error: ReplyError) -> TypeGuard[ScriptCall]:
    return error.code == "NOSCRIPT"


def _without_optional(error: ReplyError, request: Request) -> Any:
    """Return the empty reply to a command that the server forbids; raise any other error."""
    if isinstance(request, OptionalCommand):
        return []
    raise error


def _is_plain_refusal(error: BaseException) -> bool:
    """Tell whether an error reply leaves both the connection and its node usable."""
    return isinstance(error, ReplyError) and error.code not in ("MOVED", "ASK", "READONLY")
