"""Connections to Redis that dibs owns, a few for each face.

A pool executes one step at a time: it takes a connection, calls the scripts of the answer, reads their
replies. `RedisNode` sorts errors into `TryAgain`, an error that says what to do, and bugs.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

from dibs.engines.pools import AsyncPool, SyncPool
from dibs.engines.redis.connection import Command, RedisNode, driver
from dibs.engines.redis.engine import Redis
from dibs.engines.redis.scripts import OptionalCommand, ScriptCall
from dibs.engines.retries import TryAgain
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step, run, run_async

T = TypeVar("T")

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 30  # seconds without a reply; the connection is then given up
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


def _opening(engine: Redis, node: RedisNode) -> Requests[Rows]:
    """Check before the first question whether this server may be used."""
    yield from node.check((yield ("INFO",)), engine.scripts)
    return []


# -- Async --------------------------------------------------------------------------------------


class AsyncRedis(AsyncPool):
    """Connections of redis-py's asyncio half, one set per event loop."""

    def __init__(self, engine: Redis, node: RedisNode, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._node = node

    async def execute(self, step: Step) -> Rows:
        return await self._send(lambda: self._engine.answer(step))

    async def open(self) -> None:
        await self._send(lambda: _opening(self._engine, self._node))

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Pass on every hint until the connection ends, then raise; the listener begins again."""
        connection = await self._connect()
        try:
            await connection.send_command("SUBSCRIBE", self._engine.channel)
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
            await connection.disconnect(nowait=True)

    async def _next_message(self, connection: Any) -> Any:
        """Return the next message; a connection without a reply even to a PING is half-open, and dead."""
        for ping in ("PING", None):
            try:
                async with asyncio.timeout(QUIET):
                    return await connection.read_response(disconnect_on_error=False)
            except TimeoutError:
                if ping is not None:
                    await connection.send_command(ping)
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

    async def _ask(self, connection: Any, request: Request) -> Any:
        exceptions = driver()
        async with asyncio.timeout(ANSWER_TIMEOUT):
            try:
                await connection.send_command(*_by_digest(self._engine, request))
                return await connection.read_response()
            except exceptions.NoScriptError:
                assert isinstance(request, ScriptCall)
                await connection.send_command(*_by_text(self._engine, request))
                return await connection.read_response()
            except exceptions.ResponseError:
                if isinstance(request, OptionalCommand):
                    return []
                raise

    async def _connect(self) -> Any:
        driver()
        import redis.asyncio.connection as asynchronous
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        options = _shared_options(self._node, asynchronous)
        # Our own timeout is around the whole question: redis-py's starts an asyncio task for each write.
        made = options.pop("class")(**options, socket_timeout=None, retry=Retry(NoBackoff(), 0))
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):  # redis-py's does not include the handshake
                await made.connect()
        except BaseException as error:
            await made.disconnect(nowait=True)
            raise self._node.unreachable(error) from error
        return made

    async def _after(self, connection: Any, error: BaseException) -> None:
        """Keep a connection that has read its whole reply; close it after any other error."""
        if _is_plain_refusal(error):
            self._idle.append(connection)
            return
        await connection.disconnect(nowait=True)
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    def _sorted(self, error: BaseException) -> BaseException:
        return self._node.judge(error)

    async def _end(self, connection: Any) -> None:
        await connection.disconnect()

    def _drop(self, connection: Any) -> None:
        with suppress(RuntimeError):
            connection._close()
        connection._writer = connection._reader = None


# -- Sync ---------------------------------------------------------------------------------------


class SyncRedis(SyncPool):
    """Connections of redis-py's sync half, shared by the threads of one process."""

    def __init__(self, engine: Redis, node: RedisNode, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._node = node

    def execute(self, step: Step) -> Rows:
        return self._send(lambda: self._engine.answer(step))

    def open(self) -> None:
        self._send(lambda: _opening(self._engine, self._node))

    def _send(self, make: Callable[[], Requests[Rows]]) -> Rows:
        done = False

        def ask(request: Request) -> Any:
            nonlocal done
            reply = self._ask(connection, request)
            done = True
            return reply

        with self._connection(lambda error: self._node.judge(error, done=done)) as connection:
            return run(make(), ask)

    def _ask(self, connection: Any, request: Request) -> Any:
        exceptions = driver()
        connection.send_command(*_by_digest(self._engine, request))
        try:
            return connection.read_response()
        except exceptions.NoScriptError:
            assert isinstance(request, ScriptCall)
            connection.send_command(*_by_text(self._engine, request))
            return connection.read_response()
        except exceptions.ResponseError:
            if isinstance(request, OptionalCommand):
                return []
            raise

    def _connect(self) -> Any:
        driver()
        import redis.connection as blocking
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options = _shared_options(self._node, blocking)
        made = options.pop("class")(**options, socket_timeout=ANSWER_TIMEOUT, retry=Retry(NoBackoff(), 0))
        try:
            made.connect()
        except BaseException as error:
            made.disconnect()
            raise self._node.unreachable(error) from error
        return made

    def _after(self, connection: Any, error: BaseException) -> None:
        if _is_plain_refusal(error):
            self._idle.append(connection)
            return
        connection.disconnect()
        self._drop_idle()

    def _sorted(self, error: BaseException) -> BaseException:
        return self._node.judge(error)

    def _end(self, connection: Any) -> None:
        connection.disconnect()


def _shared_options(node: RedisNode, module: Any) -> dict[str, Any]:
    options = node.options()
    wanted = options.pop("connection_class", None)
    return {
        "class": getattr(module, wanted.__name__ if wanted is not None else "Connection"),
        "decode_responses": True,
        "protocol": 2,
        "client_name": "dibs",
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
        **options,
    }


def _is_plain_refusal(error: BaseException) -> bool:
    """Tell whether an error reply leaves both the connection and its node usable."""
    exceptions = driver()
    elsewhere = (exceptions.MovedError, exceptions.AskError, exceptions.ReadOnlyError)
    return isinstance(error, exceptions.ResponseError) and not isinstance(error, elsewhere)
