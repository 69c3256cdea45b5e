"""The `Dibs` of a Django project: its store, from `DATABASES` and the optional setting `DIBS`.

DIBS = {
    "DATABASE": "default",     # the alias of the database that has the jobs
    "URL": "redis://…",        # or a store of its own; then jobs are enqueued after the commit
    "PREFIX": "dibs",          # and all other options of `Dibs(...)`, in capitals
}
"""

from dataclasses import replace
from inspect import signature
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from dibs.app.dibs import Dibs
from dibs.engines.connect import connect
from dibs.integrations.django.apps import in_transaction
from dibs.jobs.ids import parse_id
from dibs.jobs.job import Job, NewJob
from dibs.operations.queries import get as read

KNOWN = ("DATABASE", "URL", *(name.upper() for name in signature(Dibs).parameters if name != "url"))
TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")


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
    return _url_of(connections[alias()])


def _setting() -> dict[str, Any]:
    return getattr(settings, "DIBS", {})


def _url_of(connection: Any) -> str:
    database = connection.settings_dict
    match connection.vendor:
        case "sqlite" if _in_memory(str(database["NAME"])):
            return "sqlite://"
        case "sqlite":
            return f"sqlite:///{quote(str(database['NAME']))}"
        case "postgresql" | "mysql":
            return _server_url(connection.vendor, database)
    raise ImproperlyConfigured(
        f"dibs can't keep jobs in {connection.vendor}: name another of DATABASES in DIBS['DATABASE'], "
        "or a store of its own in DIBS['URL']"
    )


def _in_memory(name: str) -> bool:
    return name == ":memory:" or "mode=memory" in name


def _server_url(scheme: str, database: dict[str, Any]) -> str:
    user, password = (quote(str(database.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    login = f"{user}{f':{password}' if password else ''}@" if user else ""
    host, port = str(database.get("HOST") or ""), database.get("PORT")
    options = {name: value for name, value in database.get("OPTIONS", {}).items() if name in TLS}
    if host.startswith("/"):
        host, options = "", {**options, "host": host}
    where = f"{host or ('localhost' if scheme == 'mysql' else '')}{f':{port}' if port else ''}"
    return f"{scheme}://{login}{where}/{quote(str(database['NAME']))}" + (
        f"?{urlencode(options)}" if options else ""
    )


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
