"""How rows are picked and marked so that no two callers get the same one.

one_statement     PostgreSQL: lock what is free, update it, answer it, in one round trip
at_once           SQLite, where the order can be told from the rows: one statement
lock_then_update  MySQL, MariaDB, and SQLite otherwise: lock what is free, update it by its key
portable          any database: look without locking, then update what was seen under the same condition

Each answers the rows as they are after the claim, in the order in which they were picked: `set=` may well
change what `order_by` looks at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Date,
    DateTime,
    Dialect,
    Double,
    Engine,
    Float,
    Integer,
    Numeric,
    Select,
    Table,
    Time,
    Update,
    Uuid,
    bindparam,
    column,
    exists,
    false,
    func,
    literal_column,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy import table as sql_table
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import aliased

from dibs.errors import BadRequest, DibsError
from dibs.tables.errors import may_try_again, refuse_view
from dibs.tables.model import Key, Target, Term, Wanted, terms, wanted
from dibs.tables.session import Given, Place, engine_of, place_for

Strategy = Callable[[Place, Wanted], list[Any] | None]

T = TypeVar("T")

KEYS_PER_STATEMENT = 500
REFRESHED = {"populate_existing": True, "synchronize_session": False}


def strategy_for(dialect: Dialect, claim: Wanted) -> Strategy:
    """The best that this database can do, without help from its planner."""
    if dialect.name == "postgresql":
        return one_statement
    if dialect.name == "sqlite" and dialect.update_returning:
        return at_once if _is_plain(claim.target) and _sortable_here(claim) else lock_then_update
    if dialect.name in ("mysql", "mariadb") and _skips_locked(dialect):
        return lock_then_update
    return portable


def is_quick(dialect: Dialect) -> bool:
    """One statement is all there is, so it may commit itself."""
    return dialect.name == "postgresql"


def _skips_locked(dialect: Any) -> bool:
    version = dialect.server_version_info or (0,)
    return bool(version >= ((10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)))


# -- one statement ----------------------------------------------------------------------------------


def one_statement(place: Place, claim: Wanted) -> list[Any]:
    target, table = claim.target, claim.target.table
    # Materialized: joined as a plain subquery it may be run again for every row, and each run locks more.
    # No view has a tableoid, so what isn't a table fails before anything is locked.
    picked = (
        _picked(claim)
        .add_columns(literal_column("tableoid"))
        .with_for_update(skip_locked=True, of=table)
        .cte("dibs_picked")
        .prefix_with("MATERIALIZED")
    )
    placed = select(picked, func.row_number().over().label("dibs_place")).cte("dibs_placed")
    statement = (
        _update(claim)
        .where(*(column == placed.c[column.key] for column in target.key))
        .returning(*table.c, placed.c.dibs_place)
    )
    with place.transaction() as connection:
        return _checked(_read_placed(place, connection, statement), claim)


def _read_placed(place: Place, connection: Connection, statement: Any) -> list[Any]:
    """What the claim answered, by its place in the order, which is then forgotten."""
    target = place.target
    if target.mapper is None:
        placed = sorted(connection.execute(statement), key=_last)
        return _rows(target.table, [tuple(row)[:-1] for row in placed])
    claimed = statement.cte("dibs_claimed")
    instances = select(aliased(target.mapper, claimed)).order_by(claimed.c.dibs_place)
    return list(place.session.scalars(instances, execution_options=REFRESHED).unique())


def _last(row: Any) -> Any:
    return row[-1]


def _rows(table: Table, values: list[tuple[Any, ...]]) -> list[Any]:
    """As if the table had been selected: found by name and by column."""
    columns = list(table.c)
    described = SimpleResultMetaData([one.key for one in columns], extra=[(one,) for one in columns])
    return list(IteratorResult(described, iter(values)))


# -- one statement, sorted here ---------------------------------------------------------------------

SORTED_ALIKE = (Integer, Numeric, Float, Double, DateTime, Date, Time, Boolean, Uuid)
"""What Python and SQLite sort alike. Not text, whose collation may be known to the database alone."""


def at_once(place: Place, claim: Wanted) -> list[Any]:
    target = claim.target
    picked = _among(target, _picked(claim))
    statement = _update(claim).where(picked, *_is_no_view(target.table)).returning(*target.table.c)
    with place.transaction() as connection:
        claimed = _checked(_read(place, connection, statement), claim)
    return _in_order(claimed, terms(target, claim.order_by) or [], target)


def _among(target: Target, picked: Select[Any]) -> Any:
    return (target.key[0] if len(target.key) == 1 else tuple_(*target.key)).in_(picked)


def _is_no_view(table: Table) -> list[Any]:
    """SQLite answers an update of a view as if it had done it, and does nothing."""
    lists = ["sqlite_master"] if table.schema else ["sqlite_master", "sqlite_temp_master"]
    known = [sql_table(one, column("name"), column("type"), schema=table.schema) for one in lists]
    return [~exists().where(one.c.name == table.name, one.c.type == "view") for one in known]


def _is_plain(target: Target) -> bool:
    """An instance is made of the columns of its row: nothing computed, nothing joined to it."""
    if target.mapper is None:
        return True
    columns = [column for known in target.mapper.column_attrs for column in known.columns]
    return all(isinstance(column, Column) for column in columns) and not any(
        known.lazy in ("joined", False) for known in target.mapper.relationships
    )


def _sortable_here(claim: Wanted) -> bool:
    """The order is over columns that the claim leaves alone and that are sorted alike everywhere."""
    order = terms(claim.target, claim.order_by)
    return order is not None and all(
        term.column not in claim.values
        and isinstance(term.column.type, SORTED_ALIKE)
        and _is_loaded(claim.target, term.column)
        for term in order
    )


def _is_loaded(target: Target, column: Any) -> bool:
    if target.mapper is None:
        return True
    known: Any = target.mapper.columns.contains_column(column) and target.mapper.get_property_by_column(
        column
    )
    return bool(known) and not known.deferred


def _in_order(rows: Sequence[Any], order: Iterable[Term], target: Target) -> list[Any]:
    ordered = list(rows)
    for term in reversed(list(order)):
        values = [(target.value(row, term.column), row) for row in ordered]
        nulls = [row for value, row in values if value is None]
        others = sorted((one for one in values if one[0] is not None), key=_first, reverse=term.descending)
        found = [row for _, row in others]
        ordered = nulls + found if _nulls_first(term) else found + nulls
    return ordered


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _nulls_first(term: Term) -> bool:
    """To SQLite null is smaller than anything."""
    return not term.descending if term.nulls_first is None else term.nulls_first


# -- lock, then update ------------------------------------------------------------------------------


def lock_then_update(place: Place, claim: Wanted) -> list[Any]:
    target = claim.target
    with place.transaction() as connection:
        _begin_to_write(connection, target)
        picked = _picked(claim).with_for_update(skip_locked=True)
        keys = [tuple(row) for row in connection.execute(picked)]
        for some in batches(keys):
            connection.execute(_update(claim).where(target.matching(some)))
        return _read_by_key(place, connection, keys)


def _begin_to_write(connection: Connection, target: Target) -> None:
    """Nothing may be read before the lock is ours: what was read could be old by then."""
    if connection.dialect.name == "sqlite":
        first = target.key[0]
        connection.execute(update(target.table).values({first: first}).where(false()))
    else:
        # At the default level an open claim, even of nothing, keeps everybody from inserting.
        connection.execute(text("set transaction isolation level read committed"))
        connection.execute(text("start transaction"))


# -- portable ---------------------------------------------------------------------------------------


def portable(place: Place, claim: Wanted) -> list[Any] | None:
    """None when somebody else was faster with every row: look again, there may be more."""
    with place.transaction() as connection:
        candidates = [tuple(row) for row in connection.execute(_picked(claim))]
    if not candidates:
        return []
    try:
        return _win_all(place, claim, candidates)
    except _WonSome:
        return _win_each(place, claim, candidates)


class _WonSome(Exception):
    """Some of the rows were somebody else's by then, and nobody says which."""


def _win_all(place: Place, claim: Wanted, candidates: list[Key]) -> list[Any] | None:
    """All of them by one update, or none; undone when it was only some."""
    with place.transaction() as connection:
        won = sum(_update_guarded(connection, claim, some) for some in batches(candidates))
        if won == len(candidates):
            return _read_by_key(place, connection, candidates)
        if won:
            raise _WonSome
        return None


def _win_each(place: Place, claim: Wanted, candidates: list[Key]) -> list[Any] | None:
    with place.transaction() as connection:
        # Everybody takes the rows in one order, whatever theirs is: two that met crosswise would deadlock.
        won = {key for key in sorted(candidates, key=repr) if _update_guarded(connection, claim, [key])}
        return _read_by_key(place, connection, [key for key in candidates if key in won]) or None


def _update_guarded(connection: Connection, claim: Wanted, keys: list[Key]) -> int:
    """How many of these rows still matched, and are ours now."""
    return connection.execute(_update(claim).where(claim.target.matching(keys), claim.where)).rowcount


# -- what they share --------------------------------------------------------------------------------


def _picked(claim: Wanted) -> Select[Any]:
    # The limit is spelled out: as a parameter it would be a guess to a planner that keeps its plan.
    limit: Any = bindparam("dibs_limit", claim.limit, type_=Integer(), literal_execute=True)
    return select(*claim.target.key).where(claim.where).order_by(*claim.order_by).limit(limit)


def _update(claim: Wanted) -> Update:
    return update(claim.target.table).values(dict(claim.values))


def _read_by_key(place: Place, connection: Connection, keys: list[Key]) -> list[Any]:
    """The rows as they are now, in the order of their keys."""
    target = place.target
    found: dict[Key, Any] = {}
    for some in batches(keys):
        statement = select(target.mapper or target.table).where(target.matching(some))
        rows = _read(place, connection, statement)
        found |= {target.key_of(row): row for row in rows}
    return [found[key] for key in keys if key in found]


def _read(place: Place, connection: Connection, statement: Any) -> list[Any]:
    target = place.target
    if target.mapper is None:
        return list(connection.execute(statement))
    entities = statement if isinstance(statement, Select) else select(target.mapper).from_statement(statement)
    return list(place.session.scalars(entities, execution_options=REFRESHED).unique())


def _checked(rows: list[Any], claim: Wanted) -> list[Any]:
    if len(rows) > claim.limit:
        raise DibsError(
            f"asked for {claim.limit} rows of {claim.target.name} and got {len(rows)}: please report it"
        )
    return rows


def batches(keys: Sequence[T]) -> Iterator[list[T]]:
    left = iter(keys)
    while some := list(islice(left, KEYS_PER_STATEMENT)):
        yield some


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
