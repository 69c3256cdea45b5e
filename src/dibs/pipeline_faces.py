"""`app.pipeline(…)` and `app.pipelines`, on both faces: thin, like the app itself."""

from collections.abc import Collection
from functools import cached_property
from typing import Any
from uuid import UUID

from dibs.callbacks import Fate
from dibs.claims import with_docs
from dibs.core import Core
from dibs.jobs.job import Job, NewJob
from dibs.operations.pipelines import Pipeline, Plan


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
