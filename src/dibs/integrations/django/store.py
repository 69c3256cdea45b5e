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

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from dibs.app.dibs import Dibs
from dibs.engines.store import connect
from dibs.integrations.django.apps import in_transaction
from dibs.integrations.django.database_url import url_of
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
