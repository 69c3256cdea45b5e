"""The table that rows are claimed from, and a claim that was checked against it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn, cast

from sqlalchemy import (
    BinaryExpression,
    BooleanClauseList,
    Column,
    ColumnElement,
    Null,
    SelectBase,
    Table,
    UnaryExpression,
    and_,
    case,
    false,
    func,
    inspect,
    literal_column,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.exc import ArgumentError, NoInspectionAvailable
from sqlalchemy.orm import Mapper, QueryableAttribute
from sqlalchemy.sql import operators, visitors

from dibs.errors import BadRequest
from dibs.jobs.payload import check_whole

MOST_ROWS = 2**63 - 1  # what every database takes as a limit

Expression = Any
Key = tuple[Any, ...]
Values = Mapping[Any, Any]
Strategy = Literal["portable"] | None  # None: the best that the database can do


@dataclass(frozen=True, slots=True)
class UserTable:
    """A table of the user, and the class that is mapped to it, if any."""

    table: Table
    key: tuple[Column[Any], ...]
    mapper: Mapper[Any] | None = None

    @property
    def name(self) -> str:
        return self.mapper.class_.__name__ if self.mapper is not None else self.table.fullname

    def column(self, named: object) -> Column[Any]:
        """Return the column of an attribute, a column, or the name of either; else `BadRequest`."""
        found = self.find(named)
        if found is None:
            raise BadRequest(f"{self.name} has no column {named}; it has {', '.join(sorted(self._names()))}")
        return found

    def values(self, given: Values) -> dict[Column[Any], Any]:
        """Return what is to be written, by column."""
        if not isinstance(given, Mapping):
            raise BadRequest(f"set= must be a mapping of columns of {self.name} to values, not {given!r}")
        return {self.column(named): value for named, value in given.items()}

    def find(self, named: object) -> Column[Any] | None:
        """Return the column that is meant, or None."""
        return self._by_name(named) if isinstance(named, str) else self._by_expression(named)

    def attribute(self, column: Column[Any]) -> str:
        """Return the attribute of an instance that has this column."""
        assert self.mapper is not None
        return self.mapper.get_property_by_column(column).key

    def value(self, row: Any, column: Column[Any]) -> Any:
        """Return what a row or an instance has in this column."""
        return row._mapping[column] if self.mapper is None else getattr(row, self.attribute(column))

    def key_of(self, row: Any) -> Key:
        return tuple(self.value(row, column) for column in self.key)

    def matching(self, keys: Iterable[Key]) -> Expression:
        """Return the condition for exactly the rows with these keys."""
        if len(self.key) == 1:
            return self.key[0].in_([key[0] for key in keys])
        # Not `(a, b) in (…)`: some databases lack it, and MariaDB reads the whole table for it.
        return or_(*(and_(*(c == v for c, v in zip(self.key, key, strict=True))) for key in keys))

    def of_class(self) -> Expression:
        """Return the condition for the rows of this class, where several classes share the table."""
        mapper = self.mapper
        if mapper is None or not mapper.single or mapper.polymorphic_on is None:
            return true()
        return mapper.polymorphic_on.in_([one.polymorphic_identity for one in mapper.self_and_descendants])

    def _by_name(self, name: str) -> Column[Any] | None:
        if self.mapper is None:
            return self.table.c.get(name)
        column = self.mapper.columns.get(name)
        return column if isinstance(column, Column) else None

    def _by_expression(self, named: Any) -> Column[Any] | None:
        expression = _clause(named)
        if not isinstance(expression, ColumnElement):
            return None
        column = self.table.corresponding_column(cast("Any", expression))
        return column if isinstance(column, Column) else None

    def _names(self) -> list[str]:
        return list(self.table.c.keys() if self.mapper is None else self.mapper.columns.keys())


def user_table(model: object) -> UserTable:
    """Return the table of a model; `BadRequest` says why its rows can't be claimed."""
    if isinstance(model, Table):
        return UserTable(model, _key(model.fullname, model.primary_key.columns))
    mapper = _mapper(model)
    _refuse_several_tables(mapper)
    return UserTable(mapper.local_table, _key(mapper.class_.__name__, mapper.primary_key), mapper)  # type: ignore[arg-type]


def _clause(named: Any) -> Any:
    """Return the column expression of a mapped attribute; anything else as it is."""
    return named.__clause_element__() if isinstance(named, QueryableAttribute) else named


def _mapper(model: object) -> Mapper[Any]:
    try:
        found = inspect(model)
    except NoInspectionAvailable:
        found = None
    if isinstance(found, Mapper):
        return found
    what = (
        f"{model.__module__}.{model.__qualname__}" if isinstance(model, type) else f"a {type(model).__name__}"
    )
    raise BadRequest(
        f"can't claim rows of {what}: pass a Table or a mapped class that exists in your database"
    )


def _refuse_several_tables(mapper: Mapper[Any]) -> None:
    name = mapper.class_.__name__
    if not isinstance(mapper.local_table, Table):
        raise BadRequest(
            f"can't claim rows of {name}: it is mapped to a query and not to a table; "
            "claim the rows of the table that the query reads"
        )
    family = mapper.base_mapper.self_and_descendants
    if any(one.inherits is not None and not one.single and not one.concrete for one in family):
        raise BadRequest(
            f"can't claim instances of {name}: by joined inheritance each is spread over several tables; "
            f"claim rows of one of them, as with {name}.__table__, and load the instances by their keys"
        )


def _key(name: str, columns: Iterable[Any]) -> tuple[Column[Any], ...]:
    key = tuple(columns)
    if not key:
        raise BadRequest(
            f"can't claim rows of {name}: without a primary key one row can't be told from another"
        )
    return key


# -- a claim --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowClaim:
    """Which rows to claim, what to write into them, how many, and in which order."""

    target: UserTable
    where: Expression
    values: Mapping[Column[Any], Any]
    limit: int
    order_by: tuple[Expression, ...]
    strategy: Strategy = None

    @cached_property
    def matches_again(self) -> Expression:
        """Return 1 for a claimed row that the next claim would get, too; 0 also where `where` is NULL.

        A subquery would see the rows as they were: what it says of a changed row means nothing.
        """
        parts = visitors.iterate(self.where)
        checked = false() if any(isinstance(part, SelectBase) for part in parts) else self.where
        checked = visitors.cloned_traverse(checked, {}, {"binary": _hide_column_from_null})
        return case((checked, literal_column("1")), else_=literal_column("0")).label("dibs_again")

    @property
    def has_null_in_text(self) -> bool:
        """Whether `where` compares with NULL in plain SQL, which can't be written otherwise."""
        texts = [getattr(part, "text", getattr(part, "name", "")) for part in visitors.iterate(self.where)]
        return any("null" in str(one).lower() for one in texts)

    def refuse_again(self) -> NoReturn:
        raise BadRequest(
            f"set= leaves a claimed {self.target.name} matching where=, so the next claim would get it, too: "
            "nothing was changed; let set= change something that ends where="
        )


def _hide_column_from_null(binary: BinaryExpression[Any]) -> None:
    """Compare no bare column with NULL: in `returning` SQLite 3.40 looks up `not null` of another column."""
    if isinstance(binary.right, Null):
        binary.left = func.coalesce(binary.left, null())


def row_claim(
    model: object, where: Any, set: Values, limit: int, order_by: Any, strategy: Strategy = None
) -> RowClaim:
    """Check the arguments of a claim; `BadRequest` says what is wrong with them."""
    if strategy not in (None, "portable"):
        raise BadRequest(f"no strategy {strategy!r}: leave it out for the best one, or say 'portable'")
    target = user_table(model)
    limit = check_whole(limit, "limit", None, MOST_ROWS)
    criteria = _criteria(where, target)
    _refuse_other_tables(target, criteria)
    return RowClaim(target, criteria, _values(target, set), limit, order_of(target, order_by), strategy)


def _criteria(where: Any, target: UserTable) -> Expression:
    several = [one for one in _several(where) if not (isinstance(one, BooleanClauseList) and not one.clauses)]
    if not several:
        raise BadRequest(
            "where= is empty, which would give out rows that are claimed already: name the condition of a "
            f"free {target.name}, one that set= ends"
        )
    try:
        return and_(true(), *several, target.of_class())
    except ArgumentError as error:
        raise BadRequest(f"where={where!r} is not a condition: {error}") from None


def _several(given: Any) -> Sequence[Any]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _refuse_other_tables(target: UserTable, criteria: Expression) -> None:
    # Not `get_final_froms()`, which compiles the statement for no particular database.
    others = [one for one in criteria._from_objects if not target.table.is_derived_from(one)]
    if others:
        raise BadRequest(
            f"where= refers to {', '.join(str(one) for one in others)} beside {target.name}; "
            "rows are claimed of one table: put the other into exists(…) or a subquery"
        )


def _values(target: UserTable, given: Values) -> dict[Column[Any], Any]:
    values = target.values(given)
    if not values:
        raise BadRequest("set= is empty: a claim must change something that where= checks")
    if keys := [column.name for column in values if column in target.key]:
        raise BadRequest(f"set= would change the primary key of {target.name}: {', '.join(keys)}")
    return values


def order_of(target: UserTable, given: Any) -> tuple[Expression, ...]:
    order = tuple(target.column(one) if isinstance(one, str) else one for one in _several(given))
    try:
        select().order_by(*order)
    except ArgumentError as error:
        raise BadRequest(f"order_by={given!r} is not an order: {error}") from None
    return order


# -- order ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderColumn:
    """One column of an order."""

    column: Column[Any]
    descending: bool = False
    nulls_first: bool | None = None


def order_columns(target: UserTable, order_by: Iterable[Expression]) -> list[OrderColumn] | None:
    """Return the order as plain columns; None if it has other expressions."""
    found = [_order_column(target, one) for one in order_by]
    return None if None in found else [one for one in found if one is not None]


def _order_column(target: UserTable, expression: Any) -> OrderColumn | None:
    descending, nulls_first = False, None
    expression = _clause(expression)
    while isinstance(expression, UnaryExpression):
        if expression.modifier is operators.desc_op:
            descending = True
        elif expression.modifier in (operators.nulls_first_op, operators.nulls_last_op):
            nulls_first = expression.modifier is operators.nulls_first_op
        elif expression.modifier is not operators.asc_op:
            return None
        expression = expression.element
    column = target.find(expression)
    return None if column is None else OrderColumn(column, descending, nulls_first)
