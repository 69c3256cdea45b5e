"""`Dibs`, and the same things, blocking, on `app.sync`: two thin faces over one core."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from dibs.app.callbacks import C, Fate, cancel_fates, swept_fates
from dibs.app.claims import Claim, with_docs
from dibs.app.collections import NewPipeline, Pipelines, Slots, Trains
from dibs.app.context import Context
from dibs.app.lifespan import Lifespan, Resources
from dibs.app.running import claim_or_give_back, handler_for, run_claimed
from dibs.app.schedules import EveryDecorator, Missed, ScheduleInfo
from dibs.app.sync import SyncDibs
from dibs.app.tasks import Task
from dibs.app.verbs import Core
from dibs.app.watching import Looks, wake
from dibs.doctor import Finding, judge, unwell
from dibs.doctor.servers import drifted, uncompared
from dibs.doctor.wakeup_check import echo_async
from dibs.engines.sql.schema_check import SchemaProblem
from dibs.errors import BadRequest, NotPermitted, SchemaOutdated, StoreUnavailable, UnsafeStore
from dibs.jobs.job import Job, NewJob
from dibs.jobs.options import Options, Using, with_options
from dibs.jobs.schedules import rule
from dibs.jobs.states import Retry
from dibs.operations.queries import Queue
from dibs.operations.questions import Traits
from dibs.operations.upkeep import Swept, WorkerInfo
from dibs.operations.watch import Change, Topic
from dibs.operations.why import Why
from dibs.settings import Duration, Keep, read_settings, seconds

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
        lifespan: "Callable[[Dibs], Resources] | None" = None,
        listen_url: str | None = None,
        pooled: bool | None = None,
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
                    "listen_url": listen_url,
                    "pooled": pooled,
                }
            ),
            Lifespan(lifespan, self),
        )

    @cached_property
    def sync(self) -> "SyncDibs":
        """The same app for code that blocks."""
        return SyncDibs(self._core)

    @cached_property
    def trains(self) -> Trains:
        """Jobs that run one after another."""
        return Trains(self._core)

    @cached_property
    def slots(self) -> Slots:
        """Jobs that share a place."""
        return Slots(self._core)

    @cached_property
    def pipelines(self) -> Pipelines:
        """Jobs that belong together."""
        return Pipelines(self._core)

    def pipeline(self, name: str, *, on_failed: str = "cancel") -> NewPipeline:
        """A new pipeline: add jobs to it, say which waits for which, and enqueue it as a whole.

        `on_failed` says what becomes of those after a job that failed or was cancelled: `cancel`, or `hold`.
        """
        return NewPipeline(self._core, self._core.plan(name, on_failed))

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
        slot_limit: int | None = None,
        unique: str | None = None,
        unique_for: Duration | None = None,
        on_conflict: str | None = None,
        on_cancelled: str | None = None,
        on_failed: str | None = None,
        isolation: str | None = None,
    ) -> "JobDecorator": ...

    def job(self, function: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Register a function as a kind of job. Calling it still just runs it."""
        decorator = JobDecorator(self, name, with_options(Options(), **options))
        return decorator if function is None else decorator(function)

    def every(
        self,
        when: str | Duration,
        /,
        *,
        name: str | None = None,
        tz: str = "UTC",
        missed: Missed = "latest",
        args: Mapping[str, Any] | None = None,
        **options: Unpack[Using],
    ) -> EveryDecorator:
        """Enqueue a job at every tick of a cron expression (or interval), once however many workers run."""
        about = {"own_name": name, "missed": missed, "args": {} if args is None else args}
        return EveryDecorator(self._core, self.job, {"rule": rule(when, tz), "options": options, **about})

    def on(self, name: str) -> Callable[[C], C]:
        """Have a function called with a `JobEvent` whenever that happens to a job: for alerts.

        `succeeded`, `failed` (no attempts left), `retried` (an attempt failed), `cancelled`, `lost`.
        """
        return self._core.callbacks.decorator(name)

    # -- life -----------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect and check the schema now rather than at the first call."""
        await self._core.store.open_async()
        return self

    async def close(self) -> None:
        """Give the connections back; the app opens again at the next call."""
        await asyncio.to_thread(self._core.close)
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

    async def check_schema(self) -> list[SchemaProblem]:
        """Compare the store's tables with what dibs makes; answers what is missing or wrong."""
        return await self._core.store.check_schema_async()

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
        return [Claim(held) for held in await claim_or_give_back(self._core, operation)]

    async def claim_job(
        self, id: UUID | str, *, worker: str | None = None, lease: Duration | None = None
    ) -> Claim | None:
        """Claim exactly this job, or nobody: None when it is not ready for the taking."""
        held = await claim_or_give_back(self._core, self._core.claim_job(id, worker, lease))
        return Claim(held[0]) if held else None

    async def run_job(self, id: UUID | str) -> Job | None:
        """Claim this job, run its handler here, settle it; None when it is not for the taking.

        The app's `lifespan` is entered for it, before the claim, and left after it.
        """
        job = await self.get(id)
        if job is None:
            return None
        task = handler_for(self._core.registry, job)
        async with self._core.lifespan.entered() as state:
            claim = await self.claim_job(id)
            if claim is None:
                return None
            await run_claimed(claim, task, state)
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
        slot: str | tuple[Any, ...] | None = None,
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

    async def schedules(self) -> list[ScheduleInfo]:
        """What `every` scheduled, by name: when each ticked last, and when it ticks next."""
        return await self._core.store.run_async(self._core.look_at_schedules())

    async def why(self, id: UUID | str) -> Why:
        """Why this job is not running: a sentence for people, `.code` for programs."""
        return await self._core.store.run_async(self._core.why(id))

    async def doctor(self) -> list[Finding]:
        """Look the store over: is it set up as it should be, and is its work being done?"""
        try:
            examined = await self._core.store.run_async(self._core.examine())
            schema = await self._core.store.schema_version_async()
            found = judge(examined, await echo_async(self._core.store), schema)
        except (SchemaOutdated, StoreUnavailable, NotPermitted, UnsafeStore) as error:
            return [unwell(error)]
        try:
            return [*found, *drifted(await self.check_schema())]
        except Exception as error:
            return [*found, uncompared(error)]

    async def wait(self, id: UUID | str, *, timeout: Duration | None = None) -> Job:
        """Wait until the job has finished; `TimeoutError` when that takes too long."""
        looks = Looks(id, seconds(timeout, "timeout"))
        while not looks.over(job := await self.get(id)):
            await asyncio.sleep(looks.pause())
        return job  # type: ignore[return-value]

    def watch(
        self,
        *,
        job_id: UUID | str | None = None,
        pipeline_id: UUID | str | None = None,
        queue: str | None = None,
    ) -> AsyncIterator[Change]:
        """Changes of a job, a pipeline, a queue or the whole store, as they happen; first, how it stands.

        Ends when the job or the whole pipeline has finished. Several changes that come close together may
        be told as one, the latest.
        """
        return self._watch(self._core.topic(job_id, pipeline_id, queue))

    async def _watch(self, topic: Topic) -> AsyncIterator[Change]:
        loop, news, over = asyncio.get_running_loop(), asyncio.Event(), False
        with self._core.watching.watched(topic, lambda: wake(loop, news)) as subscription:
            while not over:
                await news.wait()
                news.clear()
                changes, over = subscription.take()
                for change in changes:
                    yield change

    # -- act ------------------------------------------------------------------------------------

    async def cancel(self, id: UUID | str, reason: str | None = None) -> Job:
        """End a waiting job, ask a running one to stop."""
        job = await self._core.store.run_async(self._core.cancel(id, reason))
        await self._core.callbacks.tell_now(self._core.store, cancel_fates(job))
        return job

    async def retry(self, id: UUID | str) -> Job:
        """Let a failed or cancelled job run again with all its attempts; a scheduled one now."""
        return await self._core.store.run_async(self._core.retry(id))

    async def delete(self, id: UUID | str) -> bool:
        """Remove a job that is not running; False when there is none."""
        return await self._core.store.run_async(self._core.delete(id))

    async def cancel_many(self, *, reason: str | None = None, **filter: Any) -> int:
        """Cancel all jobs that match, with the filters of `find`; how many were."""
        ended: list[Fate] = []
        number = await self._core.store.run_async(self._core.cancel_many(reason, ended, **filter))
        await self._core.callbacks.tell_now(self._core.store, ended)
        return number

    async def retry_many(self, **filter: Any) -> int:
        """Retry all jobs that match, with the filters of `find`; how many were."""
        return await self._core.store.run_async(self._core.retry_many(**filter))

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
        swept = self._core.swept(await self._core.store.run_async(self._core.sweep()))
        await self._core.callbacks.tell_now(self._core.store, swept_fates(swept))
        return swept

    async def prune(self, older_than: Duration, *, state: str | Sequence[str] | None = None) -> int:
        """Remove jobs that finished longer ago than this, all or in these states; how many were removed."""
        return await self._core.store.run_async(self._core.prune(older_than, state))


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
        if isinstance(function, Task):
            return self._instead(function)
        if not callable(function) or inspect.isclass(function):
            raise BadRequest(f"@app.job goes on a function, not on {function!r}")
        name = getattr(function, "__name__", None) if self._name is None else self._name
        if name is None:
            raise BadRequest(f"{function!r} has no name for its kind of job: give one, @app.job(name=…)")
        task: Task[..., Any] = Task(
            function,
            name,
            self._options,
            self._enqueue_one,
            self._enqueue_one_sync,
        )
        self._app._core.registry.add(task)
        return task

    def _instead(self, task: Task[..., Any]) -> Task[..., Any]:
        """`@app.job(…)` above `@app.every(…)`: the schedules go to the task that has the options."""
        core = self._app._core
        if task not in core.schedules.implied:
            raise BadRequest(f"{task.kind!r} is a job already; @app.job goes on a function")
        core.registry.remove(task)
        new = self(task.function)
        core.schedules.hand_over(task, new)
        return new

    def _enqueue_one(self, new: NewJob, within: Any) -> Awaitable[Job]:
        return _only(self._app.enqueue(new, within=within))

    def _enqueue_one_sync(self, new: NewJob, within: Any) -> Job:
        [job] = self._app.sync.enqueue(new, within=within)
        return job


async def _only(jobs: Awaitable[list[Job]]) -> Job:
    [job] = await jobs
    return job
