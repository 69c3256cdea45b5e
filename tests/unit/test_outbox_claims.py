"""Decisions of the outbox without a database: gaps in a key, the two faces, the number of queries."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy

from dibs.outbox import Inbox, Outbox
from dibs.outbox import operations as verbs
from dibs.outbox.operations import BatchRequest
from dibs.outbox.outbox import SyncInbox, SyncOutbox
from dibs.outbox.statements import Statements, TableNames
from tests.support.servers import PostgreSQL

REQUEST = BatchRequest(worker="w1", limit=10, broker="default", lock=60_000_000)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def _row(position: int, key: str | None, status: str = "processing") -> dict[str, Any]:
    times = dict.fromkeys(("created_at", "available_at", "locked_until"), NOW)
    names = {"message_id": f"00000000-0000-7000-8000-{position:012}", "broker": "default", "topic": "t"}
    rest = {"payload": "1", "headers": "{}", "attempts": 1, "max_attempts": 3, "token": 7, "locked_by": "w1"}
    more = {"position": position, "message_key": key, "status": status, "published_at": None, "error": None}
    wanted = {"wanted": position, "wanted_broker": "default", "wanted_key": key}
    return {**times, **names, **rest, **more, **wanted}


def _missed(position: int, key: str) -> dict[str, Any]:
    nothing = dict.fromkeys(_row(position, key))
    return {**nothing, "wanted": position, "wanted_broker": "default", "wanted_key": key}


def _claim(rows: list[dict[str, Any]]) -> tuple[list[int], list[Any]]:
    """Return what is claimed when the database returns these rows, and the queries after the claim."""
    script = verbs.claim(Statements("postgresql", TableNames()), REQUEST)
    next(script)
    asked: list[Any] = []
    try:
        query = script.send(rows)
        while True:
            asked.append(query)
            query = script.send([])
    except StopIteration as end:
        return [message.position for message in end.value.messages], asked


def test_what_stands_behind_a_gap_in_its_key_goes_back() -> None:
    rows = [_row(1, "a"), _missed(2, "a"), _row(3, "a"), _row(4, "b"), _row(5, None)]

    claimed, [release] = _claim(rows)

    assert claimed == [1, 4, 5]
    assert (release.name, release.params) == ("release", {"held": "[[3,7]]"})


def test_a_claim_without_gaps_asks_once() -> None:
    claimed, asked = _claim([_row(2, "a"), _row(1, "a"), _row(3, None)])

    assert (claimed, asked) == ([1, 2, 3], [])


@pytest.mark.parametrize(("async_face", "sync_face"), [(Outbox, SyncOutbox), (Inbox, SyncInbox)])
def test_both_faces_have_the_same_verbs_and_arguments(async_face: type, sync_face: type) -> None:
    def verbs_of(face: type) -> dict[str, Any]:
        return {
            name: [(one.name, one.kind, one.default) for one in inspect.signature(verb).parameters.values()]
            for name, verb in inspect.getmembers(face, inspect.isfunction)
            if not name.startswith("_") and name != "table"
        }

    assert verbs_of(async_face) == verbs_of(sync_face)


@pytest.fixture
def counted(postgresql: PostgreSQL) -> Iterator[tuple[Outbox, list[str]]]:
    """Open an outbox on PostgreSQL, with a list of the statements that were sent."""
    from dibs import Dibs

    url = postgresql.fresh_database()
    with_tables = Dibs(url).sync
    with_tables.migrate()
    with_tables.close()
    engine = sqlalchemy.create_engine(f"postgresql+psycopg{url[10:]}")
    sent: list[str] = []
    sqlalchemy.event.listen(engine, "before_cursor_execute", lambda *about: sent.append(about[2]))
    yield Outbox(engine), sent
    engine.dispose()


def test_a_batch_is_one_round_trip_on_postgresql(counted: tuple[Outbox, list[str]]) -> None:
    outbox, sent = counted
    for number in range(30):
        outbox.sync.publish("orders", number, key=f"k{number % 3}")
    sent.clear()

    messages = outbox.sync.claim_batch("w1", limit=20, target_broker="default")
    assert (len(messages), len(sent)) == (18, 1)
    sent.clear()

    outbox.sync.mark_published(messages)
    assert len(sent) == 1
