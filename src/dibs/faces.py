"""One declaration per verb, for both faces: async on an `AsyncFace`, sync on a `SyncFace`.

A verb is a generator method that yields calls and returns its result. A call knows how to be made in both
ways; the face that the method is reached through decides which. Type checkers see the verb's own signature,
with a coroutine as its result on the async face.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from functools import update_wrapper
from inspect import getattr_static, signature
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, get_args, overload

from msgspec import Struct

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Call(Struct, Generic[R_co], frozen=True):
    """One thing to do, as a function that blocks and as one that is awaited; both take these arguments."""

    run: Callable[..., R_co]
    run_async: Callable[..., Coroutine[Any, Any, R_co]]
    args: tuple[Any, ...] = ()


Calls = Generator[Call[Any], Any, R]


class RunsOperations(Protocol):
    """A store: it runs an operation, on the caller's connection if one is given."""

    def run(self, operation: Callable[[Any], Any], within: Any = None) -> Any: ...
    async def run_async(self, operation: Callable[[Any], Any], within: Any = None) -> Any: ...


def make(call: Call[T]) -> Calls[T]:
    """Yield a call and return what it came to, typed: `job = yield from make(call)`."""
    result: T = yield call
    return result


def ask(
    store: RunsOperations, operation: Callable[[Any], Generator[Any, Any, T]], within: Any = None
) -> Calls[T]:
    """Run an operation on a store and return its result."""
    result: T = yield Call(store.run, store.run_async, (operation, within))
    return result


def sleep(seconds: float) -> Calls[None]:
    """Wait for this long."""
    yield Call(time.sleep, asyncio.sleep, (seconds,))


# The only two loops over calls: each verb becomes a method of its own with one of them, so that a verb costs
# one frame more than a method written by hand.


def _as_function(calls_of: Callable[..., Calls[R]]) -> Any:
    def call(*args: Any, **kwargs: Any) -> R:
        calls = calls_of(*args, **kwargs)
        try:
            call = next(calls)
            while True:
                try:
                    result = call.run(*call.args)
                except BaseException as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(result)
        except StopIteration as end:
            done: R = end.value
            return done

    return call


def _as_coroutine(calls_of: Callable[..., Calls[R]]) -> Any:
    async def call(*args: Any, **kwargs: Any) -> R:
        calls = calls_of(*args, **kwargs)
        try:
            call = next(calls)
            while True:
                try:
                    result = await call.run_async(*call.args)
                except BaseException as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(result)
        except StopIteration as end:
            done: R = end.value
            return done

    return call


_run, _run_async = _as_function(lambda calls: calls), _as_coroutine(lambda calls: calls)


def run(calls: Calls[R]) -> R:
    """Make each call where we are."""
    done: R = _run(calls)
    return done


async def run_async(calls: Calls[R]) -> R:
    """Await each call."""
    done: R = await _run_async(calls)
    return done


class verb(Generic[P, R]):
    """A method declared once; each face that inherits it gets a plain method made of it."""

    def __init__(self, calls: Callable[Concatenate[Any, P], Calls[R]]) -> None:
        self.calls = calls

    @overload
    def __get__(
        self, face: None, owner: "type[AsyncFace]"
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, face: None, owner: "type[SyncFace]") -> Callable[Concatenate[Any, P], R]: ...
    @overload
    def __get__(self, face: "AsyncFace", owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, face: "SyncFace", owner: type) -> Callable[P, R]: ...

    def __get__(self, face: Any, owner: type) -> Any:
        return self


class AsyncFace:
    """A class with verbs that are coroutines."""

    def __init_subclass__(cls) -> None:
        _make_methods(cls, _as_coroutine)


class SyncFace:
    """A class with verbs that block."""

    def __init_subclass__(cls) -> None:
        _make_methods(cls, _as_function)


def _make_methods(face: type, method: Callable[[Callable[..., Calls[Any]]], Any]) -> None:
    """Put a method in the place of each verb that this class inherits or declares."""
    for base in face.__mro__:
        for name, declared in list(vars(base).items()):
            if isinstance(declared, verb) and getattr_static(face, name) is declared:
                setattr(face, name, _described(method(declared.calls), declared.calls))


def _described(method: Any, calls: Callable[..., Calls[Any]]) -> Any:
    """Give the method the verb's name, docstring and signature, with the result instead of the calls."""
    update_wrapper(method, calls)
    del method.__wrapped__
    declared = signature(calls)
    result = get_args(declared.return_annotation)[-1:]
    method.__signature__ = declared.replace(return_annotation=result[0]) if result else declared
    return method
