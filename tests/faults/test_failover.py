"""A primary is killed under load, its standby is promoted: the same URL leads to it, without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from dibs import Dibs, NewJob, StoreUnavailable
from dibs.engines import retries
from tests.support.fault_stores import face_of, wait_until, working
from tests.support.servers.failover import PostgresPair, RedisPair

CARRIED_ON = 10.0  # seconds from the promotion to the next job that is done


class Load:
    """Producers on the sync face, a worker on the async one; what was acknowledged, and what was run."""

    def __init__(self, url: str, producers: int) -> None:
        self.producer, self.app = Dibs(url), Dibs(url, poll=1)
        self.sent: list[list[UUID]] = [[] for _ in range(producers)]  # by each producer
        self.acknowledged: dict[UUID, float] = {}  # when, in the order in which it was
        self.killed_at = 0.0
        self.ran: Counter[int] = Counter()
        self.last_run = 0.0
        self._stopped = threading.Event()

        @self.app.job(name="work", lease=5)  # a claim whose answer was lost stays until its lease ends
        async def _(n: int) -> None:
            self.ran[n] += 1
            self.last_run = time.monotonic()
            await asyncio.sleep(0)

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        many = len(self.sent)
        threads = [threading.Thread(target=self._produce, args=(place,)) for place in range(many)]
        with working(self.app, concurrency=10):
            for thread in threads:
                thread.start()
            try:
                wait_until(lambda: sum(self.ran.values()) > 20 * many**2)
                yield
            finally:
                self._stopped.set()
                for thread in threads:
                    thread.join()

    def _produce(self, place: int) -> None:
        for number in itertools.count(place, len(self.sent)):
            if self._stopped.is_set():
                return
            new = NewJob("work", args={"n": number})
            while True:  # the same one again: stored once, however often it is sent
                with contextlib.suppress(StoreUnavailable):
                    self.producer.sync.enqueue(new)
                    break
            self.acknowledged[new.id] = time.monotonic()
            self.sent[place].append(new.id)
            time.sleep(0.002)

    def carries_on_after(self, fail_over: Any) -> float:
        """Return the seconds from the promotion to the next job that is done."""
        self.killed_at = time.monotonic()
        fail_over()
        promoted, before = time.monotonic(), sum(self.ran.values())
        wait_until(lambda: self.last_run > promoted and sum(self.ran.values()) > before + 20)
        return time.monotonic() - promoted

    def lost(self) -> list[UUID]:
        """Return the acknowledged jobs that the store does not have; all others are done in the end."""
        with working(self.app, concurrency=10):
            wait_until(self._all_are_done)
        jobs = [self.producer.sync.get(id) for id in self.acknowledged]
        assert {job.state for job in jobs if job is not None} == {"succeeded"}
        return [id for id, job in zip(self.acknowledged, jobs, strict=True) if job is None]

    def _all_are_done(self) -> bool:
        counts = self.producer.sync.counts()
        return counts["succeeded"] == sum(counts.values())

    def close(self) -> None:
        self.producer.sync.close()
        self.app.sync.close()


@contextlib.contextmanager
def _load(url: str, producers: int = 1) -> Iterator[Load]:
    load = Load(url, producers)
    load.producer.sync.migrate()
    try:
        yield load
    finally:
        load.close()


# -- PostgreSQL ---------------------------------------------------------------------------------


def test_a_synchronous_standby_of_postgresql_takes_over_and_nothing_is_lost() -> None:
    _fail_over_to_a_synchronous_standby(producers=1)


def _fail_over_to_a_synchronous_standby(producers: int) -> None:
    with PostgresPair(synchronous=True) as pair, _load(pair.url, producers) as load:
        with load.under_way():
            waited = load.carries_on_after(pair.fail_over)

        assert load.lost() == []
    assert waited <= CARRIED_ON


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_a_synchronous_standby_of_postgresql_takes_over_again_and_again(number: int) -> None:
    _fail_over_to_a_synchronous_standby(producers=5)


def test_an_asynchronous_standby_of_postgresql_lacks_what_it_had_not_received() -> None:
    with PostgresPair(synchronous=False) as pair, _load(pair.url) as load:
        app = load.producer.sync
        before = app.enqueue(NewJob("work", args={"n": 1}))
        pair.wait_for_standby()
        pair.standby.stop_following()
        new = NewJob("work", args={"n": 2})
        after = app.enqueue(new)
        pair.fail_over()

        wait_until(lambda: _answers(app))
        assert app.get(before[0].id) is not None
        assert app.get(after[0].id) is None
        assert app.enqueue(new)[0].is_new


@pytest.mark.parametrize("face", ["sync", "async"])
def test_several_hosts_without_a_primary_are_named(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PAUSES", (0.0,))
    with PostgresPair(synchronous=False) as pair:
        app = Dibs(pair.url.partition("?")[0])  # that it must take changes goes without saying
        app.sync.migrate()
        pair.primary.kill()

        with face_of(app, face) as caller, pytest.raises(StoreUnavailable) as told:
            wait_until(lambda: caller.enqueue(NewJob("work")) and False)
        app.sync.close()

    assert f"127.0.0.1:{pair.primary.port}, 127.0.0.1:{pair.standby.port}" in str(told.value)
    assert face == "async" or "is read-only" in str(told.value)  # asyncpg tells of the first host instead


# -- Redis with Sentinel --------------------------------------------------------------------------


def test_a_replica_of_redis_that_sentinel_promotes_is_found() -> None:
    _fail_over_to_a_replica(producers=1)


def _fail_over_to_a_replica(producers: int) -> None:
    with RedisPair() as pair, _load(pair.url, producers) as load:
        with load.under_way():
            waited = load.carries_on_after(pair.fail_over)

        lost = load.lost()
        for (
            sent
        ) in load.sent:  # replication is asynchronous: the last few may be, and none before one that is kept
            own = [id for id in sent if id in lost]
            first = sent.index(own[0]) if own else 0
            assert own == sent[first : first + len(own)]
            assert all(load.acknowledged[id] > load.killed_at - 2 for id in own)
    assert waited <= CARRIED_ON


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_a_replica_of_redis_that_sentinel_promotes_is_found_again_and_again(number: int) -> None:
    _fail_over_to_a_replica(producers=5)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_primary_of_redis_that_became_a_replica_is_left_for_the_new_one(face: str) -> None:
    with RedisPair() as pair:
        app = Dibs(pair.url)
        with face_of(app, face) as caller:
            [first] = caller.enqueue(NewJob("work"))
            wait_until(lambda: str(first.id) in pair.replica.say("KEYS *"))
            pair.fail_over()
            pair.primary.settings = {"replicaof": f"127.0.0.1 {pair.replica.port}"}
            pair.primary.start()

            wait_until(lambda: _answers(caller))
            [second] = caller.enqueue(NewJob("work"))
            assert {job.id for job in caller.find()} == {first.id, second.id}
        app.sync.close()


def _answers(app: Any) -> bool:
    with contextlib.suppress(StoreUnavailable):
        app.enqueue(NewJob("probe", queue="probe", delay=3600))
        [probe] = app.find(queue="probe")
        app.delete(probe.id)
        return True
    return False


# -- URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://h1,h2", "names no primary"),
        ("redis+sentinel://h1/mymaster/x", "no database"),
        ("redis://h1:1,h2:2/0", "several hosts only"),
        ("mysql://h1:1,h2:2/db", "several hosts only"),
        ("postgresql://h1:5432,h2:secret/db", "can't be read"),
    ],
)
def test_an_address_of_several_hosts_that_can_not_be_is_refused(url: str, said: str) -> None:
    from dibs import BadRequest

    with pytest.raises(BadRequest, match=said) as refused:
        Dibs(url).sync.open()

    assert "secret" not in str(refused.value)
