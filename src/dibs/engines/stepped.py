"""The SQL engines with pipelines around them."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from dibs.engines.mysql.engine import MySQL
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.sql import Plan, Query
from dibs.engines.sql_steps import SqlSteps
from dibs.engines.sqlite.engine import SQLite


class SteppedSQLite(SqlSteps, SQLite):
    def ids(self, ids: Iterable[UUID]) -> Any:
        return msgspec.json.encode(list(ids)).decode()


class SteppedPostgreSQL(SqlSteps, PostgreSQL):
    def ids(self, ids: Iterable[UUID]) -> Any:
        return list(ids)


class SteppedMySQL(SqlSteps, MySQL):
    finds_by_pipeline = False

    def ids(self, ids: Iterable[UUID]) -> Any:
        return msgspec.json.encode([id.hex for id in ids]).decode()

    def _insert_pipeline(self, about: Mapping[str, Any]) -> Plan:
        """There is no `returning`: look first, under a lock that also keeps others out of the gap."""
        if (yield from self._ask("lock_pipelines", [about["id"]])):
            return []
        yield Query("insert_pipeline", self.adapt(about))
        return [about]
