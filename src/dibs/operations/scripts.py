"""Run a script — a generator of steps — over a store that blocks or one that is awaited.

An operation yields a `Step` and is sent the rows of its answer; an SQL engine's plan yields queries
in the same way. The two runners below are the only logic of dibs that exists in both colours;
everything above them is written once (ADR 2).
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")
Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Step:
    """One question for the store, by name. Every engine has an answer."""

    question: str
    params: dict[str, Any]


Script = Generator[Step, Rows, T]


def run(script: Generator[S, Rows, T], execute: Callable[[S], Rows]) -> T:
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
    try:
        step = next(script)
        while True:
            step = script.send(await execute(step))
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        script.close()
