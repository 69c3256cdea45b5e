"""One declaration per verb, for both faces: awaited on an `AsyncFace`, blocking on a `SyncFace`.

A verb is a generator method that yields calls and returns its result. A call knows how to be made in both
ways; the face that the method is reached through decides which. Type checkers see the verb's own signature,
with a coroutine as its result on the async face.
"""

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """One thing to do, as a function that blocks and as one that is awaited."""

    run: Callable[[], R_co]
    run_async: Callable[[], Coroutine[Any, Any, R_co]]


Calls = Generator[Call[Any], Any, R]


def make(call: Call[T]) -> Calls[T]:
    """Yield a call and return what it came to, typed: `job = yield from make(call)`."""
    result: T = yield call
    return result


def run(calls: Calls[R]) -> R:
    """Make each call where we are."""
    try:
        call = next(calls)
        while True:
            try:
                result = call.run()
            except BaseException as error:
                call = calls.throw(error)
            else:
                call = calls.send(result)
    except StopIteration as end:
        done: R = end.value
        return done


async def run_async(calls: Calls[R]) -> R:
    """Await each call."""
    try:
        call = next(calls)
        while True:
            try:
                result = await call.run_async()
            except BaseException as error:
                call = calls.throw(error)
            else:
                call = calls.send(result)
    except StopIteration as end:
        done: R = end.value
        return done


class AsyncFace:
    """A class whose verbs are coroutines."""


class SyncFace:
    """A class whose verbs block."""


class verb(Generic[P, R]):
    """A method declared once: a coroutine on an `AsyncFace`, a blocking method on a `SyncFace`."""

    def __init__(self, calls: Callable[Concatenate[Any, P], Calls[R]]) -> None:
        self.calls = calls
        self._async, self._sync = _as_coroutine(calls), _as_function(calls)

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...
    @overload
    def __get__(self, face: AsyncFace, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, face: SyncFace, owner: type) -> Callable[P, R]: ...

    def __get__(self, face: Any, owner: type) -> Any:
        function = self._async if issubclass(owner, AsyncFace) else self._sync
        return function if face is None else function.__get__(face, owner)


def _as_coroutine(calls: Callable[..., Calls[R]]) -> Any:
    async def call(self: Any, *args: Any, **kwargs: Any) -> R:
        return await run_async(calls(self, *args, **kwargs))

    return update_wrapper(call, calls)


def _as_function(calls: Callable[..., Calls[R]]) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> R:
        return run(calls(self, *args, **kwargs))

    return update_wrapper(call, calls)
