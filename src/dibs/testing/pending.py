"""Run the jobs that are ready, one after another, as a worker would: for tests."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

from dibs.app.dibs import Dibs, SyncDibs
from dibs.app.registry import Registry
from dibs.app.state import AppState
from dibs.app.tasks import Task
from dibs.engines.retries import Tries
from dibs.errors import BadRequest
from dibs.faces import Call, Calls, ask, make, run, run_async
from dibs.jobs.job import Job
from dibs.operations import queries, upkeep
from dibs.operations.scripts import Script
from dibs.text import numbered

MOST_JOBS = 1000


class AttemptFailed(AssertionError):
    """A failed attempt without an exception: timeout, bad result. Example: `except AttemptFailed: raise`"""


class EndlessJobs(AssertionError):
    """More jobs than a test needs: one may enqueue itself. Example: `await run_pending(app, limit=0)`"""


async def run_pending(
    app: Dibs, *, queues: Sequence[str] | None = None, raise_errors: bool = True, limit: int = MOST_JOBS
) -> list[Job]:
    """Run ready jobs of the registered kinds until none is left; return them as they ended, in order.

    Jobs that these enqueue run after them. Jobs that are due later, by a delay, a snooze or a back-off, stay
    until the virtual clock gets there. The failed attempt of a handler that raises is recorded as in
    production, and then the exception is raised in the test; with `raise_errors=False` the next job runs.
    Example: `[job] = await run_pending(app)`"""
    return await run_async(_run_all(app, queues, raise_errors, limit))


def run_pending_sync(
    app: Dibs | SyncDibs,
    *,
    queues: Sequence[str] | None = None,
    raise_errors: bool = True,
    limit: int = MOST_JOBS,
) -> list[Job]:
    """Run ready jobs without a loop: a plain handler in this thread, an async one in a loop of its own."""
    _refuse_loop()
    return run(_run_all(app, queues, raise_errors, limit))


def _run_all(
    app: Dibs | SyncDibs, queues: Sequence[str] | None, raise_errors: bool, limit: int
) -> Calls[list[Job]]:
    store, pending = app._core.store, _Pending(app._core, queues, limit)
    while ready := (yield from ask(store, pending.ready)):
        ran = len(pending.jobs)
        for job in ready:
            with pending.attempt(job) as attempt:
                done = yield from make(_run_job(app, job.id))
            pending.note(done, attempt if raise_errors else None)
        if len(pending.jobs) == ran:  # all ready jobs are in paused or busy queues
            break
    return pending.jobs


def _run_job(app: Dibs | SyncDibs, id: UUID) -> Call[Job | None]:
    return Call(lambda: SyncDibs(app._core).run_job(id), lambda: cast(Dibs, app).run_job(id))


class _Pending:
    """The jobs of one call of `run_pending`."""

    def __init__(self, core: AppState, queues: Collection[str] | None, limit: int) -> None:
        if not core.registry.tasks:
            raise BadRequest("no jobs are registered on this app: there is nothing run_pending could run")
        self._core = core
        self._queues = [queues] if isinstance(queues, str) else queues
        self._limit = limit
        self.jobs: list[Job] = []

    def ready(self, _: Tries) -> Script[list[Job]]:
        """Return the jobs that can run now, in claiming order."""
        yield from upkeep.sweep()
        ready = [job for job in (yield from all_jobs(state="ready")) if self._is_ours(job)]
        return sorted(ready, key=lambda job: (-job.priority, job.run_at, job.id))

    def _is_ours(self, job: Job) -> bool:
        return job.kind in self._core.registry.tasks and (self._queues is None or job.queue in self._queues)

    @contextmanager
    def attempt(self, job: Job) -> "Iterator[_Attempt]":
        """Keep what the handler of this job raises while the body runs it."""
        if len(self.jobs) >= self._limit:
            self._refuse(job)
        with _Attempt(self._core.registry, job).recorded() as attempt:
            yield attempt

    def note(self, job: Job | None, attempt: "_Attempt | None") -> None:
        if job is None:  # could not be claimed: its queue is paused or busy
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
    """One attempt: its handler's exception is kept, and then recorded as a failed attempt as usual."""

    def __init__(self, registry: Registry, job: Job) -> None:
        self._tasks = registry.tasks
        self._before = job
        self._error: BaseException | None = None

    @contextmanager
    def recorded(self) -> "Iterator[_Attempt]":
        kind = self._before.kind
        task = self._tasks[kind]
        self._tasks[kind] = self._recording(task)
        try:
            yield self
        finally:
            self._tasks[kind] = task

    def _recording(self, task: "Task[..., Any]") -> "Task[..., Any]":
        """Return the task with a handler that keeps what it raises."""
        recording, function = task.using(), task.function
        recording.options = replace(task.options, isolation=None)

        def call(**arguments: Any) -> Any:
            with self._keeping_error():
                return function(**arguments)

        async def call_async(**arguments: Any) -> Any:
            with self._keeping_error():
                return await function(**arguments)

        recording.function = call_async if task.is_async else call
        return recording

    @contextmanager
    def _keeping_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._error = error
            raise

    def raise_error_of(self, job: Job) -> None:
        """Raise what made this attempt fail; a returned `Fail` is an outcome like others."""
        known = {error.token for error in self._before.errors}
        recorded = next((error for error in job.errors if error.token not in known), None)
        if recorded is None or recorded.type == "Fail":
            return
        about = (
            f"in {job.kind} {job.args}, job {job.id}, attempt {recorded.attempt} of {job.max_attempts}; "
            f"it is {job.state} now. With raise_errors=False, run_pending continues"
        )
        if self._error is None or isinstance(self._error, asyncio.CancelledError):
            raise AttemptFailed(f"{recorded.type}: {recorded.message}\n{about}")
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


def all_jobs(**filter: Any) -> Script[list[Job]]:
    """Return all jobs that match the filters of `find`, oldest first."""
    wanted = queries.job_filter(**filter)
    jobs: list[Job] = []
    after: UUID | None = None
    while page := (yield from queries.find(wanted, limit=queries.MOST_FOUND, after=after)):
        jobs += page
        after = page[-1].id
    return jobs[::-1]
