"""How rows are selected and updated so that no two callers get the same one.

one_statement     PostgreSQL: lock free rows, update and return them, in one round trip
update_and_sort   SQLite, if the returned rows can be sorted here: one statement
lock_then_update  MySQL, MariaDB, and SQLite otherwise: lock free rows, update them by key
portable          any database: select without locks, then update these rows under the same condition

Each returns the rows as they are after the claim, in the order in which they were selected: `set=` may change
the columns of `order_by`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar
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
    case,
    cast,
    column,
    exists,
    false,
    func,
    inspect,
    literal_column,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy import table as sql_table
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased

from dibs.errors import BadRequest, DibsError
from dibs.tables.model import Key, OrderColumn, RowClaim, UserTable, order_columns
from dibs.tables.session import ClaimSession, claim_session, dialect_of, may_try_again

ClaimBy = Callable[[ClaimSession, RowClaim], list[Any] | None]

T = TypeVar("T")

KEYS_PER_STATEMENT = 500
AGAIN = "dibs: matches again"  # in the error by which a statement undoes itself
REFRESHED = {"populate_existing": True, "synchronize_session": False}


def strategy_for(dialect: Dialect, claim: RowClaim) -> ClaimBy:
    """Return the best strategy for this database; it does not rely on the query planner."""
    if dialect.name == "postgresql":
        return one_statement
    if dialect.name == "sqlite" and dialect.update_returning:
        in_one = _is_plain(claim.target) and _sortable_here(claim) and not claim.has_null_in_text
        return update_and_sort if in_one else lock_then_update
    if dialect.name in ("mysql", "mariadb") and _skips_locked(dialect):
        return lock_then_update
    return portable


def _skips_locked(dialect: Any) -> bool:
    version = dialect.server_version_info or (0,)
    return bool(version >= ((10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)))


# -- one statement ----------------------------------------------------------------------------------


def one_statement(session: ClaimSession, claim: RowClaim) -> list[Any]:
    target, table = claim.target, claim.target.table
    # Materialized: PostgreSQL may run a plain subquery again for every row, and each run locks more.
    # Only tables have a tableoid, so a view fails before anything is locked.
    # Labelled, so that plain text in `where=` can't mean two columns.
    keys = [column.label(f"dibs_key_{number}") for number, column in enumerate(target.key)]
    selected = (
        _selected(claim)
        .with_only_columns(*keys, literal_column("tableoid").label("dibs_table"))
        .with_for_update(skip_locked=True, of=table)
        .cte("dibs_selected")
        .prefix_with("MATERIALIZED")
    )
    numbered = select(selected, func.row_number().over().label("dibs_number")).cte("dibs_numbered")
    statement = (
        _update(claim)
        .where(*(column == numbered.c[label.name] for column, label in zip(target.key, keys, strict=True)))
        .returning(*table.c, _raising(claim), numbered.c.dibs_number)
    )
    try:
        with session.transaction() as connection:
            return _checked(_read_numbered(session, connection, statement), claim)
    except DBAPIError as error:
        if AGAIN in str(error.orig):
            claim.refuse_again()
        raise


def _raising(claim: RowClaim) -> Any:
    """Return an expression that fails for a claimed row that matches again.

    The statement commits itself; only an error in it undoes it.
    """
    again = claim.matches_again.element
    return cast(case((again == 1, literal_column(f"'{AGAIN}'")), else_=literal_column("'0'")), Integer)


def _read_numbered(session: ClaimSession, connection: Connection, statement: Any) -> list[Any]:
    """Return the claimed rows in the order of their numbers, without the numbers."""
    target = session.target
    if target.mapper is None:
        numbered = sorted(connection.execute(statement), key=itemgetter(-1))
        return _rows(target.table, [tuple(row) for row in numbered])
    claimed = statement.cte("dibs_claimed")
    instances = select(aliased(target.mapper, claimed)).order_by(claimed.c.dibs_number)
    return list(session.session.scalars(instances, execution_options=REFRESHED).unique())


def _rows(table: Table, values: list[tuple[Any, ...]]) -> list[Any]:
    """Return the values as rows that can be read by name and by column; more values are left out."""
    columns = list(table.c)
    described = SimpleResultMetaData([one.key for one in columns], extra=[(one,) for one in columns])
    return list(IteratorResult(described, (value[: len(columns)] for value in values)))


# -- one statement, sorted here ---------------------------------------------------------------------

SORTED_ALIKE = (Integer, Numeric, Float, Double, DateTime, Date, Time, Boolean, Uuid)
"""What Python and SQLite sort alike. Not text: only the database knows its collation."""


def update_and_sort(session: ClaimSession, claim: RowClaim) -> list[Any]:
    target = claim.target
    key = target.key[0] if len(target.key) == 1 else tuple_(*target.key)
    statement = (
        _update(claim)
        .where(key.in_(_selected(claim)), *_is_no_view(target.table))
        .returning(*target.table.c, claim.matches_again)
    )
    with session.transaction() as connection:
        claimed = _checked(_read(session, connection, statement, claim), claim)
    return _in_order(claimed, order_columns(target, claim.order_by) or [], target)


def _is_no_view(table: Table) -> list[Any]:
    """Return conditions that no view meets: SQLite reports an update of a view as done, and does nothing."""
    lists = ["sqlite_master"] if table.schema else ["sqlite_master", "sqlite_temp_master"]
    known = [sql_table(one, column("name"), column("type"), schema=table.schema) for one in lists]
    return [~exists().where(one.c.name == table.name, one.c.type == "view") for one in known]


def _is_plain(target: UserTable) -> bool:
    """Check that an instance consists of the columns of its row: nothing computed, nothing joined."""
    if target.mapper is None:
        return True
    columns = [column for known in target.mapper.column_attrs for column in known.columns]
    return all(isinstance(column, Column) for column in columns) and not any(
        known.lazy in ("joined", False) for known in target.mapper.relationships
    )


def _sortable_here(claim: RowClaim) -> bool:
    """Check that the claim leaves the columns of the order alone, and that Python sorts them alike."""
    order = order_columns(claim.target, claim.order_by)
    return order is not None and all(
        one.column not in claim.values
        and isinstance(one.column.type, SORTED_ALIKE)
        and _is_loaded(claim.target, one.column)
        for one in order
    )


def _is_loaded(target: UserTable, column: Any) -> bool:
    if target.mapper is None:
        return True
    known: Any = target.mapper.columns.contains_column(column) and target.mapper.get_property_by_column(
        column
    )
    return bool(known) and not known.deferred


def _in_order(rows: Sequence[Any], order: Iterable[OrderColumn], target: UserTable) -> list[Any]:
    ordered = list(rows)
    for by in reversed(list(order)):
        values = [(target.value(row, by.column), row) for row in ordered]
        nulls = [row for value, row in values if value is None]
        others = sorted(
            (one for one in values if one[0] is not None), key=itemgetter(0), reverse=by.descending
        )
        found = [row for _, row in others]
        # To SQLite null is smaller than anything.
        nulls_first = not by.descending if by.nulls_first is None else by.nulls_first
        ordered = nulls + found if nulls_first else found + nulls
    return ordered


# -- lock, then update ------------------------------------------------------------------------------


def lock_then_update(session: ClaimSession, claim: RowClaim) -> list[Any]:
    target = claim.target
    with session.transaction() as connection:
        _begin_to_write(connection, target)
        selected = _selected(claim).with_for_update(skip_locked=True)
        keys = [tuple(row) for row in connection.execute(selected)]
        for some in batches(keys):
            connection.execute(_update(claim).where(target.matching(some)))
        return _read_by_key(session, connection, claim, keys)


def _begin_to_write(connection: Connection, target: UserTable) -> None:
    """Take the write lock before the first read: rows that were read earlier could be outdated."""
    if connection.dialect.name == "sqlite":
        first = target.key[0]
        connection.execute(update(target.table).values({first: first}).where(false()))
    else:
        # At the default level an open claim, even of no row, blocks inserts of other transactions.
        connection.execute(text("set transaction isolation level read committed"))
        connection.execute(text("start transaction"))


# -- portable ---------------------------------------------------------------------------------------


def portable(session: ClaimSession, claim: RowClaim) -> list[Any] | None:
    """Claim; return None if other callers were faster with every row: select again, there may be more."""
    with session.transaction() as connection:
        candidates = [tuple(row) for row in connection.execute(_selected(claim))]
    if not candidates:
        return []
    try:
        return _win_all(session, claim, candidates)
    except _SomeLost:
        return _win_each(session, claim, candidates)


class _SomeLost(Exception):
    """Other callers had claimed some of the rows by then; the database does not say which."""


def _win_all(session: ClaimSession, claim: RowClaim, candidates: list[Key]) -> list[Any] | None:
    """Claim all candidates by one update; undo it if it changed only some of them."""
    with session.transaction() as connection:
        won = sum(_update_guarded(connection, claim, some) for some in batches(candidates))
        if won == len(candidates):
            return _read_by_key(session, connection, claim, candidates)
        if won:
            raise _SomeLost
        return None


def _win_each(session: ClaimSession, claim: RowClaim, candidates: list[Key]) -> list[Any] | None:
    with session.transaction() as connection:
        # All callers update rows in the same order: crosswise updates would deadlock.
        won = {key for key in sorted(candidates, key=repr) if _update_guarded(connection, claim, [key])}
        return _read_by_key(session, connection, claim, [key for key in candidates if key in won]) or None


def _update_guarded(connection: Connection, claim: RowClaim, keys: list[Key]) -> int:
    """Update the rows that still match; return how many."""
    return connection.execute(_update(claim).where(claim.target.matching(keys), claim.where)).rowcount


# -- shared by the strategies --------------------------------------------------------------------------------


def _selected(claim: RowClaim) -> Select[Any]:
    # The limit is a literal: a planner that keeps its plan would have to guess a parameter.
    limit: Any = bindparam("dibs_limit", claim.limit, type_=Integer(), literal_execute=True)
    return select(*claim.target.key).where(claim.where).order_by(*claim.order_by).limit(limit)


def _update(claim: RowClaim) -> Update:
    return update(claim.target.table).values(dict(claim.values))


def _read_by_key(
    session: ClaimSession, connection: Connection, claim: RowClaim, keys: list[Key]
) -> list[Any]:
    """Read the rows as they are now, in the order of the keys."""
    target = session.target
    found: dict[Key, Any] = {}
    for some in batches(keys):
        statement = select(target.mapper or target.table, claim.matches_again).where(target.matching(some))
        rows = _read(session, connection, statement, claim)
        found |= {target.key_of(row): row for row in rows}
    return [found[key] for key in keys if key in found]


def _read(session: ClaimSession, connection: Connection, statement: Any, claim: RowClaim) -> list[Any]:
    """Return the claimed rows; refuse the claim if one of them matches again, which undoes it."""
    target = session.target
    if target.mapper is None:
        found = [tuple(row) for row in connection.execute(statement)]
    else:
        if not isinstance(statement, Select):
            statement = select(target.mapper, claim.matches_again).from_statement(statement)
        found = list(session.session.execute(statement, execution_options=REFRESHED).unique())
    if any(again for *_, again in found):
        claim.refuse_again()
    return _rows(target.table, found) if target.mapper is None else [row for row, _ in found]


def _checked(rows: list[Any], claim: RowClaim) -> list[Any]:
    if len(rows) > claim.limit:
        raise DibsError(
            f"asked for {claim.limit} rows of {claim.target.name} and got {len(rows)}: please report it"
        )
    return rows


def batches(keys: Sequence[T]) -> Iterator[list[T]]:
    left = iter(keys)
    while some := list(islice(left, KEYS_PER_STATEMENT)):
        yield some


# -- the claim ------------------------------------------------------------------------------------


def claim_once(given: Connection | Session, claim: RowClaim) -> list[Any] | None:
    """Claim; return None if other callers were faster with every row. An exception means no change."""
    best = claim.strategy is None
    is_postgresql = dialect_of(given, claim.target).name == "postgresql"  # one statement: it commits itself
    with claim_session(given, claim.target, autocommit=best and is_postgresql) as session:
        if claim.limit <= 0:
            return []
        strategy = strategy_for(session.engine.dialect, claim) if best else portable
        if strategy in (lock_then_update, portable):
            _require_table(session)
        return _claim_by(strategy, session, claim)


def _claim_by(strategy: ClaimBy, session: ClaimSession, claim: RowClaim) -> list[Any] | None:
    try:
        rows = strategy(session, claim)
    except DBAPIError as error:
        if not may_try_again(error) and not error.connection_invalidated:
            _refuse_view(session)  # a clearer error, if it is one
        raise
    if rows == [] and strategy is update_and_sort:
        _require_table(session)
    return rows


_tables: WeakKeyDictionary[Engine, set[str]] = WeakKeyDictionary()


def _require_table(session: ClaimSession) -> None:
    """Refuse a view, checked once per engine: MySQL, and a plain update anywhere, would write through it."""
    known = _tables.setdefault(session.engine, set())
    if session.target.table.fullname not in known:
        _refuse_view(session)
        known.add(session.target.table.fullname)


def _refuse_view(session: ClaimSession) -> None:
    """Refuse a view: it has no rows of its own to lock, though some databases pretend that it has."""
    schema, name = session.target.table.schema, session.target.table.name
    with session.transaction() as connection:
        inspector = inspect(connection)
        views = inspector.get_view_names(schema)
        if connection.dialect.name == "postgresql":
            views = [*views, *inspector.get_materialized_view_names(schema)]
    if name in views:
        raise BadRequest(
            f"can't claim rows of {session.target.name}: {name} is a view; "
            "claim the rows of the table that it shows"
        )
