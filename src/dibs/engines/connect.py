"""Make the store that a URL names. (A module of its own: it imports all engines.)"""

from dibs.engines.hosts import UNREADABLE, hosts_of
from dibs.engines.memory.store import MemoryStore
from dibs.engines.mysql.store import MysqlStore
from dibs.engines.postgresql.store import PostgresStore
from dibs.engines.redis.store import RedisStore
from dibs.engines.sqlite.store import SqliteStore
from dibs.engines.store import Store
from dibs.errors import BadRequest, UnknownEngine
from dibs.settings import Settings


def connect(settings: Settings) -> Store:
    """Return the store that a URL names; nothing is opened yet."""
    name, is_url, _ = settings.url.partition("://")
    scheme = name.split("+", 1)[0].lower() if is_url else ""
    if len(hosts_of(settings.url)) > 1 and not (scheme.startswith("postgres") or "+sentinel" in name):
        raise BadRequest(f"{UNREADABLE}; several hosts only after postgresql:// and redis+sentinel://")
    if (
        scheme not in ("sqlite", "memory")
        and "@" in settings.url.partition("?")[0].partition("://")[2].partition("/")[2]
    ):
        raise BadRequest("the URL of the store has an @ after its first /: write a / in a password as %2F")
    match scheme:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(settings)
        case "postgresql" | "postgres":
            return PostgresStore(settings)
        case "mysql" | "mariadb":
            return MysqlStore(settings)
        case "redis" | "rediss" | "valkey" | "valkeys":
            return RedisStore(settings)
        case _:
            is_one = scheme.isalnum()  # else it may be a password that we quote
            named = f"{scheme!r} URLs" if is_one else "a URL that does not begin with NAME://"
            raise UnknownEngine(
                f"no store for {named}; dibs knows memory://, sqlite:///file.db, "
                "postgresql://host/database, mysql://host/database, mariadb://host/database and redis://host"
            )
