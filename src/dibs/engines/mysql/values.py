"""Values for MySQL and MariaDB, and back: ids as hex, times in UTC, many rows as one JSON text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from dibs.clock import from_micros, to_micros
from dibs.engines.sql.engine import Converters
from dibs.jobs.states import JobState

# The most that is sent in one statement: the server refuses more than its max_allowed_packet (16 MiB on
# MariaDB), and a quote within text within JSON within a statement takes four characters.
CHUNK_ROWS = 1000
CHUNK_SIZE = 2 * 1024 * 1024


def chunks(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the rows as JSON texts, none larger than one statement may be."""
    chunk: list[list[Any]] = []
    size = 0
    for row in rows:
        if chunk and (len(chunk) >= CHUNK_ROWS or size + text_size(row) > CHUNK_SIZE):
            yield as_json(chunk)
            chunk, size = [], 0
        chunk.append([as_plain(value) for value in row])
        size += text_size(row)
    if chunk:
        yield as_json(chunk)


def text_size(row: Sequence[Any]) -> int:
    return sum(len(value) for value in row if isinstance(value, str))


def as_ids(ids: Iterable[UUID]) -> str:
    return as_json([id.hex for id in dict.fromkeys(ids)])


def as_hex(id: UUID | None) -> str | None:
    return None if id is None else id.hex


def later(moment: datetime, micros: int) -> datetime:
    return from_micros(to_micros(moment) + micros) if micros else moment


def as_moment(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def as_plain(value: Any) -> Any:
    """Convert a value for the drivers and JSON: ids to hex, times to UTC without a zone, truth to 0 or 1."""
    converter = _CONVERTERS[type(value)]
    return value if converter is None else converter(value)


_CONVERTERS = Converters(
    {
        list: lambda values: as_json([as_plain(value) for value in values]),
        UUID: lambda id: id.hex,
        JobState: str,
        bool: int,
        datetime: as_moment,
    }
)

_TIMES = (
    *("run_at", "enqueued_at", "claimed_at", "finished_at", "lease_until", "now", "due"),
    *("next_due", "next_lease", "started_at", "seen_at", "last_tick", "since", "offer_ends"),
    *("unique_until", "refused_at"),
)
_IDS = ("id", "holder", "near", "store", "pipeline_id", "parent_id", "stored_by", "head", "held_by")
READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_TIMES, lambda moment: moment.replace(tzinfo=UTC)),
    **dict.fromkeys(_IDS, lambda id: UUID(bytes=bytes(id))),
}
