"""The SQL engines with pipelines around them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec

from dibs.engines.mysql.engine import MySQL
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.sql.engine import Plan, Query
from dibs.engines.sql.pipelines import SqlSteps
from dibs.engines.sqlite.engine import SQLite
from dibs.operations.scripts import Rows


class SteppedSQLite(SqlSteps, SQLite):
    def ids(self, ids: Iterable[UUID]) -> Any:
        return msgspec.json.encode(list(ids)).decode()

    def superseded(self, query: Query, rows: Rows) -> Sequence[UUID]:
        return ()  # nobody comes while we write


class SteppedPostgreSQL(SqlSteps, PostgreSQL):
    def ids(self, ids: Iterable[UUID]) -> Any:
        return list(ids)

    def superseded(self, query: Query, rows: Rows) -> Sequence[UUID]:
        return [row["id"] for row in rows] if query.name == "supersede" else ()

    def _lock_soon(self, ids: Sequence[UUID]) -> Plan:
        return (yield Query("wait_briefly", {}))  # for the locks that follow


class SteppedMySQL(SqlSteps, MySQL):
    finds_by_pipeline = False

    def ids(self, ids: Iterable[UUID]) -> Any:
        return msgspec.json.encode([id.hex for id in ids]).decode()

    def superseded(self, query: Query, rows: Rows) -> Sequence[UUID]:
        """There is no `returning`: those who are ended, first of all their ids, are in what is asked."""
        if query.name != "end":
            return ()
        params: Any = query.params
        return [UUID(id) for id, *_ in msgspec.json.decode(params["ends"])]

    def _lock_soon(self, ids: Sequence[UUID]) -> Plan:
        return (yield from self._ask("pipelines_soon", ids))

    def _following(self, id: UUID) -> Plan:
        """Step by step: a recursive part can't lock, and so shows a caller's old snapshot."""
        following: set[UUID] = set()
        ids = {id}
        while ids := {row["id"] for row in (yield from self._ask("children_of", sorted(ids)))} - following:
            following |= ids
        return (yield from self._ask("waiting_steps", sorted(following))) if following else []

    def _insert_pipeline(self, about: Mapping[str, Any]) -> Plan:
        """There is no `returning`: ours is told by its number.

        To look first, under a lock, would at REPEATABLE READ lock the gap that others store theirs in.
        """
        call = uuid4().int >> 65
        yield Query("insert_pipeline", self.adapt({**about, "changes": call}))
        rows = yield from self._ask("pipeline_changes", [about["id"]])
        return [about] if rows[0]["changes"] == call else []
