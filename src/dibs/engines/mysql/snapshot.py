"""Answers within a caller's transaction: its snapshot may be older than the rows that it locks.

A consistent read shows the rows as of the caller's first statement; a locking read shows the newest ones.
"""

from collections.abc import Mapping
from dataclasses import replace

from dibs.engines.mysql.gates import JUST_MADE
from dibs.engines.mysql.values import as_json
from dibs.engines.sql.engine import Answer, Plan, Query
from dibs.jobs.gates import Key
from dibs.operations.scripts import Row, Rows

# The same reads, locking.
NEWEST = {
    "lasting": "lasting_newest",
    "train_heads": "train_heads_newest",
    "slot_line": "slot_line_newest",
    "slot_running": "slot_running_newest",
    "slot_members": "slot_members_newest",
    "slot_waiting": "slot_waiting_newest",
    "slot_in_use": "slot_in_use_newest",
}

# Blocks that read the holders of unique keys without a lock.
HOLDERS = ("key_holders", "running_holders")


def on_newest(answer: Answer) -> Answer:
    return lambda **params: _beside_snapshot(answer(**params))


def _beside_snapshot(plan: Plan) -> Plan:
    """Run a plan in the caller's transaction, with locking reads where its snapshot is too old.

    Not everywhere: at REPEATABLE READ they lock gaps as well, which block every enqueue.
    """
    query, is_old = next(plan), False
    seen: dict[Key, int] = {}
    while True:
        assert isinstance(query, Query)
        if query.name == "lock_gates":
            seen |= {_key(row): row["changes"] for row in (yield replace(query, name="gates_seen"))}
        newest = NEWEST.get(query.name) if is_old or query.name == "lasting" else None
        rows = yield query if newest is None else replace(query, name=newest)
        if query.name in HOLDERS and rows:
            rows = yield from _still_there(rows)
        if query.name == "locked_gates" and any(_has_changed(row, seen) for row in rows):
            is_old = True
            yield replace(query, name="doubt_gates")
        try:
            query = plan.send(rows)
        except StopIteration as done:
            answer: Rows = done.value
            return answer


def _still_there(holders: Rows) -> Plan:
    """Return the holders that still have their keys, whatever a snapshot shows."""
    keys = as_json(sorted(row["unique_key"] for row in holders))
    newest = yield Query("key_holders_newest", {"keys": keys})
    there = {(row["unique_key"], row["holder"]) for row in newest}
    return [row for row in holders if (row["unique_key"], row["holder"]) in there]


def _key(gate: Row) -> Key:
    return gate["sort"], gate["name"]


def _has_changed(gate: Row, seen: Mapping[Key, int]) -> bool:
    """Return whether a locked gate has changed since we read it; a number below 0 is in doubt."""
    before = seen.get(_key(gate))
    if before is None:
        return bool(gate["last_position"] != JUST_MADE)
    return before < 0 or bool(gate["changes"] != before + 1)
