"""One process for isolated jobs, as its worker sees it: what it is told, what it says, and its end."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from asyncio import Future, StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Self

from dibs.app.claims import ClaimState
from dibs.app.context import Context
from dibs.app.leases import MARGIN
from dibs.clock import SECOND
from dibs.errors import DibsError
from dibs.events import log
from dibs.jobs.states import Outcome
from dibs.worker.isolation import protocol
from dibs.worker.isolation.importing import Place
from dibs.worker.isolation.protocol import (
    Answer,
    Completed,
    Ended,
    Leave,
    Load,
    Parents,
    Progress,
    Ready,
    Run,
    Said,
    Stop,
    ToChild,
    ToWorker,
    Unable,
)

PATIENCE = 2.0  # seconds from SIGTERM to SIGKILL
LAST_WORDS = 0.5  # seconds to read what a dead process still said

# The path is set before anything of ours is imported: whatever this process could import, that one can.
BOOT = "import sys; sys.path[:] = sys.argv[3:]; from dibs.worker.isolation.child import main; main()"


class ProcessEnded(Exception):
    """The process that was to run a job ended before the job did."""


class Process:
    """Started, given one job after the other, ended. Its end is noticed whatever became of its socket."""

    def __init__(self, popen: "subprocess.Popen[bytes]", reader: StreamReader, writer: StreamWriter) -> None:
        self._popen = popen
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # around the process's number, which others may get after its end
        self._killer: threading.Timer | None = None
        self._reaped = False
        self._ended: Future[int] = self._loop.create_future()
        self._ready: Future[Ready | Unable | None] = self._loop.create_future()
        self._outcome: Future[Outcome | None] = self._loop.create_future()
        self._job: tuple[ClaimState, Context] | None = None
        self._listening = self._loop.create_task(self._listen(), name=f"dibs-process-{popen.pid}")
        threading.Thread(target=self._reap, name=f"dibs-process-{popen.pid}", daemon=True).start()

    @classmethod
    async def start(cls) -> Self:
        """In a session of its own: a Ctrl-C in the terminal is the worker's to hear."""
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

    async def load(self, place: Place) -> None:
        """Let it import the app; `ProcessEnded` if it can't."""
        self._tell(Load(place, sys.argv, logging.root.level))
        await asyncio.wait([self._ready])
        match self._ready.result():
            case Unable(reason):
                raise ProcessEnded(f"its process can't import {place}: {reason}")
            case None:
                raise ProcessEnded(f"its process ended while it imported {place}: {await self.gone()}")

    async def run(self, held: ClaimState, context: Context) -> Outcome | None:
        """What the handler came to; None if the process ended first."""
        self._job, self._outcome = (held, context), self._loop.create_future()
        self._tell(Run(held.job, held.asked_at))
        await asyncio.wait([self._outcome])
        return self._outcome.result()

    async def stopped(self, held: ClaimState) -> Outcome | None:
        """End it, and wait for that; an outcome if the handler ended before it was stopped."""
        self._tell(Stop(held.lost, held.cancel_reason, held.timed_out))
        self.stop(_patience(held))
        await self.gone()
        return self._outcome.result()

    async def gone(self) -> str:
        """Wait until nothing of it is left, however often we are cancelled; says how it ended."""
        await _all_done([self._ended, self._listening])
        return _ending(self._ended.result())

    def when_gone(self, do: Callable[[], object]) -> None:
        self._ended.add_done_callback(lambda _: do())

    # -- ending it: from any thread -------------------------------------------------------------

    def stop_lost(self, held: ClaimState) -> None:
        """Before the lease ends, even if the event loop is blocked."""
        self.stop(_patience(held))

    def stop(self, patience: float = PATIENCE) -> None:
        """SIGTERM, and SIGKILL if that does not help in time; to all that it started, too."""
        with self._lock:
            self._signal(signal.SIGTERM if patience > 0 else signal.SIGKILL)
            self._kill_after(patience)

    def leave(self) -> None:
        """Ask it to end."""
        self._tell(Leave())
        with self._lock:
            self._kill_after(PATIENCE)

    def _kill_after(self, patience: float) -> None:
        if self._killer is None and not self._reaped:
            self._killer = threading.Timer(patience, self._kill)
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
            self._signal(signal.SIGKILL)  # not reaped yet, so the number can't be anybody else's
            self._reaped = True
            code = self._popen.wait()
            if self._killer is not None:
                self._killer.cancel()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._has_ended, code)

    def _has_ended(self, code: int) -> None:
        self._ended.set_result(code)
        if not self._listening.done():  # somebody else may have our socket, and never close it
            self._loop.call_later(LAST_WORDS, self._listening.cancel)

    # -- telling and being told -----------------------------------------------------------------

    def _tell(self, message: ToChild) -> None:
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
                self._kill_after(PATIENCE)  # it can't be used without its socket
            for said in (self._ready, self._outcome):
                if not said.done():
                    said.set_result(None)

    async def _take(self, message: ToWorker) -> None:
        match message:
            case Ready() | Unable():
                self._ready.set_result(message)
            case Said(logger, level, text):
                logging.getLogger(logger).log(level, "%s", text)
            case Progress() if self._job is not None:
                self._tell(await _answered(_noted(message, self._job[1])))
            case Parents() if self._job is not None:
                self._tell(await _answered(_parents(self._job[1])))
            case Completed() if self._job is not None:
                held, _ = self._job
                held.core.keeper.drop(held)
                held.is_settled_as("succeeded")
            case Ended() if self._job is not None:
                self._job[1].chain(*protocol.children_of(message))
                self._job = None
                self._outcome.set_result(protocol.outcome_of(message))


async def _answered(asked: Awaitable[Answer]) -> Answer:
    try:
        return await asked
    except DibsError as error:
        return Answer(type(error).__name__, str(error))


async def _noted(progress: Progress, context: Context) -> Answer:
    await context.progress(progress.fraction, progress.message)
    return Answer()


async def _parents(context: Context) -> Answer:
    return Answer(jobs=await context.parents())


async def _all_done(futures: "Iterable[Future[Any]]") -> None:
    while waited_for := [future for future in futures if not future.done()]:
        with suppress(asyncio.CancelledError):
            await asyncio.wait(waited_for)


def _patience(held: ClaimState) -> float:
    """A lost lease is noticed a little before it ends, and the process must be gone by then."""
    if not held.lost:
        return PATIENCE
    return min(PATIENCE, held.core.lease_of(held.job) / SECOND * MARGIN / 2)


def _interpreter() -> list[str]:
    """This Python with its options; -P, for the path is ours to set."""
    return [sys.executable, "-P", *["-O"] * sys.flags.optimize, *(f"-W{each}" for each in sys.warnoptions)]


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
