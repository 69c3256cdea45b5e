"""The relay, with brokers made of functions: order, back-off, renewal, shutdown, and what a fault costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from dibs import BadRequest, Retry
from dibs.outbox import BrokerUnavailable, Message, Relay
from dibs.outbox.brokers import BrokerRefused
from tests.support.outboxes import Box, eventually_async

Send = Callable[[Message], Awaitable[None]]


every_engine = pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql"], indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """Most of this is between the relay and its broker, and the same on every database."""
    name: str = getattr(request, "param", "postgresql")
    return name


@pytest.fixture
def face() -> str:
    """Limit the tests to the async face, the only one of a relay."""
    return "async"


class Sink:
    """A broker that remembers its messages, and calls a function of the test first."""

    def __init__(self, first: Send | None = None) -> None:
        self.got: list[Message] = []
        self._first = first

    async def publish(self, message: Message) -> None:
        if self._first is not None:
            await self._first(message)
        self.got.append(message)

    def numbers(self, key: str | None) -> list[int]:
        return [message.payload["n"] for message in self.got if message.key == key]


class Gatekeeper(Sink):
    """A broker that is away or refuses the login, one after the other, before it accepts."""

    def __init__(self, *troubles: Literal["away", "refused"]) -> None:
        super().__init__()
        self.troubles = list(troubles)

    async def open(self) -> None:
        if self.troubles:
            if self.troubles.pop(0) == "away":
                raise BrokerUnavailable("it is away")
            raise BrokerRefused("the broker", "nats://here", PermissionError("who are you"))


async def relaying(relay: Relay, until: Callable[[], Any]) -> None:
    """Run the relay until this holds, then let it stop."""
    task = asyncio.create_task(relay.run())
    seen = await eventually_async(lambda: until() or task.done())
    relay.stop()
    await task
    assert seen
    assert until()


@every_engine
def test_everything_is_published_in_the_order_of_its_key(box: Box) -> None:
    box.publish_keys("abcab.ba" * 5)
    sink = Sink()

    box.run(Relay(box.outbox, {"default": sink}, batch=7).run(until_idle=True))

    assert len(sink.got) == 40
    for key in ("a", "b", "c", None):
        assert sink.numbers(key) == sorted(sink.numbers(key))
    assert box.counts()["published"] == 40
    assert box.outbox.events.counts["published"] == 40


@every_engine
def test_messages_of_a_key_are_never_under_way_together(box: Box) -> None:
    box.publish_keys("aabbaabb")
    under_way: list[str] = []

    async def slowly(message: Message) -> None:
        assert message.key not in under_way
        under_way.append(str(message.key))
        await asyncio.sleep(0.01)
        under_way.remove(str(message.key))

    sinks = [Sink(slowly), Sink(slowly)]

    async def two_relays() -> None:
        await asyncio.gather(
            *(Relay(box.outbox, {"default": sink}, batch=3).run(until_idle=True) for sink in sinks)
        )
        await Relay(box.outbox, {"default": sinks[0]}).run(until_idle=True)

    box.run(two_relays())

    got = [message.payload["n"] for sink in sinks for message in sink.got]
    assert sorted(got) == list(range(8))


@every_engine
def test_a_poison_message_is_abandoned_while_others_flow_and_can_be_redriven(
    open_outbox: Callable[..., Box],
) -> None:
    box = open_outbox(max_attempts=3, retry=Retry.exponential(base=1, cap=0.05))
    ids = box.publish_keys("aabb")
    poisonous = {ids[0]}

    async def taste(message: Message) -> None:
        if message.id in poisonous:
            raise ValueError("poison")

    sink = Sink(taste)
    relay = Relay(box.outbox, {"default": sink}, poll=0.1)
    box.run(relaying(relay, lambda: len(sink.got) == 3))

    [abandoned] = box.find_abandoned()
    assert (abandoned.id, abandoned.attempts, abandoned.error) == (ids[0], 3, "ValueError: poison")
    assert sink.numbers("b") == [2, 3]
    counts = box.outbox.events.counts
    assert (counts["failed"], counts["abandoned"], counts["published"]) == (2, 1, 3)

    poisonous.clear()
    box.redrive(abandoned.id)
    box.run(relay.run(until_idle=True))
    assert sink.numbers("a") == [1, 0]
    assert box.counts()["published"] == 4


def test_a_message_that_fails_keeps_its_followers_behind_it(open_outbox: Callable[..., Box]) -> None:
    box = open_outbox(retry=Retry.exponential(base=1, cap=0.05))
    box.publish_keys("aaa")
    refusals = [0, 0]

    async def refuse(message: Message) -> None:
        if message.payload["n"] == 1 and refusals:
            refusals.pop()
            raise ConnectionResetError("not yet")

    sink = Sink(refuse)
    box.run(relaying(Relay(box.outbox, {"default": sink}, poll=0.1), lambda: len(sink.got) == 3))

    assert sink.numbers("a") == [0, 1, 2]
    assert [(message.attempts) for message in sink.got] == [1, 3, 1]  # followers were not tried


def test_a_broker_that_is_away_costs_no_attempt(box: Box) -> None:
    box.publish_keys("ab.")
    away = [True]

    async def refuse(_: Message) -> None:
        if away[0]:
            raise BrokerUnavailable("gone fishing")

    sink, heard = Sink(refuse), []
    box.outbox.events.subscribe(heard.append)

    async def come_back() -> None:
        relay = Relay(box.outbox, {"default": sink}, poll=0.1)
        task = asyncio.create_task(relay.run())
        await eventually_async(lambda: sum(event.name == "broker_down" for event in heard) >= 3)
        failed = await box.outbox.find_failed()
        away[0] = False
        await eventually_async(lambda: len(sink.got) == 3)
        relay.stop()
        await task
        assert {message.attempts for message in failed} <= {0}
        assert {message.error for message in failed} <= {"gone fishing"}

    box.run(come_back())

    assert [message.attempts for message in sink.got] == [1, 1, 1]
    pauses = [event.about["seconds"] for event in heard if event.name == "broker_down"]
    assert pauses[2] > pauses[0]  # each one longer, give or take the jitter
    assert [event.name for event in heard][-1] == "published" or heard[-1].name == "broker_up"


def test_a_relay_that_is_to_end_does_not_wait_for_its_broker_for_ever(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.publish_keys("a")
    monkeypatch.setattr("dibs.outbox.relay.LONGEST_ABSENCE", 0.3)

    async def refuse(_: Message) -> None:
        raise BrokerUnavailable("gone fishing")

    async def relay() -> None:
        async with asyncio.timeout(20):
            await Relay(box.outbox, {"default": refuse}).run(until_idle=True)

    with pytest.raises(BrokerUnavailable, match="gone fishing"):
        box.run(relay())

    [message] = box.find_unprocessed()
    assert message.attempts == 0


def test_one_broker_that_hangs_keeps_no_other_waiting(box: Box) -> None:
    for number in range(5):
        box.publish("orders", {"n": number}, brokers=["stuck", "default"])

    async def hang(_: Message) -> None:
        await asyncio.sleep(3600)

    sink = Sink()
    relay = Relay(box.outbox, {"stuck": hang, "default": sink}, timeout=0.5, poll=0.1)
    box.run(relaying(relay, lambda: len(sink.got) == 5 and box.outbox.events.counts["failed"] >= 5))

    assert all("did not answer within 500 ms" in message.error for message in box.find_failed())


def test_locks_are_renewed_while_a_slow_broker_takes_its_time(box: Box) -> None:
    box.publish_keys("ab")

    async def slowly(_: Message) -> None:
        await asyncio.sleep(3)

    slow, other = Sink(slowly), Sink()

    async def beside_each_other() -> None:
        first = Relay(box.outbox, {"default": slow}, lock_for=2, poll=0.05)
        second = Relay(box.outbox, {"default": other}, lock_for=2, poll=0.05)
        one = asyncio.create_task(first.run())
        await eventually_async(lambda: box.outbox.events.counts["claimed"] >= 2)
        two = asyncio.create_task(second.run())
        await eventually_async(lambda: len(slow.got) + len(other.got) == 2)
        first.stop()
        second.stop()
        await asyncio.gather(one, two)

    box.run(beside_each_other())

    assert (len(slow.got), len(other.got)) == (2, 0)


def test_a_relay_that_lost_its_locks_publishes_nothing_more(box: Box) -> None:
    box.publish_keys("aaa")

    async def lose_them(message: Message) -> None:
        if message.payload["n"] == 0:
            await asyncio.to_thread(box.age, 3600)
            await asyncio.to_thread(box.outbox.sync.claim_batch, "thief", 10)
            await eventually_async(lambda: box.outbox.events.counts["lost"])

    sink = Sink(lose_them)
    box.run(relaying(Relay(box.outbox, {"default": sink}, lock_for=1.5), lambda: sink.got))

    assert sink.numbers("a") == [0]
    assert [message.locked_by for message in box.find_processing()] == ["thief"] * 3


def test_a_relay_that_is_stopped_gives_back_what_it_did_not_publish(box: Box) -> None:
    box.publish_keys("aab")
    relay: list[Relay] = []

    async def stop(_: Message) -> None:
        relay[0].stop()

    sink = Sink(stop)
    relay.append(Relay(box.outbox, {"default": sink}))
    box.run(relay[0].run())

    assert len(sink.got) in (1, 2)
    assert box.counts()["processing"] == 0
    assert sorted({message.attempts for message in box.find_unprocessed()}) == [0]


def test_a_relay_that_is_cancelled_gives_back_what_it_holds(box: Box) -> None:
    box.publish_keys("ab")
    begun = asyncio.Event()

    async def hang(message: Message) -> None:
        if message.key == "b":
            begun.set()
            await asyncio.sleep(3600)

    sink = Sink(hang)

    async def cancel() -> None:
        task = asyncio.create_task(Relay(box.outbox, {"default": sink}).run())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    box.run(cancel())

    assert box.counts() == {"pending": 1, "processing": 0, "published": 1, "failed": 0, "abandoned": 0}


@pytest.mark.parametrize("driver", ["url", "asyncpg", "psycopg async", "psycopg"])
def test_a_commit_wakes_the_relay(url: str, driver: str) -> None:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    from dibs.outbox import Outbox

    place = url[url.index(":") :]
    given: Any = {
        "url": lambda: url,
        "asyncpg": lambda: create_async_engine(f"postgresql+asyncpg{place}"),
        "psycopg async": lambda: create_async_engine(f"postgresql+psycopg{place}"),
        "psycopg": lambda: sqlalchemy.create_engine(f"postgresql+psycopg{place}"),
    }[driver]()
    outbox, sink = Outbox(given), Sink()

    async def wake() -> float:
        relay = Relay(outbox, {"default": sink}, poll=600)
        relay._relays[0]._rest = 600  # it has been idle for long
        task = asyncio.create_task(relay.run())
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not sink.got and loop.time() - began < 60:  # until it listens, hints pass unheard
            await outbox.publish("orders", {"n": 0})
            await asyncio.sleep(0.2)
        relay.stop()
        await task
        await outbox.close()
        if driver in ("asyncpg", "psycopg async"):
            await given.dispose()
        return loop.time() - began

    with asyncio.Runner() as runner:
        took = runner.run(wake())
    if driver == "psycopg":
        given.dispose()
    assert sink.got
    assert took < 60


def test_a_relay_goes_on_for_a_broker_that_lets_it_in_late_when_another_refuses_it(box: Box) -> None:
    late, other = Gatekeeper("refused"), Gatekeeper("away", "away", "refused", "refused", "refused")
    relay = Relay(box.outbox, {"default": late, "other": other})

    box.run(relaying(relay, lambda: len(other.troubles) < 2))

    assert late.troubles == []


def test_nonsense_is_no_broker(box: Box) -> None:
    for bad in ({}, {"default": 7}, {"default": "kafka://here"}, {"": "nats://here"}):
        with pytest.raises(BadRequest):
            Relay(box.outbox, bad)  # type: ignore[arg-type]
    with pytest.raises(BadRequest):
        Relay(box.outbox, {"default": "nats://here"}, batch=0)
