"""Real brokers for tests, behind one handle: where to publish, and everything that arrived there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import aio_pika
import nats
import redis.asyncio

from tests.support.servers import Nats, RabbitMQ, Redis

TOPIC = "orders"


@dataclass(frozen=True)
class Arrived:
    """One delivery, as a consumer sees it."""

    id: str
    key: str | None
    payload: Any
    headers: dict[str, str] = field(default_factory=dict)


class Target(Protocol):
    """A broker that a test can read from."""

    url: str
    server: Any

    async def prepare(self, topic: str = TOPIC) -> None:
        """Make an empty queue or stream for messages of this topic."""

    async def arrived(self, topic: str = TOPIC) -> list[Arrived]:
        """Everything that was ever published there, in order."""


class RabbitTarget:
    def __init__(self, server: RabbitMQ) -> None:
        self.server = server
        self.url = server.url()
        self._seen: list[Arrived] = []

    async def prepare(self, topic: str = TOPIC) -> None:
        self._seen = []
        async with self._channel() as channel:
            with contextlib.suppress(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.queue_delete(topic)
        async with self._channel() as channel:
            await channel.declare_queue(topic, durable=True)

    async def arrived(self, topic: str = TOPIC) -> list[Arrived]:
        async with self._channel() as channel:
            queue = await channel.declare_queue(topic, durable=True, passive=True)
            for _ in range(queue.declaration_result.message_count):
                envelope = await queue.get(no_ack=True, fail=False)
                if envelope is None:
                    break
                headers = {name: str(value) for name, value in envelope.headers.items()}
                assert envelope.message_id == headers["dibs-id"]
                self._seen.append(
                    Arrived(headers["dibs-id"], headers.get("dibs-key"), json.loads(envelope.body), headers)
                )
        return self._seen

    @contextlib.asynccontextmanager
    async def _channel(self) -> AsyncIterator[Any]:
        connection = await aio_pika.connect(self.url)
        try:
            yield await connection.channel()
        finally:
            await connection.close()


class NatsTarget:
    def __init__(self, server: Nats) -> None:
        self.server = server
        self.url = server.url()

    async def prepare(self, topic: str = TOPIC) -> None:
        client = await nats.connect(self.url, allow_reconnect=False)
        jetstream = client.jetstream()
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await jetstream.delete_stream(topic)
        await jetstream.add_stream(name=topic, subjects=[topic])
        await client.close()

    async def arrived(self, topic: str = TOPIC) -> list[Arrived]:
        client = await nats.connect(self.url, allow_reconnect=False)
        jetstream = client.jetstream()
        number = (await jetstream.stream_info(topic)).state.messages
        seen: list[Arrived] = []
        if number:
            subscription = await jetstream.subscribe(topic, ordered_consumer=True)
            while len(seen) < number:
                one = await subscription.next_msg(timeout=30)
                headers = dict(one.headers or {})
                assert headers["Nats-Msg-Id"] == headers["dibs-id"]
                seen.append(
                    Arrived(headers["dibs-id"], headers.get("dibs-key"), json.loads(one.data), headers)
                )
        await client.close()
        return seen


class RedisTarget:
    def __init__(self, server: Redis) -> None:
        self.server = server
        self.url = server.url(9)

    async def prepare(self, topic: str = TOPIC) -> None:
        async with redis.asyncio.Redis.from_url(self.url, decode_responses=True) as client:
            await client.flushdb()

    async def arrived(self, topic: str = TOPIC) -> list[Arrived]:
        async with redis.asyncio.Redis.from_url(self.url, decode_responses=True) as client:
            entries = await client.xrange(topic)
        return [
            Arrived(
                fields["id"],
                fields.get("key"),
                json.loads(fields["payload"]),
                {**fields, **json.loads(fields.get("headers", "{}"))},
            )
            for _, fields in entries
        ]


# -- Webhooks -----------------------------------------------------------------------------------


class Receiver:
    """A web server that keeps what is posted to it, or responds as the test says."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.posted: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posted.append(({name.lower(): text for name, text in self.headers.items()}, body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?a=1"

    @contextlib.contextmanager
    def serving(self) -> Iterator[Receiver]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def in_order(arrived: list[Arrived]) -> dict[str, list[int]]:
    """Return the numbers of each key's messages in the order of their first arrival."""
    seen: set[str] = set()
    lines: dict[str, list[int]] = {}
    for one in arrived:
        if one.id not in seen:
            seen.add(one.id)
            lines.setdefault(str(one.key), []).append(one.payload["n"])
    return lines


async def until_arrived(target: Target, number: int, seconds: float = 60) -> list[Arrived]:
    """Everything that arrived, once so many different messages did."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        arrived = await target.arrived()
        if len({one.id for one in arrived}) >= number or loop.time() > deadline:
            return list(arrived)
        await asyncio.sleep(0.2)
