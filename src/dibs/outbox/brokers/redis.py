"""Redis Streams: an entry is added once per id within a window, and the stream is trimmed to a length."""

from typing import Any

from dibs.jobs import payload
from dibs.outbox.brokers import BrokerRefused, BrokerUnavailable, missing, reason, without_password
from dibs.outbox.messages import Message
from dibs.settings import MIB

CONNECT_TIMEOUT = 10
REPLY_TIMEOUT = 10

# Remember the id and add the entry in one step: a relay that dies in between would lose the message.
ADD = """
if tonumber(ARGV[1]) > 0 and not redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[1]) then
    return false
end
local words = {'XADD', KEYS[1]}
if tonumber(ARGV[2]) > 0 then
    words = {'XADD', KEYS[1], 'MAXLEN', '~', ARGV[2]}
end
words[#words + 1] = '*'
for index = 3, #ARGV do
    words[#words + 1] = ARGV[index]
end
return redis.call(unpack(words))
"""


class RedisStreams:
    """A Redis server. The name of the stream is `prefix` and the topic.

    A stream keeps about `maxlen` entries, 0 keeps all; within `dedupe` seconds an id is added once, 0 adds it
    every time.
    """

    def __init__(self, url: str, *, prefix: str = "", maxlen: int = 1_000_000, dedupe: int = 3600) -> None:
        self._url = url
        self._prefix = prefix
        self._maxlen = maxlen
        self._dedupe = dedupe
        self._client: Any = None
        self._is_up = False

    async def open(self) -> None:
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise missing("redis") from None
        if self._client is None:
            self._client = Redis.from_url(
                self._url, socket_connect_timeout=CONNECT_TIMEOUT, socket_timeout=REPLY_TIMEOUT
            )
        if not self._is_up:
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
        await self._ask(
            "EVAL", ADD, 2, stream, _sent_key(stream, message), self._dedupe, self._maxlen, *words
        )

    async def close(self) -> None:
        client, self._client, self._is_up = self._client, None, False
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
            self._is_up = True
        except AuthenticationError as error:
            self._is_up = False
            raise BrokerRefused("Redis", self._url, error) from error
        except (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OSError) as error:
            self._is_up = False
            raise BrokerUnavailable(
                f"Redis at {without_password(self._url)} can't be used: {reason(error)}"
            ) from error


def _sent_key(stream: str, message: Message) -> str:
    """Return the key that remembers an id, in the hash slot of the stream: a cluster needs both together."""
    tagged = stream if "{" in stream else f"{{{stream}}}"
    return f"{tagged}:sent:{message.id}"
