"""The annotations of a handler: the types of its arguments and of its result, as far as they are known."""

import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

from dibs.app.context import Context
from dibs.jobs import payload
from dibs.jobs.outcomes import HandlerOutcome

# What JSON knows only as text. The handler of an argument annotated `str` would get another value.
TEXT_LIKE = (bytes, bytearray, memoryview, date, time, timedelta, UUID, Decimal, Enum)

NOT_TEXT = (Any, object)


def resolve(function: Callable[..., Any], kind: str) -> tuple[dict[str, Any], dict[str, tuple[type, ...]]]:
    """Return the type of each argument, and of the arguments that are text the types they may have.

    A type that can't be resolved is `Any`, with a warning that names the argument.
    """
    body = body_of(function)
    module = getattr(inspect.unwrap(body), "__globals__", {})
    around = _around(body, module)
    hints: dict[str, Any] = {}
    texts: dict[str, tuple[type, ...]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation is inspect.Parameter.empty:
            hints[name] = Any
            continue
        try:
            hint = _evaluated(parameter.annotation, module, around)
            hints[name] = _known_to_msgspec(hint)
            if types_beside_text := _types_of_text(hint):
                texts[name] = types_beside_text
        except Exception as error:  # an annotation is code of its author, and may raise anything
            hints[name] = Any
            _warn(body, f"argument {name!r} of {kind!r}", parameter.annotation, error)
    return hints, texts


def _types_of_text(hint: Any) -> tuple[type, ...]:
    """Return the types that an annotation names, if `str` is one of them."""
    parts = list(_parts(hint))
    if str not in parts or any(part in NOT_TEXT for part in parts):
        return ()
    return tuple(part for part in parts if isinstance(part, type))


def _parts(hint: Any) -> Iterator[Any]:
    """Yield what a union is made of, without decoration."""
    if _is_union(hint):
        for part in typing.get_args(hint):
            yield from _parts(part)
    elif typing.get_origin(hint) is typing.Annotated:
        yield from _parts(typing.get_args(hint)[0])
    elif isinstance(hint, typing.NewType):
        yield from _parts(hint.__supertype__)
    else:
        yield typing.get_origin(hint) or hint


def result_reader(function: Callable[..., Any]) -> Callable[[str], Any] | None:
    """Return what reads a result as the handler's annotation names it; None if that can't be resolved yet."""
    body = body_of(function)
    module = getattr(inspect.unwrap(body), "__globals__", {})
    try:
        hint = _evaluated(inspect.signature(function).return_annotation, module, _around(body, module))
        parts = typing.get_args(hint) if _is_union(hint) else (hint,)
        results = [part for part in parts if not (inspect.isclass(part) and issubclass(part, HandlerOutcome))]
        return payload.decoder(typing.Union[tuple(results)])  # noqa: UP007
    except Exception:  # an annotation is code of its author, and may raise anything
        return None


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def body_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a call runs in the end: behind a `partial`, and of a callable object its `__call__`."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def is_context(hint: Any) -> bool:
    """Return whether an argument is the context: also one that may be None, or is `Annotated`."""
    if typing.get_origin(hint) is typing.Annotated:
        return is_context(typing.get_args(hint)[0])
    if _is_union(hint):
        return all(one is types.NoneType or is_context(one) for one in typing.get_args(hint))
    return hint is Context


def _evaluated(annotation: Any, module: Mapping[str, Any], around: Mapping[str, Any]) -> Any:
    """Evaluate an annotation; `Context` is always known, as many import it only for their type checker."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, {"Context": Context, **module}, dict(around), include_extras=True)[
        "it"
    ]


def _around(function: Callable[..., Any], module: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names in the functions that this one is written in, while they run."""
    names: dict[str, Any] = {}
    place = getattr(function, "__qualname__", "")
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is module and place.startswith(f"{frame.f_code.co_qualname}."):
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _known_to_msgspec(hint: Any) -> Any:
    """Return the annotation, or Any where it can't be checked (a union of types that look alike in JSON)."""
    if is_context(hint):
        return hint
    try:
        payload.decoder(hint)
    except TypeError:
        return Any
    return hint


def _warn(function: Callable[..., Any], argument: str, annotation: Any, error: Exception) -> None:
    """Warn at the line of the function itself, for that is what has to change."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    words = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    warnings.warn_explicit(
        f"{argument} is not checked: its annotation {words!r} can't be resolved ({error}); "
        "import what it names where it runs, not only under TYPE_CHECKING",
        UserWarning,
        filename=getattr(code, "co_filename", "<unknown>"),
        lineno=getattr(code, "co_firstlineno", 1),
        module=getattr(function, "__module__", None),
    )
