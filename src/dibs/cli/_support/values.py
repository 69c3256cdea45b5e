"""Values that people wrote into a file or a variable, read with words for what is wrong with them."""

import types
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

import msgspec

from dibs.errors import BadRequest

WORDS: dict[Any, str] = {
    str: 'a text, like "this"',
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: 'a list of names, like ["a", "b"]',
}


def read(said: Mapping[str, Any], shape: type[msgspec.Struct], name: Callable[[str], str]) -> dict[str, Any]:
    """What was said, each value as the type that the shape has for it; `name` is what people call a field."""
    hints = {field.name: field.type for field in msgspec.structs.fields(shape)}
    if unknown := next((each for each in said if each not in hints), None):
        raise BadRequest(f"{name(unknown)} is unknown: what can be said here is {', '.join(hints)}")
    return {each: _value(value, hints[each], name(each)) for each, value in said.items()}


def from_text(text: str, wanted: Any, name: str) -> Any:
    """The same from the text of a variable: a number has no type there, and a list has commas."""
    if _kind(wanted) is list:
        return [each.strip() for each in text.split(",") if each.strip()]
    try:
        return msgspec.convert(text, wanted, strict=False)
    except msgspec.ValidationError:
        raise _wrong(text, wanted, name) from None


def _value(value: Any, wanted: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        raise _wrong(value, wanted, name) from None


def _wrong(value: Any, wanted: Any, name: str) -> BadRequest:
    return BadRequest(f"{name}={value!r} is not {WORDS[_kind(wanted)]}")


def _kind(wanted: Any) -> Any:
    """`list[str] | None` is a list that may be left out."""
    if isinstance(wanted, types.UnionType):
        wanted = next(each for each in get_args(wanted) if each is not type(None))
    return get_origin(wanted) or wanted
