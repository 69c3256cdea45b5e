"""A server of the tests' own: started on a free port, ended with the process that started it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import time
from types import TracebackType
from typing import ClassVar, Self

from tests.support.servers.processes import (
    HOST,
    POLL_SECONDS,
    START_SECONDS,
    STOP_SECONDS,
    ServerFailed,
    find_binary,
    free_port,
    guarded,
    new_folder,
    output_of,
    root_folder,
    spawn,
    tail,
    version_in,
)

used: dict[str, str] = {}
"""The version of every kind of server this process has really started."""
not_tested: dict[str, str] = {}
"""The servers that tests wanted and could not have, with the reasons."""


class Server:
    """One private server: it keeps its port and data over stop, kill and start, until removed."""

    name: ClassVar[str]
    account: ClassVar[str | None] = None
    binary: ClassVar[str]
    package: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    death_signal: ClassVar[str] = "KILL"
    hello: ClassVar[bytes] = b""
    greeting: ClassVar[bytes] = b""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = new_folder(self.name.lower(), self.account)
        self.log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._prepare()
        _living.append(self)

    def start(self) -> None:
        """Bring the server up, on the data and port it had before; nothing to do when it is up."""
        deadline = time.monotonic() + START_SECONDS
        while not self.running:
            self._process = self._spawn(self._command(), self._environment())
            if not self._comes_up(deadline):
                self._give_up_after(deadline)
        used[self.name] = self.version

    def stop(self) -> None:
        """End the server politely, and by force when that takes too long; the data stays."""
        if self._process is not None and self.running:
            self._process.send_signal(self.stop_signal)
            self._process.send_signal(signal.SIGCONT)
            self._wait_or_kill()

    def kill(self) -> None:
        """End the server as a power cut would: SIGKILL, no goodbye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(ValueError):
            _living.remove(self)

    def url(self) -> str:
        raise NotImplementedError

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name} was never started; call start() first")
        return self._process.pid

    @functools.cached_property
    def version(self) -> str:
        return version_in(output_of([self._find(self.binary), "--version"]))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def _prepare(self) -> None:
        """Make what the server needs before its first start."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        return {}

    def _find(self, binary: str) -> str:
        return find_binary(binary, self.package)

    def _spawn(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return spawn(
            [*guarded(self.account, self.death_signal), *command],
            log=self.log,
            folder=self.folder,
            environment=environment,
        )

    def _comes_up(self, deadline: float) -> bool:
        while self.running and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as talk:
                talk.sendall(self.hello)
                return self.greeting in talk.recv(4096)
        except OSError:
            return False

    def _give_up_after(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            self.kill()
            raise ServerFailed(
                f"{self.name} on port {self.port} did not come up within {START_SECONDS} s; "
                f"its log ends:\n{tail(self.log)}"
            )
        time.sleep(0.1)

    def _wait_or_kill(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


_living: list[Server] = []
_owner = os.getpid()


@atexit.register
def _remove_all() -> None:
    # A forked child that exits inherits this hook, but not the servers.
    if os.getpid() == _owner and root_folder.cache_info().currsize:
        for server in list(_living):
            server.remove()
        shutil.rmtree(root_folder(), ignore_errors=True)
