"""A PostgreSQL database as a store."""

from collections.abc import Callable

from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.errors import store_name
from dibs.engines.postgresql.pools import AsyncPostgres, SyncPostgres
from dibs.engines.postgresql.session import BEGIN, blocker_script, migration_script, schema_version_script
from dibs.engines.sql.migrations import Blocker
from dibs.engines.sql.pools import Conversation, in_transaction
from dibs.engines.sql.schema_check import SchemaProblem, check_postgresql
from dibs.engines.sql.store import DatabaseStore
from dibs.errors import BadRequest
from dibs.settings import Settings


class PostgresStore(DatabaseStore):
    """A PostgreSQL database: asyncpg for the async face, psycopg for the sync one."""

    traits = PostgreSQL.traits

    def __init__(self, settings: Settings) -> None:
        self._engine: PostgreSQL = PostgreSQL(settings.prefix)
        self._name = store_name(settings.url)
        self._sync = SyncPostgres(self._engine, settings.url, settings.pool_size, settings.pooled)
        self._async = AsyncPostgres(self._engine, settings.url, settings.pool_size, settings.pooled)
        # It says nothing but LISTEN, so it needs no session of its own kind.
        self._listener = AsyncPostgres(self._engine, _listen_url(settings), 1, pooled=True)

    async def listen(self, hear: Callable[[str], None]) -> None:
        await self._listener.listen(hear)

    def _version_script(self) -> Conversation[int]:
        return schema_version_script(self._engine)

    def _migration_script(self) -> Conversation[list[int]]:
        return in_transaction(migration_script(self._engine), BEGIN)

    def _blocker_script(self) -> Conversation[Blocker | None]:
        return blocker_script(self._engine)

    def _check_script(self, version: int) -> Conversation[list[SchemaProblem]]:
        return in_transaction(check_postgresql(self._engine.dialect, version), BEGIN, "rollback")


def _listen_url(settings: Settings) -> str:
    """Return the address to LISTEN at, which a pooler in transaction mode can't do."""
    if settings.listen_url is None:
        return settings.url
    if not settings.listen_url.lower().startswith("postgres"):
        raise BadRequest(
            f"listen_url is a {settings.listen_url.partition(':')[0]!r} URL and the store is PostgreSQL: "
            "give the server's own address of the same database"
        )
    return settings.listen_url
