"""The URL by which workers reach the database of a Django project, as safely as Django itself."""

import re
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured

# What asyncpg and psycopg both read from a URL.
POSTGRESQL = (
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "passfile", "target_session_attrs",
)  # fmt: skip
MYSQL = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")
VERIFYING = ("VERIFY_CA", "VERIFY_IDENTITY")
PLAIN = ("DISABLED", "PREFERRED")

SECURITY = re.compile(
    r"ssl|tls|gss|krb|scram|oauth|auth|channel_binding|service|require|read_default|passfile"
)
"""The beginnings of options without which a worker would trust more than Django does."""


def url_of(connection: Any) -> str:
    database = connection.settings_dict
    match connection.vendor:
        case "sqlite" if _in_memory(str(database["NAME"])):
            return "sqlite://"
        case "sqlite":
            return f"sqlite:///{quote(str(database['NAME']))}"
        case "postgresql" | "mysql":
            return server_url(connection.vendor, database)
    raise ImproperlyConfigured(
        f"dibs can't keep jobs in {connection.vendor}: name another of DATABASES in DIBS['DATABASE'], "
        "or a store of its own in DIBS['URL']"
    )


def _in_memory(name: str) -> bool:
    return name == ":memory:" or "mode=memory" in name


def server_url(vendor: str, database: dict[str, Any]) -> str:
    """Return the URL of a server's database, with the options that Django's connections have for security."""
    user, password = (quote(str(database.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    login = f"{user}{f':{password}' if password else ''}@" if user else ""
    host, port = str(database.get("HOST") or ""), database.get("PORT")
    options = (_mysql if vendor == "mysql" else _postgresql)(database.get("OPTIONS", {}))
    if host.startswith("/"):
        host, options = "", {**options, "unix_socket" if vendor == "mysql" else "host": host}
    where = f"{host or ('localhost' if vendor == 'mysql' else '')}{f':{port}' if port else ''}"
    return f"{vendor}://{login}{where}/{quote(str(database['NAME']))}" + (
        f"?{urlencode(options)}" if options else ""
    )


def _postgresql(options: dict[str, Any]) -> dict[str, Any]:
    return _taken(options, POSTGRESQL)


def _mysql(options: dict[str, Any]) -> dict[str, Any]:
    """Return the TLS options of mysqlclient and PyMySQL as ours, which verify all or nothing."""
    given, verify = dict(options), False
    if isinstance(given.get("ssl"), dict):
        given |= {"ssl_verify_identity" if name == "check_hostname" else f"ssl_{name}": value
                  for name, value in given.pop("ssl").items()}  # fmt: skip
    if (mode := str(given.get("ssl_mode", "")).upper()) in (*VERIFYING, *PLAIN):
        del given["ssl_mode"]
        verify = mode in VERIFYING
    for name in ("ssl_verify_cert", "ssl_verify_identity"):
        verify |= given.pop(name, False) is True
    if given.get("ssl_disabled"):
        del given["ssl_disabled"]
    taken = _taken(given, MYSQL)
    return taken | ({"ssl": "verify"} if verify and "ssl_ca" not in taken else {})


def _taken(options: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    for name in options:
        if name not in known and SECURITY.match(name):
            raise ImproperlyConfigured(
                f"dibs can't use OPTIONS[{name!r}] of the database, so its workers would be less safe than "
                f"Django: use {', '.join(known)}, or name the store with its own TLS options in DIBS['URL']"
            )
    return {name: value for name, value in options.items() if name in known}
