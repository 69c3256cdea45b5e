"""What a move is made of: scripts asked of one of two stores, in either colour."""

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from dibs.app.dibs import Dibs
from dibs.engines.retries import Tries
from dibs.operations import queries
from dibs.operations.scripts import Rows, Script, Step

T = TypeVar("T")

Side = Literal["source", "target"]

MOST_AT_ONCE = 1000  # jobs in one question


@dataclass(frozen=True, slots=True)
class Ask:
    """A script to run on one of the two stores."""

    side: Side
    script: Callable[[], Script[Any]]

    def operation(self, _: Tries) -> Script[Any]:
        return self.script()


@dataclass(frozen=True, slots=True)
class Rest:
    seconds: float


Moving = Generator[Ask | Rest, Any, T]


def run(source: Dibs, target: Dibs, moving: Moving[T], alive: Callable[[], None] = lambda: None) -> T:
    """`alive` is called before each step: it raises if the move must not go on."""
    stores = {"source": source._core.store, "target": target._core.store}
    answer: Any = None
    try:
        while True:
            alive()
            match moving.send(answer):
                case Rest(seconds):
                    time.sleep(seconds)
                    answer = None
                case Ask(side) as asked:
                    answer = stores[side].run(asked.operation)
    except StopIteration as end:
        value: T = end.value
        return value


async def run_async(
    source: Dibs, target: Dibs, moving: Moving[T], alive: Callable[[], None] = lambda: None
) -> T:
    stores = {"source": source._core.store, "target": target._core.store}
    answer: Any = None
    try:
        while True:
            alive()
            match moving.send(answer):
                case Rest(seconds):
                    await asyncio.sleep(seconds)
                    answer = None
                case Ask(side) as asked:
                    answer = await stores[side].run_async(asked.operation)
    except StopIteration as end:
        value: T = end.value
        return value


def ask(side: Side, script: Callable[[], Script[T]]) -> Moving[T]:
    answer: T = yield Ask(side, script)
    return answer


def question(side: Side, name: str, **params: Any) -> Moving[Rows]:
    return (yield from ask(side, lambda: _step(name, params)))


def _step(name: str, params: dict[str, Any]) -> Script[Rows]:
    return (yield Step(name, params))


def departed(side: Side) -> Moving[Rows]:
    return (yield from question(side, "departed", limit=MOST_AT_ONCE))


def counts(side: Side) -> Moving[dict[str, int]]:
    return (yield from ask(side, lambda: queries.counts(None)))
