"""The process of isolated jobs: imports the app, runs one job after the other, ends with its worker.

Handlers run in the main thread, as any program does; a second thread listens to the worker. What is said
travels through a socket of its own, so a handler may print what it likes. The worker ends this process by
signals; SIGTERM comes first and is raised in the handler as `Stopped`, so that its `finally:` blocks run.
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
from dibs.app.lifespan import Lifespan
from dibs.app.running import CANCELLED_WITHIN, arguments_of, handler_for, outcome_of
from dibs.app.state import AppState
from dibs.errors import BadRequest, DibsError, LeaseLost, StoreRefused, StoreUnavailable
from dibs.faces import Call, Calls, make
from dibs.jobs.failures import describe
from dibs.jobs.job import Job, NewJob
from dibs.jobs.states import CancelledBy, Outcome
from dibs.worker.isolation import importing, protocol
from dibs.worker.isolation.protocol import Answer, Completed, Load, Ready, Run, Said, Stop, ToWorker, Unable

PR_SET_PDEATHSIG = 1
ERRORS = {error.__name__: error for error in (BadRequest, LeaseLost, StoreRefused, StoreUnavailable)}


class Stopped(BaseException):
    """The worker wants this process to end: time ran out, somebody cancelled, or the lease was lost."""


def main() -> None:
    """What the worker starts: `python -c … SOCKET WORKER SYS_PATH…`."""
    number, worker = int(sys.argv[1]), int(sys.argv[2])
    end_with(worker)
    line = Line(socket.socket(fileno=number))
    first = line.receive()
    assert isinstance(first, Load)
    sys.argv[:] = first.arguments
    try:
        app = importing.load(first.place)
    except BaseException as error:
        line.send(Unable(_reason(error)))
        return
    with suppress(Stopped), asyncio.Runner() as runner:
        living = Living(app._core.lifespan, runner)
        try:
            state = living.enter()
        except BaseException as error:
            line.send(Unable(_reason(error)))
            return
        try:
            child = Child(app, line, runner, state)
            send_logs(child.tell, first.log_level)
            child.work()
        finally:
            living.leave()


class Living:
    """The lifespan of this process: a task of the handlers' loop, which waits while no handler runs."""

    def __init__(self, lifespan: Lifespan, runner: asyncio.Runner) -> None:
        self._lifespan = lifespan
        self._runner = runner

    def enter(self) -> Any:
        return self._runner.run(self._enter())

    def leave(self) -> None:
        self._runner.run(self._leave())

    async def _enter(self) -> Any:
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._live(entered))
        await asyncio.wait([entered, self._task], return_when=asyncio.FIRST_COMPLETED)
        return await (entered if entered.done() else self._task)

    async def _live(self, entered: "asyncio.Future[Any]") -> None:
        async with self._lifespan.entered() as state:
            entered.set_result(state)
            await self._over.wait()

    async def _leave(self) -> None:
        self._over.set()
        await self._task


class Line:
    """The socket to the worker; several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._file = connection.makefile("rb")
        self._connection = connection
        self._sending = threading.RLock()

    def send(self, message: ToWorker) -> None:
        with self._sending:
            self._connection.sendall(protocol.frame(message))

    def receive(self) -> protocol.ToChild | None:
        """The next message; None when the worker is gone."""
        header = self._read(protocol.HEADER)
        body = None if header is None else self._read(protocol.length_of(header))
        return None if body is None else protocol.read_in_child(body)

    def _read(self, length: int) -> bytes | None:
        with suppress(OSError):
            data = self._file.read(length)
            return data if len(data) == length else None
        return None


class Child:
    """Runs jobs until it is told to leave."""

    def __init__(self, app: Dibs, line: Line, runner: asyncio.Runner, state: Any) -> None:
        self._core = app._core
        self._state = state
        self._line = line
        self._runner = runner
        self._jobs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._asked: deque[Future[Answer]] = deque()
        self._held: ClaimState | None = None
        self._stopping = False
        self._may_raise = True

    def work(self) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=self._listen, name="dibs-line", daemon=True).start()
        self.tell(Ready())
        while not self._stopping and (run := self._jobs.get()) is not None:
            held = self._held = IsolatedClaimState(self, self._core, run)
            context = IsolatedContext(self, held, self._state)
            self._tell_end(held, self._perform(held, context), context.children)

    def tell(self, message: ToWorker) -> None:
        """Say it whole: half a message would spoil all that follow."""
        if threading.current_thread() is not threading.main_thread():
            self._line.send(message)
            return
        with self._unstopped():
            self._line.send(message)

    def ask(self, note: protocol.Progress | protocol.Parents) -> "Future[Answer]":
        """Answers come in the order of the questions."""
        asked: Future[Answer] = Future()
        self._asked.append(asked)
        self.tell(note)
        return asked

    # -- handlers -------------------------------------------------------------------------------

    def _perform(self, held: ClaimState, context: Context) -> Outcome | None:
        """What the handler came to; None if it was stopped."""
        try:
            task = handler_for(self._core.registry, held.job)
            arguments = arguments_of(task, held.job, context)
            if task.is_async:
                value = self._runner.run(self._awaited(task.function(**arguments)))
            else:
                value = task.function(**arguments)
            return outcome_of(held, value)
        except CancelAsked:
            return CancelledBy(held.cancel_reason or None)
        except asyncio.CancelledError:
            return None if self._stopping else held.raised(CANCELLED_WITHIN)
        except BaseException as error:
            return None if self._stopping else _raised(held, error)

    async def _awaited(self, coroutine: Awaitable[Any]) -> Any:
        """SIGTERM cancels it, as its worker would; raised into the loop it could hit anything."""
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

    def _tell_end(self, held: ClaimState, outcome: Outcome | None, children: list[NewJob]) -> None:
        if outcome is None:
            return
        try:
            message = protocol.ended(outcome, children, self._core.settings.max_payload)
        except Exception as error:
            message = protocol.ended(_raised(held, error), [], 0)
        self.tell(message)

    # -- being told -----------------------------------------------------------------------------

    def _listen(self) -> None:
        while (message := self._line.receive()) is not None:
            match message:
                case Run():
                    self._jobs.put(message)
                case Answer():
                    with suppress(InvalidStateError):  # who asked may have been cancelled
                        self._asked.popleft().set_result(message)
                case Stop():
                    self._mark(message)
                case _:
                    self._jobs.put(None)
                    return
        end_group()

    def _mark(self, stop: Stop) -> None:
        if (held := self._held) is not None:
            held.cancel_reason, held.timed_out, held.lost = stop.cancel_reason, stop.timed_out, stop.lost

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
    """A claim whose keeper is the worker: it renews, notes progress and settles."""

    def __init__(self, child: Child, core: AppState, run: Run) -> None:
        super().__init__(core, run.job, run.asked_at)
        self._child = child

    def is_settled_as(self, settled_as: str, *, delay: int | None = None, errors: str | None = None) -> None:
        """In a transaction of the handler's own: the worker must not renew it any more."""
        super().is_settled_as(settled_as, delay=delay, errors=errors)
        self._child.tell(Completed())


class IsolatedContext(Context):
    """What the store must hear is said by the worker; what is done in the handler's transaction, here."""

    def __init__(self, child: Child, held: ClaimState, state: Any) -> None:
        super().__init__(Claim(held), state)
        self._child = child
        self._progress = IsolatedProgress(child, held)

    def _parents(self) -> Calls[list[Job]]:
        """Ask the worker's store: memory is there only."""
        return _mind((yield from _received(self._child.ask(protocol.Parents())))).jobs

    def _complete(self, result: Any, within: Any) -> Calls[None]:
        if within is None:
            raise BadRequest("ctx.complete(within=None): give the connection of your transaction")
        yield from super()._complete(result, within)


class IsolatedProgress(ProgressNotes):
    """Every note goes to the worker, which writes as many of them as the store should hear."""

    def __init__(self, child: Child, held: ClaimState) -> None:
        super().__init__(held)
        self._child = child

    def note(self, fraction: float, message: str | None, *, stops: bool) -> Calls[None]:
        check = self._held.check_stop if stops else self._held.check
        check()
        self._held.check_progress(fraction, message)
        _mind((yield from _received(self._child.ask(protocol.Progress(fraction, message)))))
        if stops:
            check()


def _received(asked: "Future[Answer]") -> Calls[Answer]:
    """Wait for what the worker sends back."""
    return (yield from make(Call(asked.result, partial(_receive, asked))))


async def _receive(asked: "Future[Answer]") -> Answer:
    return await asyncio.wrap_future(asked)


def _mind(answer: Answer) -> Answer:
    if answer.error is not None:
        raise ERRORS.get(answer.error, DibsError)(answer.message)
    return answer


# -- the end of the worker ----------------------------------------------------------------------


def end_with(worker: int) -> None:
    """On Linux, end a second after the worker did, whatever this process is busy with.

    Our thread sees the worker's end at once and ends the whole group, but it never comes to that while C
    code keeps the interpreter to itself. So the kernel is asked for a signal then, and the handler of that
    signal is C, too: `alarm(1)`, the 1 being SIGHUP's own number.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGHUP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != worker:  # it ended before we asked
        end_group()


def end_group() -> NoReturn:
    """This process and all that its handlers started."""
    os.killpg(os.getpid(), signal.SIGKILL)  # the worker made us the leader of a group
    os._exit(1)


# -- logs and errors ----------------------------------------------------------------------------


class Sending(logging.Handler):
    """Passes log records on to the worker, which knows where logs go."""

    def __init__(self, send: Callable[[ToWorker], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(Said(record.name, record.levelno, self.format(record)))
        except Exception:
            self.handleError(record)


def send_logs(send: Callable[[ToWorker], None], level: int) -> None:
    """Unless the app's modules set logging up themselves."""
    logging.lastResort = Sending(send)
    if not logging.root.handlers:
        logging.root.setLevel(level)


def _raised(held: ClaimState, error: BaseException) -> Outcome:
    try:
        return held.raised(error)
    except BaseException as worse:
        return held.raised(f"the handler failed, and its error can't be described ({type(worse).__name__})")


def _reason(error: BaseException) -> str:
    kind, message, trace = describe(error)
    return message if isinstance(error, DibsError) else f"{kind}: {message}\n{trace or ''}".rstrip()
