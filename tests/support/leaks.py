"""What a test left behind: threads, asyncio tasks and sockets that were not there before."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PATIENCE_SECONDS = 2.0
POLL_SECONDS = 0.02

shared: set[str] = set()
"""Sockets that outlive the test that opened them, on purpose."""


class Leaked(AssertionError):
    """A test ended and something of it lives on; the message lists what."""


@contextlib.contextmanager
def check_leaks(
    *, patience: float = PATIENCE_SECONDS, unless: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Fail with `Leaked` when the body leaves anything running or open for longer than that.

    A body that raised is not checked, nor one for which `unless()` then holds: the traceback of
    a failure keeps connections alive, and the failure is the news.
    """
    before = _Living.now()
    yield
    leaked = [] if unless() else _wait_for_nothing_since(before, patience)
    if leaked:
        raise Leaked("left behind:\n" + "\n".join(f"  - {each}" for each in leaked))


@dataclass(frozen=True, slots=True)
class _Living:
    """Everything that counts, at one moment; each thing kept whole so that ids stay unique."""

    threads: frozenset[threading.Thread]
    tasks: frozenset[asyncio.Task[object]]
    sockets: frozenset[str]

    @classmethod
    def now(cls) -> _Living:
        return cls(_threads(), _tasks(), _sockets())

    def since(self, before: _Living) -> list[str]:
        return [
            *(f"thread {thread!r}" for thread in self.threads - before.threads),
            *(f"pending task {task!r}" for task in self.tasks - before.tasks),
            *(_describe_socket(each) for each in sorted(self.sockets - before.sockets)),
        ]


def _wait_for_nothing_since(before: _Living, patience: float) -> list[str]:
    deadline = time.monotonic() + patience
    while leaked := _Living.now().since(before):
        if time.monotonic() >= deadline:
            break
        gc.collect()
        time.sleep(POLL_SECONDS)
    return leaked


def _threads() -> frozenset[threading.Thread]:
    return frozenset(thread for thread in threading.enumerate() if not _is_pytest_own(thread))


def _is_pytest_own(thread: threading.Thread) -> bool:
    return thread.daemon and thread.name.startswith("pytest")


def _tasks() -> frozenset[asyncio.Task[object]]:
    return frozenset(task for task in _all_tasks() if not task.done())


def _all_tasks() -> list[asyncio.Task[object]]:
    """Of every loop, where asyncio.all_tasks() knows only one. Its registry moved in 3.12 and in 3.14."""
    registry = getattr(asyncio.tasks, "_all_tasks", None)
    while registry is not None:
        with contextlib.suppress(RuntimeError):  # another thread has just added one
            return list(registry)
    return [each for each in gc.get_objects() if type(each) is asyncio.Task]


def _sockets() -> frozenset[str]:
    links = (link(number) for number in os.listdir("/proc/self/fd"))
    return frozenset(link for link in links if link.startswith("socket:")) - shared


def link(number: str | int) -> str:
    """What a file descriptor of this process stands for."""
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return ""


def _describe_socket(link: str) -> str:
    return f"open {link} {_addresses_of(link.removeprefix('socket:[').removesuffix(']'))}".rstrip()


def _addresses_of(inode: str) -> str:
    """The TCP addresses of the socket, when the kernel tells them."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as lines:
            for line in lines:
                fields = line.split()
                if fields[9] == inode:
                    return f"({_port(fields[1])} to {_port(fields[2])})"
    return ""


def _port(address: str) -> str:
    return f"port {int(address.rpartition(':')[2], 16)}"
