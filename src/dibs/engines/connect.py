"""Make the store that a URL names. (A module of its own: it imports all engines.)"""

from urllib.parse import urlsplit

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
    try:
        _ = urlsplit(settings.url).port
    except ValueError:  # its message quotes the URL: what it takes for a port may be a password
        raise BadRequest(
            "the URL of the store can't be read: check its host and its port, a number; in a password write "
            "/ : # ? @ as %2F %3A %23 %3F %40"
        ) from None
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
