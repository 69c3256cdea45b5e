"""Job ids: UUIDv7, made by the caller, strictly increasing within one process.

The client makes the id, so an enqueue that lost its reply can be repeated and stores nothing
twice (ADR 4). The last 12 bits are a hash of the job's key, so that a partitioned store can find
the partition of a job from its id alone.
"""

import os
import secrets
import socket
import threading
import zlib
from uuid import UUID

from dibs.clock import wall_nanos
from dibs.errors import BadRequest

_COUNTER_BITS = 12
_COUNTER = 0xFFF
_KEY_HASH = 0xFFF  # the bits that hold the hash of the key
_TAIL = (1 << 62) - 1
_VERSION = 0x7 << 76
_WITH_STEPS = 0x8 << 76
_VARIANT = 0b10 << 62

_lock = threading.Lock()
_last = 0  # milliseconds << 12 | counter, of the newest id


def new_id(key: str | None = None) -> UUID:
    """Return a fresh id, greater than every id this process made before."""
    tail = int.from_bytes(os.urandom(8)) & _TAIL
    if key is not None:
        tail = tail & ~_KEY_HASH | zlib.crc32(key.encode("utf-8", "surrogatepass")) & _KEY_HASH
    stamp = _next_stamp()
    return UUID(int=(stamp >> _COUNTER_BITS) << 80 | _VERSION | (stamp & _COUNTER) << 64 | _VARIANT | tail)


def new_pipeline_id() -> UUID:
    """Return the id of a pipeline in which jobs wait for each other, to be recognised by its version 8."""
    return UUID(int=new_id().int ^ _VERSION ^ _WITH_STEPS)


def may_have_steps(pipeline: UUID | None) -> bool:
    """Return whether jobs of this pipeline may wait for each other; else a settlement need not pay for it."""
    return pipeline is not None and pipeline.version == 8


def first_id_at(millis: int) -> UUID:
    """Return the smallest id that could have been made at this time."""
    return UUID(int=max(millis, 0) << 80 | _VERSION | _VARIANT)


def is_version_7(id: UUID) -> bool:
    return id.int & (0xF << 76 | 0b11 << 62) == _VERSION | _VARIANT


def parse_id(value: UUID | str, what: str = "job") -> UUID:
    """Return the id given as a UUID or its text; anything else is `BadRequest`."""
    if type(value) is UUID:
        return value
    if isinstance(value, UUID):
        return UUID(int=value.int)  # asyncpg has a class of its own, which other drivers don't take
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise BadRequest(f"{value!r} is not a {what} id: pass a UUID or its text") from None


def _next_stamp() -> int:
    """Return milliseconds and a counter: when the counter runs over it borrows the next millisecond."""
    global _last  # noqa: PLW0603
    with _lock:
        _last = max(wall_nanos() // 1_000_000 << _COUNTER_BITS, _last + 1)
        return _last


_nonces: dict[int, str] = {}


def worker_name() -> str:
    """Return the name of this process as a worker, the same until it ends, never used again after that."""
    pid = os.getpid()
    nonce = _nonces.setdefault(pid, secrets.token_hex(4))
    host = os.environ.get("HOSTNAME") or socket.gethostname()
    printable = "".join(character for character in host if character.isprintable())[:150]
    return f"{printable or 'host'}:{pid}:{nonce}"
