"""What may be put into a job: checked and coded as JSON text, or refused before it is written.

JSON only. Nothing that is read back from a store is ever turned into code or into a class that
the reader did not name in an annotation.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, time
from decimal import Decimal
from itertools import chain
from typing import Any

import msgspec

from dibs.errors import BadRequest
from dibs.settings import Duration, micros

LONGEST_NAME = 200
LOWEST_PRIORITY, HIGHEST_PRIORITY = -32_767, 32_767
MOST_ATTEMPTS = 2_147_483_647
MOST_TAGS = 100
MOST_LEVELS = 100  # of lists and mappings in each other
EARLIEST_YEAR, LATEST_YEAR = 1970, 9998  # what every store keeps to the microsecond

SMALLEST_INT, GREATEST_INT = -(2**63), 2**64 - 1

decode: Callable[[str], Any] = msgspec.json.Decoder().decode


def check_name(name: object, what: str) -> str:
    """Return a checked kind, queue, key, tag or worker: 1–200 characters that a terminal can show."""
    if type(name) is not str:
        name = _plain_text(name, what)
    if not 0 < len(name) <= LONGEST_NAME:
        raise BadRequest(f"{what} must have 1 to {LONGEST_NAME} characters, not {len(name)}")
    if not name.isprintable() and any(map(_is_forbidden, name)):
        raise BadRequest(f"{what} {name!r} holds a control character or a lone surrogate")
    return name


def check_names(names: Collection[str] | None, what: str) -> list[str] | None:
    """Return each of them once; a single one is a list of one."""
    if names is None:
        return None
    given = [names] if isinstance(names, str) else names
    if not isinstance(given, Collection):
        raise BadRequest(f"{what}s must be a list of names, not {given!r}")
    return list(dict.fromkeys(check_name(name, what) for name in given))


def check_whole(value: object, what: str, least: int | None, most: int) -> int:
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequest(f"{what} must be a whole number, not {value!r}")
        value = int.__int__(value)
    if value > most or (least is not None and value < least):
        fitting = f"at most {most}" if least is None else f"{least} to {most}"
        raise BadRequest(f"{what}={value} is out of range: {fitting}")
    return value


def check_moment(moment: object, what: str) -> datetime:
    """Return a time in UTC, whatever its zone."""
    if not isinstance(moment, datetime):
        raise BadRequest(f"{what} must be a datetime, not {moment!r}")
    if moment.utcoffset() is None:
        raise BadRequest(
            f"{what}={moment.isoformat()} has no time zone; add one, e.g. datetime.now(timezone.utc)"
        )
    if not EARLIEST_YEAR <= moment.year <= LATEST_YEAR:
        raise BadRequest(f"{what}={moment.isoformat()} is not between {EARLIEST_YEAR} and {LATEST_YEAR}")
    if type(moment) is not datetime:
        moment = datetime.combine(moment.date(), moment.time(), moment.tzinfo)
    return moment.astimezone(UTC)


def check_due(run_at: datetime | None, delay: Duration | None) -> tuple[int | None, datetime | None]:
    """Return (microseconds from now, time): at most one of them is given."""
    if delay is not None and run_at is not None:
        raise BadRequest("give delay= or run_at=, not both")
    wait = None if delay is None else micros(delay, what="delay")
    if wait is not None and wait < 0:
        raise BadRequest(f"delay={delay!r} lies in the past; leave it out to run now")
    return wait, None if run_at is None else check_moment(run_at, "run_at")


def check_text(text: object, what: str, limit: int) -> str:
    """Return free text that people wrote: any string that a store can keep."""
    if type(text) is not str:
        text = _plain_text(text, what)
    encode(text, what, limit)
    return text


def encode(value: Any, what: str, limit: int) -> str:
    """Return the JSON text of a value, or `BadRequest` saying what is wrong with it."""
    try:
        _refuse_unsafe(value, what)
        text = _encode(value)
    except BadRequest:
        raise
    except RecursionError:
        raise BadRequest(f"{what} is nested too deeply to be stored as JSON") from None
    except Exception as error:  # an argument's own methods take part in this, and may raise anything
        raise BadRequest(f"{what} can't be stored as JSON: {error}") from None
    if len(text) > limit:
        raise BadRequest(
            f"{what} takes {len(text):,} bytes as JSON and at most {limit:,} are allowed: "
            "store the data elsewhere and pass a reference, or raise max_payload"
        )
    return text.decode()


def json_text(value: Any) -> str:
    """Return the JSON text of a value that needs no check."""
    return msgspec.json.encode(value).decode()


def decoder(annotation: Any) -> Callable[[str], Any]:
    """Return a function that turns JSON text into values of the annotated type."""
    return msgspec.json.Decoder(annotation, dec_hook=_decode_model).decode


def _plain_text(text: object, what: str) -> str:
    """Return the plain text of a class that extends str: drivers treat such classes each in its own way."""
    if not isinstance(text, str):
        raise BadRequest(f"{what} must be a string, not {type(text).__name__}")
    return str.__str__(text)


def _is_forbidden(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff"


def _refuse_unsafe(value: Any, what: str, levels: int = MOST_LEVELS) -> None:
    """Refuse what msgspec would quietly change: NaN becomes null, a naive datetime stays naive.

    Refuse deep values, too: a reader with less room on its stack than the writer could not read them.
    """
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is int:
        if not SMALLEST_INT <= value <= GREATEST_INT:
            raise BadRequest(f"{what} holds {value}, which JSON readers turn into a rounded number")
        return
    if kind is str:
        if "\x00" in value:
            raise BadRequest(f"{what} holds the character U+0000, which no store keeps")
        return
    if levels == 0:
        raise BadRequest(f"{what} is nested more than {MOST_LEVELS} levels deep: store the data elsewhere")
    if kind is dict and {*map(type, value)} <= {str}:  # what nearly all arguments are
        for part in chain(value, value.values()):
            _refuse_unsafe(part, what, levels - 1)
        return
    match value:
        case float() | Decimal():
            if not math.isfinite(value):
                raise BadRequest(f"{what} holds {value}, which is not JSON")
        case datetime() | time():
            if value.tzinfo is None:
                raise BadRequest(
                    f"{what} holds {value.isoformat()} without a time zone; "
                    "add one, e.g. datetime.now(timezone.utc)"
                )
        case _:
            if isinstance(value, Mapping) and not {*map(type, value)} <= {str}:
                _refuse_same_names(value, what)
            for part in _parts(value):
                _refuse_unsafe(part, what, levels - 1)


def _refuse_same_names(mapping: Mapping[Any, Any], what: str) -> None:
    """Refuse names that are equal in JSON, such as 1 and "1": a value would be lost."""
    names = Counter(_encode({key: None}) for key in mapping)
    for key in mapping:
        if names[_encode({key: None})] > 1:
            raise BadRequest(f"{what} holds the key {key!r} beside another that is the same in JSON")


def _parts(value: Any) -> Iterable[Any]:
    """Return what a value is made of; nothing for what msgspec checks by itself."""
    match value:
        case Mapping():
            return chain(value.keys(), value.values())
        case list() | tuple() | set() | frozenset():
            return value
        case str():
            return (str.__str__(value),)
        case int():
            return (int.__int__(value),)
        case msgspec.Struct():
            return (getattr(value, name) for name in value.__struct_fields__)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return (getattr(value, field.name, None) for field in dataclasses.fields(value))
        case _ if _is_model(type(value)):
            return (value.model_dump(),)
        case _:
            return ()


def _is_model(cls: Any) -> bool:
    """Return whether it is a pydantic model, without importing pydantic."""
    return any(base.__module__ == "pydantic.main" for base in getattr(cls, "__mro__", ()))


# What reads the plain value of a class that extends str (a template's safe text), int or float.
_EXTENDED: dict[Callable[[Any], Any], type] = {str.__str__: str, int.__int__: int, float.__float__: float}


def _encode_model(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    for read, plain in _EXTENDED.items():
        if isinstance(value, plain):
            return read(value)
    raise NotImplementedError(f"objects of type {type(value).__qualname__} have no JSON form")


_encode = msgspec.json.Encoder(enc_hook=_encode_model).encode


def _decode_model(annotation: Any, value: Any) -> Any:
    if annotation is object:
        return value
    if _is_model(annotation):
        return annotation.model_validate(value)
    raise NotImplementedError(f"can't read {annotation!r} from JSON")
