"""The verbs of the outbox as scripts: each yields queries, decides by their rows, and is one transaction.

Every statement that writes checks again that it may: other relays work at the same time.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

from dibs.engines.sql.engine import Query
from dibs.errors import NotFound, Refused
from dibs.jobs.payload import json_text
from dibs.operations.scripts import Row, Rows
from dibs.outbox.messages import Message, Standing, Status, message
from dibs.outbox.statements import Statements

T = TypeVar("T")
Script = Generator[Query, Rows, T]

WINDOW = 4  # times the limit: how many of the oldest open messages a claim reads first


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """What a relay asks for: how many messages of which broker, and for how long (microseconds)."""

    worker: str
    limit: int
    broker: str | None
    lock: int


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """The messages that were claimed, and messages out of attempts that the claim abandoned."""

    messages: list[Message]
    abandoned: list[Message]


# -- publish ------------------------------------------------------------------------------------


def publish(stored: Mapping[str, Any], brokers: Sequence[str]) -> Script[None]:
    """Store one row per broker; a row that exists stays as it is."""
    for broker in brokers:
        yield Query("publish", {**stored, "broker": broker})


# -- claim --------------------------------------------------------------------------------------


def claim(statements: Statements, request: BatchRequest) -> Script[ClaimedBatch]:
    """Claim the oldest messages of keys that no relay holds, several of one key in a row if there is room."""
    if request.limit <= 0:
        return ClaimedBatch([], [])
    open_brokers = [{"broker": request.broker}] if request.broker else (yield Query("brokers", {}))
    rows: list[Row] = []
    for row in open_brokers:
        if len(rows) < request.limit:
            one = replace(request, broker=row["broker"], limit=request.limit - len(rows))
            rows += yield from _claim_for_broker(statements, one)
    claimed = [message(row) for row in sorted(rows, key=itemgetter("position"))]
    return ClaimedBatch(
        [one for one in claimed if one.status == Status.processing],
        [one for one in claimed if one.status == Status.abandoned],
    )


def _claim_for_broker(statements: Statements, request: BatchRequest) -> Script[list[Row]]:
    if statements.returning:
        rows, missed = yield from _claim_in_one_statement(statements, request)
    else:
        rows, missed = yield from _lock_then_claim(request)
    kept, released = _split(rows, missed)
    if released:
        yield Query("release", {"held": _held(released)})
    return kept


def _claim_in_one_statement(
    statements: Statements, request: BatchRequest
) -> Script[tuple[list[Row], list[Row]]]:
    selected = yield Query("claim", {**asdict(request), "window": WINDOW * request.limit})
    rows = [row for row in selected if row["position"] is not None]
    missed: list[Row] = [
        {"position": row["wanted"], "broker": row["wanted_broker"], "message_key": row["wanted_key"]}
        for row in selected
        if row["position"] is None
    ]
    if rows and statements.counts_by_hand:
        yield Query("advance_tokens", {})
    return rows, missed


def _lock_then_claim(request: BatchRequest) -> Script[tuple[list[Row], list[Row]]]:
    heads = yield from _heads(request)
    if not heads:
        return [], []
    wanted = [*heads, *(yield from _followers(heads, request))]
    positions = json_text([row["position"] for row in wanted])
    params = {"positions": positions, **asdict(request)}
    yield Query("claim_positions", params)
    rows = yield Query("claimed", params)
    claimed = {row["position"] for row in rows}
    return list(rows), [row for row in wanted if row["position"] not in claimed]


def _heads(request: BatchRequest) -> Script[list[Row]]:
    """Search without locks, then lock what was found: a locking search would make other relays wait."""
    params = {"broker": request.broker, "window": WINDOW * request.limit}
    found = {row["position"] for row in (yield Query("oldest_free", params))}
    if len(found) < request.limit:
        found |= {row["position"] for row in (yield Query("oldest_of_keys", params))}
        found |= {row["position"] for row in (yield Query("free_without_key", params))}
    if not found:
        return []
    return list((yield Query("heads", {"positions": json_text(sorted(found)), "limit": request.limit})))


def _followers(heads: Sequence[Row], request: BatchRequest) -> Script[list[Row]]:
    """Return the messages right behind the heads while each is free, an equal share for each key."""
    share = request.limit // len(heads) - 1
    keyed = [row["position"] for row in heads if row["message_key"] is not None]
    if share <= 0 or not keyed:
        return []
    params = {"positions": json_text(keyed), "share": share}
    by_key: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in (yield Query("followers", params)):
        by_key[row["broker"], row["message_key"]].append(row)
    return [row for rows in by_key.values() for row in takewhile(itemgetter("free"), rows)]


def _split(rows: Sequence[Row], missed: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows to keep, and the rows to release: an earlier message of their key was not claimed."""
    gaps: dict[Any, int] = {}
    for row in missed:
        key = row["broker"], row["message_key"]
        gaps[key] = min(gaps.get(key, row["position"]), row["position"])
    kept: list[Row] = []
    released: list[Row] = []
    for row in rows:
        gap = gaps.get((row["broker"], row["message_key"])) if row["message_key"] is not None else None
        behind = gap is not None and row["position"] > gap and row["status"] == Status.processing
        (released if behind else kept).append(row)
    return kept, released


# -- mark, renew, release -----------------------------------------------------------------------


def mark_published(messages: Sequence[Message]) -> Script[list[Message]]:
    """Mark messages as published; return the messages that were lost. Safe to repeat."""
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
    """Update the messages that are still held under their tokens; return the others."""
    if not messages:
        return []
    held = json_text([[one.position, one.token] for one in messages])
    done = {row["position"] for row in (yield Query(block, {"held": held, **more}))}
    if len(done) < len({one.position for one in messages}):
        already = yield Query("in_status", {"held": held, "status": leads_to.value})
        done |= {row["position"] for row in already}
    return [one for one in messages if one.position not in done]


# -- query and redrive -------------------------------------------------------------------------------


def find(block: str, **params: Any) -> Script[list[Message]]:
    return [message(row) for row in (yield Query(block, params))]


def counts(broker: str | None) -> Script[dict[str, int]]:
    found = {row["status"]: row["number"] for row in (yield Query("counts", {"broker": broker}))}
    return {status.value: int(found.get(status.value, 0)) for status in Status}


def standings() -> Script[list[Standing]]:
    """Return counts and lag of each broker that has messages, in the order of their names."""
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


def redrive(statements: Statements, id: UUID, broker: str | None) -> Script[int]:
    redriven = yield from _write(statements, "redrive", "reopen", {"id": str(id), "broker": broker})
    if redriven:
        return redriven
    stored = [one for one in (yield from find("get", id=str(id))) if broker in (None, one.broker)]
    if not stored:
        raise NotFound(id, what="message")
    states = ", ".join(f"{one.status} at {one.broker}" for one in stored)
    raise Refused(f"message {id} is {states}: only an abandoned one can be redriven")


def redrive_many(statements: Statements, **params: Any) -> Script[int]:
    return (yield from _write(statements, "redrive_many", "reopen", params))


def prune(statements: Statements, block: str, age: int, batch: int) -> Script[int]:
    return (yield from _write(statements, block, "remove", {"age": age, "batch": batch}))


def _write(statements: Statements, block: str, then: str, params: Mapping[str, Any]) -> Script[int]:
    """Return how many rows a statement wrote; MySQL can't return them, so there they are locked first."""
    if statements.returning:
        return len((yield Query(block, params)))
    found = yield Query(f"{block}_find", params)
    if found:
        yield Query(then, {"positions": json_text([row["position"] for row in found])})
    return len(found)


# -- inbox --------------------------------------------------------------------------------------


def first_time(statements: Statements, consumer: str, id: str, mark: str) -> Script[bool]:
    """Record that the consumer has the message; return whether this is the first time."""
    given = {"consumer": consumer, "id": id, "mark": mark}
    rows = yield Query("inbox_once", given)
    if statements.returning:
        return bool(rows)
    [seen] = yield Query("inbox_seen", given)
    return bool(seen["mark"] == mark)


def inbox_prune(statements: Statements, age: int, batch: int) -> Script[int]:
    given = {"age": age, "batch": batch}
    if statements.returning:
        return len((yield Query("inbox_prune", given)))
    [old] = yield Query("inbox_old", given)
    yield Query("inbox_prune", given)
    return int(old["number"])


def _held(rows: Iterable[Row]) -> str:
    return json_text([[row["position"], row["token"]] for row in rows])
