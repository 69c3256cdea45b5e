"""Connections to Redis that dibs owns, a few in each colour.

A pool executes one step at a time: it takes a connection, calls the scripts of the answer, reads their
replies. What goes wrong is sorted by `Nodes` into `TryAgain`, a clear error, or a bug.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

from dibs.engines.pools import AsyncPool, SyncPool
from dibs.engines.redis.connection import Command, Nodes, driver
from dibs.engines.redis.engine import Redis
from dibs.engines.redis.scripts import Call, IfAllowed
from dibs.engines.retries import TryAgain
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows, Step, run, run_async

T = TypeVar("T")

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 30  # seconds without a reply; the connection is then given up
QUIET = 10  # seconds without a word from the listening connection; it is then asked for one

# A script is called by its digest; only a server that has never seen it is told the text.
Word = Call | IfAllowed | Command
Talk = Generator[Word, Any, T]


def _by_digest(engine: Redis, word: Word) -> Command:
    match word:
        case Call(script, argument):
            return ("EVALSHA", script.digest, "1", engine.key, argument)
        case IfAllowed(words):
            return words
    return word


def _by_text(engine: Redis, call: Call) -> Command:
    return ("EVAL", call.script.text, "1", engine.key, call.argument)


def _opening(engine: Redis, nodes: Nodes) -> Talk[Rows]:
    """The first word to a server: may we use it?"""
    yield from nodes.check((yield ("INFO",)), engine)
    return []


# -- Awaited ------------------------------------------------------------------------------------


class AsyncRedis(AsyncPool):
    """Connections of redis-py's asyncio half, one set per event loop."""

    def __init__(self, engine: Redis, nodes: Nodes, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._nodes = nodes

    async def execute(self, step: Step) -> Rows:
        return await self._talk(lambda: self._engine.answer(step))

    async def open(self) -> None:
        await self._talk(lambda: _opening(self._engine, self._nodes))

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Hear every hint until the connection ends, then raise; whoever listens begins again."""
        connection = await self._connect()
        try:
            await connection.send_command("SUBSCRIBE", self._engine.channel)
            while True:
                what, *rest = await self._next_word(connection)
                if what == "subscribe":
                    hear("")  # whatever was announced before we listened,
                    hear(STOP_HINT)  # or asked to stop
                elif what == "message":
                    hear(rest[1])
        except Exception as error:
            raise self._nodes.judge(error) from error
        finally:
            await connection.disconnect(nowait=True)

    async def _next_word(self, connection: Any) -> Any:
        """The next message; a connection that is silent even when spoken to is half-open, and dead."""
        for word in ("PING", None):
            try:
                async with asyncio.timeout(QUIET):
                    return await connection.read_response(disconnect_on_error=False)
            except TimeoutError:
                if word is not None:
                    await connection.send_command(word)
        raise TryAgain(ConnectionError("the listening connection fell silent"), self._nodes.name)

    async def _talk(self, make: Callable[[], Talk[Rows]]) -> Rows:
        done = False

        async def ask(word: Word) -> Any:
            nonlocal done
            reply = await self._ask(connection, word)
            done = True
            return reply

        async with self._connection(lambda error: self._nodes.judge(error, done=done)) as connection:
            return await run_async(make(), ask)

    async def _ask(self, connection: Any, word: Word) -> Any:
        exceptions = driver()
        async with asyncio.timeout(ANSWER_TIMEOUT):
            try:
                await connection.send_command(*_by_digest(self._engine, word))
                return await connection.read_response()
            except exceptions.NoScriptError:
                assert isinstance(word, Call)
                await connection.send_command(*_by_text(self._engine, word))
                return await connection.read_response()
            except exceptions.ResponseError:
                if isinstance(word, IfAllowed):
                    return []
                raise

    async def _connect(self) -> Any:
        driver()
        import redis.asyncio.connection as asynchronous
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        options = _shared_options(self._nodes, asynchronous)
        # Our own timeout is around the whole question: theirs starts a task for each write.
        made = options.pop("class")(**options, socket_timeout=None, retry=Retry(NoBackoff(), 0))
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):  # also for the greeting, which theirs leaves out
                await made.connect()
        except BaseException as error:
            await made.disconnect(nowait=True)
            raise self._nodes.unreachable(error) from error
        return made

    async def _after(self, connection: Any, error: BaseException) -> None:
        """Keep a connection that has read its whole reply; after anything else start afresh."""
        if _is_plain_refusal(error):
            self._idle.append(connection)
            return
        await connection.disconnect(nowait=True)
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    def _sorted(self, error: BaseException) -> BaseException:
        return self._nodes.judge(error)

    async def _end(self, connection: Any) -> None:
        await connection.disconnect()

    def _drop(self, connection: Any) -> None:
        with suppress(RuntimeError):
            connection._close()
        connection._writer = connection._reader = None


# -- Blocking -----------------------------------------------------------------------------------


class SyncRedis(SyncPool):
    """Connections of redis-py's blocking half, shared by the threads of one process."""

    def __init__(self, engine: Redis, nodes: Nodes, size: int) -> None:
        super().__init__(size)
        self._engine = engine
        self._nodes = nodes

    def execute(self, step: Step) -> Rows:
        return self._talk(lambda: self._engine.answer(step))

    def open(self) -> None:
        self._talk(lambda: _opening(self._engine, self._nodes))

    def _talk(self, make: Callable[[], Talk[Rows]]) -> Rows:
        done = False

        def ask(word: Word) -> Any:
            nonlocal done
            reply = self._ask(connection, word)
            done = True
            return reply

        with self._connection(lambda error: self._nodes.judge(error, done=done)) as connection:
            return run(make(), ask)

    def _ask(self, connection: Any, word: Word) -> Any:
        exceptions = driver()
        connection.send_command(*_by_digest(self._engine, word))
        try:
            return connection.read_response()
        except exceptions.NoScriptError:
            assert isinstance(word, Call)
            connection.send_command(*_by_text(self._engine, word))
            return connection.read_response()
        except exceptions.ResponseError:
            if isinstance(word, IfAllowed):
                return []
            raise

    def _connect(self) -> Any:
        driver()
        import redis.connection as blocking
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options = _shared_options(self._nodes, blocking)
        made = options.pop("class")(**options, socket_timeout=ANSWER_TIMEOUT, retry=Retry(NoBackoff(), 0))
        try:
            made.connect()
        except BaseException as error:
            made.disconnect()
            raise self._nodes.unreachable(error) from error
        return made

    def _after(self, connection: Any, error: BaseException) -> None:
        if _is_plain_refusal(error):
            self._idle.append(connection)
            return
        connection.disconnect()
        self._drop_idle()

    def _sorted(self, error: BaseException) -> BaseException:
        return self._nodes.judge(error)

    def _end(self, connection: Any) -> None:
        connection.disconnect()


def _shared_options(nodes: Nodes, colour: Any) -> dict[str, Any]:
    options = nodes.options()
    wanted = options.pop("connection_class", None)
    return {
        "class": getattr(colour, wanted.__name__ if wanted is not None else "Connection"),
        "decode_responses": True,
        "protocol": 2,
        "client_name": "dibs",
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
        **options,
    }


def _is_plain_refusal(error: BaseException) -> bool:
    """An error reply that says nothing against the connection, nor against the node behind it."""
    exceptions = driver()
    elsewhere = (exceptions.MovedError, exceptions.AskError, exceptions.ReadOnlyError)
    return isinstance(error, exceptions.ResponseError) and not isinstance(error, elsewhere)


Execute = Callable[[Step], Rows]
ExecuteAsync = Callable[[Step], Awaitable[Rows]]
