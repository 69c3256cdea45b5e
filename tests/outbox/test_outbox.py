"""Publish, claim, mark, find, redrive, prune: the outbox by hand, on every database and both faces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy

from dibs import BadRequest, LeaseLost, NotFound, Refused, Retry
from dibs.errors import SchemaOutdated, UnknownEngine
from dibs.outbox import Outbox, Relay, Status
from tests.support.outboxes import Box, numbers, statements_of


def test_a_message_goes_its_way(box: Box) -> None:
    id = box.publish("orders", {"id": 1}, key="order-1", headers={"tenant": "a"})
    assert box.counts()["pending"] == 1

    [message] = box.claim_batch("w1", limit=50, target_broker="default", lock_for=60)
    assert (message.id, message.topic, message.key) == (id, "orders", "order-1")
    assert (message.payload, dict(message.headers)) == ({"id": 1}, {"tenant": "a"})
    assert (message.status, message.attempts, message.locked_by) == ("processing", 1, "w1")
    assert message.locked_until - message.created_at >= timedelta(seconds=59)
    assert box.find_processing()[0].id == id

    box.mark_published([message])
    [published] = box.find_published()
    assert (published.id, published.status, published.locked_by) == (id, "published", None)
    assert published.published_at >= published.created_at
    assert box.counts() == {"pending": 0, "processing": 0, "published": 1, "failed": 0, "abandoned": 0}
    assert box.claim_batch("w1") == []


def test_the_same_id_is_written_once_for_each_broker(box: Box) -> None:
    id = uuid4()
    for _ in range(2):
        assert box.publish("orders", 1, brokers=["a", "b"], id=id) == id
    box.publish("orders", 1, brokers=["b", "c"], id=str(id))

    assert [message.broker for message in box.get(id)] == ["a", "b", "c"]


def test_a_claim_is_for_one_broker_or_for_all(box: Box) -> None:
    box.publish("orders", {"n": 0}, brokers=["a", "b"], key="k")

    assert [message.broker for message in box.claim_batch("w1", 10, target_broker="b")] == ["b"]
    assert [message.broker for message in box.claim_batch("w1", 10)] == ["a"]
    assert box.counts("a")["processing"] == 1


@pytest.mark.parametrize("limit", [0, -1])
def test_no_more_than_the_limit_is_claimed(box: Box, limit: int) -> None:
    box.publish_keys("abc")

    assert box.claim_batch("w1", limit=limit) == []
    assert numbers(box.claim_batch("w1", limit=2)) == [0, 1]


def test_a_live_lock_is_left_alone_and_an_expired_one_is_not(box: Box) -> None:
    box.publish("orders", {"n": 0}, key="k")
    [dead] = box.claim_batch("w1", lock_for=60)
    assert box.claim_batch("w2") == []
    assert box.find_unprocessed() == []

    box.age(61)

    assert numbers(box.find_unprocessed()) == [0]
    [message] = box.claim_batch("w2")
    assert (message.attempts, message.locked_by) == (2, "w2")
    assert message.token > dead.token


def test_a_zombie_changes_nothing_and_is_told(box: Box) -> None:
    box.publish("orders", {"n": 0})
    zombie = box.claim_batch("w1", lock_for=60)
    box.age(61)
    [holder] = box.claim_batch("w2")

    for verb in (
        lambda: box.mark_published(zombie),
        lambda: box.mark_failed(zombie, "late"),
        lambda: box.renew(zombie),
        lambda: box.release(zombie),
    ):
        with pytest.raises(LeaseLost, match=str(holder.id)):
            verb()

    [message] = box.get(holder.id)
    assert (message.status, message.token, message.locked_by) == ("processing", holder.token, "w2")
    assert message.locked_until == holder.locked_until


def test_a_late_mark_counts_as_long_as_nobody_took_the_message(box: Box) -> None:
    box.publish("orders", {"n": 0})
    messages = box.claim_batch("w1", lock_for=60)
    box.age(61)

    box.mark_published(messages)
    box.mark_published(messages[0])  # the same again is a success

    assert box.counts()["published"] == 1
    with pytest.raises(LeaseLost):
        box.mark_failed(messages, "too late")


def test_what_is_held_is_marked_though_others_of_the_batch_are_lost(box: Box) -> None:
    box.publish_keys("ab")
    zombie = box.claim_batch("w1", lock_for=60)
    box.age(61)
    box.claim_batch("w2", limit=1)

    with pytest.raises(LeaseLost, match="1 of these"):
        box.mark_published(zombie)

    assert numbers(box.find_published()) == [1]


def test_a_lock_is_renewed(box: Box) -> None:
    box.publish_keys("a")
    messages = box.claim_batch("w1", lock_for=60)
    box.age(50)

    box.renew(messages, lock_for=60)
    box.age(50)

    assert box.claim_batch("w2") == []


def test_what_is_released_was_not_tried(box: Box) -> None:
    box.publish_keys("a")

    box.release(box.claim_batch("w1"))

    [message] = box.claim_batch("w2")
    assert message.attempts == 1


# -- Order --------------------------------------------------------------------------------------


def test_of_a_key_only_the_oldest_are_claimed_several_in_a_row(box: Box) -> None:
    box.publish_keys("aaaaab")

    first = box.claim_batch("w1", limit=4)
    second = box.claim_batch("w2", limit=4)
    assert (numbers(first), numbers(second)) == ([0, 1, 5], [])

    box.mark_published(first)
    assert numbers(box.claim_batch("w2", limit=4)) == [2, 3, 4]


def test_nobody_gets_a_key_that_somebody_holds(box: Box) -> None:
    box.publish_keys("aab.")

    assert numbers(box.claim_batch("w1", limit=1)) == [0]
    assert numbers(box.claim_batch("w2", limit=10)) == [2, 3]
    assert box.claim_batch("w3", limit=10) == []


def test_a_failing_key_waits_by_itself(box: Box) -> None:
    box.publish_keys("aab")
    first, second, other = box.claim_batch("w1")

    box.mark_failed(first, "no route")
    box.release(second)
    box.mark_published(other)
    box.publish("orders", {"n": 3}, key="b")

    assert numbers(box.claim_batch("w2")) == [3]
    [failed] = box.find_failed()
    assert (failed.payload["n"], failed.error, failed.attempts) == (0, "no route", 1)
    box.age(5)
    assert numbers(box.claim_batch("w2")) == [0, 1]


def test_a_back_off_grows_and_is_jittered(open_outbox: Callable[..., Box]) -> None:
    box = open_outbox(retry=Retry.exponential(base=4, cap=1000, jitter=0.5))
    box.publish_keys("." * 20)

    for least, most in ((2, 6), (8, 24)):
        messages = box.claim_batch("w1", target_broker="default")
        before = _now(box)
        box.mark_failed(messages, "down")
        after = _now(box)

        due = [message.available_at for message in box.find_failed()]
        assert len(set(due)) == 20  # not all at once
        assert before + timedelta(seconds=least) <= min(due)
        assert max(due) <= after + timedelta(seconds=most)
        box.age(most + 1)


def _now(box: Box) -> Any:
    """Return the time of the database's clock."""
    [message] = box.get(box.publish("now", 1, brokers=["nobody"]))
    return message.created_at


def test_a_message_whose_relays_die_is_abandoned_in_the_end(open_outbox: Callable[..., Box]) -> None:
    box = open_outbox(max_attempts=2)
    id, _ = box.publish_keys("aa")
    for _ in range(2):
        assert len(box.claim_batch("w1", limit=1)) == 1
        box.age(61)

    assert numbers(box.claim_batch("w2", limit=1)) + numbers(box.claim_batch("w2", limit=1)) == [1]
    [abandoned] = box.find_abandoned()
    assert (abandoned.id, abandoned.error, abandoned.attempts) == (id, "relay died", 2)


def test_a_message_is_abandoned_after_its_last_attempt_and_redriven(open_outbox: Callable[..., Box]) -> None:
    box = open_outbox(max_attempts=2, retry=Retry.fixed(1))
    id, _ = box.publish_keys("aa")
    for _ in range(2):
        [message] = box.claim_batch("w1", limit=1)
        box.mark_failed(message, ValueError("poison"))
        box.age(2)
    [abandoned] = box.find_abandoned()
    assert (abandoned.id, abandoned.status) == (id, Status.abandoned)
    assert (abandoned.error, abandoned.attempts) == ("ValueError: poison", 2)
    assert numbers(box.claim_batch("w1")) == [1]  # the key goes on without it

    assert box.redrive(abandoned.id) == 1

    [again] = box.claim_batch("w1")
    assert (again.id, again.attempts, again.error) == (id, 1, "ValueError: poison")
    box.mark_failed(again, "hopeless", retry=False)
    assert box.find_abandoned()[0].error == "hopeless"


def test_only_abandoned_messages_are_redriven(box: Box) -> None:
    [id] = box.publish_keys("a")

    with pytest.raises(Refused, match="pending at default"):
        box.redrive(id)
    with pytest.raises(NotFound, match="no message"):
        box.redrive(uuid4())
    with pytest.raises(BadRequest):
        box.redrive("nonsense")


def test_many_are_redriven_in_batches(open_outbox: Callable[..., Box]) -> None:
    box = open_outbox(max_attempts=1)
    box.publish_keys("....")
    box.publish("other", {"n": 4})
    box.mark_failed(box.claim_batch("w1"), "poison")
    assert box.counts()["abandoned"] == 5

    assert box.redrive_many(topic="orders", batch=2) == 4

    assert numbers(box.claim_batch("w1")) == [0, 1, 2, 3]
    assert numbers(box.find_abandoned()) == [4]


def test_old_published_messages_are_pruned_in_batches(open_outbox: Callable[..., Box]) -> None:
    box = open_outbox(max_attempts=1)
    box.publish_keys("......")
    *done, poison = box.claim_batch("w1")
    box.mark_published(done)
    box.mark_failed(poison, "poison")
    box.age(3600)
    box.publish_keys(".")
    box.mark_published(box.claim_batch("w1"))

    assert box.prune(published_older_than=timedelta(minutes=30), batch=2) == 5
    assert box.counts() == {"pending": 0, "processing": 0, "published": 1, "failed": 0, "abandoned": 1}
    assert box.prune(published_older_than=7200, abandoned_older_than=60) == 1
    assert box.prune(published_older_than=0) == 1
    assert sum(box.counts().values()) == 0


def test_finders_look_and_change_nothing(box: Box) -> None:
    box.publish_keys("abc.")
    box.publish("other", {"n": 9}, key="a", brokers=["b"])
    [held] = box.claim_batch("w1", limit=1)
    before = box.counts()

    assert numbers(box.find_unprocessed()) == [1, 2, 3, 9]
    assert numbers(box.find_unprocessed(limit=2)) == [1, 2]
    assert box.find_unprocessed(limit=0) == []
    assert numbers(box.find_unprocessed(target_broker="b")) == [9]
    assert numbers(box.find_unprocessed(topic="orders", key="b")) == [1]
    assert [message.id for message in box.find_processing()] == [held.id]
    assert (box.find_failed(), box.find_abandoned(), box.find_published()) == ([], [], [])
    assert box.counts() == before
    box.age(100)
    assert 99 < box.lag() < 1000


# -- Races --------------------------------------------------------------------------------------


def test_no_message_is_claimed_twice_and_no_key_by_two(box: Box) -> None:
    keys = [f"k{number % 7}" if number % 3 else None for number in range(150)]
    for number, key in enumerate(keys):
        box.publish("orders", {"n": number}, key=key)

    def claim(worker: int) -> list[Any]:
        return box.outbox.sync.claim_batch(f"w{worker}", limit=10)

    rounds = []
    while any(batches := box.race(6, claim)):
        held = [{message.key for message in batch} - {None} for batch in batches]
        assert sum(map(len, held)) == len(set().union(*held))  # a key is in one pair of hands
        for batch in batches:
            if batch:
                box.mark_published(batch)
        rounds.append([message for batch in batches for message in batch])

    seen = [message for one in rounds for message in one]
    assert sorted(numbers(seen)) == list(range(150))
    for key in set(keys) - {None}:
        ours = numbers([message for message in seen if message.key == key])
        assert ours == sorted(ours)


@pytest.mark.parametrize(
    "engine", ["postgresql", "mariadb", "mysql"], indirect=True
)  # SQLite has one writer at a time
def test_a_lower_position_that_commits_later_is_found(box: Box) -> None:
    with _publishing_slowly(box, {"n": 0}) as commit:
        box.publish("orders", {"n": 1}, key="k")
        later = box.claim_batch("w1")
        assert numbers(later) == [1]
        box.mark_published(later)

        commit()

    assert numbers(box.claim_batch("w1")) == [0]


@contextlib.contextmanager
def _publishing_slowly(box: Box, payload: Any) -> Iterator[Callable[[], None]]:
    driver = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}[
        statements_of(box.outbox).database
    ]
    engine = sqlalchemy.create_engine(f"{driver}{box.url[box.url.index(':') :]}")
    with engine.connect() as connection:
        box.outbox.sync.publish("orders", payload, key="k", within=connection)
        yield connection.commit
    engine.dispose()


# -- What is refused ----------------------------------------------------------------------------


BAD: list[dict[str, Any]] = [
    {"topic": ""},
    {"topic": "a\nb"},
    {"payload": float("nan")},
    {"payload": object()},
    {"payload": "x" * (1024 * 1024)},
    {"key": ""},
    {"key": 7},
    {"headers": {"a": 1}},
    {"headers": {"a": "two\nlines"}},
    {"headers": {"dibs-id": "mine"}},
    {"brokers": []},
    {"brokers": [""]},
    {"id": "nonsense"},
    {"max_attempts": 0},
]


def test_bad_messages_are_refused_before_anything_is_written(box: Box) -> None:
    for given in BAD:
        with pytest.raises(BadRequest):
            box.publish(**{"topic": "orders", "payload": 1, **given})

    assert sum(box.counts().values()) == 0


def test_bad_claims_are_refused(box: Box) -> None:
    for bad in ({"worker_id": ""}, {"limit": "many"}, {"lock_for": 0}, {"target_broker": ""}):
        with pytest.raises(BadRequest):
            box.claim_batch(**{"worker_id": "w1", **bad})
    [id] = box.publish_keys("a")
    with pytest.raises(BadRequest, match="never claimed"):
        box.mark_published(box.get(id))


@pytest.mark.parametrize("url", ["memory://", "redis://localhost", "oracle://localhost/x"])
def test_a_store_without_your_transactions_is_refused(url: str) -> None:
    with pytest.raises(UnknownEngine, match="postgresql, sqlite, mysql"):
        Outbox(url)


@pytest.mark.parametrize("given", ["sqlite://", "postgresql://host:port/x", 7, None])
def test_what_leads_to_no_database_is_refused(given: Any) -> None:
    with pytest.raises(BadRequest):
        Outbox(given)


def test_a_database_without_the_table_says_what_to_do(open_outbox: Callable[..., Box], engine: str) -> None:
    box = open_outbox(table="elsewhere")
    if engine == "sqlite":
        assert sum(box.counts().values()) == 0  # made at first use
    else:
        with pytest.raises(SchemaOutdated, match=r"no table elsewhere.*outbox\.table\(metadata\)"):
            box.counts()


def test_each_broker_has_a_standing_of_its_own(box: Box) -> None:
    box.publish("orders", 1, brokers=["a", "b"])
    box.age(60)
    box.publish("orders", 2, brokers=["b"])
    box.mark_published(box.claim_batch("w1", target_broker="a"))

    first, second = box.standings()

    assert (first.broker, first.counts["published"], first.lag) == ("a", 1, 0.0)
    assert (second.broker, second.counts["pending"], second.counts["published"]) == ("b", 2, 0)
    assert second.lag >= 60


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda box: box.publish("orders", 1, headers=[1]), "headers must be a mapping"),
        (lambda box: box.publish("orders", 1, brokers=5), "brokers=5"),
        (lambda box: box.publish("orders", 1, id="zz"), "'zz' is not a message id"),
        (lambda box: box.redrive("zz"), "'zz' is not a message id"),
        (lambda box: box.mark_failed(5, "broken"), "5 is not a message"),
        (lambda box: box.mark_published(None), "None is not a message"),
        (lambda box: box.mark_published("message"), "is not a message"),
        (lambda box: Relay(box.outbox, brokers="amqp://x"), "brokers={'default'"),
        (lambda box: Relay(box.outbox, brokers=[1]), "brokers={'default'"),
    ],
)
@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_what_makes_no_sense_is_refused(box: Box, call: Callable[[Box], Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        call(box)
