"""A PostgreSQL database as a store."""

from collections.abc import Callable

from dibs.engines.postgresql.errors import store_name
from dibs.engines.postgresql.pools import AsyncPostgres, SyncPostgres
from dibs.engines.sql.stepped import SteppedPostgreSQL
from dibs.engines.sql.store import DatabaseStore
from dibs.errors import BadRequest
from dibs.settings import Settings


class PostgresStore(DatabaseStore):
    """A PostgreSQL database: asyncpg for awaited calls, psycopg for blocking ones."""

    traits = SteppedPostgreSQL.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = engine = SteppedPostgreSQL(settings.prefix)
        self._name = store_name(settings.url)
        self._sync = SyncPostgres(engine, settings.url, settings.pool_size, settings.pooled)
        self._async = AsyncPostgres(engine, settings.url, settings.pool_size, settings.pooled)
        # Says nothing but LISTEN, so it needs no session of a certain kind.
        self._ears = AsyncPostgres(engine, _listen_url(settings), 1, pooled=True)

    async def listen(self, hear: Callable[[str], None]) -> None:
        await self._ears.listen(hear)


def _listen_url(settings: Settings) -> str:
    """Where to LISTEN, which a pooler in transaction mode can't do."""
    if settings.listen_url is None:
        return settings.url
    if not settings.listen_url.lower().startswith("postgres"):
        raise BadRequest(
            f"listen_url is a {settings.listen_url.partition(':')[0]!r} URL and the store is PostgreSQL: "
            "give the server's own address of the same database"
        )
    return settings.listen_url
