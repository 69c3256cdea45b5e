"""Find and claim rows of your own tables, for code that does not await: the names of `dibs.tables`."""

from collections.abc import Iterator
from typing import Any, TypeVar, overload

from sqlalchemy import Connection, Engine, Row, Table
from sqlalchemy.orm import Session, scoped_session

from dibs.faces import SyncFace, run
from dibs.settings import Duration
from dibs.tables import claims
from dibs.tables.claims import ClaimsVerbs, RowStream, claim_calls
from dibs.tables.clock import Moment, store_time
from dibs.tables.leases import Claimable, RowsLost
from dibs.tables.model import Strategy, Values, row_claim

__all__ = ["Claimable", "Claims", "Moment", "RowsLost", "claim_rows", "store_time"]

On = Engine | Connection | Session | scoped_session[Any]
M = TypeVar("M")


@overload
def claim_rows(
    on: On,
    model: type[M],
    where: Any,
    set: Values,
    limit: int,
    order_by: Any = None,
    strategy: Strategy = None,
) -> list[M]: ...
@overload
def claim_rows(
    on: On, model: Table, where: Any, set: Values, limit: int, order_by: Any = None, strategy: Strategy = None
) -> list[Row[Any]]: ...
def claim_rows(
    on: On, model: Any, where: Any, set: Values, limit: int, order_by: Any = None, strategy: Strategy = None
) -> list[Any]:
    return run(claim_calls(on, row_claim(model, where, set, limit, order_by, strategy)))


class SyncClaims(ClaimsVerbs[M, Engine], SyncFace):
    """What `dibs.tables.Claims` does, for code that does not await."""

    _engine_class = Engine

    def stream(
        self, *, batch: int = 10, poll: Duration = 1, until_idle: bool = False, worker: str | None = None
    ) -> Iterator[M]:
        rows = RowStream(self, batch, poll, until_idle, worker)
        try:
            while (row := run(rows.next())) is not None:
                yield row
        finally:
            run(rows.release())

    stream.__doc__ = claims.Claims.stream.__doc__


Claims = SyncClaims
claim_rows.__doc__ = claims.claim_rows.__doc__
