"""Every world that a model can get into, and the shortest way to a broken promise.

A model says where it starts, what can happen next, and when all its work is done. Its rules say which promise
a step broke; the last promise is that from everywhere the work can still be done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

World = TypeVar("World")
Deed = TypeVar("Deed", bound="HasVerb")

Rule = Callable[[Any, World, Deed, World], bool]  # model, before, deed, after: is the promise kept?


class HasVerb(Protocol):
    @property
    def verb(self) -> str: ...


class Model(Protocol[World, Deed]):
    by_a_person: frozenset[str]
    """Verbs that nothing may depend on: whether somebody comes by is open."""

    def start(self) -> World: ...
    def steps(self, world: World) -> Iterator[tuple[Deed, World]]: ...
    def is_done(self, world: World) -> bool: ...


@dataclass(slots=True)
class Explored(Generic[Deed]):
    """What was found: how many worlds there are, and the shortest way to a broken promise."""

    worlds: int = 0
    broken: StrEnum | None = None
    way: list[Deed] = field(default_factory=list)


def explore_all(
    model: Model[World, Deed],
    rules: Mapping[Any, Rule[World, Deed]],
    can_finish: StrEnum | None = None,
) -> Explored[Deed]:
    """Every world that can be reached, until a promise is broken."""
    start = model.start()
    origins: dict[World, tuple[World, Deed] | None] = {start: None}
    came_from: dict[World, list[World]] = {}
    todo = deque([start])
    while todo:
        world = todo.popleft()
        for deed, after in model.steps(world):
            for promise, rule in rules.items():
                if not rule(model, world, deed, after):
                    return Explored(len(origins), promise, [*_way_to(world, origins), deed])
            if deed.verb not in model.by_a_person:
                came_from.setdefault(after, []).append(world)
            if after not in origins:
                origins[after] = (world, deed)
                todo.append(after)
    stuck = None if can_finish is None else _stuck(model, origins, came_from)
    if stuck is not None:
        return Explored(len(origins), can_finish, _way_to(stuck, origins))
    return Explored(len(origins))


def _stuck(model: Any, origins: Mapping[World, Any], came_from: Mapping[World, list[World]]) -> World | None:
    """The first world from which no way leads to all work being done."""
    todo = deque(world for world in origins if model.is_done(world))
    fine = set(todo)
    while todo:
        for world in came_from.get(todo.popleft(), ()):
            if world not in fine:
                fine.add(world)
                todo.append(world)
    return next((world for world in origins if world not in fine), None)


def _way_to(world: Any, origins: Mapping[Any, Any]) -> list[Any]:
    way: list[Any] = []
    while (origin := origins[world]) is not None:
        world, deed = origin
        way.append(deed)
    return way[::-1]


def walk_all(model: Model[World, Deed]) -> list[tuple[Deed, World]]:
    """Every step from every world."""
    seen, todo, steps = {model.start()}, [model.start()], []
    while todo:
        for deed, after in model.steps(todo.pop()):
            steps.append((deed, after))
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return steps


def describe(way: Iterable[Any]) -> str:
    return " ; ".join(" ".join(str(part) for part in deed if part not in ("", -1)) for deed in way)
