"""The pool of processes for jobs with `isolation="process"`; each runs one job at a time and can be killed.

The processes are started on demand, one for each isolated job that runs at a time, and kept for the next one.
They are started afresh, not forked: a fork of a program with threads and an event loop inherits locks that
are never released.

Whatever ends the wait for a job — its own end, a timeout, a cancel, a lost lease, the end of the worker —
its attempt is over only when its process is free again or gone.
"""

import asyncio
import os
import sys
from functools import partial
from typing import Any
from uuid import UUID

from dibs.app.claims import ClaimState
from dibs.app.context import Context
from dibs.app.dibs import Dibs
from dibs.app.running import uncancel
from dibs.app.tasks import Task
from dibs.errors import BadRequest
from dibs.jobs.states import Outcome
from dibs.worker.isolation.importing import AppLocation, locate
from dibs.worker.isolation.process import ChildProcess, ProcessEnded

STARTING = 60.0  # seconds to import the app
IDLE = 60.0  # seconds that a process without a job is kept


class ProcessPool:
    """The processes of one worker, busy and idle."""

    def __init__(self, app: Dibs) -> None:
        self._app = app
        self._location: AppLocation | None = None
        self._all: set[ChildProcess] = set()
        self._idle: dict[ChildProcess, asyncio.TimerHandle] = {}
        self._busy: dict[tuple[UUID, int], ChildProcess] = {}

    async def open(self) -> None:
        """Start the first process if any job wants one; `BadRequest` if it can't import the app."""
        tasks = self._app._core.registry.tasks
        kinds = [kind for kind, task in tasks.items() if is_isolated(task)]
        if not kinds:
            return
        if getattr(os, "waitid", None) is None:
            raise BadRequest(f"isolation='process' ({', '.join(kinds)}) does not work on {sys.platform}")
        self._location = locate(self._app, kinds)
        try:
            self._keep_idle(await self._start(self._location))
        except ProcessEnded as error:
            raise BadRequest(f"can't run {', '.join(kinds)} with isolation='process': {error}") from None

    async def close(self) -> None:
        """End every process; ask the idle ones, kill the busy ones."""
        for process in list(self._idle):
            self._end_idle(process)
        for process in self._busy.values():
            process.stop(0)
        for process in list(self._all):
            await process.gone()

    async def call(self, held: ClaimState, task: "Task[..., Any]", context: Context) -> Outcome:
        """Run the job in a process; when this returns or raises, nothing of the job runs any more."""
        assert self._location is not None
        process = self._take_idle() or await self._start(self._location)
        self._busy[held.key] = process
        try:
            outcome = await _run_within(task.timeout, process, held, context)
        finally:
            del self._busy[held.key]
            self._keep_idle(process)
        if outcome is not None:
            return outcome
        if held.timed_out:
            raise held.too_long(", and its process was ended")
        raise ProcessEnded(f"the process running it ended: {await process.gone()}")

    def stop_if_lost(self, held: ClaimState) -> None:
        """End the process of a lost claim; called from another thread, as the event loop may be blocked."""
        process = self._busy.get(held.key)
        if process is not None and held.lost:
            process.stop_lost(held)

    def _take_idle(self) -> ChildProcess | None:
        while self._idle:
            process, end = self._idle.popitem()  # the one that is idle least: the others may end
            end.cancel()
            if process.is_usable:
                return process
        return None

    def _keep_idle(self, process: ChildProcess) -> None:
        if process.is_usable:
            later = asyncio.get_running_loop().call_later(IDLE, self._end_idle, process)
            self._idle[process] = later

    def _end_idle(self, process: ChildProcess) -> None:
        self._idle.pop(process).cancel()
        process.leave()

    async def _start(self, location: AppLocation) -> ChildProcess:
        """Start a process and let it import the app; `ProcessEnded` says why it can't."""
        process = await ChildProcess.start()
        self._all.add(process)
        process.when_gone(partial(self._all.discard, process))
        try:
            async with asyncio.timeout(STARTING):
                await process.load(location)
        except BaseException as error:
            process.stop(0)
            await process.gone()
            if isinstance(error, TimeoutError):
                raise ProcessEnded(f"importing {location} took more than {STARTING:g} s") from None
            raise
        return process


async def _run_within(
    timeout: float | None, process: ChildProcess, held: ClaimState, context: Context
) -> Outcome | None:
    """Return the outcome, or None if the process ended first: by itself, or because its time was over."""
    try:
        async with asyncio.timeout(timeout):
            return await process.run(held, context)
    except TimeoutError:
        held.timed_out = True
        return await process.stopped(held)
    except asyncio.CancelledError:
        outcome = await process.stopped(held)
        if outcome is None or held.lost:
            raise
        uncancel()  # it had ended before it was stopped, and that counts
        return outcome


def is_isolated(task: "Task[..., Any]") -> bool:
    return task.options.isolation == "process"
