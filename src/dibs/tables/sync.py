"""Find and claim rows of your own tables, blocking. The same, awaited, is `dibs.tables`."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import Engine, Row, Table
from sqlalchemy.exc import DBAPIError

from dibs.clock import monotonic
from dibs.doctor import Finding
from dibs.jobs.ids import worker_name
from dibs.settings import Duration
from dibs.tables.clock import Moment, store_time
from dibs.tables.errors import Tries, breath
from dibs.tables.leases import Claimable, HeldWrite, Leases, RowsLost
from dibs.tables.plans import judged
from dibs.tables.session import Given, check_engine
from dibs.tables.strategies import Claiming, StrategyName

__all__ = ["Claimable", "Claims", "Moment", "RowsLost", "claim_rows", "store_time"]

T = TypeVar("T")
M = TypeVar("M")


@overload
def claim_rows(
    on: Given,
    model: type[M],
    where: Any,
    set: Mapping[Any, Any],
    limit: int,
    order_by: Any = None,
    strategy: StrategyName | None = None,
) -> list[M]: ...
@overload
def claim_rows(
    on: Given,
    model: Table,
    where: Any,
    set: Mapping[Any, Any],
    limit: int,
    order_by: Any = None,
    strategy: StrategyName | None = None,
) -> list[Row[Any]]: ...
def claim_rows(
    on: Given,
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
    rows: list[Any] | None = _persist(lambda: claiming.on(on))
    while rows is None:
        time.sleep(breath())
        rows = _persist(lambda: claiming.on(on))
    return rows


class Claims(Generic[M]):
    """Leases on the rows of one table: claimed, renewed, given back and finished, each by its token."""

    def __init__(
        self,
        model: type[M] | Table,
        engine: Engine,
        *,
        ready: Any,
        lease: Duration = 60,
        order_by: Any = None,
    ) -> None:
        check_engine(engine, Engine)
        self._engine = engine
        self.leases = Leases(model, ready, lease, order_by)

    def claim(
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
        return leases.claimed(
            claim_rows(self._engine, leases.model, leases.where(), values, limit, leases.order, strategy)
        )

    def renew(self, rows: Any, *, lease: Duration | None = None) -> None:
        """Hold one row or several for another lease from now; `RowsLost` names those that were lost."""
        self._write(rows, self.leases.renewing(lease), None)

    def release(self, rows: Any, *, set: Mapping[Any, Any] | None = None, within: Any = None) -> None:
        """Give one row or several back, with their attempt; `RowsLost` names those that were lost."""
        self._write(rows, self.leases.releasing(set), within)

    def done(self, rows: Any, *, set: Mapping[Any, Any], within: Any = None) -> None:
        """Finish one row or several: no longer locked, and `set` applied; `within` your transaction.

        `RowsLost` names those that were lost; the others are finished.
        """
        self._write(rows, self.leases.finishing(set), within)

    def stream(
        self,
        *,
        batch: int = 10,
        poll: Duration = 1,
        until_idle: bool = False,
        worker: str | None = None,
    ) -> Iterator[M]:
        """Rows as they become ready, one after the other, each with most of its lease before it.

        Those claimed with it that are still waiting are renewed in between, and given back when the loop is
        left. `until_idle` ends it when nothing is ready.
        """
        pause = self.leases.pause(poll)
        while True:
            asked_at = monotonic()
            waiting = deque(self.claim(batch, worker=worker))
            if not waiting and until_idle:
                return
            if not waiting:
                time.sleep(pause)
            try:
                while waiting:
                    if self.leases.is_stale(asked_at):
                        asked_at = monotonic()
                        self._renew_waiting(waiting)
                    else:
                        yield waiting.popleft()
            finally:
                self._release_waiting(waiting)

    def check(self) -> list[Finding]:
        """Ask the database how it would claim, and say where it would read or lock more than it should."""
        with self._engine.connect() as connection:
            return judged(connection, self.leases)

    def _renew_waiting(self, waiting: deque[Any]) -> None:
        try:
            self.renew(list(waiting))
        except RowsLost as lost:
            for row in lost.rows:
                waiting.remove(row)

    def _release_waiting(self, waiting: deque[Any]) -> None:
        try:
            self.release(list(waiting))
        except RowsLost:
            waiting.clear()  # somebody else has them

    def _write(self, rows: Any, values: dict[Any, Any], within: Any) -> None:
        write = HeldWrite(self.leases, self.leases.held(rows), values)
        if within is not None:
            write.within(within)
        elif write.held:
            _persist(lambda: write.on(self._engine))


def _persist(work: Callable[[], T]) -> T:
    """Run it again, whole, when the database undid it for the sake of somebody else."""
    tries = Tries()
    while True:
        try:
            return work()
        except DBAPIError as error:
            pause = tries.pause(error)
        time.sleep(pause)
