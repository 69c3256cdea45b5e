"""`dibs work --processes N`: keep N processes of the same command running, and give up if none can start.

A process reports through a pipe when it has come up. A process that came up and died is replaced. If several
in a row never come up, the app or the store is broken, and retrying for ever would hide it.

`dibs work --reload` runs one such process, and starts it anew when a Python file changes.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dibs.app.lifespan import unhandle_signals
from dibs.cli._support.health import HEALTH_SOCKET
from dibs.clock import monotonic
from dibs.events import log
from dibs.text import spoken

UP_PIPE = "DIBS_UP_PIPE"  # from a supervisor to its processes
CHECK_EVERY = 0.1  # seconds
RELOAD_CHECK = 0.3  # seconds between two looks at the files
SKIPPED = ("__pycache__", "node_modules")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a process that died is replaced
RAN_WELL = 60.0  # seconds after which the pause starts again at its shortest
TRIES = 3  # processes in a row that never came up
BAD_USAGE = 2
STOP_NOW = signal.SIGURG  # the second request to stop: no service manager sends it; ignored by default


def report_up() -> Callable[[], None]:
    """Return what reports to the supervisor that this process is up.

    The pipe is taken out of the environment: processes of handlers must not report.
    """
    given = os.environ.pop(UP_PIPE, None)
    if given is None:
        return lambda: None
    pipe = int(given)
    os.set_inheritable(pipe, False)

    def report() -> None:
        os.write(pipe, b"up")
        os.close(pipe)

    return report


def is_supervised() -> bool:
    return UP_PIPE in os.environ


@contextmanager
def signals_of_supervisor(stop: Callable[[], object]) -> Iterator[None]:
    """Handle signals in a supervised process: SIGTERM and SIGINT stop once, only STOP_NOW stops again.

    A service manager that ends a service signals each of its processes, and the supervisor signals them, too,
    in any order. Counted as two requests, these would take the grace from the handlers.
    """
    loop, first = asyncio.get_running_loop(), iter([stop])
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: [once() for once in first])
    loop.add_signal_handler(STOP_NOW, stop)
    try:
        yield
    finally:
        unhandle_signals(loop, [signal.SIGTERM, signal.SIGINT, STOP_NOW])


class SupervisedProcess:
    """One worker process, and whether it has come up."""

    def __init__(self, arguments: list[str], health: Path | None) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._pipe: int | None = reader
        environment = {**os.environ, UP_PIPE: str(writer)}
        if health is not None:
            environment[HEALTH_SOCKET] = str(health)
        command = [sys.executable, "-m", "dibs.cli", *arguments]
        # A session of its own: a Ctrl-C in the terminal must reach it once, from the supervisor.
        self.process = subprocess.Popen(  # noqa: S603
            command, start_new_session=True, env=environment, pass_fds=[writer]
        )
        os.close(writer)
        self._came_up = False
        self._began = monotonic()

    @property
    def came_up(self) -> bool:
        if not self._came_up and self._pipe is not None:
            with suppress(BlockingIOError):
                self._came_up = bool(os.read(self._pipe, 10))
        return self._came_up

    @property
    def age(self) -> float:
        return monotonic() - self._began

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.poll()

    def close(self) -> None:
        """Close the pipe of a process that has ended."""
        self._came_up = self.came_up
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


class KeptProcess:
    """One of the N: its process, or when the next one is due."""

    def __init__(self, arguments: list[str], health: Path | None) -> None:
        self._arguments = arguments
        self._health = health
        self._ends = 0
        self._due = 0.0
        self.child: SupervisedProcess | None = None

    def start(self) -> None:
        self.child = SupervisedProcess(self._arguments, self._health)

    def is_due(self) -> bool:
        return self.child is None and monotonic() >= self._due

    def schedule_next(self, child: SupervisedProcess) -> float:
        """Give up the ended process; return after how many seconds the next one starts."""
        self._ends = 1 if child.came_up and child.age > RAN_WELL else self._ends + 1
        pause = float(min(FIRST_PAUSE * 2 ** min(self._ends - 1, 10), LONGEST_PAUSE))
        self._due = monotonic() + pause
        self.child = None
        child.close()
        return pause


class Supervisor:
    """The loop that replaces ended processes, passes signals on, and gives up if none comes up."""

    def __init__(self, healths: Sequence[Path | None], arguments: list[str]) -> None:
        self._arguments = arguments
        self._kept = [KeptProcess(arguments, health) for health in healths]
        self._signals = 0
        self._failures = 0  # processes in a row that never came up

    def run(self) -> int:
        """Run until a signal, and return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count_signal)
        for kept in self._kept:
            kept.start()
        if "--until-idle" in self._arguments:
            return self._wait_for_all()
        while not self._signals:
            time.sleep(CHECK_EVERY)
            for kept in self._kept:
                if (code := self._check(kept)) is not None:
                    self._signals += 1
                    self._wait_for_all()
                    return code
        return self._wait_for_all()

    def _count_signal(self, _: int, __: object) -> None:
        self._signals += 1

    def _check(self, kept: KeptProcess) -> int | None:
        """Replace the process if it ended; return an exit code if that is hopeless."""
        child = kept.child
        if child is None:
            if kept.is_due() and not self._signals:
                kept.start()
            return None
        if child.came_up:
            self._failures = 0
        if child.code is None or self._signals:
            return None
        self._failures += not child.came_up
        pause = kept.schedule_next(child)
        if (code := self._hopeless(child)) is not None:
            return code
        log.warning("✗ a worker process ended (%s); starting another in %s", child.code, spoken(pause))
        return None

    def _hopeless(self, child: SupervisedProcess) -> int | None:
        if child.came_up or any(one.came_up for one in self._children()):
            return None
        if child.code == BAD_USAGE:
            return BAD_USAGE
        if self._failures < TRIES:
            return None
        log.error(
            "✗ no worker process came up, %s times in a row; the last one ended with exit code %s, and its "
            "output is above. Run one alone, without --processes",
            self._failures,
            child.code,
        )
        return 1

    def _wait_for_all(self) -> int:
        """Wait until the last process has ended, pass on signals meanwhile, and return the exit code."""
        children, passed_on = self._children(), 0
        while any(child.code is None for child in children):
            if passed_on < self._signals:
                # Not SIGINT: a process that is still importing would print a traceback.
                number = STOP_NOW if passed_on else signal.SIGTERM
                passed_on += 1
                for child in children:
                    child.process.send_signal(number)
            time.sleep(CHECK_EVERY)
        for child in children:
            child.close()
        return 1 if {child.code for child in children} - {0, -signal.SIGTERM, -signal.SIGINT} else 0

    def _children(self) -> list[SupervisedProcess]:
        return [kept.child for kept in self._kept if kept.child is not None]


def supervise(healths: Sequence[Path | None]) -> int:
    """Keep a process of this command running for each of these health sockets; return the exit code."""
    arguments = _without(["--processes", "--health-port", "--health-host"], sys.argv[1:])
    arguments.append("--processes=1")  # else each would supervise, too
    return Supervisor(healths, arguments).run()


def _without(options: list[str], words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip or word.partition("=")[0] in options:
            skip = not skip and "=" not in word
        else:
            kept.append(word)
    return kept


# -- dibs work --reload --------------------------------------------------------------------------


class Reloader:
    """The process of a worker in development, and the files that it is made of."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._command = [sys.executable, "-m", "dibs.cli", *arguments]
        self._folder = folder
        self._signal: int | None = None

    def run(self) -> int:
        """Run until a signal, or until the process ends as it should; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_signal)
        while True:
            seen = _times(self._folder)
            process = subprocess.Popen(self._command)  # noqa: S603
            changed = self._change_after(process, seen)
            if changed is None:
                return self._end(process)
            log.info("↻ %s changed: starting anew", changed.relative_to(self._folder))
            process.terminate()
            process.wait()
            if self._signal is not None:  # meanwhile; a process begun now would never be told
                return 0

    def _change_after(self, process: "subprocess.Popen[bytes]", seen: dict[Path, int]) -> Path | None:
        """Wait for a change, also after a process that failed; None once this should end."""
        has_failed = False
        while self._signal is None:
            time.sleep(RELOAD_CHECK)
            if (changed := _first_change(seen, _times(self._folder))) is not None:
                return changed
            if process.poll() in (0, BAD_USAGE):
                return None
            if process.returncode is not None and not has_failed:
                has_failed = True
                log.warning("✗ it ended with exit code %s; waiting for a change", process.returncode)
        return None

    def _end(self, process: "subprocess.Popen[bytes]") -> int:
        """Pass the signal on, unless the terminal has sent it to all, and wait for the end."""
        is_told = self._signal == signal.SIGINT and _is_in_foreground()
        if self._signal is not None and not is_told and process.poll() is None:
            process.terminate()
        while process.poll() is None:
            time.sleep(RELOAD_CHECK)
        return process.returncode if self._signal is None else 0

    def _note_signal(self, number: int, _: object) -> None:
        self._signal = number


def _is_in_foreground() -> bool:
    """Return whether a Ctrl-C in a terminal reaches this process, and so the one that it began."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


def reload_on_change(arguments: list[str]) -> int:
    """Run this command without --reload, again after every change below the current folder."""
    return Reloader([word for word in arguments if word != "--reload"], Path.cwd()).run()


def _times(folder: Path) -> dict[Path, int]:
    """Return the Python files below a folder with the times of their last changes."""
    found = {}
    for file in _python_files(folder):
        try:
            found[file] = file.stat().st_mtime_ns
        except OSError:  # removed meanwhile
            continue
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in SKIPPED
            and not Path(path, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(path, name) for name in files if name.endswith(".py"))


def _first_change(before: dict[Path, int], now: dict[Path, int]) -> Path | None:
    return next(
        (file for file in sorted(before.keys() | now.keys()) if before.get(file) != now.get(file)), None
    )
