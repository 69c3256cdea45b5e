"""How jobs leave a Redis store for another one, and come into it: a job's hash, field by field, as text."""

from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dibs.engines.redis.rows import MOST_AT_ONCE, micros, time_of
from dibs.jobs.job import STORED_TYPES, StoredJob, read_stored, stored_text
from dibs.operations.scripts import Row, Rows

Plan = Generator[Any, Any, Rows]


class RedisMoves:
    """The answers that `dibs move` asks for."""

    call: Callable[..., Any]

    def _identify(self, new: UUID | None) -> Plan:
        return [{"id": UUID(id)} for id in (yield self.call("identify", new=new))]

    def _depart(self, store: UUID, after: UUID | None, limit: int) -> Plan:
        found: list[Any] = []
        seen, most = str(after or ""), min(limit, MOST_AT_ONCE)
        while len(found) < most:
            which = {"after": seen or None, "limit": most - len(found), "look": most}
            (leaving, seen), _ = yield self.call("depart", store=store, **which)
            found += leaving
            if not seen:
                break
        return [{"id": UUID(id), "job": _moved_text(flat)} for id, flat in found]

    def _departed(self, limit: int) -> Plan:
        found = sorted((yield self.call("departed")))[:limit]
        return [{"id": UUID(id), "store": UUID(to), "job": _moved_text(flat)} for id, to, flat in found]

    def _arrive(self, store: UUID, jobs: Sequence[str]) -> Plan:
        rows: list[Row] = []
        for first in range(0, len(jobs), MOST_AT_ONCE):
            come = [read_stored(text) for text in jobs[first : first + MOST_AT_ONCE]]
            holders = yield self.call("arrive", store=store, **_arriving(come))
            rows += _taken_in(come, holders)
        return rows

    def _give_back(self, store: UUID, ids: Sequence[UUID]) -> Plan:
        wanted = set(ids)
        rows = yield from self._departed(MOST_AT_ONCE)
        back = [read_stored(row["job"]) for row in rows if row["store"] == store and row["id"] in wanted]
        return _taken_in(back, (yield self.call("give_back", **_arriving(back))))

    def _landed(self, way: str, store: UUID, ids: Sequence[UUID] | None) -> Plan:
        yield self.call("landed", way=way, store=store, ids=ids)
        return []


def _arriving(jobs: Sequence[StoredJob]) -> dict[str, Any]:
    """What the script needs of each to decide, and the fields of its hash; null is no field."""
    told = [(job.id, None if job.is_finished else job.unique_key, _fields(job)) for job in jobs]
    return {"jobs": told, "token": max((job.token or 0 for job in jobs), default=0)}


def _fields(job: StoredJob) -> list[str]:
    values = ((name, getattr(job, name)) for name in STORED_TYPES if name != "id")
    return [text for name, value in values if value is not None for text in (name, _as_field(name, value))]


def _as_field(name: str, value: Any) -> str:
    if name == "cancel_reason":
        return f"!{value}"
    return micros(value) if isinstance(value, datetime) else str(value)


def _moved_text(flat: str) -> str:
    """A departed job's fields, one after the other, as the text that every store reads."""
    values = iter(msgspec.json.decode(flat))
    pairs = zip(values, values, strict=True)
    fields = {name: _FROM_FIELD[STORED_TYPES[name]](text) for name, text in pairs if text}
    if reason := fields.get("cancel_reason"):
        fields["cancel_reason"] = reason[1:]
    if "slot" in fields:
        fields = {"slot_policy": "wait", "slot_limit": 1} | fields  # the usual is not written
    return stored_text(fields)


_FROM_FIELD: dict[type, Callable[[str], Any]] = {
    **{type: type for type in (UUID, int, float, str)},
    datetime: time_of,
}


def _taken_in(jobs: Sequence[StoredJob], holders: Sequence[str]) -> Rows:
    return [
        {"id": job.id, "holder": UUID(holder) if holder else job.id, "is_new": not holder}
        for job, holder in zip(jobs, holders, strict=True)
    ]
