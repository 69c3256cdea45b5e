"""Redis Streams: added once per id within a window, and trimmed to a length."""

from typing import Any

from dibs.jobs import payload
from dibs.outbox.brokers import BrokerRefused, BrokerUnavailable, missing, without_password
from dibs.outbox.messages import Message

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 10
MIB = 1024 * 1024

# The note and the entry in one step: a relay that dies in between would leave a note without an entry.
ADD = """
if tonumber(ARGV[1]) > 0 and not redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[1]) then
    return false
end
local words = {'XADD', KEYS[1]}
if tonumber(ARGV[2]) > 0 then
    words = {'XADD', KEYS[1], 'MAXLEN', '~', ARGV[2]}
end
words[#words + 1] = '*'
for place = 3, #ARGV do
    words[#words + 1] = ARGV[place]
end
return redis.call(unpack(words))
"""


class RedisStreams:
    """The topic, behind `prefix`, is the stream.

    A stream keeps about `maxlen` entries, 0 keeps all; within `dedupe` seconds an id is added once, 0 adds it
    every time.
    """

    def __init__(self, url: str, *, prefix: str = "", maxlen: int = 1_000_000, dedupe: int = 3600) -> None:
        self._url = url
        self._prefix = prefix
        self._maxlen = maxlen
        self._dedupe = dedupe
        self._client: Any = None
        self._answers = False

    async def open(self) -> None:
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise missing("redis") from None
        if self._client is None:
            self._client = Redis.from_url(
                self._url, socket_connect_timeout=CONNECT_TIMEOUT, socket_timeout=ANSWER_TIMEOUT
            )
        if not self._answers:
            await self._ask("PING")

    async def publish(self, message: Message) -> None:
        if self._client is None:
            raise BrokerUnavailable("there is no connection to Redis")
        stream = f"{self._prefix}{message.topic}"
        stamps = message.stamps().items()
        ours = {name.removeprefix("dibs-"): value for name, value in stamps if name.startswith("dibs-")}
        fields = {**ours, "payload": message.body}
        if message.headers:
            fields["headers"] = payload.encode(dict(message.headers), "headers", MIB)
        words = [word for pair in fields.items() for word in pair]
        await self._ask("EVAL", ADD, 2, stream, _note(stream, message), self._dedupe, self._maxlen, *words)

    async def close(self) -> None:
        client, self._client, self._answers = self._client, None, False
        if client is not None:
            await client.aclose()

    async def _ask(self, *words: Any) -> None:
        from redis.exceptions import (
            AuthenticationError,
            BusyLoadingError,
            ConnectionError,
            ReadOnlyError,
            TimeoutError,
        )

        try:
            await self._client.execute_command(*words)
            self._answers = True
        except AuthenticationError as error:
            self._answers = False
            raise BrokerRefused("Redis", self._url, error) from error
        except (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OSError) as error:
            self._answers = False
            raise BrokerUnavailable(
                f"Redis at {without_password(self._url)} can't be used: {error or type(error).__name__}"
            ) from error


def _note(stream: str, message: Message) -> str:
    """In the slot of the stream, so that a cluster can see to both."""
    tagged = stream if "{" in stream else f"{{{stream}}}"
    return f"{tagged}:sent:{message.id}"
