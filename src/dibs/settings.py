"""What can be set on a `Dibs`, each also by an environment variable `DIBS_…`."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from dataclasses import field as member
from datetime import timedelta
from typing import Any, Literal

from dibs.clock import SECOND
from dibs.errors import BadRequest

Duration = int | float | timedelta
Keep = Literal["all", "failed", "none"]

DEFAULT_URL = "sqlite:///dibs.db"
MIB = 1024 * 1024
SHORTEST_LEASE = 100_000  # microseconds
LONGEST_DURATION = 100 * 366 * 24 * 3600 * SECOND

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,30}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One app's settings, checked. Example: `Dibs("sqlite:///jobs.db", keep="failed", keep_for=3600)`"""

    url: str = member(default=DEFAULT_URL, repr=False)  # where the jobs are kept
    prefix: str = "dibs"  # what the names of its tables or keys begin with
    pool_size: int = 10  # the most connections of this process, on each face
    poll: float = 10  # how often an idle worker looks for jobs without being woken, in seconds
    stale_after: float = 1800  # seconds after the end of its lease until a job may be recovered by hand
    keep: Keep = "all"  # which finished jobs are kept
    keep_for: timedelta = timedelta(days=7)  # how long finished jobs are kept
    max_payload: int = MIB  # the most bytes of the arguments of a job or of its result
    listen_url: str | None = member(default=None, repr=False)  # a URL past the pooler, for hints
    pooled: bool | None = None  # whether a pooler is in between; None to find out

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            if not isinstance(getattr(self, name), kinds) or isinstance(getattr(self, name), bool):
                given = getattr(self, name)
                shown = type(given).__name__ if name in _SECRET else repr(given)  # a URL may hold a password
                raise BadRequest(f"{name}={shown} is of the wrong type")
        if self.pooled not in (None, True, False):
            raise BadRequest(f"pooled={self.pooled!r} is of the wrong type: use True, False or None")
        if not _PREFIX.fullmatch(self.prefix):
            raise BadRequest(
                f"prefix {self.prefix!r} can't name tables: use up to 31 letters, digits and "
                "underscores, not starting with a digit"
            )
        if self.keep not in ("all", "failed", "none"):
            raise BadRequest(f"keep={self.keep!r} is unknown: use 'all', 'failed' or 'none'")
        for name in ("pool_size", "poll", "stale_after", "max_payload"):
            if not 0 < getattr(self, name) < float("inf"):
                raise BadRequest(f"{name}={getattr(self, name)!r} must be more than 0")
        if self.keep_for < timedelta(0):
            raise BadRequest(f"keep_for={self.keep_for!r} must not be negative")


_SECRET = ("url", "listen_url")
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("url", "prefix", "keep"), str),
    **dict.fromkeys(("pool_size", "max_payload"), int),
    **dict.fromkeys(("poll", "stale_after"), (int, float)),
    "keep_for": timedelta,
    "listen_url": (str, type(None)),
}


def read_settings(given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings: what the caller gave, else `$DIBS_…`, else the default."""
    chosen: dict[str, Any] = {}
    for field in fields(Settings):
        if given.get(field.name) is not None:
            chosen[field.name] = given[field.name]
        elif text := environ.get(f"DIBS_{field.name.upper()}"):
            chosen[field.name] = _from_text(field.name, text)
    if "keep_for" in chosen:
        chosen["keep_for"] = timedelta(microseconds=micros(chosen["keep_for"], what="keep_for"))
    return Settings(**chosen)


def micros(duration: Duration, *, what: str) -> int:
    """Return a duration as whole microseconds; `what` names it in the error."""
    if isinstance(duration, timedelta):
        value = round(duration.total_seconds() * SECOND)
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        if duration != duration or abs(duration) * SECOND == float("inf"):  # noqa: PLR0124
            raise BadRequest(f"{what}={duration!r} is not a time span")
        value = round(duration * SECOND)
    else:
        raise BadRequest(f"{what}={duration!r}: give seconds or a timedelta")
    if abs(value) > LONGEST_DURATION:
        raise BadRequest(f"{what}={duration!r} is longer than a hundred years")
    return value


def seconds(duration: Duration | None, what: str) -> float | None:
    return None if duration is None else micros(duration, what=what) / SECOND


def span(duration: Duration, *, what: str) -> int:
    """Return a duration that can't be negative, in microseconds."""
    value = micros(duration, what=what)
    if value < 0:
        raise BadRequest(f"{what}={duration!r} must not be negative")
    return value


def lease_micros(lease: Duration) -> int:
    value = micros(lease, what="lease")
    if value < SHORTEST_LEASE:
        raise BadRequest(f"lease={lease!r} is too short: the least is 0.1 seconds")
    return value


def _from_text(name: str, text: str) -> Any:
    readers: dict[str, Any] = {
        "pool_size": int,
        "poll": float,
        "stale_after": float,
        "max_payload": int,
        "keep_for": float,
        "pooled": _YES_OR_NO.__getitem__,
    }
    try:
        return readers.get(name, str)(text)
    except ValueError:
        raise BadRequest(f"$DIBS_{name.upper()}={text!r} is not a number") from None
    except KeyError:
        raise BadRequest(f"$DIBS_{name.upper()}={text!r} is neither true nor false") from None


_YES_OR_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
