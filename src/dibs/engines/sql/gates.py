"""Mend gates on SQL: gates that have a row, and then gates that lost theirs to an operator (ADR 12)."""

from collections.abc import Sequence

from dibs.engines.sql.engine import Plan, Query, SqlEngine
from dibs.jobs.gates import Key

AT_JOBS = "job"  # the sort of what comes after the gates: names that jobs have


class MendingEngine(SqlEngine):
    """An engine that has rows of gates, some of which may be missing."""

    def _mend(self, after_sort: str | None, after_name: str | None, limit: int) -> Plan:
        if after_sort != AT_JOBS:
            found = yield from self._mend_gates(after_sort, after_name, limit)
            if found:
                return found
            after_name = None
        return (yield from self._mend_named(after_name or "s", limit))

    def _mend_named(self, after: str, limit: int) -> Plan:
        """Visit a page of the slots, then of the trains that jobs name; `s` or `t` stands before the name."""
        sort = "train" if after[0] == "t" else "slot"
        found = yield Query("gates_named", {"sort": sort, "after": after[1:], "limit": limit})
        if not found and sort == "slot":
            return (yield from self._mend_named("t", limit))
        lost = [(sort, row["name"]) for row in found if row["is_lost"]]
        if lost:
            yield from self._make_gates(lost)
        return [{"sort": AT_JOBS, "name": sort[0] + row["name"]} for row in found]

    def _mend_gates(self, after_sort: str | None, after_name: str | None, limit: int) -> Plan:
        raise NotImplementedError

    def _make_gates(self, keys: Sequence[Key]) -> Plan:
        """Make these gates anew, and open them."""
        raise NotImplementedError
