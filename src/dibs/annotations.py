"""What the annotations of a function mean: each is resolved for itself, where the function was written."""

import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dibs.context import Context
from dibs.jobs import payload


def resolve(function: Callable[..., Any], kind: str) -> dict[str, Any]:
    """The type of each argument; one that can't be found out is `Any`, with a warning that names it."""
    body = body_of(function)
    module = getattr(inspect.unwrap(body), "__globals__", {})
    around = _around(body, module)
    hints: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation is inspect.Parameter.empty:
            hints[name] = Any
            continue
        try:
            hints[name] = _known_to_msgspec(_evaluated(parameter.annotation, module, around))
        except Exception as error:  # an annotation is code of whoever wrote it, and may raise anything
            hints[name] = Any
            _warn(body, f"argument {name!r} of {kind!r}", parameter.annotation, error)
    return hints


def body_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a call runs in the end: behind a `partial`, and of an object that can be called its `__call__`."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def is_context(hint: Any) -> bool:
    """Whether an argument is the context: also one that may be None, and one with something noted on it."""
    if typing.get_origin(hint) is typing.Annotated:
        return is_context(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(one is types.NoneType or is_context(one) for one in typing.get_args(hint))
    return hint is Context


def _evaluated(annotation: Any, module: Mapping[str, Any], around: Mapping[str, Any]) -> Any:
    """`Context` is known to everybody: many import it only for their type checker."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, {"Context": Context, **module}, dict(around), include_extras=True)[
        "it"
    ]


def _around(function: Callable[..., Any], module: Mapping[str, Any]) -> dict[str, Any]:
    """The names in the functions that this one is written in, while they run: their classes and imports."""
    names: dict[str, Any] = {}
    place = getattr(function, "__qualname__", "")
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is module and place.startswith(f"{frame.f_code.co_qualname}."):
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _known_to_msgspec(hint: Any) -> Any:
    """The annotation, or Any where it can't be checked (a union of two types that look alike in JSON)."""
    if is_context(hint):
        return hint
    try:
        payload.decoder(hint)
    except TypeError:
        return Any
    return hint


def _warn(function: Callable[..., Any], argument: str, annotation: Any, error: Exception) -> None:
    """Told at the function itself, for that is what has to change."""
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
