"""Find and claim rows of your own tables, awaited: what `dibs.tables` offers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import Row, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

from dibs.clock import monotonic
from dibs.doctor import Finding
from dibs.errors import UnsupportedConnection
from dibs.jobs.ids import worker_name
from dibs.settings import Duration
from dibs.tables.errors import Tries, breath
from dibs.tables.leases import HeldWrite, Leases, RowsLost
from dibs.tables.plans import judged
from dibs.tables.session import check_engine
from dibs.tables.strategies import Claiming, StrategyName

AsyncGiven = AsyncEngine | AsyncConnection | AsyncSession | async_scoped_session[Any]
T = TypeVar("T")
M = TypeVar("M")


@overload
async def claim_rows(
    on: AsyncGiven,
    model: type[M],
    where: Any,
    set: Mapping[Any, Any],
    limit: int,
    order_by: Any = None,
    strategy: StrategyName | None = None,
) -> list[M]: ...
@overload
async def claim_rows(
    on: AsyncGiven,
    model: Table,
    where: Any,
    set: Mapping[Any, Any],
    limit: int,
    order_by: Any = None,
    strategy: StrategyName | None = None,
) -> list[Row[Any]]: ...
async def claim_rows(
    on: AsyncGiven,
    model: Any,
    where: Any,
    set: Mapping[Any, Any],
    limit: int,
    order_by: Any = None,
    strategy: StrategyName | None = None,
) -> list[Any]:
    """Up to `limit` rows that match `where`, with `set` applied, in the order in which they were picked.

    No two callers get the same row, as long as `set` makes a row no longer match. The claim is durable when
    this returns; in an open transaction it is refused with `ClaimInTransaction`.
    """
    claiming = Claiming.asked(model, where, set, limit, order_by, strategy)
    rows: list[Any] | None = await _persist(on, claiming.on)
    while rows is None:
        await asyncio.sleep(breath())
        rows = await _persist(on, claiming.on)
    return rows


class Claims(Generic[M]):
    """Leases on the rows of one table: claimed, renewed, given back and finished, each by its token."""

    def __init__(
        self,
        model: type[M] | Table,
        engine: AsyncEngine,
        *,
        ready: Any,
        lease: Duration = 60,
        order_by: Any = None,
    ) -> None:
        check_engine(engine, AsyncEngine)
        self._engine = engine
        self.leases = Leases(model, ready, lease, order_by)

    async def claim(
        self,
        limit: int = 1,
        *,
        worker: str | None = None,
        lease: Duration | None = None,
        set: Mapping[Any, Any] | None = None,
        strategy: StrategyName | None = None,
    ) -> list[M]:
        """Up to `limit` rows that are ready and that nobody holds, detached and loaded."""
        leases = self.leases
        values = leases.taking(worker or worker_name(), lease, set)
        rows = await claim_rows(
            self._engine, leases.model, leases.where(), values, limit, leases.order, strategy
        )
        return leases.claimed(rows)

    async def renew(self, rows: Any, *, lease: Duration | None = None) -> None:
        """Hold one row or several for another lease from now; `RowsLost` names those that were lost."""
        await self._write(rows, self.leases.renewing(lease), None)

    async def release(self, rows: Any, *, set: Mapping[Any, Any] | None = None, within: Any = None) -> None:
        """Give one row or several back, with their attempt; `RowsLost` names those that were lost."""
        await self._write(rows, self.leases.releasing(set), within)

    async def done(self, rows: Any, *, set: Mapping[Any, Any], within: Any = None) -> None:
        """Finish one row or several: no longer locked, and `set` applied; `within` your transaction.

        `RowsLost` names those that were lost; the others are finished.
        """
        await self._write(rows, self.leases.finishing(set), within)

    async def stream(
        self,
        *,
        batch: int = 10,
        poll: Duration = 1,
        until_idle: bool = False,
        worker: str | None = None,
    ) -> AsyncIterator[M]:
        """Rows as they become ready, one after the other, each with most of its lease before it.

        Those claimed with it that are still waiting are renewed in between, and given back when the loop is
        left. `until_idle` ends it when nothing is ready.
        """
        pause = self.leases.pause(poll)
        while True:
            asked_at = monotonic()
            waiting = deque(await self.claim(batch, worker=worker))
            if not waiting and until_idle:
                return
            if not waiting:
                await asyncio.sleep(pause)
            try:
                while waiting:
                    if self.leases.is_stale(asked_at):
                        asked_at = monotonic()
                        await self._renew_waiting(waiting)
                    else:
                        yield waiting.popleft()
            finally:
                await self._release_waiting(waiting)

    async def check(self) -> list[Finding]:
        """Ask the database how it would claim, and say where it would read or lock more than it should."""
        async with self._engine.connect() as connection:
            return await connection.run_sync(judged, self.leases)

    async def _renew_waiting(self, waiting: deque[Any]) -> None:
        try:
            await self.renew(list(waiting))
        except RowsLost as lost:
            for row in lost.rows:
                waiting.remove(row)

    async def _release_waiting(self, waiting: deque[Any]) -> None:
        try:
            await self.release(list(waiting))
        except RowsLost:
            waiting.clear()  # somebody else has them

    async def _write(self, rows: Any, values: dict[Any, Any], within: Any) -> None:
        write = HeldWrite(self.leases, self.leases.held(rows), values)
        if within is not None:
            await _run(within, write.within)
        elif write.held:
            await _persist(self._engine, write.on)


async def _persist(on: AsyncGiven, work: Callable[[Any], T]) -> T:
    """Run it again, whole, when the database undid it for the sake of somebody else."""
    tries = Tries()
    while True:
        try:
            return await _run(on, work)
        except DBAPIError as error:
            pause = tries.pause(error)
        await asyncio.sleep(pause)


async def _run(on: AsyncGiven, work: Callable[[Any], T]) -> T:
    """Do blocking work on what is beneath an awaited engine, connection or session, awaited."""
    on = on() if isinstance(on, async_scoped_session) else on
    if isinstance(on, AsyncEngine):
        async with on.connect() as connection:
            return await connection.run_sync(work)
    if isinstance(on, AsyncConnection | AsyncSession):
        return await on.run_sync(work)
    raise UnsupportedConnection(_refusal(on))


def _refusal(given: object) -> str:
    name = f"{type(given).__module__}.{type(given).__qualname__}"
    if name.startswith("sqlalchemy."):
        return f"{name} blocks: import claim_rows and Claims from dibs.tables.sync, or pass its awaited twin"
    return f"can't claim through {name}: pass SQLAlchemy's AsyncEngine, AsyncConnection or AsyncSession"
