"""Commands typed at a real terminal: what is on the screen, what one answers, and how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0
CONTROL_C, CONTROL_D = "\x03", "\x04"


class Terminal:
    """A command that believes to be talking to a person."""

    def __init__(self, folder: Path, *words: object, columns: int = 80, rows: int = 24) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dibs.cli", *map(str, words)],
            cwd=folder,
            env={**kept, "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self._ours = ours
        self.screen = ""

    def shows(self, text: str) -> None:
        """Wait until this is on the screen."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} was never seen, only {self.screen!r}"
            assert self._read(0.1) or self._process.poll() is None, f"{text!r} is not in {self.screen!r}"

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ended(self) -> int:
        """The exit code; all that was said until then is on the screen."""
        deadline = time.monotonic() + PATIENCE
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.screen!r}"
            self._read(0.1)
        while self._read(0.1):
            pass
        return self._process.returncode

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], seconds)
        try:
            read = os.read(self._ours, 65536) if ready else b""
        except OSError:  # nobody is left at the other end
            return False
        self.screen += read.decode(errors="replace")
        return bool(read)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@contextmanager
def typed(folder: Path, *words: object, **size: int) -> Iterator[Terminal]:
    terminal = Terminal(folder, *words, **size)
    try:
        yield terminal
    finally:
        terminal.close()
