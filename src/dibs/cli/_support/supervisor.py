"""`dibs work --processes N`: keep N processes of the same command running, and know when that is hopeless.

A process tells its supervisor when it has come up, through a pipe. One that came up and died is replaced; if
none comes up, several times in a row, it is the app or the store that is broken, and trying again for ever
would hide it.
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

from dibs.app.signals import unhandle_signals
from dibs.cli._support.health import HEALTH_SOCKET
from dibs.clock import monotonic
from dibs.events import log
from dibs.text import spoken

UP_PIPE = "DIBS_UP_PIPE"  # from a supervisor to its processes
LOOK_EVERY = 0.1  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a process that died is replaced
RAN_WELL = 60.0  # seconds after which a death is the first one again
TRIES = 3  # in a row in which no process came up
BAD_USAGE = 2
HURRY = signal.SIGURG  # asks a process once more: no service manager sends it; unheard it does nothing


def tell_supervisor() -> Callable[[], None]:
    """What a process calls when it has come up. Taken out of the environment: handlers are not it."""
    given = os.environ.pop(UP_PIPE, None)
    if given is None:
        return lambda: None
    pipe = int(given)
    os.set_inheritable(pipe, False)

    def tell() -> None:
        os.write(pipe, b"up")
        os.close(pipe)

    return tell


def is_supervised() -> bool:
    return UP_PIPE in os.environ


@contextmanager
def signals_of_supervisor(stop: Callable[[], object]) -> Iterator[None]:
    """How a supervised process hears them: all that end a process are one wish, and who hurries says so.

    A service manager that ends a service signals each of its processes, and then the supervisor does, too, in
    whatever order a busy machine delivers that. Taken for two wishes, it would cost the handlers their grace.
    """
    loop, first = asyncio.get_running_loop(), iter([stop])
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: [wish() for wish in first])
    loop.add_signal_handler(HURRY, stop)
    try:
        yield
    finally:
        unhandle_signals(loop, [signal.SIGTERM, signal.SIGINT, HURRY])


class Child:
    """One process, and whether it has come up."""

    def __init__(self, arguments: list[str], health: Path | None) -> None:
        ear, mouth = os.pipe()
        os.set_blocking(ear, False)
        self._ear: int | None = ear
        environment = {**os.environ, UP_PIPE: str(mouth)}
        if health is not None:
            environment[HEALTH_SOCKET] = str(health)
        command = [sys.executable, "-m", "dibs.cli", *arguments]
        # A session of its own: a Ctrl-C in the terminal must reach it once, from us.
        self.process = subprocess.Popen(  # noqa: S603
            command, start_new_session=True, env=environment, pass_fds=[mouth]
        )
        os.close(mouth)
        self._came_up = False
        self._began = monotonic()

    @property
    def came_up(self) -> bool:
        if not self._came_up and self._ear is not None:
            with suppress(BlockingIOError):
                self._came_up = bool(os.read(self._ear, 10))
        return self._came_up

    @property
    def lived(self) -> float:
        return monotonic() - self._began

    @property
    def code(self) -> int | None:
        """How it ended; None while it lives."""
        return self.process.poll()

    def forget(self) -> None:
        """It has ended, and will say nothing more."""
        self._came_up = self.came_up
        if self._ear is not None:
            os.close(self._ear)
            self._ear = None


class Place:
    """One of the N: the process that is there, or when the next one is due."""

    def __init__(self, arguments: list[str], health: Path | None) -> None:
        self._arguments = arguments
        self._health = health
        self._deaths = 0
        self._due = 0.0
        self.child: Child | None = None

    def start(self) -> None:
        self.child = Child(self._arguments, self._health)

    def is_due(self) -> bool:
        return self.child is None and monotonic() >= self._due

    def bury(self, child: Child) -> float:
        """Make room for the next one; after how many seconds it will be started."""
        self._deaths = 1 if child.came_up and child.lived > RAN_WELL else self._deaths + 1
        pause = float(min(FIRST_PAUSE * 2 ** min(self._deaths - 1, 10), LONGEST_PAUSE))
        self._due = monotonic() + pause
        self.child = None
        child.forget()
        return pause


class Supervisor:
    """Keeps a process at each place, passes on the signals that end them, and gives up if none comes up."""

    def __init__(self, healths: Sequence[Path | None], arguments: list[str]) -> None:
        self._arguments = arguments
        self._places = [Place(arguments, health) for health in healths]
        self._signals = 0
        self._in_vain = 0  # processes in a row that never came up

    def run(self) -> int:
        """Until told to stop; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)
        for place in self._places:
            place.start()
        if "--until-idle" in self._arguments:
            return self._wait_for_all()
        while not self._signals:
            time.sleep(LOOK_EVERY)
            for place in self._places:
                if (code := self._look_at(place)) is not None:
                    self._signals += 1
                    self._wait_for_all()
                    return code
        return self._wait_for_all()

    def _hear(self, _: int, __: object) -> None:
        self._signals += 1

    def _look_at(self, place: Place) -> int | None:
        """Replace what died here; an exit code if that makes no sense any more."""
        child = place.child
        if child is None:
            if place.is_due() and not self._signals:
                place.start()
            return None
        if child.came_up:
            self._in_vain = 0
        if child.code is None or self._signals:
            return None
        self._in_vain += not child.came_up
        pause = place.bury(child)
        if (code := self._hopeless(child)) is not None:
            return code
        log.warning("✗ a worker process ended (%s); starting another in %s", child.code, spoken(pause))
        return None

    def _hopeless(self, child: Child) -> int | None:
        if child.came_up or any(one.came_up for one in self._children()):
            return None
        if child.code == BAD_USAGE:
            return BAD_USAGE
        if self._in_vain < TRIES:
            return None
        log.error(
            "✗ no worker process came up, %s times in a row; the last one ended with exit code %s, and what "
            "it said is above. Try it alone, without --processes",
            self._in_vain,
            child.code,
        )
        return 1

    def _wait_for_all(self) -> int:
        """Until the last one has ended; every signal that we get in the meantime is theirs, too."""
        children, passed_on = self._children(), 0
        while any(child.code is None for child in children):
            if passed_on < self._signals:
                # No SIGINT: it would show where in its imports a process was.
                number = HURRY if passed_on else signal.SIGTERM
                passed_on += 1
                for child in children:
                    child.process.send_signal(number)
            time.sleep(LOOK_EVERY)
        for child in children:
            child.forget()
        return 1 if {child.code for child in children} - {0, -signal.SIGTERM, -signal.SIGINT} else 0

    def _children(self) -> list[Child]:
        return [place.child for place in self._places if place.child is not None]


def supervise(healths: Sequence[Path | None]) -> int:
    """Keep a process of this very command running for each of these places where they tell their health."""
    arguments = _without(["--processes", "--health-port", "--health-host"], sys.argv[1:])
    arguments.append("--processes=1")  # else they would supervise, too
    return Supervisor(healths, arguments).run()


def _without(options: list[str], words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip or word.partition("=")[0] in options:
            skip = not skip and "=" not in word
        else:
            kept.append(word)
    return kept
