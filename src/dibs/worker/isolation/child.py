"""The main program of a process for isolated jobs: import the app, run one job after another.

Handlers run in the main thread, as any program does; a second thread reads the worker's messages. These have
a socket of their own, so a handler may print what it likes. The worker ends this process by signals; SIGTERM
comes first and is raised in the handler as `Stopped`, so that its `finally:` blocks run.
"""

import asyncio
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from dibs.app.claims import CancelAsked, Claim, ClaimState
from dibs.app.context import Context, ProgressNotes
from dibs.app.dibs import Dibs
from dibs.app.lifespan import Lifespan, call_inside, call_inside_sync
from dibs.app.outcomes import CANCELLED_WITHIN, outcome_of, outcome_of_error
from dibs.app.running import arguments_of, handler_for
from dibs.app.state import AppState
from dibs.errors import BadRequest, DibsError, LeaseLost, StoreBusy, StoreRefused, StoreUnavailable
from dibs.faces import Call, Calls, make
from dibs.jobs.job import Job, NewJob
from dibs.jobs.outcomes import describe
from dibs.jobs.states import CancelledBy, Outcome
from dibs.worker.isolation import importing, protocol

PR_SET_PDEATHSIG = 1
RAISED = (BadRequest, LeaseLost, StoreBusy, StoreRefused, StoreUnavailable)
ERRORS = {error.__name__: error for error in RAISED}


class Stopped(BaseException):
    """SIGTERM from the worker: the time is over, the job was cancelled, or its lease was lost."""


def main() -> None:
    """Run the process that the worker starts as `python -c … SOCKET WORKER SYS_PATH…`."""
    number, worker = int(sys.argv[1]), int(sys.argv[2])
    end_with(worker)
    connection = WorkerSocket(socket.socket(fileno=number))
    first = connection.receive()
    assert isinstance(first, protocol.LoadApp)
    sys.argv[:] = first.arguments
    try:
        app = importing.load(first.app)
    except BaseException as error:
        connection.send(protocol.LoadFailed(_reason(error)))
    else:
        run_jobs(app, connection, first.log_level)


def run_jobs(app: Dibs, connection: "WorkerSocket", log_level: int) -> None:
    with suppress(Stopped), asyncio.Runner() as runner:
        lifespan = ChildLifespan(app._core.lifespan)
        try:
            state = runner.run(lifespan.enter())
        except BaseException as error:
            connection.send(protocol.LoadFailed(_reason(error)))
            return
        try:
            jobs = IsolatedRunner(app, connection, runner, state)
            send_logs(jobs.send, log_level)
            jobs.work()
        finally:
            runner.run(lifespan.leave())


class ChildLifespan:
    """The app's lifespan in this process: an asyncio task on the handlers' loop, which waits between jobs."""

    def __init__(self, lifespan: Lifespan) -> None:
        self._lifespan = lifespan

    async def enter(self) -> Any:
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._live(entered))
        await asyncio.wait([entered, self._task], return_when=asyncio.FIRST_COMPLETED)
        return await (entered if entered.done() else self._task)

    async def _live(self, entered: "asyncio.Future[Any]") -> None:
        async with self._lifespan.entered() as state:
            entered.set_result(state)
            await self._over.wait()

    async def leave(self) -> None:
        self._over.set()
        await self._task


class WorkerSocket:
    """The socket to the worker; several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._file = connection.makefile("rb")
        self._connection = connection
        self._sending = threading.RLock()

    def send(self, message: protocol.ToWorker) -> None:
        with self._sending:
            self._connection.sendall(protocol.frame(message))

    def receive(self) -> protocol.ToChild | None:
        """Return the next message; None when the worker is gone."""
        header = self._read(protocol.HEADER)
        body = None if header is None else self._read(protocol.length_of(header))
        return None if body is None else protocol.read_in_child(body)

    def _read(self, length: int) -> bytes | None:
        with suppress(OSError):
            data = self._file.read(length)
            return data if len(data) == length else None
        return None


class IsolatedRunner:
    """Runs one job after another until the worker asks this process to end."""

    def __init__(self, app: Dibs, connection: WorkerSocket, runner: asyncio.Runner, state: Any) -> None:
        self._core = app._core
        self._state = state
        self._connection = connection
        self._runner = runner
        self._jobs: queue.SimpleQueue[protocol.RunJob | None] = queue.SimpleQueue()
        self._requested: deque[Future[protocol.Reply]] = deque()
        self._held: ClaimState | None = None
        self._stopping = False
        self._may_raise = True

    def work(self) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=self._listen, name="dibs-messages", daemon=True).start()
        self.send(protocol.AppLoaded())
        while not self._stopping and (run := self._jobs.get()) is not None:
            held = self._held = IsolatedClaimState(self, self._core, run)
            context = IsolatedContext(self, held, self._state)
            self._send_end(held, self._perform(held, context), context.children)

    def send(self, message: protocol.ToWorker) -> None:
        """Send the whole message before SIGTERM is raised: half of it would spoil all that follow."""
        if threading.current_thread() is not threading.main_thread():
            self._connection.send(message)
            return
        with self._unstopped():
            self._connection.send(message)

    def ask(self, request: protocol.ProgressNote | protocol.ParentsRequest) -> "Future[protocol.Reply]":
        """Send a request; the replies come in the order of the requests."""
        reply: Future[protocol.Reply] = Future()
        self._requested.append(reply)
        self.send(request)
        return reply

    # -- handlers -------------------------------------------------------------------------------

    def _perform(self, held: ClaimState, context: Context) -> Outcome | None:
        """Return the outcome of the handler; None if it was stopped."""
        try:
            task = handler_for(self._core.registry, held.job)
            arguments = arguments_of(task, held.job, context)
            inside = (self._core.arounds, held.job, task.function, arguments)
            if task.is_async:
                value = self._runner.run(self._cancellable(call_inside(*inside)))
            else:
                value = call_inside_sync(*inside)
            return outcome_of(held, value)
        except CancelAsked:
            return CancelledBy(held.cancel_reason or None)
        except asyncio.CancelledError:
            return None if self._stopping else held.raised(CANCELLED_WITHIN)
        except BaseException as error:
            return None if self._stopping else _raised(held, error)

    async def _cancellable(self, coroutine: Awaitable[Any]) -> Any:
        """Let SIGTERM cancel an async handler: raised in its loop, `Stopped` could hit anything."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop() -> None:
            self._stopping = True
            task.cancel()

        loop.add_signal_handler(signal.SIGTERM, stop)
        try:
            return await coroutine
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._stop)

    def _send_end(self, held: ClaimState, outcome: Outcome | None, children: list[NewJob]) -> None:
        if outcome is None:
            return
        try:
            message = protocol.handler_ended(outcome, children, self._core.settings.max_payload)
        except Exception as error:
            message = protocol.handler_ended(_raised(held, error), [], 0)
        self.send(message)

    # -- messages and signals -------------------------------------------------------------------

    def _listen(self) -> None:
        while (message := self._connection.receive()) is not None:
            match message:
                case protocol.RunJob():
                    self._jobs.put(message)
                case protocol.Reply():
                    with suppress(InvalidStateError):  # the request may have been cancelled
                        self._requested.popleft().set_result(message)
                case protocol.StopReason():
                    if (held := self._held) is not None:
                        held.lost, held.cancel_reason = message.lost, message.cancel_reason
                        held.timed_out = message.timed_out
                case _:
                    self._jobs.put(None)
                    return
        end_group()

    def _stop(self, _: int, __: object) -> None:
        self._stopping = True
        if self._may_raise:
            raise Stopped

    @contextmanager
    def _unstopped(self) -> Iterator[None]:
        before, self._may_raise = self._may_raise, False
        try:
            yield
        finally:
            self._may_raise = before
        if before and self._stopping:
            raise Stopped


class IsolatedClaimState(ClaimState):
    """A claim that the worker renews and settles, and for which it notes progress."""

    def __init__(self, runner: IsolatedRunner, core: AppState, run: protocol.RunJob) -> None:
        super().__init__(core, run.job, run.asked_at)
        self._runner = runner

    def note_outcome(self, settled_as: str, *, delay: int | None = None, errors: str | None = None) -> None:
        """Note the settlement in the handler's own transaction; the worker renews the lease no longer."""
        super().note_outcome(settled_as, delay=delay, errors=errors)
        self._runner.send(protocol.JobCompleted())


class IsolatedContext(Context):
    """A context that asks the worker for all but what belongs to the handler's own transaction."""

    def __init__(self, runner: IsolatedRunner, held: ClaimState, state: Any) -> None:
        super().__init__(Claim(held), state)
        self._runner = runner
        self._progress = IsolatedProgress(runner, held)

    def _parents(self) -> Calls[list[Job]]:
        """Return the parents from the worker's store: this process has no access to one in memory."""
        return _checked((yield from _received(self._runner.ask(protocol.ParentsRequest())))).jobs

    def _complete(self, result: Any, within: Any) -> Calls[None]:
        if within is None:
            raise BadRequest("ctx.complete(within=None): give the connection of your transaction")
        yield from super()._complete(result, within)


class IsolatedProgress(ProgressNotes):
    """Progress that is sent to the worker, which writes as much of it as the store should get."""

    def __init__(self, runner: IsolatedRunner, held: ClaimState) -> None:
        super().__init__(held)
        self._runner = runner

    def note(self, fraction: float, message: str | None, *, stops: bool) -> Calls[None]:
        check = self._held.check_stop if stops else self._held.check
        check()
        self._held.check_progress(fraction, message)
        _checked((yield from _received(self._runner.ask(protocol.ProgressNote(fraction, message)))))
        if stops:
            check()


def _received(asked: "Future[protocol.Reply]") -> Calls[protocol.Reply]:
    """Wait for the worker's reply."""
    return (yield from make(Call(asked.result, partial(_receive, asked))))


async def _receive(asked: "Future[protocol.Reply]") -> protocol.Reply:
    return await asyncio.wrap_future(asked)


def _checked(reply: protocol.Reply) -> protocol.Reply:
    if reply.error is not None:
        raise ERRORS.get(reply.error, DibsError)(reply.message)
    return reply


# -- the end of the worker ----------------------------------------------------------------------


def end_with(worker: int) -> None:
    """End a second after the worker did, whatever this process is busy with; only on Linux.

    The thread that reads messages sees the worker's end at once and ends the whole group, but it can't run
    while C code holds the interpreter. So the kernel is asked for a signal then, and the handler of that
    signal is C, too: `alarm(1)`, the 1 being SIGHUP's own number.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGHUP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != worker:  # it ended before the kernel was asked
        end_group()


def end_group() -> NoReturn:
    """Kill this process and all that its handlers started."""
    os.killpg(os.getpid(), signal.SIGKILL)  # the worker made this process the leader of a group
    os._exit(1)


# -- logs and errors ----------------------------------------------------------------------------


class LogSender(logging.Handler):
    """Sends log records to the worker, which knows where logs go."""

    def __init__(self, send: Callable[[protocol.ToWorker], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(protocol.LogMessage(record.name, record.levelno, self.format(record)))
        except Exception:
            self.handleError(record)


def send_logs(send: Callable[[protocol.ToWorker], None], level: int) -> None:
    """Send logs to the worker, unless the app's modules set up logging themselves."""
    logging.lastResort = LogSender(send)
    if not logging.root.handlers:
        logging.root.setLevel(level)


def _raised(held: ClaimState, error: BaseException) -> Outcome:
    try:
        return outcome_of_error(held, error)
    except BaseException as worse:
        return held.raised(f"the handler failed, and its error can't be described ({type(worse).__name__})")


def _reason(error: BaseException) -> str:
    kind, message, trace = describe(error)
    return message if isinstance(error, DibsError) else f"{kind}: {message}\n{trace or ''}".rstrip()
