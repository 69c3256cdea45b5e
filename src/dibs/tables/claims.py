"""Claim rows of the user's own tables: the verbs of both faces, and the async face."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import Connection, Engine, Row, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from dibs.clock import SECOND, monotonic
from dibs.doctor import Finding
from dibs.errors import UnsupportedConnection
from dibs.faces import AsyncFace, Call, Calls, make, run_async, sleep, verb
from dibs.jobs.ids import worker_name
from dibs.settings import Duration, span
from dibs.tables.index_check import check_index
from dibs.tables.leases import HeldWrite, Leases, RowsLost
from dibs.tables.model import RowClaim, Strategy, Values, row_claim
from dibs.tables.session import RetryPauses, pause_after_lost_race
from dibs.tables.strategies import claim_once

AsyncOn = AsyncEngine | AsyncConnection | AsyncSession | async_scoped_session[Any]
T = TypeVar("T")
M = TypeVar("M")
E = TypeVar("E", Engine, AsyncEngine)


@overload
async def claim_rows(
    on: AsyncOn,
    model: type[M],
    where: Any,
    set: Values,
    limit: int,
    order_by: Any = None,
    strategy: Strategy = None,
) -> list[M]: ...
@overload
async def claim_rows(
    on: AsyncOn,
    model: Table,
    where: Any,
    set: Values,
    limit: int,
    order_by: Any = None,
    strategy: Strategy = None,
) -> list[Row[Any]]: ...
async def claim_rows(
    on: Any, model: Any, where: Any, set: Values, limit: int, order_by: Any = None, strategy: Strategy = None
) -> list[Any]:
    """Claim up to `limit` rows that match `where`: apply `set`, and return them in the order of `order_by`.

    No two callers get the same row: a `set` that leaves a row matching is refused, and changes nothing. The
    claim is durable when this returns; in an open transaction it is refused with `ClaimInTransaction`.
    Example: `await claim_rows(engine, Report, where=Report.state == "new", set={"state": "taken"}, limit=9)`
    """
    return await run_async(claim_calls(on, row_claim(model, where, set, limit, order_by, strategy)))


def claim_calls(on: Any, claim: RowClaim) -> Calls[list[Any]]:
    """Claim once; again as long as other callers were faster with every row that was found."""
    if claim.limit <= 0 and isinstance(on, Engine):
        return []
    while (rows := (yield from _retried(_on(on, lambda given: claim_once(given, claim))))) is None:
        yield from sleep(pause_after_lost_race())
    return rows


# -- leases ---------------------------------------------------------------------------------------


class ClaimsVerbs(Generic[M, E]):
    """The verbs of `Claims`, for both faces."""

    _engine_class: type[E]

    def __init__(
        self,
        model: type[M] | Table,
        engine: E,
        *,
        ready: Any,
        lease: Duration = 60,
        order_by: Any = None,
    ) -> None:
        if not isinstance(engine, self._engine_class):  # a renewal needs a connection of its own
            raise UnsupportedConnection(
                f"Claims need a {self._engine_class.__name__} of SQLAlchemy, not {_name_of(engine)}"
            )
        self._engine: E = engine
        self.leases = Leases(model, ready, lease, order_by)

    @verb
    def claim(
        self,
        limit: int = 1,
        *,
        worker: str | None = None,
        lease: Duration | None = None,
        set: Values | None = None,
        strategy: Strategy = None,
    ) -> Calls[list[M]]:
        """Claim up to `limit` rows that are ready and not held; return them detached and loaded."""
        return (yield from self._claim(limit, worker, lease, set, strategy))

    @verb
    def renew(self, rows: Any, *, lease: Duration | None = None) -> Calls[None]:
        """Hold one row or several for another lease from now; `RowsLost` names the rows that were lost."""
        yield from self._write(rows, self.leases.renewing(lease), None)

    @verb
    def release(self, rows: Any, *, set: Values | None = None, within: Any = None) -> Calls[None]:
        """Give one row or several back, with their attempt; `RowsLost` names the rows that were lost."""
        yield from self._write(rows, self.leases.releasing(set), within)

    @verb
    def done(self, rows: Any, *, set: Values, within: Any = None) -> Calls[None]:
        """Finish one row or several: unlock them and apply `set`, `within` your transaction if given.

        `RowsLost` names the rows that were lost; the others are finished.
        """
        yield from self._write(rows, self.leases.finishing(set), within)

    @verb
    def check(self) -> Calls[list[Finding]]:
        """Ask the database how it would claim; report where it would read or lock more than needed."""
        return (yield from make(_on(self._engine, lambda connection: check_index(connection, self.leases))))

    def _claim(
        self,
        limit: int,
        worker: str | None,
        lease: Duration | None = None,
        also: Values | None = None,
        strategy: Strategy = None,
    ) -> Calls[list[M]]:
        leases = self.leases
        values = leases.taking(worker or worker_name(), lease, also)
        claim = row_claim(leases.model, leases.where(), values, limit, leases.order, strategy)
        return leases.claimed((yield from claim_calls(self._engine, claim)))

    def _write(self, rows: Any, values: dict[Any, Any], within: Any) -> Calls[None]:
        write = HeldWrite(self.leases, self.leases.held(rows), values)
        if isinstance(within, Engine | AsyncEngine):
            raise UnsupportedConnection(
                f"can't write within {_name_of(within)}: pass a connection or session with your transaction"
            )
        if within is not None:
            yield from make(_on(within, write.within))
        elif write.held:
            yield from _retried(_on(self._engine, write.on))


class Claims(ClaimsVerbs[M, AsyncEngine], AsyncFace):
    """Leases on rows of one table. Example: `Claims(Upload, engine, ready=Upload.id > 0)`"""

    _engine_class = AsyncEngine

    async def stream(
        self, *, batch: int = 10, poll: Duration = 1, until_idle: bool = False, worker: str | None = None
    ) -> AsyncIterator[M]:
        """Yield rows as they become ready, one after the other, each with most of its lease left.

        Rows that were claimed with it and still wait are renewed in between, and released when the loop is
        left. `until_idle` ends it when nothing is ready.
        """
        rows = RowStream(self, batch, poll, until_idle, worker)
        try:
            while (row := await run_async(rows.next())) is not None:
                yield row
        finally:
            await run_async(rows.release())


class RowStream(Generic[M]):
    """The rows that a stream has claimed and not yielded yet."""

    def __init__(
        self, claims: ClaimsVerbs[M, Any], batch: int, poll: Duration, until_idle: bool, worker: str | None
    ) -> None:
        self._claims = claims
        self._batch, self._until_idle, self._worker = batch, until_idle, worker
        self._pause = span(poll, what="poll") / SECOND
        self._waiting: deque[M] = deque()
        self._renewed_at = 0.0

    def next(self) -> Calls[M | None]:
        """Return the next row; None if nothing is ready and the stream should end then."""
        while True:
            while self._waiting and self._claims.leases.is_stale(self._renewed_at):
                yield from self._renew()
            if self._waiting:
                return self._waiting.popleft()
            self._renewed_at = monotonic()
            self._waiting.extend((yield from self._claims._claim(self._batch, self._worker)))
            if not self._waiting and self._until_idle:
                return None
            if not self._waiting:
                yield from sleep(self._pause)

    def _renew(self) -> Calls[None]:
        self._renewed_at = monotonic()
        try:
            yield from self._claims._write(list(self._waiting), self._claims.leases.renewing(None), None)
        except RowsLost as lost:
            for row in lost.rows:
                self._waiting.remove(row)

    def release(self) -> Calls[None]:
        try:
            yield from self._claims._write(list(self._waiting), self._claims.leases.releasing(None), None)
        except RowsLost:
            self._waiting.clear()  # other workers have them


# -- calls ----------------------------------------------------------------------------------------


def _retried(work: Call[T]) -> Calls[T]:
    """Run the whole work again when the database undid it in favour of another transaction."""
    pauses = RetryPauses()
    while True:
        try:
            return (yield from make(work))
        except DBAPIError as error:
            pause = pauses.after(error)
        yield from sleep(pause)


def _on(given: Any, work: Callable[[Any], T]) -> Call[T]:
    """Call `work` with the sync connection or session of what was given."""
    return Call(lambda: _run(given, work), lambda: _run_async(given, work))


def _run(on: Any, work: Callable[[Any], T]) -> T:
    on = on() if isinstance(on, scoped_session) else on
    if isinstance(on, Engine):
        with on.connect() as connection:
            return work(connection)
    if isinstance(on, Connection | Session):
        return work(on)
    name = _name_of(on)
    if name.startswith("sqlalchemy.ext.asyncio"):
        raise UnsupportedConnection(
            f"{name} is async: import claim_rows and Claims from dibs.tables, not from dibs.tables.sync"
        )
    raise UnsupportedConnection(
        f"can't claim through {name}: pass SQLAlchemy's Engine, Connection or Session"
    )


async def _run_async(on: Any, work: Callable[[Any], T]) -> T:
    on = on() if isinstance(on, async_scoped_session) else on
    if isinstance(on, AsyncEngine):
        async with on.connect() as connection:
            return await connection.run_sync(work)
    if isinstance(on, AsyncConnection | AsyncSession):
        return await on.run_sync(work)
    name = _name_of(on)
    if name.startswith("sqlalchemy."):
        raise UnsupportedConnection(
            f"{name} is sync: import claim_rows and Claims from dibs.tables.sync, or pass its async twin"
        )
    raise UnsupportedConnection(
        f"can't claim through {name}: pass SQLAlchemy's AsyncEngine, AsyncConnection or AsyncSession"
    )


def _name_of(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"
