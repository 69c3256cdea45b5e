"""`app.trains` and `app.slots`, on both faces: thin, like the app itself."""

from typing import Any

from dibs.claims import with_docs
from dibs.core import MOST_FOUND, Core
from dibs.jobs.job import Job
from dibs.operations.queries import Train


class Trains:
    """Trains of this app: jobs that run strictly one after another."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def get(self, name: str) -> Train | None:
        """The train of this name; None when nobody is on it."""
        found = await self._core.store.run_async(self._core.trains(names=[name]))
        return found[0] if found else None

    async def held(self) -> list[Train]:
        """Trains that wait for a person, by name: retry the head, or release the train."""
        return await self._core.store.run_async(self._core.held_trains())

    async def list(
        self, *, held: bool = False, limit: int = MOST_FOUND, after: str | None = None
    ) -> list[Train]:
        """Trains with jobs on them, by name; `after` the last name of a page gives the next one."""
        return await self._core.store.run_async(self._core.trains(held=held, limit=limit, after=after))

    async def release(self, name: str) -> bool:
        """Let the next job of a held train go; whether it was held. `NotFound` when nobody is on it."""
        return await self._core.store.run_async(self._core.release_train(name))


class SyncTrains:
    """The blocking face of `app.trains`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def get(self, name: str) -> Train | None:
        found = self._core.store.run(self._core.trains(names=[name]))
        return found[0] if found else None

    def held(self) -> list[Train]:
        return self._core.store.run(self._core.held_trains())

    def list(self, *, held: bool = False, limit: int = MOST_FOUND, after: str | None = None) -> list[Train]:
        return self._core.store.run(self._core.trains(held=held, limit=limit, after=after))

    def release(self, name: str) -> bool:
        return self._core.store.run(self._core.release_train(name))


class Slots:
    """Slots of this app: keys that jobs share, so that not all of them run at once."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def current(self, key: str | tuple[Any, ...]) -> Job | None:
        """Of the jobs that share this key, the one that started last."""
        return await self._core.store.run_async(self._core.current_of_slot(key))


class SyncSlots:
    """The blocking face of `app.slots`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def current(self, key: str | tuple[Any, ...]) -> Job | None:
        return self._core.store.run(self._core.current_of_slot(key))


with_docs(SyncTrains, Trains)
with_docs(SyncSlots, Slots)
