"""Put an app on another store for a while; its registered jobs stay."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from dibs.app.dibs import Dibs
from dibs.app.state import AppState
from dibs.app.sync import SyncDibs
from dibs.engines.connect import connect
from dibs.engines.store import Store
from dibs.errors import BadRequest

AnyApp = TypeVar("AnyApp", bound=Dibs | SyncDibs)


@contextmanager
def fresh_store(app: AnyApp, url: str = "memory://") -> Iterator[AnyApp]:
    """Inside the block this app works on an empty store of its own; afterwards on its usual one again.

    `memory://` needs nothing. Give `sqlite:///…` with a new file where the code under test passes `within=`.
    """
    store = connect(replace(app._core.settings, url=url))
    if not store.traits.migrates_itself:
        raise BadRequest(
            f"{url!r} is not for fresh_store: use memory:// or the file of a SQLite. "
            "To test on a server, set $DIBS_URL to a database that the tests have for themselves"
        )
    try:
        with placed(app._core, store):
            yield app
    finally:
        store.close()


@contextmanager
def placed(core: AppState, store: Store) -> Iterator[None]:
    """All faces of this app talk to that store; at the end everything is as it was."""
    before = dict(vars(core))
    core.use(store)
    try:
        yield
    finally:
        core.keeper.close()
        vars(core).update(before)
