"""Run what is ready, here and now, one job after the other: a worker that a test holds in its hand."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from dibs.app.dibs import Dibs
from dibs.app.registry import Registry
from dibs.app.sync import SyncDibs
from dibs.app.tasks import Task
from dibs.app.verbs import MOST_FOUND, Core
from dibs.engines.retries import Tries
from dibs.errors import BadRequest
from dibs.jobs.job import Job
from dibs.operations import upkeep
from dibs.operations.scripts import Script
from dibs.text import numbered

MOST_JOBS = 1000


class JobFailed(AssertionError):
    """An attempt failed by something other than an exception of its handler: a timeout, a bad result."""


class EndlessJobs(AssertionError):
    """More jobs came than a test should need: most likely one enqueues itself."""


async def run_pending(
    app: Dibs, *, queues: Sequence[str] | None = None, raise_errors: bool = True, limit: int = MOST_JOBS
) -> list[Job]:
    """Run ready jobs of the registered kinds until none is left; answers them as they were left, in order.

    Jobs that these enqueue run after them. What is due later, by a delay, a snooze or a back-off, stays until
    the virtual clock gets there. The attempt of a handler that raises is recorded as in production, and then
    the exception is the test's; with `raise_errors=False` the run goes on.
    """
    run = _Run(app._core, queues, limit)
    while ready := await app._core.store.run_async(run.ready):
        ran = len(run.jobs)
        for job in ready:
            with run.attempt(job) as attempt:
                done = await app.run_job(job.id)
            run.note(done, attempt if raise_errors else None)
        if len(run.jobs) == ran:  # all that is ready is in paused or busy queues
            break
    return run.jobs


def run_pending_sync(
    app: Dibs | SyncDibs,
    *,
    queues: Sequence[str] | None = None,
    raise_errors: bool = True,
    limit: int = MOST_JOBS,
) -> list[Job]:
    """The same, blocking: a plain handler runs in this thread, an async one in a loop of its own."""
    _refuse_loop()
    run, face = _Run(app._core, queues, limit), SyncDibs(app._core)
    while ready := face._core.store.run(run.ready):
        ran = len(run.jobs)
        for job in ready:
            with run.attempt(job) as attempt:
                done = face.run_job(job.id)
            run.note(done, attempt if raise_errors else None)
        if len(run.jobs) == ran:  # all that is ready is in paused or busy queues
            break
    return run.jobs


class _Run:
    """The jobs of one call."""

    def __init__(self, core: Core, queues: Collection[str] | None, limit: int) -> None:
        if not core.registry.tasks:
            raise BadRequest("no jobs are registered on this app: there is nothing run_pending could run")
        self._core = core
        self._queues = [queues] if isinstance(queues, str) else queues
        self._limit = limit
        self.jobs: list[Job] = []

    def ready(self, _: Tries) -> Script[list[Job]]:
        """What can be run by now, in the order in which it is claimed."""
        yield from upkeep.sweep()
        ready = [job for job in (yield from all_jobs(self._core, state="ready")) if self._is_ours(job)]
        return sorted(ready, key=lambda job: (-job.priority, job.run_at, job.id))

    def _is_ours(self, job: Job) -> bool:
        return job.kind in self._core.registry.tasks and (self._queues is None or job.queue in self._queues)

    @contextmanager
    def attempt(self, job: Job) -> "Iterator[_Attempt]":
        """While this job runs, its task is one that notes what its handler raises."""
        if len(self.jobs) >= self._limit:
            self._refuse(job)
        with _Attempt(self._core.registry, job).noting() as attempt:
            yield attempt

    def note(self, job: Job | None, attempt: "_Attempt | None") -> None:
        if job is None:  # not for the taking: its queue is paused or busy
            return
        self.jobs.append(job)
        if attempt is not None:
            attempt.raise_error_of(job)

    def _refuse(self, ready: Job) -> None:
        often = Counter(job.kind for job in self.jobs).most_common(3)
        said = ", ".join(f"{kind} {times}×" for kind, times in often)
        raise EndlessJobs(
            f"{numbered(self._limit, 'job')} ran ({said}) and "
            f"{ready.kind} {ready.args} is ready; does one enqueue itself? If not, give a greater limit="
        )


class _Attempt:
    """One call of a handler, here, whose exception is noted on its way to becoming a failed attempt."""

    def __init__(self, registry: Registry, job: Job) -> None:
        self._tasks = registry.tasks
        self._before = job
        self._error: BaseException | None = None

    @contextmanager
    def noting(self) -> "Iterator[_Attempt]":
        kind = self._before.kind
        task = self._tasks[kind]
        self._tasks[kind] = self._twin(task)
        try:
            yield self
        finally:
            self._tasks[kind] = task

    def _twin(self, task: "Task[..., Any]") -> "Task[..., Any]":
        twin = task.using()
        twin.options = replace(task.options, isolation=None)
        twin.function = (self._awaited if task.is_async else self._called)(task.function)
        return twin

    def _called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            try:
                return function(**arguments)
            except BaseException as error:
                self._error = error
                raise

        return call

    def _awaited(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(**arguments: Any) -> Any:
            try:
                return await function(**arguments)
            except BaseException as error:
                self._error = error
                raise

        return call

    def raise_error_of(self, job: Job) -> None:
        """Raise what made this attempt fail; a `Fail` that was returned is an outcome like others."""
        known = {error.token for error in self._before.errors}
        recorded = next((error for error in job.errors if error.token not in known), None)
        if recorded is None or recorded.type == "Fail":
            return
        about = (
            f"in {job.kind} {job.args}, job {job.id}, attempt {recorded.attempt} of {job.max_attempts}; "
            f"it is {job.state} now. With raise_errors=False, run_pending goes on"
        )
        if self._error is None or isinstance(self._error, asyncio.CancelledError):
            raise JobFailed(f"{recorded.type}: {recorded.message}\n{about}")
        self._error.add_note(about)
        raise self._error


def _refuse_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BadRequest(
        "run_pending of dibs.testing.sync would block this event loop: "
        "use `from dibs.testing import run_pending` and await it"
    )


def all_jobs(core: Core, **filter: Any) -> Script[list[Job]]:
    """All jobs that match, with the filters of `find`, oldest first."""
    jobs: list[Job] = []
    after: UUID | None = None
    while page := (yield from core.find(MOST_FOUND, after, **filter)(Tries())):
        jobs += page
        after = page[-1].id
    return jobs[::-1]
