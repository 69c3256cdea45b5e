"""`app.trains`, `app.slots`, `app.pipelines` and `app.pipeline(…)`, on both faces."""

from collections.abc import Collection
from functools import cached_property
from typing import Any
from uuid import UUID

from dibs.app.callbacks import Fate
from dibs.app.claims import with_docs
from dibs.app.verbs import MOST_FOUND, Core
from dibs.jobs.job import Job, NewJob
from dibs.operations.pipelines import Pipeline, Plan
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


class Planned:
    """What both faces of a new pipeline share: nothing is stored until it is enqueued."""

    def __init__(self, core: Core, plan: Plan) -> None:
        self._core = core
        self._plan = plan

    @property
    def id(self) -> UUID:
        """Its jobs' `pipeline_id`."""
        return self._plan.id

    @property
    def name(self) -> str:
        return self._plan.name

    def add(self, new: NewJob, *, after: Collection[NewJob | UUID | str] = ()) -> NewJob:
        """One more job, which waits until all in `after` have succeeded; answers it, to be waited for."""
        return self._plan.add(new, after)


class NewPipeline(Planned):
    """Jobs on their way to the store, some of which wait for others."""

    @cached_property
    def sync(self) -> "SyncNewPipeline":
        """The same pipeline for code that blocks."""
        return SyncNewPipeline(self._core, self._plan)

    async def enqueue(self, *, within: Any = None) -> list[Job]:
        """Store all of it or nothing, in your transaction if you give one; a second time stores nothing."""
        jobs = await self._core.store.run_async(self._core.enqueue_pipeline(self._plan), within)
        self._core.events.enqueued(jobs)
        return jobs


class SyncNewPipeline(Planned):
    """The blocking face of a new pipeline."""

    def enqueue(self, *, within: Any = None) -> list[Job]:
        jobs = self._core.store.run(self._core.enqueue_pipeline(self._plan), self._core.joined(within))
        self._core.events.enqueued(jobs)
        return jobs


class Pipelines:
    """Pipelines of this app: jobs that belong together."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def get(self, id: UUID | str) -> Pipeline | None:
        """The pipeline with all its jobs: counts by state, progress, tree; None when it has none."""
        return await self._core.store.run_async(self._core.pipeline(id))

    async def cancel(self, id: UUID | str, reason: str | None = None) -> int:
        """End all of its jobs that wait, ask those that run to stop; how many."""
        ended: list[Fate] = []
        number = await self._core.store.run_async(self._core.cancel_pipeline(id, reason, ended))
        await self._core.callbacks.tell_now(self._core.store, ended)
        return number

    async def retry(self, id: UUID | str) -> int:
        """Let all of its failed and cancelled jobs run again, in their order; how many."""
        return await self._core.store.run_async(self._core.retry_pipeline(id))


class SyncPipelines:
    """The blocking face of `app.pipelines`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def get(self, id: UUID | str) -> Pipeline | None:
        return self._core.store.run(self._core.pipeline(id))

    def cancel(self, id: UUID | str, reason: str | None = None) -> int:
        ended: list[Fate] = []
        number = self._core.store.run(self._core.cancel_pipeline(id, reason, ended))
        self._core.callbacks.tell_now_sync(self._core.store, ended)
        return number

    def retry(self, id: UUID | str) -> int:
        return self._core.store.run(self._core.retry_pipeline(id))


with_docs(SyncNewPipeline, NewPipeline)
with_docs(SyncPipelines, Pipelines)
