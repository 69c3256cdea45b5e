"""Real brokers: what arrives there, how a refusal is told from an outage, and what a restart costs."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dibs import BadRequest, Retry
from dibs.outbox import BrokerUnavailable, Outbox, Rejected, Relay
from dibs.outbox.brokers import BrokerRefused, make_broker, nats, rabbitmq, redis
from dibs.outbox.brokers.redis import RedisStreams
from dibs.outbox.brokers.webhook import Webhook, signature
from tests.support.brokers import Receiver, Target, until_arrived
from tests.support.outboxes import Box, eventually_async
from tests.support.servers import Nats, Redis, free_port

every_broker = pytest.mark.parametrize("target", ["rabbitmq", "nats", "redis"], indirect=True)


@pytest.fixture
def engine() -> str:
    return "sqlite"


@pytest.fixture
def face() -> str:
    return "async"


@every_broker
def test_a_message_arrives_with_its_headers(box: Box, target: Target) -> None:
    box.run(target.prepare())
    id = box.publish("orders", {"n": 1, "name": "Zoë"}, key="order-7", headers={"traceparent": "00-a-b-01"})
    box.publish("orders", {"n": 2})

    box.run(Relay(box.outbox, {"default": target.url}).run(until_idle=True))

    arrived = box.run(target.arrived())
    first = next(one for one in arrived if one.id == str(id))
    assert (first.key, first.payload) == ("order-7", {"n": 1, "name": "Zoë"})
    assert first.headers["traceparent"] == "00-a-b-01"
    token = first.headers.get("dibs-token", first.headers.get("token"))
    assert int(token) == box.find_published()[0].token
    assert first.headers.get("dibs-time", first.headers.get("time", "")).endswith("+00:00")
    assert {one.key for one in arrived} == {"order-7", None}


@pytest.mark.parametrize("target", ["rabbitmq", "nats"], indirect=True)
def test_a_message_that_nobody_would_get_is_refused(box: Box, target: Target) -> None:
    box.run(target.prepare())
    box.publish("nowhere", {"n": 1}, max_attempts=1)
    box.publish("orders", {"n": 2})

    box.run(Relay(box.outbox, {"default": target.url}).run(until_idle=True))

    [abandoned] = box.find_abandoned()
    assert abandoned.topic == "nowhere"
    assert "Rejected" in abandoned.error
    assert box.counts()["published"] == 1


@pytest.mark.parametrize("target", ["nats", "redis"], indirect=True)
def test_a_repetition_is_recognised_by_its_id(box: Box, target: Target) -> None:
    box.run(target.prepare())
    box.publish("orders", {"n": 1})
    [message] = box.claim_batch("w1")

    async def twice() -> None:
        broker = make_broker(target.url, "default")
        await broker.open()
        await broker.publish(message)
        await broker.publish(message)
        await broker.close()

    box.run(twice())

    assert [one.id for one in box.run(target.arrived())] == [str(message.id)]


@pytest.mark.parametrize("scheme", ["amqp", "nats", "redis"])
def test_a_broker_that_is_not_there_is_no_failure_of_a_message(box: Box, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{free_port()}"
    box.publish("orders", {"n": 1})

    async def try_for_a_while() -> None:
        relay = Relay(box.outbox, {"default": url})
        task = asyncio.create_task(relay.run())
        await eventually_async(lambda: box.outbox.events.counts["broker_down"] >= 2)
        relay.stop()
        await task

    box.run(try_for_a_while())

    [message] = box.find_unprocessed()
    assert (message.status, message.attempts) == ("pending", 0)


@pytest.mark.parametrize(("scheme", "module"), [("amqp", rabbitmq), ("nats", nats), ("redis", redis)])
def test_a_broker_that_says_nothing_is_given_up_with_a_word_about_it(
    box: Box, scheme: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONNECT_TIMEOUT", "ANSWER_TIMEOUT"):
        monkeypatch.setattr(module, name, 0.2, raising=False)

    async def knock() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            broker = make_broker(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}", "default")
            await broker.open()

    with pytest.raises(BrokerUnavailable, match=r"can't be used: .*[Tt]ime"):
        box.run(knock())


@pytest.fixture
def refusing(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the URL of a broker that is up and refuses the login."""
    match request.param:
        case "rabbitmq":
            yield request.getfixturevalue("rabbitmq").url().replace("guest:guest", "guest:s3cret")
        case "nats":
            with Nats(password="secret") as nats:
                yield nats.url().replace("secret", "s3cret")
        case "redis":
            redis: Redis = request.getfixturevalue("own_redis")
            assert redis.say("CONFIG SET requirepass secret") == "+OK\r\n"
            yield redis.url().replace("redis://", "redis://:s3cret@")


@pytest.mark.parametrize("offer", [b"", b'"tls_available": true'], ids=["no-tls", "tls-if-wanted"])
def test_a_password_for_tls_is_never_sent_in_the_clear(box: Box, offer: bytes) -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO {" + offer + b"}\r\n")
        heard.append(await reader.read(1000))
        writer.close()

    async def knock() -> None:
        async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            broker = make_broker(f"tls://svc:hunter2@127.0.0.1:{port}", "default")
            with pytest.raises(BrokerRefused, match=r"offers no TLS.*nats://"):
                await broker.open()
            await eventually_async(lambda: bool(heard))

    box.run(knock())

    assert heard == [b""]


every_refusal = pytest.mark.parametrize("refusing", ["rabbitmq", "nats", "redis"], indirect=True)


@every_refusal
def test_a_relay_that_no_broker_lets_in_ends_instead_of_trying_for_ever(box: Box, refusing: str) -> None:
    box.publish("orders", {"n": 1})

    async def relay() -> None:
        async with asyncio.timeout(20):
            await Relay(box.outbox, {"default": refusing, "other": refusing}).run()

    with pytest.raises(BrokerUnavailable, match=r"refused us: .*; check its URL, then try again") as told:
        box.run(relay())

    assert "s3cret" not in str(told.value)
    [message] = box.find_unprocessed()
    assert (message.status, message.attempts) == ("pending", 0)


@every_refusal
def test_no_connection_is_left_at_a_broker_that_does_not_let_us_in(box: Box, refusing: str) -> None:
    broker = make_broker(refusing, "default")

    async def knock_again_and_again() -> int:
        before = _open_sockets()
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match="refused us"):
                await broker.open()
        await broker.close()
        await asyncio.sleep(0.1)  # what was closed is gone with the next turns of the loop
        return _open_sockets() - before

    gc.disable()  # it would close what we forgot
    try:
        assert box.run(knock_again_and_again()) == 0
    finally:
        gc.enable()


def _open_sockets() -> int:
    return sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("refusing", ["redis"], indirect=True)
def test_a_broker_that_does_not_let_us_in_keeps_no_other_waiting(box: Box, refusing: str) -> None:
    box.publish("orders", {"n": 1}, brokers=["good", "bad"])
    got: list[Any] = []

    async def take(message: Any) -> None:
        got.append(message)

    async def relay_for_a_while() -> None:
        relay = Relay(box.outbox, {"bad": refusing, "good": take})
        task = asyncio.create_task(relay.run())
        await eventually_async(lambda: box.outbox.events.counts["broker_down"] >= 3 or task.done())
        relay.stop()
        await task

    box.run(relay_for_a_while())

    assert len(got) == 1


def test_a_broker_that_let_us_in_once_is_tried_again_when_it_does_not(box: Box, own_redis: Redis) -> None:
    async def through_a_refusal() -> None:
        relay = Relay(box.outbox, {"default": own_redis.url()}, poll=0.1)
        task = asyncio.create_task(relay.run())
        await box.outbox.publish("orders", {"n": 1})
        await eventually_async(lambda: box.outbox.events.counts["published"] == 1)
        own_redis.say("CONFIG SET requirepass secret", "AUTH secret", "CLIENT KILL TYPE normal SKIPME yes")
        await box.outbox.publish("orders", {"n": 2})
        await eventually_async(lambda: box.outbox.events.counts["broker_down"] >= 2 or task.done())
        own_redis.say("AUTH secret", "CONFIG SET requirepass ''")
        await eventually_async(lambda: box.outbox.events.counts["published"] == 2 or task.done())
        relay.stop()
        await task

    box.run(through_a_refusal())

    assert box.counts()["published"] == 2


@every_broker
def test_a_broker_that_restarts_is_found_again(box: Box, target: Target) -> None:
    box.run(target.prepare())

    async def through_a_restart() -> list[Any]:
        relay = Relay(box.outbox, {"default": target.url}, poll=0.1)
        task = asyncio.create_task(relay.run())
        for number in range(5):
            await box.outbox.publish("orders", {"n": number}, key="k")
        await eventually_async(lambda: box.outbox.events.counts["published"] == 5)
        await asyncio.to_thread(target.server.stop)
        for number in range(5, 10):
            await box.outbox.publish("orders", {"n": number}, key="k")
        await eventually_async(lambda: box.outbox.events.counts["broker_down"] >= 1)
        await asyncio.to_thread(target.server.start)
        arrived = await until_arrived(target, 10)
        relay.stop()
        await task
        return arrived

    arrived = box.run(through_a_restart())

    assert list(dict.fromkeys(one.payload["n"] for one in arrived)) == list(range(10))
    assert {message.attempts for message in box.find_published()} == {1}


@pytest.mark.parametrize("target", ["rabbitmq"], indirect=True)
def test_rabbitmq_publishes_to_an_exchange(box: Box, target: Target) -> None:
    import aio_pika

    async def bind() -> None:
        connection = await aio_pika.connect(target.url)
        channel = await connection.channel()
        exchange = await channel.declare_exchange("events", "topic", durable=True)
        queue = await channel.declare_queue("orders", durable=True)
        await queue.bind(exchange, "shop.#")
        await connection.close()

    box.run(target.prepare())
    box.run(bind())
    box.publish("shop.orders.paid", {"n": 1})

    box.run(Relay(box.outbox, {"default": f"{target.url}?exchange=events"}).run(until_idle=True))
    assert [one.payload for one in box.run(target.arrived())] == [{"n": 1}]

    box.publish("shop.orders.paid", {"n": 2})
    with_typo = Relay(box.outbox, {"default": f"{target.url}?exchange=evnets"})

    async def try_once() -> None:
        task = asyncio.create_task(with_typo.run())
        await eventually_async(lambda: box.outbox.events.counts["broker_down"])
        with_typo.stop()
        await task

    box.run(try_once())
    assert box.counts()["pending"] == 1


@pytest.mark.parametrize("target", ["redis"], indirect=True)
def test_a_stream_of_redis_is_trimmed(box: Box, target: Target) -> None:
    box.run(target.prepare())
    for number in range(250):
        box.outbox.sync.publish("orders", {"n": number})

    box.run(Relay(box.outbox, {"default": f"{target.url}?maxlen=100&dedupe=0"}).run(until_idle=True))

    assert 100 <= len(box.run(target.arrived())) < 250
    with pytest.raises(BadRequest, match="maxlen"):
        make_broker("redis://localhost?maxlen=many", "default")


@pytest.mark.parametrize("target", ["redis"], indirect=True)
def test_a_stream_that_is_something_else_is_a_failure(box: Box, target: Target) -> None:
    box.run(target.prepare())
    target.server.say("SELECT 9", "SET orders string")
    box.publish("orders", {"n": 1}, max_attempts=1)

    box.run(Relay(box.outbox, {"default": RedisStreams(target.url)}).run(until_idle=True))

    assert "WRONGTYPE" in box.find_abandoned()[0].error


# -- Webhooks -----------------------------------------------------------------------------------


def test_a_webhook_gets_a_signed_cloud_event(box: Box) -> None:
    id = box.publish(
        "shop.paid", {"n": 1}, key="order-7", headers={"tenant": "a", "traceparent": "00-a-b-01"}
    )
    with Receiver().serving() as receiver:
        hook = Webhook(receiver.url, secret="s3cret", source="/shop")

        box.run(Relay(box.outbox, {"default": hook}).run(until_idle=True))

    [(headers, body)] = receiver.posted
    event = json.loads(body)
    assert {**event, "time": "", "dibstoken": ""} == {
        "specversion": "1.0",
        "id": str(id),
        "source": "/shop",
        "type": "shop.paid",
        "subject": "order-7",
        "time": "",
        "datacontenttype": "application/json",
        "traceparent": "00-a-b-01",
        "dibstoken": "",
        "data": {"n": 1},
    }
    assert (headers["dibs-id"], headers["tenant"]) == (str(id), "a")
    assert headers["content-type"].startswith("application/cloudevents+json")
    seconds = int(headers["dibs-signature"].split(",")[0][2:])
    assert headers["dibs-signature"] == signature("s3cret", str(id), body, seconds)
    assert headers["dibs-signature"] != signature("other", str(id), body, seconds)


def test_a_webhook_that_refuses_is_tried_again(url: str) -> None:
    outbox = Outbox(url, retry=Retry.exponential(base=1, cap=0.05))
    outbox.sync.publish("shop.paid", {"n": 1})
    with Receiver().serving() as receiver:
        receiver.answers += [500, 302, 429]

        async def insist() -> None:
            relay = Relay(outbox, {"default": receiver.url}, poll=0.05)
            task = asyncio.create_task(relay.run())
            await eventually_async(lambda: outbox.events.counts["published"])
            relay.stop()
            await task

        asyncio.run(insist())

    assert len(receiver.posted) == 4
    [message] = outbox.sync.find_published()
    assert message.attempts == 4
    outbox.sync.close()


def dripping(listener: socket.socket, ends: threading.Event) -> None:
    """Send every client one byte of an endless response now and then."""
    clients: list[socket.socket] = []
    listener.settimeout(0.02)
    while not ends.is_set():
        with suppress(TimeoutError):
            clients.append(listener.accept()[0])
        for client in clients:
            with suppress(OSError):
                client.sendall(b"H")
    for client in clients:
        client.close()


def test_a_webhook_that_drips_its_answer_keeps_no_other_waiting(box: Box) -> None:
    box.publish("shop.paid", {"n": 1})
    [message] = box.claim_batch("w1")
    ends = threading.Event()

    async def publish(slow: str, quick: str) -> list[Any]:
        hook, other = Webhook(slow, timeout=1), Webhook(quick)
        stuck = [asyncio.create_task(hook.publish(message)) for _ in range(40)]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(0.7):
            await other.publish(message)
        ended = await asyncio.gather(*stuck, return_exceptions=True)
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("dibs-webhook")]
        await hook.close()
        await other.close()
        await asyncio.to_thread(lambda: [thread.join(10) for thread in threads])
        assert not any(thread.is_alive() for thread in threads)
        return ended

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener, Receiver().serving() as receiver:
        drips = threading.Thread(target=dripping, args=(listener, ends))
        drips.start()
        try:
            ended = box.run(publish(f"http://127.0.0.1:{listener.getsockname()[1]}", receiver.url))
        finally:
            ends.set()
            drips.join()

    assert {(type(each), "took longer than 1 s" in str(each)) for each in ended} == {(TimeoutError, True)}


def test_a_webhooks_user_is_sent_and_its_path_is_no_part_of_errors(box: Box) -> None:
    box.publish("shop.paid", {"n": 1}, headers={"authorization": "other"})
    [message] = box.claim_batch("w1")
    with Receiver().serving() as receiver:
        receiver.answers.append(500)
        url = receiver.url.replace("http://", "http://ann:p%40ss@").rstrip("/") + "/s3cret-path"
        with pytest.raises(Rejected, match="answered 500") as refused:
            box.run(Webhook(url).publish(message))

    [(headers, _)] = receiver.posted
    assert headers["authorization"] == f"Basic {base64.b64encode(b'ann:p@ss').decode()}"
    assert "s3cret" not in str(refused.value)
    assert "ann" not in str(refused.value)


def test_a_webhook_that_is_slow_or_away(box: Box) -> None:
    box.publish("shop.paid", {"n": 1})
    [message] = box.claim_batch("w1")
    with pytest.raises(BrokerUnavailable):
        box.run(Webhook(f"http://127.0.0.1:{free_port()}/hook").publish(message))
    with Receiver().serving() as receiver:
        receiver.answers.append(404)
        with pytest.raises(Rejected, match="answered 404"):
            box.run(Webhook(receiver.url).publish(message))
    with pytest.raises(BadRequest):
        Webhook("https:///nowhere")
