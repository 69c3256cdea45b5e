"""Leases on the user's own rows: the holder of a row, the end of its lease, and its token.

Each claim adds one to the `claim_token` of a row; renew, release and done write only while the row still has
the token of the claim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Row,
    String,
    and_,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from dibs.clock import SECOND, monotonic
from dibs.errors import BadRequest, LeaseLost
from dibs.settings import Duration, lease_micros
from dibs.tables.clock import Moment, store_time
from dibs.tables.model import Key, Values, order_of, user_table
from dibs.tables.strategies import batches

TOKEN = "_dibs_token"  # noqa: S105


class Claimable:
    """A mixin with the columns of a lease. Example: `class Up(Claimable, Base): __tablename__ = "up"`"""

    locked_by: Mapped[str | None] = mapped_column(String(200))
    locked_until: Mapped[datetime | None] = mapped_column(Moment)
    claim_token: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")


class RowsLost(LeaseLost):
    """Rows, in `rows`, that their claim held no longer. Example: `except RowsLost as e: print(e.rows)`"""

    def __init__(self, name: str, rows: Sequence[Any], keys: Sequence[Key]) -> None:
        self.rows = list(rows)
        which = ", ".join("/".join(map(str, key)) for key in keys[:5]) + (", …" if len(keys) > 5 else "")
        super().__init__(
            f"{name} {which}: the lease was lost or released, and another worker may hold it; nothing was "
            "changed there. Drop what you did for it, and use a longer lease= or renew() in time"
        )


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A row that was claimed, with its key and the token of the claim."""

    row: Any
    key: Key
    token: int


class Leases:
    """The rules of leases for one table: when a row is free, and what each verb writes."""

    def __init__(self, model: Any, ready: Any, lease: Duration, order_by: Any) -> None:
        self.model = model
        self.target = user_table(model)
        self.lease = lease_micros(lease) / SECOND
        self.ready = ready
        self.order = order_of(self.target, order_by)
        self.by, self.until, self.token = map(self._column, ("locked_by", "locked_until", "claim_token"))
        self.attempts = self._optional("attempts")

    def where(self) -> list[Any]:
        """Return the conditions of a free row: ready, and never locked or its lease over."""
        free = or_(self.until.is_(None), self.until <= store_time(like=self.until))
        ready = self.ready if isinstance(self.ready, list | tuple) else [self.ready]
        return [*(one for one in ready if one is not None), free]

    def taking(self, worker: str, lease: Duration | None, also: Values | None) -> dict[Any, Any]:
        values = {self.by: worker, self.until: self._end(lease), self.token: self.token + 1}
        if self.attempts is not None:
            values[self.attempts] = self.attempts + 1
        return {**values, **self._set(also)}

    def renewing(self, lease: Duration | None) -> dict[Any, Any]:
        return {self.until: self._end(lease)}

    def releasing(self, also: Values | None) -> dict[Any, Any]:
        """Return the values of a released row; its attempt does not count."""
        values: dict[Any, Any] = {self.by: None, self.until: None}
        if self.attempts is not None:
            values[self.attempts] = self.attempts - 1
        return {**values, **self._set(also)}

    def finishing(self, also: Values) -> dict[Any, Any]:
        values = self._set(also)
        if not values:
            raise BadRequest(
                "done() needs set=: something that makes the row no longer ready, or it is claimed again at "
                "once; release() gives it back"
            )
        return {self.by: None, self.until: None, **values}

    def claimed(self, rows: list[Any]) -> list[Any]:
        """Keep the token on each instance: a reloaded one could have the token of a later claim."""
        if self.target.mapper is not None:
            for row in rows:
                setattr(row, TOKEN, self.target.value(row, self.token))
        return rows

    def held(self, rows: Any) -> list[HeldRow]:
        """Return one row or several with the tokens under which the caller claimed them."""
        several = rows if isinstance(rows, list | tuple) and not isinstance(rows, Row) else [rows]
        return [self._held(row) for row in several]

    def is_stale(self, since: float) -> bool:
        """Check whether a third of the lease has passed, and it is time to renew."""
        return monotonic() - since > self.lease / 3

    def _held(self, row: Any) -> HeldRow:
        if self.target.mapper is None:
            return HeldRow(row, self.target.key_of(row), self.target.value(row, self.token))
        if not isinstance(row, self.target.mapper.class_) or not hasattr(row, TOKEN):
            raise BadRequest(f"{row!r} is not a {self.target.name} that was claimed here")
        return HeldRow(row, tuple(inspect(row).identity), getattr(row, TOKEN))

    def _end(self, lease: Duration | None) -> Any:
        after = self.lease if lease is None else lease_micros(lease) / SECOND
        return store_time(after, like=self.until)

    def _set(self, also: Values | None) -> dict[Any, Any]:
        return {} if also is None else self.target.values(also)

    def _column(self, name: str) -> Column[Any]:
        try:
            return self.target.column(name)
        except BadRequest as error:
            raise BadRequest(
                f"{error}: leases need it; add the mixin dibs.tables.Claimable, and `dibs tables sql` prints "
                "what the table lacks"
            ) from None

    def _optional(self, name: str) -> Column[Any] | None:
        known = self.target.table.c if self.target.mapper is None else self.target.mapper.columns
        return self.target.column(name) if name in known else None


# -- writing while held -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldWrite:
    """Values to write into the rows that are still held under their tokens."""

    leases: Leases
    held: list[HeldRow]
    values: dict[Any, Any]

    def on(self, connection: Connection) -> None:
        """Write in a transaction of its own; raise `RowsLost` after its commit."""
        with connection.begin():
            lost = self._write(connection)
        self._refuse(lost)

    def within(self, given: Connection | Session) -> None:
        """Write in the caller's transaction."""
        target = self.leases.target
        if isinstance(given, Session):
            given = given.connection(bind_arguments={"mapper": target.mapper, "clause": target.table})
        self._refuse(self._write(given))

    def _write(self, connection: Connection) -> list[HeldRow]:
        write = _way_to_write(connection.dialect)
        written: set[Key] = set()
        for some in batches(self.held):
            written |= write(connection, self.leases, some, self.values)
        return [one for one in self.held if one.key not in written]

    def _refuse(self, lost: list[HeldRow]) -> None:
        if lost:
            raise RowsLost(self.leases.target.name, [one.row for one in lost], [one.key for one in lost])


Write = Callable[[Connection, Leases, list[HeldRow], dict[Any, Any]], set[Key]]


def _way_to_write(dialect: Dialect) -> Write:
    if dialect.update_returning:
        return _write_and_return
    return _lock_and_write if dialect.name in ("mysql", "mariadb") else _write_each


def _write_and_return(
    connection: Connection, leases: Leases, held: list[HeldRow], values: dict[Any, Any]
) -> set[Key]:
    statement = update(leases.target.table).values(values).where(*_are_ours(leases, held))
    return {tuple(row) for row in connection.execute(statement.returning(*leases.target.key))}


def _lock_and_write(
    connection: Connection, leases: Leases, held: list[HeldRow], values: dict[Any, Any]
) -> set[Key]:
    ours = select(*leases.target.key).where(*_are_ours(leases, held)).with_for_update()
    keys = {tuple(row) for row in connection.execute(ours)}
    if keys:
        connection.execute(update(leases.target.table).values(values).where(leases.target.matching(keys)))
    return keys


def _write_each(
    connection: Connection, leases: Leases, held: list[HeldRow], values: dict[Any, Any]
) -> set[Key]:
    statements = {
        one.key: update(leases.target.table).values(values).where(_is_ours(leases, one)) for one in held
    }
    return {key for key, statement in statements.items() if connection.execute(statement).rowcount == 1}


def _are_ours(leases: Leases, held: list[HeldRow]) -> list[Any]:
    """Return the conditions of held rows. The keys come separately, too: only that form uses an index."""
    keys = leases.target.matching([one.key for one in held])
    return [keys, or_(*(_is_ours(leases, one) for one in held))]


def _is_ours(leases: Leases, held: HeldRow) -> Any:
    return and_(leases.target.matching([held.key]), leases.token == held.token, leases.by.is_not(None))
