"""One try of a claim; the two faces run it again when the database undid it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from dibs.errors import BadRequest
from dibs.tables.places import Given, Place, engine_of, place_for
from dibs.tables.strategies import Strategy, at_once, is_quick, lock_then_update, portable, strategy_for
from dibs.tables.targets import Wanted, wanted
from dibs.tables.trouble import may_try_again, refuse_view

StrategyName = Literal["portable"]


@dataclass(frozen=True, slots=True)
class Claiming:
    """A claim that was understood, to be tried on one place."""

    claim: Wanted
    strategy: StrategyName | None

    @classmethod
    def asked(
        cls, model: object, where: Any, set: Mapping[Any, Any], limit: int, order_by: Any, strategy: Any
    ) -> "Claiming":
        if strategy not in (None, "portable"):
            raise BadRequest(f"no strategy {strategy!r}: leave it out for the best one, or say 'portable'")
        return cls(wanted(model, where, set, limit, order_by), strategy)

    @property
    def is_empty(self) -> bool:
        return self.claim.limit <= 0

    def on(self, given: Given) -> list[Any] | None:
        """Claim once; None when every race was lost. Nothing has changed when this raises."""
        target = self.claim.target
        if self.is_empty and isinstance(given, Engine):
            return []
        quick = self.strategy is None and is_quick(engine_of(given, target).dialect)
        with place_for(given, target, quick=quick) as place:
            if self.is_empty:
                return []
            chosen = portable if self.strategy == "portable" else strategy_for(place.dialect, self.claim)
            if chosen in (lock_then_update, portable):
                _must_be_a_table(place)
            return _explained(place, chosen, self.claim)


def _explained(place: Place, strategy: Strategy, claim: Wanted) -> list[Any] | None:
    try:
        rows = strategy(place, claim)
    except DBAPIError as error:
        if not may_try_again(error) and not error.connection_invalidated:
            _refuse_view(place)
        raise
    if rows == [] and strategy is at_once:
        _must_be_a_table(place)
    return rows


_tables: WeakKeyDictionary[Engine, set[str]] = WeakKeyDictionary()


def _must_be_a_table(place: Place) -> None:
    """Asked once per engine: MySQL, and a plain update anywhere, would write through a simple view."""
    known = _tables.setdefault(place.engine, set())
    if place.target.table.fullname not in known:
        _refuse_view(place)
        known.add(place.target.table.fullname)


def _refuse_view(place: Place) -> None:
    with place.transaction() as connection:
        refuse_view(connection, place.target)
