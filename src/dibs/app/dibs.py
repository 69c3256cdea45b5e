"""`Dibs` and `SyncDibs`: the two faces of an app, and the decorators that make jobs of functions."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from dibs.app.callbacks import C, CallbackName
from dibs.app.claims import Claim, SyncClaim
from dibs.app.collections import (
    NewPipeline,
    Pipelines,
    Schedules,
    Slots,
    SyncNewPipeline,
    SyncPipelines,
    SyncSchedules,
    SyncSlots,
    SyncTrains,
    Trains,
)
from dibs.app.context import Context
from dibs.app.lifespan import A, Lifespan, Resources, check_around
from dibs.app.registry import EveryDecorator
from dibs.app.state import AppState
from dibs.app.tasks import Task
from dibs.app.verbs import Verbs
from dibs.app.watching import wake
from dibs.errors import BadRequest
from dibs.faces import AsyncFace, SyncFace
from dibs.jobs.options import Options, Using, with_options
from dibs.jobs.schedules import Missed, rule
from dibs.jobs.states import Isolation, OnConflict, Retry, SlotPolicy, TrainPolicy
from dibs.operations.watch import Change, WatchTarget, watch_target
from dibs.settings import Duration, Keep, read_settings, seconds

P = ParamSpec("P")
R = TypeVar("R")


class Dibs(Verbs[Claim, NewPipeline], AsyncFace):
    """One store of work, shared by all processes that name its URL. Example: `Dibs("sqlite:///jobs.db")`"""

    _claim, _new_pipeline = Claim, NewPipeline

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
        self._core = AppState(
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

    def __repr__(self) -> str:
        return f"<Dibs {self._core}>"

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

    @cached_property
    def schedules(self) -> Schedules:
        """Rules that enqueue a job at each of their ticks."""
        return Schedules(self._core)

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
        slot_policy: SlotPolicy | None = None,
        slot_limit: int | None = None,
        unique: str | None = None,
        unique_for: Duration | None = None,
        on_conflict: OnConflict | None = None,
        on_cancelled: TrainPolicy | None = None,
        on_failed: TrainPolicy | None = None,
        isolation: Isolation | None = None,
        retry_on: type[BaseException] | Sequence[type[BaseException]] | None = None,
        give_up_on: type[BaseException] | Sequence[type[BaseException]] | None = None,
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
        ticks = {"rule": rule(when, tz), "tz": tz, "missed": missed}
        about = {"own_name": name, "args": {} if args is None else args, "options": options}
        return EveryDecorator(self._core, self.job, {**ticks, **about})

    def on(self, name: CallbackName) -> Callable[[C], C]:
        """Have a function called with a `JobEvent` whenever that happens to a job: for alerts.

        `succeeded`, `failed` (no attempts left), `retried` (an attempt failed), `cancelled`, `lost`, or
        `held` (its train waits for an operator).
        """
        return self._core.callbacks.decorator(name)

    def around(self, function: A) -> A:
        """Enter a context manager, made by this function of the job, around every handler that runs.

        Several nest in the order of their registration. An exception of the handler passes through them.
        """
        self._core.arounds.append(check_around(function))
        return function

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

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def watch(
        self,
        *,
        job_id: UUID | str | None = None,
        pipeline_id: UUID | str | None = None,
        queue: str | None = None,
    ) -> AsyncIterator[Change]:
        """Yield changes of a job, a pipeline, a queue or the whole store as they happen; first, all as it is.

        Ends when the job or the whole pipeline has finished. Of several changes that come close together only
        the latest may be yielded.
        """
        return self._watch(watch_target(job_id, pipeline_id, queue))

    async def _watch(self, target: WatchTarget) -> AsyncIterator[Change]:
        loop, news, over = asyncio.get_running_loop(), asyncio.Event(), False
        with self._core.watching.watched(target, lambda: wake(loop, news)) as subscription:
            while not over:
                await news.wait()
                news.clear()
                changes, over = subscription.take()
                for change in changes:
                    yield change


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
        task: Task[..., Any] = Task(function, name, self._options, self._app)
        self._app._core.registry.add(task)
        return task

    def _instead(self, task: Task[..., Any]) -> Task[..., Any]:
        """Give the schedules of `@app.every(…)` to the task that an `@app.job(…)` above it made."""
        core = self._app._core
        if task not in core.schedules.implied:
            raise BadRequest(f"{task.kind!r} is a job already; @app.job goes on a function")
        core.registry.remove(task)
        new = self(task.function)
        core.schedules.hand_over(task, new)
        return new


class SyncDibs(Verbs[SyncClaim, SyncNewPipeline], SyncFace):
    """The sync face of an app. What it returns blocks, too. Example: `app.sync.counts("mail")["ready"]`"""

    _claim, _new_pipeline = SyncClaim, SyncNewPipeline

    def __repr__(self) -> str:
        return f"<SyncDibs {self._core}>"

    @cached_property
    def trains(self) -> SyncTrains:
        """Jobs that run one after another."""
        return SyncTrains(self._core)

    @cached_property
    def slots(self) -> SyncSlots:
        """Keys that jobs share, so that not all of them run at once."""
        return SyncSlots(self._core)

    @cached_property
    def pipelines(self) -> SyncPipelines:
        """Jobs that belong together."""
        return SyncPipelines(self._core)

    @cached_property
    def schedules(self) -> SyncSchedules:
        """Rules that enqueue a job at each of their ticks."""
        return SyncSchedules(self._core)

    def open(self) -> Self:
        """Connect and check the schema now rather than at the first call."""
        self._core.store.open()
        return self

    def close(self) -> None:
        """Give the connections back; the app opens again at the next call."""
        self._core.close()
        self._core.store.close()

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def watch(
        self,
        *,
        job_id: UUID | str | None = None,
        pipeline_id: UUID | str | None = None,
        queue: str | None = None,
    ) -> Iterator[Change]:
        """Yield changes of a job, a pipeline, a queue or the whole store as they happen; first, all as it is.

        Ends when the job or the whole pipeline has finished. Of several changes that come close together only
        the latest may be yielded.
        """
        return self._watch(watch_target(job_id, pipeline_id, queue))

    def _watch(self, target: WatchTarget) -> Iterator[Change]:
        news, over = threading.Event(), False
        with self._core.watching.watched(target, news.set) as subscription:
            while not over:
                news.wait()
                news.clear()
                changes, over = subscription.take()
                yield from changes
