"""From producers that roll back, by relays that are killed, through a broker that restarts, to a consumer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from dibs.outbox import Outbox
from tests.support.brokers import Arrived, Target, in_order
from tests.support.servers import PostgreSQL

ACTORS = Path(__file__).parents[1] / "support" / "outbox_process.py"

every_broker = pytest.mark.parametrize("target", ["rabbitmq", "nats", "redis"], indirect=True)


@dataclass(frozen=True)
class Size:
    messages: int
    keys: int
    producers: int
    kill_every: float
    kills: int
    lock_for: float
    patience: float


SMALL = Size(messages=600, keys=40, producers=2, kill_every=0.7, kills=2, lock_for=2, patience=200)
FULL = Size(messages=20_000, keys=500, producers=4, kill_every=2, kills=10**9, lock_for=5, patience=900)


@pytest.fixture
def url(postgresql: PostgreSQL) -> str:
    url = postgresql.fresh_database()
    app = Dibs(url).sync
    app.migrate()
    app.close()
    return url


def _start(verb: str, **given: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(ACTORS), verb, json.dumps(given)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class Relays:
    """Three relays, one of which may be killed and is then replaced."""

    def __init__(self, **given: Any) -> None:
        self._given = given
        self.living = [_start("relay", **given) for _ in range(3)]
        self.killed = 0

    def kill_one(self) -> None:
        victim = self.living.pop(0)
        victim.kill()
        victim.communicate()
        self.killed += 1
        self.living.append(_start("relay", **self._given))

    @classmethod
    @contextlib.contextmanager
    def running(cls, **given: Any) -> Iterator[Relays]:
        relays = cls(**given)
        try:
            for relay in relays.living:
                assert relay.stdout is not None
                assert relay.stdout.readline() == "ready\n"
            yield relays
        finally:
            for relay in relays.living:
                relay.kill()
                relay.communicate()


class Producers:
    """Processes that publish and roll back; their notes say what they committed."""

    def __init__(self, url: str, size: Size, folder: Path) -> None:
        self._notes = [folder / f"producer-{number}.json" for number in range(size.producers)]
        share = {"messages": size.messages // size.producers, "keys": size.keys}
        self._living = [
            _start(
                "produce",
                url=url,
                producer=number,
                producers=size.producers,
                notes=str(file),
                **{"first": number * 10**6, **share},
            )
            for number, file in enumerate(self._notes)
        ]

    @property
    def writing(self) -> bool:
        return any(one.poll() is None for one in self._living)

    def notes(self) -> list[dict[str, Any]]:
        for one in self._living:
            one.communicate()
        return [json.loads(file.read_text()) for file in self._notes]


def _deliver(url: str, target: Target, size: Size, folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Publish and relay everything while things break; the producers' notes, and how many relays died."""
    outbox, restarted = Outbox(url), False
    with Relays.running(url=url, broker=target.url, lock_for=size.lock_for, batch=50) as relays:
        producers = Producers(url, size, folder)
        deadline = time.monotonic() + size.patience
        while time.monotonic() < deadline:
            time.sleep(size.kill_every)
            counts = outbox.sync.counts()
            if relays.killed < size.kills:
                relays.kill_one()
            if not restarted and counts["published"] > size.messages / 4:
                target.server.restart()
                restarted = True
            left = producers.writing or counts["pending"] or counts["processing"] or counts["failed"]
            if not left and restarted and relays.killed >= min(size.kills, 3):
                break
        notes, counts = producers.notes(), outbox.sync.counts()
    outbox.sync.close()
    assert restarted, "the broker was never restarted"
    assert counts["published"] == sum(len(one["committed"]) for one in notes), counts
    return notes, relays.killed


def _judge(said: list[dict[str, Any]], arrived: list[Arrived]) -> int:
    """Everything that was committed, nothing that was not, in the order of its key; how many duplicates."""
    committed = [entry for one in said for entry in one["committed"]]
    undone = {id for one in said for id in one["undone"]}
    assert undone
    seen = [one.id for one in arrived]
    assert {id for _, _, id in committed} == set(seen)
    assert undone.isdisjoint(seen)
    wanted: dict[str, list[int]] = {}
    for key, number, _ in committed:
        wanted.setdefault(key, []).append(number)
    assert in_order(arrived) == wanted
    return len(seen) - len(set(seen))


def _end_to_end(url: str, target: Target, size: Size, folder: Path) -> None:
    asyncio.run(target.prepare())
    began = time.monotonic()

    notes, killed = _deliver(url, target, size, folder)

    took = time.monotonic() - began
    duplicates = _judge(notes, asyncio.run(target.arrived()))
    print(f"{size.messages} messages in {took:.0f} s, {killed} relays killed, {duplicates} duplicates")


@every_broker
def test_every_committed_message_arrives_in_order_whatever_breaks(
    url: str, target: Target, tmp_path: Path
) -> None:
    _end_to_end(url, target, SMALL, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1200)
@every_broker
def test_every_committed_message_arrives_in_order_at_full_size(
    url: str, target: Target, tmp_path: Path
) -> None:
    _end_to_end(url, target, FULL, tmp_path)


def test_the_judge_sees_what_is_wrong() -> None:
    said = [{"committed": [["k", 1, "a"], ["k", 2, "b"], ["l", 3, "c"]], "undone": ["x"]}]
    right = [Arrived("a", "k", {"n": 1}), Arrived("c", "l", {"n": 3}), Arrived("b", "k", {"n": 2})]

    assert _judge(said, [*right, right[0]]) == 1
    for wrong in ([right[2], right[0], right[1]], right[:2], [*right, Arrived("x", "k", {"n": 9})]):
        with pytest.raises(AssertionError):
            _judge(said, wrong)


# -- An outage ----------------------------------------------------------------------------------


def _outage(url: str, target: Target, seconds: float) -> None:
    asyncio.run(target.prepare())
    outbox = Outbox(url, max_attempts=2)  # an outage does not count as an attempt
    with Relays.running(url=url, broker=target.url, lock_for=5, batch=50):
        outbox.sync.publish("orders", {"n": 0}, key="k")
        _until(lambda: outbox.sync.counts()["published"] == 1)
        target.server.stop()
        for number in range(1, 200):
            outbox.sync.publish("orders", {"n": number}, key=f"k{number % 20}")
        time.sleep(seconds)
        target.server.start()
        _until(lambda: outbox.sync.counts()["published"] == 200)
        attempts = {message.attempts for message in outbox.sync.find_published(limit=1000)}
        counts = outbox.sync.counts()
    outbox.sync.close()

    arrived = asyncio.run(target.arrived())
    assert counts["abandoned"] == 0
    assert attempts <= {1, 2}
    assert len({one.id for one in arrived}) == 200
    assert all(numbers == sorted(numbers) for numbers in in_order(arrived).values())


def _until(true: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


@pytest.mark.parametrize("target", ["redis"], indirect=True)
def test_a_broker_may_be_away_for_a_while(url: str, target: Target) -> None:
    _outage(url, target, seconds=2)


@pytest.mark.long
@every_broker
def test_a_broker_may_be_away_for_a_minute(url: str, target: Target) -> None:
    _outage(url, target, seconds=60)
