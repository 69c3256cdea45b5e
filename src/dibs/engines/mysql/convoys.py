"""Convoys on MySQL and MariaDB: jobs of a train that run under the lease of their head (ADR 19)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from dibs.clock import to_micros
from dibs.engines.mysql.values import as_json, as_moment, later
from dibs.engines.sql import Plan, Query, SqlEngine
from dibs.scripts import Rows

Values = tuple[Any, ...]  # in the order of contract.CONVOY_COLUMNS


class MysqlConvoys(SqlEngine):
    """What is asked about a convoy, and what settling one does before and after the rest."""

    def _followers(self, job: UUID, token: int, limit: int) -> Plan:
        rows = yield Query("followers", {"job": job.hex, "token": token, "limit": limit})
        return [{**row, "new_token": new} for row, new in zip(rows, _tokens(rows), strict=True)]

    def _start_followers(self, convoy: Sequence[Values], moment: datetime | None) -> Plan:
        """Those still blocked behind a head that is still held run from now on, each by itself."""
        if convoy and moment is not None:
            yield Query("start_followers", {"convoy": as_json([_start(ride, moment) for ride in convoy])})
        return []

    def _date_ends(self, convoy: Sequence[Values], moment: datetime | None) -> Plan:
        """Those that were settled just now ended one after another, not all of them now."""
        ends = [(id.hex, ended) for id, *_, ended in convoy if ended is not None]
        if ends and moment is not None:
            dated = [[id, as_moment(later(moment, -ended))] for id, ended in ends]
            yield Query("date_ends", {"convoy": as_json(dated)})
        return []


def _tokens(rows: Rows) -> list[int]:
    """Greater for those behind; MySQL has no sequence, and counts on from the head or from the time."""
    if rows and not rows[0]["next_token"]:
        first = max(rows[0]["head_token"] + 1, to_micros(rows[0]["now"]))
        return list(range(first, first + len(rows)))
    return sorted(row["next_token"] for row in rows)


def _start(ride: Values, moment: datetime) -> list[Any]:
    id, token, head, head_token, lease, began, _ = ride
    times = [as_moment(later(moment, -began)), as_moment(later(moment, lease))]
    return [id.hex, token, head.hex, head_token, *times]
