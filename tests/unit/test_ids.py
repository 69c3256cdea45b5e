"""Ids: UUIDv7, strictly increasing in one process, however many threads make them."""

import itertools
import os
import threading
import time
from uuid import UUID, uuid4

import pytest
from asyncpg.pgproto.pgproto import UUID as AsyncpgUUID

from dibs import BadRequest
from dibs.jobs import ids
from dibs.jobs.ids import first_id_at, new_id, parse_id
from tests.support.param_names import named


def test_an_id_is_a_uuid7_of_now() -> None:
    before = time.time_ns() // 1_000_000

    id = new_id()

    assert (id.version, id.variant) == (7, "specified in RFC 4122")
    assert before - 1000 <= id.int >> 80 <= time.time_ns() // 1_000_000 + 1000


def test_ids_strictly_increase() -> None:
    made = [new_id() for _ in range(20_000)]

    assert all(one < after for one, after in itertools.pairwise(made))


def test_ids_strictly_increase_in_every_thread_and_none_comes_twice() -> None:
    made: list[list[UUID]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda ids=ids: ids.extend(new_id() for _ in range(2_000))) for ids in made
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(ids == sorted(ids) for ids in made)
    assert len({id for ids in made for id in ids}) == 8_000


def test_ids_increase_though_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    monkeypatch.setattr(ids, "wall_nanos", lambda: 1_000_000)

    assert new_id() > before


def test_a_child_process_makes_other_ids() -> None:
    read, write = os.pipe()
    new_id()
    if (child := os.fork()) == 0:
        os.write(write, new_id().bytes)
        os._exit(0)
    mine = new_id()
    os.waitpid(child, 0)

    theirs = UUID(bytes=os.read(read, 16))

    os.close(read)
    os.close(write)
    assert theirs != mine


def test_ids_of_one_key_end_alike() -> None:
    ends = {new_id("customer_7").int & 0xFFF for _ in range(20)}

    assert len(ends) == 1
    assert len({new_id().int & 0xFFF for _ in range(200)}) > 50


def test_the_first_id_of_a_moment_is_below_all_others_of_it() -> None:
    id = new_id()
    millis = id.int >> 80

    assert first_id_at(millis) <= id < first_id_at(millis + 1)
    assert first_id_at(-5).int >> 80 == 0


def test_text_is_read_as_an_id() -> None:
    id = uuid4()

    assert parse_id(id) is id
    assert parse_id(str(id)) == parse_id(id.hex) == id


def test_an_id_of_a_driver_becomes_a_plain_one() -> None:
    """asyncpg answers ids of a class of its own, which other drivers don't take."""
    id = new_id()

    assert type(parse_id(AsyncpgUUID(id.bytes))) is UUID
    assert parse_id(AsyncpgUUID(id.bytes)) == id


@pytest.mark.parametrize("value", ["", "x", 5, None, b"", "0" * 31, object()], ids=named)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(BadRequest, match="not a job id"):
        parse_id(value)  # type: ignore[arg-type]
