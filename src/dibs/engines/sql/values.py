"""Values for the drivers of SQLite, MySQL and MariaDB, which know no ids and no lists, and back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from dibs.clock import from_micros, to_micros
from dibs.jobs.states import JobState

# The columns of every database that are times, and ids.
_TIMES = (
    *("run_at", "enqueued_at", "claimed_at", "finished_at", "lease_until", "now"),
    *("next_due", "next_lease", "started_at", "seen_at", "last_tick", "since", "unique_until", "refused_at"),
)
_IDS = ("id", "holder", "store", "pipeline_id", "parent_id", "head", "held_by")


class Converters(dict[type, Callable[[Any], Any] | None]):
    """Functions that convert values of a type for a driver; None for types that it takes as they are.

    A class that extends one of these is converted like that one: asyncpg has its own class of ids, and a move
    passes values of one driver to another.
    """

    def __missing__(self, kind: type) -> Callable[[Any], Any] | None:
        self[kind] = next((self[base] for base in kind.__mro__ if base in self), None)
        return self[kind]

    def convert(self, value: Any) -> Any:
        converter = self[type(value)]
        return value if converter is None else converter(value)


def as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def later(moment: datetime, micros: int) -> datetime:
    return from_micros(to_micros(moment) + micros) if micros else moment


def timed(job: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Return a new job with its times and its state, by the time of the store."""
    delay, run_at, lasts = job.pop("delay"), job["run_at"], job.pop("unique_for")
    due = run_at or later(now, delay or 0)
    state = JobState.ready if due <= now else JobState.scheduled
    until = None if lasts is None else later(now, lasts)
    times = {"run_at": due, "enqueued_at": now, "unique_until": until}
    return {**job, **times, "state": state, "position": None}


# -- SQLite: ids and states as text, times in microseconds, lists as JSON -----------------------------

SQLITE_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_TIMES, from_micros),
    **dict.fromkeys(_IDS, UUID),
}
as_sqlite = Converters(
    {UUID: str, JobState: str, datetime: to_micros, list: as_json, tuple: as_json, dict: as_json}
).convert


# -- MySQL and MariaDB: ids as hex, times in UTC, many rows as one JSON text ----------------------------

# The most that is sent in one statement: the server refuses more than its max_allowed_packet (16 MiB on
# MariaDB), and a quote within text within JSON within a statement takes four characters.
CHUNK_ROWS = 1000
CHUNK_SIZE = 2 * 1024 * 1024

MYSQL_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys((*_TIMES, "due", "offer_ends"), lambda moment: moment.replace(tzinfo=UTC)),
    **dict.fromkeys((*_IDS, "near", "stored_by"), lambda id: UUID(bytes=bytes(id))),
}


def chunks(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the rows as JSON texts, none larger than one statement may be."""
    chunk: list[list[Any]] = []
    size = 0
    for row in rows:
        if chunk and (len(chunk) >= CHUNK_ROWS or size + text_size(row) > CHUNK_SIZE):
            yield as_json(chunk)
            chunk, size = [], 0
        chunk.append([as_mysql(value) for value in row])
        size += text_size(row)
    if chunk:
        yield as_json(chunk)


def text_size(row: Sequence[Any]) -> int:
    return sum(len(value) for value in row if isinstance(value, str))


def as_ids(ids: Iterable[UUID]) -> str:
    return as_json([id.hex for id in dict.fromkeys(ids)])


def as_hex(id: UUID | None) -> str | None:
    return None if id is None else id.hex


def as_moment(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


# Ids to hex, times to UTC without a zone, truth to 0 or 1.
as_mysql: Callable[[Any], Any] = Converters(
    {
        list: lambda values: as_json([as_mysql(value) for value in values]),
        UUID: lambda id: id.hex,
        JobState: str,
        bool: int,
        datetime: as_moment,
    }
).convert
