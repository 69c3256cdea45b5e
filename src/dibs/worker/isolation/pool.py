"""The pool of processes for jobs with `isolation="process"`; each runs one job at a time and can be killed.

The processes are started on demand, one for each isolated job that runs at a time, and kept for the next one.
They are started afresh, not forked: a fork of a program with threads and an event loop inherits locks that
are never released.

Whatever ends the wait for a job — its own end, a timeout, a cancel, a lost lease, the end of the worker —
its attempt is over only when its process is free again or gone.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from asyncio import Future, StreamReader, StreamWriter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Self
from uuid import UUID

from dibs.app.claims import ClaimState
from dibs.app.context import Context
from dibs.app.dibs import Dibs
from dibs.app.leases import MARGIN
from dibs.app.running import uncancel
from dibs.app.tasks import Task
from dibs.clock import SECOND
from dibs.errors import BadRequest, DibsError
from dibs.events import log
from dibs.jobs.states import Outcome
from dibs.log_format import current_job
from dibs.worker.isolation import protocol
from dibs.worker.isolation.importing import AppLocation, locate

KILL_AFTER = 2.0  # seconds from SIGTERM to SIGKILL
LAST_MESSAGES = 0.5  # seconds to read what a dead process had sent

# The path is set before dibs is imported, so that the process can import whatever this one can.
BOOT = "import sys; sys.path[:] = sys.argv[3:]; from dibs.worker.isolation.child import main; main()"


class ProcessEnded(Exception):
    """The process that was to run a job ended before the job did."""


class ChildProcess:
    """One process from its start to its end, which is noticed whatever became of its socket."""

    def __init__(self, popen: "subprocess.Popen[bytes]", reader: StreamReader, writer: StreamWriter) -> None:
        self._popen = popen
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        # Around the process's number, which the system gives to another process after its end.
        self._lock = threading.Lock()
        self._killer: threading.Timer | None = None
        self._reaped = False
        self._ended: Future[int] = self._loop.create_future()
        self._ready: Future[protocol.AppLoaded | protocol.LoadFailed | None] = self._loop.create_future()
        self._outcome: Future[Outcome | None] = self._loop.create_future()
        self._job: tuple[ClaimState, Context] | None = None
        self._listening = self._loop.create_task(self._listen(), name=f"dibs-process-{popen.pid}")
        threading.Thread(target=self._reap, name=f"dibs-process-{popen.pid}", daemon=True).start()

    @classmethod
    async def start(cls) -> Self:
        """Start it in a session of its own: a Ctrl-C in the terminal is for the worker."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                popen = subprocess.Popen(  # noqa: S603, ASYNC220
                    [*_interpreter(), "-c", BOOT, str(theirs.fileno()), str(os.getpid()), *sys.path],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                writer.close()
                raise
        return cls(popen, reader, writer)

    @property
    def is_usable(self) -> bool:
        return self._killer is None and not self._listening.done()

    async def load(self, app: AppLocation) -> None:
        """Let it import the app; `ProcessEnded` if it can't."""
        self._send(protocol.LoadApp(app, sys.argv, logging.root.level))
        await asyncio.wait([self._ready])
        match self._ready.result():
            case protocol.LoadFailed(reason):
                raise ProcessEnded(f"its process can't import {app}: {reason}")
            case None:
                raise ProcessEnded(f"its process ended while it imported {app}: {await self.gone()}")

    async def run(self, held: ClaimState, context: Context) -> Outcome | None:
        """Run the job and return the outcome of its handler; None if the process ended first."""
        self._job, self._outcome = (held, context), self._loop.create_future()
        self._send(protocol.RunJob(held.job, held.asked_at))
        await asyncio.wait([self._outcome])
        return self._outcome.result()

    async def stopped(self, held: ClaimState) -> Outcome | None:
        """End the process and wait for that; return an outcome if the handler ended before it was stopped."""
        self._send(protocol.StopReason(held.lost, held.cancel_reason, held.timed_out))
        self.stop(_kill_seconds(held))
        await self.gone()
        return self._outcome.result()

    async def gone(self) -> str:
        """Wait until nothing of it is left, however often this is cancelled; return how it ended."""
        await _all_done([self._ended, self._listening])
        return _ending(self._ended.result())

    def when_gone(self, do: Callable[[], object]) -> None:
        self._ended.add_done_callback(lambda _: do())

    # -- ending it: from any thread -------------------------------------------------------------

    def stop(self, seconds: float = KILL_AFTER) -> None:
        """Send SIGTERM, and SIGKILL after these seconds; to all processes that it started, too."""
        with self._lock:
            self._signal(signal.SIGTERM if seconds > 0 else signal.SIGKILL)
            self._kill_after(seconds)

    def leave(self) -> None:
        """Ask it to end."""
        self._send(protocol.EndProcess())
        with self._lock:
            self._kill_after(KILL_AFTER)

    def _kill_after(self, seconds: float) -> None:
        if self._killer is None and not self._reaped:
            self._killer = threading.Timer(seconds, self._kill)
            self._killer.start()

    def _kill(self) -> None:
        with self._lock:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self._reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, number)

    def _reap(self) -> None:
        """Wait for the end of the process, then end what it left behind in its group."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._signal(signal.SIGKILL)  # not reaped yet, so no other process can have the number
            self._reaped = True
            code = self._popen.wait()
            if self._killer is not None:
                self._killer.cancel()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._has_ended, code)

    def _has_ended(self, code: int) -> None:
        self._ended.set_result(code)
        if not self._listening.done():  # another process may have inherited the socket, and never close it
            self._loop.call_later(LAST_MESSAGES, self._listening.cancel)

    # -- messages -------------------------------------------------------------------------------

    def _send(self, message: protocol.ToChild) -> None:
        if not self._listening.done():
            self._writer.write(protocol.frame(message))

    async def _listen(self) -> None:
        try:
            while True:
                length = protocol.length_of(await self._reader.readexactly(protocol.HEADER))
                await self._take(protocol.read_in_worker(await self._reader.readexactly(length)))
        except (EOFError, OSError, asyncio.CancelledError):
            pass
        except Exception as error:
            log.warning("the process %s of an isolated job is ended: %s", self._popen.pid, error)
        finally:
            self._writer.close()
            with self._lock:
                self._kill_after(KILL_AFTER)  # it can't be used without its socket
            for expected in (self._ready, self._outcome):
                if not expected.done():
                    expected.set_result(None)

    async def _take(self, message: protocol.ToWorker) -> None:
        match message:
            case protocol.AppLoaded() | protocol.LoadFailed():
                self._ready.set_result(message)
            case protocol.LogMessage(logger, level, text):
                current_job.set(self._job[0].job if self._job is not None else None)
                logging.getLogger(logger).log(level, "%s", text)
            case protocol.ProgressNote() | protocol.ParentsRequest() if self._job is not None:
                self._send(await _reply_to(message, self._job[1]))
            case protocol.JobCompleted() if self._job is not None:
                held, _ = self._job
                held.core.keeper.drop(held)
                held.note_outcome("succeeded")
            case protocol.HandlerEnded() if self._job is not None:
                self._job[1].chain(*protocol.children_of(message))
                self._job = None
                self._outcome.set_result(protocol.outcome_of(message))


async def _reply_to(
    request: protocol.ProgressNote | protocol.ParentsRequest, context: Context
) -> protocol.Reply:
    try:
        if isinstance(request, protocol.ParentsRequest):
            return protocol.Reply(jobs=await context.parents())
        await context.progress(request.fraction, request.message)
        return protocol.Reply()
    except DibsError as error:
        return protocol.Reply(type(error).__name__, str(error))


async def _all_done(futures: "Iterable[Future[Any]]") -> None:
    while waited_for := [future for future in futures if not future.done()]:
        with suppress(asyncio.CancelledError):
            await asyncio.wait(waited_for)


def _kill_seconds(held: ClaimState) -> float:
    """Return the seconds from SIGTERM to SIGKILL; a lost claim must leave no process behind."""
    if not held.lost:
        return KILL_AFTER
    return min(KILL_AFTER, held.core.lease_of(held.job) / SECOND * MARGIN / 2)


def _interpreter() -> list[str]:
    """Return this Python with its options; with -P, as `BOOT` sets the path."""
    return [sys.executable, "-P", *["-O"] * sys.flags.optimize, *(f"-W{each}" for each in sys.warnoptions)]


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"


# -- the pool -----------------------------------------------------------------------------------

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
            process.stop(_kill_seconds(held))  # before the lease ends, even if the event loop is blocked

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
