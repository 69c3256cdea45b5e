"""The `Dibs` of a Django project: its store, from `DATABASES` and the optional setting `DIBS`.

DIBS = {
    "DATABASE": "default",     # the alias of the database that has the jobs
    "URL": "redis://…",        # or a store of its own; then jobs are enqueued after the commit
    "PREFIX": "dibs",          # and all other options of `Dibs(...)`, in capitals
}
"""

import re
from dataclasses import replace
from inspect import signature
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from dibs.app.dibs import Dibs
from dibs.engines.store import connect
from dibs.integrations.django.apps import in_transaction
from dibs.jobs.ids import parse_id
from dibs.jobs.job import Job, NewJob
from dibs.operations.queries import get as read

KNOWN = ("DATABASE", "URL", *(name.upper() for name in signature(Dibs).parameters if name != "url"))


def alias() -> str:
    """Return which of `DATABASES` has the jobs, or the transactions after which they are enqueued."""
    name: str = _setting().get("DATABASE", "default")
    return name


def in_database() -> bool:
    """Return whether the jobs are in Django's database, and so in its transactions."""
    return "URL" not in _setting()


def url() -> str:
    if not in_database():
        own: str = _setting()["URL"]
        return own
    return url_of(connections[alias()])


def _setting() -> dict[str, Any]:
    return getattr(settings, "DIBS", {})


# -- the URL by which workers reach the database, as safely as Django itself ----------------------

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
        case "sqlite" if database["NAME"] == ":memory:" or "mode=memory" in str(database["NAME"]):
            return "sqlite://"
        case "sqlite":
            return f"sqlite:///{quote(str(database['NAME']))}"
        case "postgresql" | "mysql":
            return server_url(connection.vendor, database)
    raise ImproperlyConfigured(
        f"dibs can't keep jobs in {connection.vendor}: name another of DATABASES in DIBS['DATABASE'], "
        "or a store of its own in DIBS['URL']"
    )


def server_url(vendor: str, database: dict[str, Any]) -> str:
    """Return the URL of a server's database, with the options that Django's connections have for security."""
    user, password = (quote(str(database.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    login = f"{user}{f':{password}' if password else ''}@" if user else ""
    host, port = str(database.get("HOST") or ""), database.get("PORT")
    given = database.get("OPTIONS", {})
    options = _mysql(given) if vendor == "mysql" else _taken(given, POSTGRESQL)
    if host.startswith("/"):
        host, options = "", {**options, "unix_socket" if vendor == "mysql" else "host": host}
    where = f"{host or ('localhost' if vendor == 'mysql' else '')}{f':{port}' if port else ''}"
    return f"{vendor}://{login}{where}/{quote(str(database['NAME']))}" + (
        f"?{urlencode(options)}" if options else ""
    )


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


# -- the app --------------------------------------------------------------------------------------


def _make() -> Dibs:
    given = _setting()
    if unknown := [name for name in given if name not in KNOWN]:
        raise ImproperlyConfigured(f"DIBS[{unknown[0]!r}] is unknown; there are {', '.join(KNOWN)}")
    options = {name.lower(): value for name, value in given.items() if name not in ("DATABASE", "URL")}
    made = Dibs(url(), **options)
    made._core.open_transaction = within
    return made


def follow() -> None:
    """Use the database that `DATABASES` names now."""
    core, now = app._core, url()
    if core.settings.url != now:
        app.sync.close()
        core.settings = replace(core.settings, url=now)
        core.use(connect(core.settings))


def within() -> Any:
    """Return Django's connection if it has an open transaction that jobs can be part of; else None."""
    connection = connections[alias()]
    return connection if in_database() and in_transaction(connection) else None


app = _make()


def enqueue(new: NewJob) -> Job | None:
    """Enqueue in the open transaction, if there is one; return None if that happens after its commit."""
    if in_database() or not connections[alias()].in_atomic_block:
        [job] = app.sync.enqueue(new)
        return job
    transaction.on_commit(lambda: app.sync.enqueue(new), using=alias())
    return None


def get(id: str) -> Job | None:
    """Return the job as the open transaction sees it, if one is open."""
    parsed = parse_id(id)
    return app._core.store.run(lambda _: read(parsed), within())
