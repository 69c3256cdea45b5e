"""`Dibs`, and the same things, blocking, on `app.sync`: two thin faces over one core."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload
from uuid import UUID

from dibs.claims import Claim, with_docs
from dibs.context import Context
from dibs.contract import Traits
from dibs.core import Core
from dibs.errors import BadRequest
from dibs.jobs import Job, NewJob
from dibs.operations import Queue
from dibs.running import handler_for, run_claimed
from dibs.settings import Duration, Keep, read_settings
from dibs.states import Retry
from dibs.sync import SyncDibs
from dibs.tasks import Options, Task, with_options
from dibs.upkeep import Swept, WorkerInfo
from dibs.waiting import Looks, seconds
from dibs.why import Why

P = ParamSpec("P")
R = TypeVar("R")


class Dibs:
    """One store of work, shared by everybody who names the same URL."""

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str | None = None,
        pool_size: int | None = None,
        poll: Duration | None = None,
        stale_after: Duration | None = None,
        keep: Keep | None = None,
        keep_for: Duration | None = None,
        max_payload: int | None = None,
    ) -> None:
        self._core = Core(
            read_settings(
                {
                    "url": url,
                    "prefix": prefix,
                    "pool_size": pool_size,
                    "keep": keep,
                    "poll": seconds(poll, "poll"),
                    "stale_after": seconds(stale_after, "stale_after"),
                    "keep_for": keep_for,
                    "max_payload": max_payload,
                }
            )
        )

    @cached_property
    def sync(self) -> "SyncDibs":
        """The same app for code that blocks."""
        return SyncDibs(self._core)

    @property
    def traits(self) -> Traits:
        """What this app's store can promise."""
        return self._core.store.traits

    # -- jobs as functions ----------------------------------------------------------------------

    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def job(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        lease: Duration | None = None,
        train: str | None = None,
        slot: str | tuple[Any, ...] | None = None,
        slot_policy: str | None = None,
        unique: str | None = None,
        on_cancelled: str | None = None,
        on_failed: str | None = None,
        isolation: str | None = None,
    ) -> "JobDecorator": ...

    def job(self, function: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Register a function as a kind of job. Calling it still just runs it."""
        for gate in ("train", "slot", "slot_policy"):
            if options.pop(gate, None) is not None:
                raise BadRequest("trains and slots are not part of this version of dibs yet")
        decorator = JobDecorator(self, name, with_options(Options(), **options))
        return decorator if function is None else decorator(function)

    # -- life -----------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect and check the schema now rather than at the first call."""
        await self._core.store.open_async()
        return self

    async def close(self) -> None:
        """Give the connections back; the app opens again at the next call."""
        await asyncio.to_thread(self._core.keeper.close)
        await self._core.store.close_async()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def migrate(self) -> list[int]:
        """Bring the store's tables up to date; answers the versions that were applied."""
        return await self._core.store.migrate_async()

    async def schema_version(self) -> int:
        """The version of the store's tables; 0 when there are none."""
        return await self._core.store.schema_version_async()

    # -- enqueue and claim ----------------------------------------------------------------------

    async def enqueue(self, *new_jobs: NewJob, within: Any = None) -> list[Job]:
        """Store all of these jobs or none, in your transaction if you give one."""
        jobs = await self._core.store.run_async(self._core.enqueue(new_jobs), within)
        self._core.events.enqueued(jobs)
        return jobs

    async def claim(
        self,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        limit: int = 1,
        worker: str | None = None,
        lease: Duration | None = None,
    ) -> list[Claim]:
        """Claim up to `limit` ready jobs; nobody else gets them while their leases are kept."""
        operation = self._core.claim(queues, kinds, limit, worker, lease)
        return [Claim(held) for held in await self._core.store.run_async(operation)]

    async def claim_job(
        self, id: UUID | str, *, worker: str | None = None, lease: Duration | None = None
    ) -> Claim | None:
        """Claim exactly this job, or nobody: None when it is not ready for the taking."""
        held = await self._core.store.run_async(self._core.claim_job(id, worker, lease))
        return Claim(held[0]) if held else None

    async def run_job(self, id: UUID | str) -> Job | None:
        """Claim this job, run its handler here, settle it; None when it is not for the taking."""
        job = await self.get(id)
        if job is None:
            return None
        task = handler_for(self._core.registry, job)
        claim = await self.claim_job(id)
        if claim is None:
            return None
        await run_claimed(claim, task)
        return await self.get(id)

    # -- look -----------------------------------------------------------------------------------

    async def get(self, id: UUID | str) -> Job | None:
        """The job as it is now, live or finished."""
        return await self._core.store.run_async(self._core.get(id))

    async def find(
        self,
        *,
        state: str | Sequence[str] | None = None,
        queue: str | None = None,
        kind: str | None = None,
        train: str | None = None,
        slot: str | None = None,
        pipeline_id: UUID | str | None = None,
        tags: Sequence[str] | str | None = None,
        limit: int = 50,
        after: UUID | str | None = None,
    ) -> list[Job]:
        """Jobs that match, newest first; `after` the last id of a page gives the next one."""
        filter = {"state": state, "queue": queue, "kind": kind, "train": train, "slot": slot}
        operation = self._core.find(limit, after, **filter, pipeline_id=pipeline_id, tags=tags)
        return await self._core.store.run_async(operation)

    async def counts(self, queue: str | None = None) -> dict[str, int]:
        """How many jobs are in each state."""
        return await self._core.store.run_async(self._core.counts(queue))

    async def queues(self) -> list[Queue]:
        """Queues with live jobs or a setting, by name."""
        return await self._core.store.run_async(self._core.queues())

    async def workers(self) -> list[WorkerInfo]:
        """Workers that were heard of lately, by name."""
        return await self._core.store.run_async(self._core.workers())

    async def why(self, id: UUID | str) -> Why:
        """Why this job is not running: a sentence for people, `.code` for programs."""
        return await self._core.store.run_async(self._core.why(id))

    async def wait(self, id: UUID | str, *, timeout: Duration | None = None) -> Job:
        """Wait until the job has finished; `TimeoutError` when that takes too long."""
        looks = Looks(id, seconds(timeout, "timeout"))
        while not looks.over(job := await self.get(id)):
            await asyncio.sleep(looks.pause())
        return job  # type: ignore[return-value]

    # -- act ------------------------------------------------------------------------------------

    async def cancel(self, id: UUID | str, reason: str | None = None) -> Job:
        """End a waiting job, ask a running one to stop."""
        return await self._core.store.run_async(self._core.cancel(id, reason))

    async def retry(self, id: UUID | str) -> Job:
        """Let a failed or cancelled job run again with all its attempts; a scheduled one now."""
        return await self._core.store.run_async(self._core.retry(id))

    async def delete(self, id: UUID | str) -> bool:
        """Remove a job that is not running; False when there is none."""
        return await self._core.store.run_async(self._core.delete(id))

    async def cancel_many(self, **filter: Any) -> int:
        """Cancel all jobs that match, with the filters of `find`; how many were."""
        return await self._core.store.run_async(self._core.change_many("cancel", **filter))

    async def retry_many(self, **filter: Any) -> int:
        """Retry all jobs that match, with the filters of `find`; how many were."""
        return await self._core.store.run_async(self._core.change_many("retry", **filter))

    async def recover(self, id: UUID | str, *, stale_after: Duration | None = None) -> Job:
        """Take a job from a holder whose lease is long over; `NotStale` until then."""
        return await self._core.store.run_async(self._core.recover(id, stale_after))

    async def pause(self, queue: str) -> None:
        """Let nobody claim from this queue."""
        await self._core.store.run_async(self._core.pause(queue, True))

    async def resume(self, queue: str) -> None:
        """Let a paused queue's jobs be claimed again."""
        await self._core.store.run_async(self._core.pause(queue, False))

    async def limit(self, queue: str, n: int | None) -> None:
        """At most `n` jobs of this queue run at a time; None lifts the limit."""
        await self._core.store.run_async(self._core.limit(queue, n))

    async def sweep(self) -> Swept:
        """One round of upkeep: due jobs become ready, expired leases are taken back."""
        return self._core.swept(await self._core.store.run_async(self._core.sweep()))

    async def prune(self, older_than: Duration) -> int:
        """Remove jobs that finished longer ago than this; how many were removed."""
        return await self._core.store.run_async(self._core.prune(older_than))


with_docs(SyncDibs, Dibs)


class JobDecorator:
    """`@app.job(...)`: turns a function into a `Task` of this app."""

    def __init__(self, app: Dibs, name: str | None, options: Options) -> None:
        self._app = app
        self._name = name
        self._options = options

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        if not callable(function) or inspect.isclass(function):
            raise BadRequest(f"@app.job goes on a function, not on {function!r}")
        task: Task[..., Any] = Task(
            function,
            function.__name__ if self._name is None else self._name,
            self._options,
            self._enqueue_one,
            self._enqueue_one_sync,
        )
        self._app._core.registry.add(task)
        return task

    def _enqueue_one(self, new: NewJob, within: Any) -> Awaitable[Job]:
        return _only(self._app.enqueue(new, within=within))

    def _enqueue_one_sync(self, new: NewJob, within: Any) -> Job:
        [job] = self._app.sync.enqueue(new, within=within)
        return job


async def _only(jobs: Awaitable[list[Job]]) -> Job:
    [job] = await jobs
    return job
