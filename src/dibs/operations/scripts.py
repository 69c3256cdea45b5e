"""Run a script, a generator of steps, on the sync or the async face.

An operation yields a `Step` and is sent the rows of its answer; an SQL engine's answer yields queries in the
same way. The two runners below exist once per face; every operation is written once (ADR 2).
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")
Row = Mapping[str, Any]
Rows = Sequence[Row]
Tuples = Sequence[tuple[Any, ...]]  # new jobs or settlements, each in the order of its columns


@dataclass(frozen=True, slots=True)
class Step:
    """One question for the store, by name. Every engine has an answer."""

    question: str
    params: dict[str, Any]


Script = Generator[Step, Rows, T]


def run(script: Generator[S, Rows, T], execute: Callable[[S], Rows]) -> T:
    """Execute each step and return the script's result."""
    try:
        step = next(script)
        while True:
            step = script.send(execute(step))
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        script.close()


async def run_async(script: Generator[S, Rows, T], execute: Callable[[S], Awaitable[Rows]]) -> T:
    """Await each step and return the script's result."""
    try:
        step = next(script)
        while True:
            step = script.send(await execute(step))
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        script.close()
