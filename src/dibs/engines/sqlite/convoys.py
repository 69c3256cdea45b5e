"""Convoys on SQLite: jobs of a train that run under the lease of their head (ADR 19)."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from dibs.clock import to_micros
from dibs.contract import CONVOY_COLUMNS
from dibs.engines.sql import Plan, Query, SqlEngine


class SqliteConvoys(SqlEngine):
    """What is asked about a convoy, and what settling one does before and after the rest."""

    def _followers(self, job: UUID, token: int, limit: int) -> Plan:
        rows = yield Query("followers", {"job": str(job), "token": token, "limit": limit})
        if not rows:
            return rows
        [counter] = yield Query("tokens", {"taken": len(rows)})
        first = counter["value"] - len(rows) + 1
        return [{**row, "new_token": first + nth} for nth, row in enumerate(rows)]

    def _start_followers(self, convoy: Sequence[tuple[Any, ...]]) -> Any:
        """Those still blocked behind a head that is still held run from now on; answers when that is."""
        if not convoy:
            return 0
        [clock] = yield Query("now", {})
        moment = to_micros(clock["now"])
        for values in convoy:
            ride = dict(zip(CONVOY_COLUMNS, values, strict=True))
            times = {"claimed_at": moment - ride["began"], "lease_until": moment + ride["lease"]}
            yield Query("start_follower", self.adapt({**ride, **times}))
        return moment

    def _date_ends(self, convoy: Sequence[tuple[Any, ...]], moment: int) -> Plan:
        """Those that were settled just now ended one after another, not all of them now."""
        for id, *_, ended in convoy:
            if ended is not None:
                yield Query("date_end", {"id": str(id), "finished_at": moment - ended})
        return []
