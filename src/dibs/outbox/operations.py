"""The verbs of the outbox as scripts: each yields queries and judges their answers.

A verb is one transaction. What it decides is decided here; a guard stands in every statement that writes.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from dibs.engines.sql.engine import Query
from dibs.errors import NotFound, Refused
from dibs.operations.scripts import Row, Rows
from dibs.outbox.messages import Message, Standing, Status, message
from dibs.outbox.statements import Statements

T = TypeVar("T")
Script = Generator[Query, Rows, T]

WINDOW = 4  # times the limit: how many of the oldest open messages a claim looks at first


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a relay wants to claim."""

    worker: str
    limit: int
    broker: str | None
    lock: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """What it got, and what it found to be beyond hope."""

    messages: list[Message]
    abandoned: list[Message]


# -- publish ------------------------------------------------------------------------------------


def publish(stored: Mapping[str, Any], brokers: Sequence[str]) -> Script[None]:
    """One row per broker; those that are there already stay as they are."""
    for broker in brokers:
        yield Query("publish", {**stored, "broker": broker})


# -- claim --------------------------------------------------------------------------------------


def claim(words: Statements, wish: Wish) -> Script[Claimed]:
    """The oldest messages of keys that nobody holds, several of a key in a row where there is room."""
    brokers = [wish.broker] if wish.broker is not None else (yield from _open_brokers())
    rows: list[Row] = []
    for broker in brokers:
        if len(rows) < wish.limit:
            one = replace(wish, broker=broker, limit=wish.limit - len(rows))
            rows += yield from _claim_for_one(words, one)
    taken = [message(row) for row in sorted(rows, key=_position)]
    return Claimed(
        [one for one in taken if one.status == Status.processing],
        [one for one in taken if one.status == Status.abandoned],
    )


def _open_brokers() -> Script[list[str]]:
    return [row["broker"] for row in (yield Query("brokers", {}))]


def _claim_for_one(words: Statements, wish: Wish) -> Script[list[Row]]:
    if words.returning:
        rows, missed = yield from _claim_at_once(words, wish)
    else:
        rows, missed = yield from _lock_then_take(wish)
    kept, stranded = _split(rows, missed)
    if stranded:
        yield Query("release", {"held": _held(stranded)})
    return kept


def _claim_at_once(words: Statements, wish: Wish) -> Script[tuple[list[Row], list[Row]]]:
    params = {"worker": wish.worker, "limit": wish.limit, "broker": wish.broker, "lock": wish.lock}
    answers = yield Query("claim", {**params, "window": WINDOW * wish.limit})
    rows = [row for row in answers if row["position"] is not None]
    missed: list[Row] = [
        {"position": row["wanted"], "broker": row["wanted_broker"], "message_key": row["wanted_key"]}
        for row in answers
        if row["position"] is None
    ]
    if rows and words.counts_by_hand:
        yield Query("count_on", {})
    return rows, missed


def _lock_then_take(wish: Wish) -> Script[tuple[list[Row], list[Row]]]:
    heads = yield from _heads(wish)
    if not heads:
        return [], []
    wanted = [*heads, *(yield from _followers(heads, wish))]
    given = _json([row["position"] for row in wanted])
    yield Query("take", {"positions": given, "worker": wish.worker, "lock": wish.lock})
    rows = yield Query("taken", {"positions": given, "worker": wish.worker})
    got = {row["position"] for row in rows}
    return list(rows), [row for row in wanted if row["position"] not in got]


def _heads(wish: Wish) -> Script[list[Row]]:
    """Look first, then lock: what is locked while looking would make others wait."""
    asked = {"broker": wish.broker, "window": WINDOW * wish.limit}
    found = {row["position"] for row in (yield Query("old", asked))}
    if len(found) < wish.limit:
        found |= {row["position"] for row in (yield Query("oldest_of_keys", asked))}
        found |= {row["position"] for row in (yield Query("loose", asked))}
    if not found:
        return []
    return list((yield Query("heads", {"positions": _json(sorted(found)), "limit": wish.limit})))


def _followers(heads: Sequence[Row], wish: Wish) -> Script[list[Row]]:
    """The messages right behind the heads, as long as each one is free: an equal share for each key."""
    places = wish.limit // len(heads) - 1
    keyed = [row["position"] for row in heads if row["message_key"] is not None]
    if places <= 0 or not keyed:
        return []
    params = {"positions": _json(keyed), "places": places}
    lines: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in (yield Query("followers", params)):
        lines[row["broker"], row["message_key"]].append(row)
    return [row for line in lines.values() for row in _while_free(line)]


def _while_free(line: Sequence[Row]) -> Sequence[Row]:
    stop = next((place for place, row in enumerate(line) if not row["free"]), len(line))
    return line[:stop]


def _split(rows: Sequence[Row], missed: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """What may be published, and what must go back because one before it slipped away to somebody else."""
    gaps: dict[Any, int] = {}
    for row in missed:
        line = row["broker"], row["message_key"]
        gaps[line] = min(gaps.get(line, row["position"]), row["position"])
    kept: list[Row] = []
    stranded: list[Row] = []
    for row in rows:
        gap = gaps.get((row["broker"], row["message_key"])) if row["message_key"] is not None else None
        behind = gap is not None and row["position"] > gap and row["status"] == Status.processing
        (stranded if behind else kept).append(row)
    return kept, stranded


# -- mark, renew, release -----------------------------------------------------------------------


def mark_published(messages: Sequence[Message]) -> Script[list[Message]]:
    """Those that were not ours any more; to say it twice is no harm."""
    return (yield from _fenced("mark_published", messages, Status.published))


def mark_failed(
    messages: Sequence[Message], *, status: Status, delay: int, error: str, refund: bool = False
) -> Script[list[Message]]:
    params = {"status": status.value, "delay": delay, "error": error, "refund": int(refund)}
    return (yield from _fenced("mark_failed", messages, status, **params))


def release(messages: Sequence[Message]) -> Script[list[Message]]:
    return (yield from _fenced("release", messages, Status.pending))


def renew(messages: Sequence[Message], lock: int) -> Script[list[Message]]:
    return (yield from _fenced("renew", messages, Status.processing, lock=lock))


def _fenced(block: str, messages: Sequence[Message], leads_to: Status, **more: Any) -> Script[list[Message]]:
    """Do this to those that are ours; answer the rest."""
    if not messages:
        return []
    held = _json([[one.position, one.token] for one in messages])
    done = {row["position"] for row in (yield Query(block, {"held": held, **more}))}
    if len(done) < len({one.position for one in messages}):
        standing = yield Query("standing", {"held": held, "status": leads_to.value})
        done |= {row["position"] for row in standing}
    return [one for one in messages if one.position not in done]


# -- look and act -------------------------------------------------------------------------------


def find(block: str, **params: Any) -> Script[list[Message]]:
    return [message(row) for row in (yield Query(block, params))]


def counts(broker: str | None) -> Script[dict[str, int]]:
    found = {row["status"]: row["number"] for row in (yield Query("counts", {"broker": broker}))}
    return {status.value: int(found.get(status.value, 0)) for status in Status}


def standings() -> Script[list[Standing]]:
    """Each broker that has messages, by its name."""
    found: defaultdict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(map(str, Status), 0))
    for row in (yield Query("counts_by_broker", {})):
        found[row["broker"]][row["status"]] = int(row["number"])
    standings = []
    for broker, numbers in sorted(found.items()):
        standings.append(Standing(broker, numbers, (yield from oldest(broker))))
    return standings


def oldest(broker: str | None) -> Script[float]:
    rows = yield Query("oldest", {"broker": broker})
    return max(int(rows[0]["age"]), 0) / 1_000_000 if rows else 0.0


def redrive(words: Statements, id: UUID, broker: str | None) -> Script[int]:
    moved = yield from _moved(words, "redrive", "reopen", {"id": str(id), "broker": broker})
    if moved:
        return moved
    stored = [one for one in (yield from find("look", id=str(id))) if broker in (None, one.broker)]
    if not stored:
        raise NotFound(id, what="message")
    states = ", ".join(f"{one.status} at {one.broker}" for one in stored)
    raise Refused(f"message {id} is {states}: only an abandoned one can be redriven")


def redrive_many(words: Statements, **params: Any) -> Script[int]:
    return (yield from _moved(words, "redrive_many", "reopen", params))


def prune(words: Statements, block: str, age: int, batch: int) -> Script[int]:
    return (yield from _moved(words, block, "remove", {"age": age, "batch": batch}))


def _moved(words: Statements, block: str, then: str, params: Mapping[str, Any]) -> Script[int]:
    """How many rows a statement wrote; MySQL, which doesn't say, is asked to lock them first."""
    if words.returning:
        return len((yield Query(block, params)))
    found = yield Query(f"{block}_find", params)
    if found:
        yield Query(then, {"positions": _json([row["position"] for row in found])})
    return len(found)


# -- inbox --------------------------------------------------------------------------------------


def first_time(words: Statements, consumer: str, id: str, mark: str) -> Script[bool]:
    """Whether this is the first time that the consumer sees the message; it is noted in the same breath."""
    given = {"consumer": consumer, "id": id, "mark": mark}
    rows = yield Query("inbox_once", given)
    if words.returning:
        return bool(rows)
    [seen] = yield Query("inbox_seen", given)
    return bool(seen["mark"] == mark)


def inbox_prune(words: Statements, age: int, batch: int) -> Script[int]:
    given = {"age": age, "batch": batch}
    if words.returning:
        return len((yield Query("inbox_prune", given)))
    [old] = yield Query("inbox_old", given)
    yield Query("inbox_prune", given)
    return int(old["number"])


def _held(rows: Iterable[Row]) -> str:
    return _json([[row["position"], row["token"]] for row in rows])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _position(row: Row) -> int:
    position: int = row["position"]
    return position
