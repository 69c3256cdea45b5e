"""Jobs with `isolation="process"`: each runs in a process of its own, which can be ended from outside.

The processes are started on demand, one for each isolated job that runs at a time, and kept warm for the
next one. They are started afresh, not forked: a fork of a program with threads and an event loop inherits
locks that nobody will ever release.

Whatever ends the wait for a job — its own end, a timeout, a cancel, a lost lease, the end of the worker —
the job is handed on only when its process is free again or gone.
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
from dibs.worker.isolation.importing import Place, find_place
from dibs.worker.isolation.process import Process, ProcessEnded

STARTING = 60.0  # seconds for importing the app
IDLE = 60.0  # seconds that a process without a job is kept


class Processes:
    """The processes of one worker: as many as isolated jobs run at a time, and those kept warm."""

    def __init__(self, app: Dibs) -> None:
        self._app = app
        self._place: Place | None = None
        self._all: set[Process] = set()
        self._idle: dict[Process, asyncio.TimerHandle] = {}
        self._busy: dict[tuple[UUID, int], Process] = {}

    async def open(self) -> None:
        """Start the first process if any job wants one; `BadRequest` if it can't import the app."""
        tasks = self._app._core.registry.tasks
        kinds = [kind for kind, task in tasks.items() if is_isolated(task)]
        if not kinds:
            return
        if getattr(os, "waitid", None) is None:
            raise BadRequest(f"isolation='process' ({', '.join(kinds)}) does not work on {sys.platform}")
        self._place = find_place(self._app, kinds)
        try:
            self._rest(await self._start(self._place))
        except ProcessEnded as error:
            raise BadRequest(f"can't run {', '.join(kinds)} with isolation='process': {error}") from None

    async def close(self) -> None:
        """End every process, the idle ones kindly."""
        for process in list(self._idle):
            self._retire(process)
        for process in self._busy.values():
            process.stop(0)
        for process in list(self._all):
            await process.gone()

    async def call(self, held: ClaimState, task: "Task[..., Any]", context: Context) -> Outcome:
        """Run the job in a process. When this returns or raises, nothing of the job runs any more."""
        assert self._place is not None
        process = self._take_idle() or await self._start(self._place)
        self._busy[held.key] = process
        try:
            outcome = await _run_within(task.timeout, process, held, context)
        finally:
            del self._busy[held.key]
            self._rest(process)
        if outcome is not None:
            return outcome
        if held.timed_out:
            raise held.too_long(", and its process was ended")
        raise ProcessEnded(f"the process running it ended: {await process.gone()}")

    def stop_if_lost(self, held: ClaimState) -> None:
        """From the keeper's thread: a neighbour that blocks the event loop must not delay this."""
        process = self._busy.get(held.key)
        if process is not None and held.lost:
            process.stop_lost(held)

    def _take_idle(self) -> Process | None:
        while self._idle:
            process, retiring = self._idle.popitem()  # the one that rested last: the others may end
            retiring.cancel()
            if process.is_usable:
                return process
        return None

    def _rest(self, process: Process) -> None:
        if process.is_usable:
            later = asyncio.get_running_loop().call_later(IDLE, self._retire, process)
            self._idle[process] = later

    def _retire(self, process: Process) -> None:
        self._idle.pop(process).cancel()
        process.leave()

    async def _start(self, place: Place) -> Process:
        """A process that has imported the app; `ProcessEnded` says why there is none."""
        process = await Process.start()
        self._all.add(process)
        process.when_gone(partial(self._all.discard, process))
        try:
            async with asyncio.timeout(STARTING):
                await process.load(place)
        except BaseException as error:
            process.stop(0)
            await process.gone()
            if isinstance(error, TimeoutError):
                raise ProcessEnded(f"importing {place} took more than {STARTING:g} s") from None
            raise
        return process


async def _run_within(
    timeout: float | None, process: Process, held: ClaimState, context: Context
) -> Outcome | None:
    """The outcome, or None if the process ended first: by itself, or because its time was over."""
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
