"""Who answers `--health-port`: the worker itself, or the supervisor for all of its processes.

With several processes each answers on a socket file of its own that only the supervisor knows. The
supervisor asks them all and is healthy when all of them are; one that is dead, or whose event loop is
blocked, does not answer, and so neither kind can hide behind the others.
"""

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from dibs.worker import Worker
from dibs.worker.health import Health, answering, answering_on, ask_all, cant_answer

HEALTH_SOCKET = "DIBS_HEALTH_SOCKET"  # from a supervisor to its processes

Answering = AbstractAsyncContextManager[Any]


def health_of_worker(worker: Worker, host: str, port: int | None) -> Answering:
    async def report() -> Health:
        return worker.health()

    # Taken out of the environment: what handlers start must not answer for us.
    if place := os.environ.pop(HEALTH_SOCKET, None):
        Path(place).unlink(missing_ok=True)  # of the process that had this place before
        return answering_on(report, Path(place))
    return nullcontext() if port is None else answering(report, host=host, port=port)


@contextmanager
def health_of_processes(processes: int, host: str, port: int | None) -> Iterator[list[Path | None]]:
    """A place for each process to answer at; while the body runs, a thread asks there and answers."""
    if port is None:
        yield [None] * processes
        return
    with _bound(host, port) as listening, tempfile.TemporaryDirectory(prefix="dibs-") as folder:
        places = [Path(folder, str(number)) for number in range(processes)]
        threading.Thread(target=_answer, args=(listening, places), name="dibs-health", daemon=True).start()
        yield list(places)


def _bound(host: str, port: int) -> socket.socket:
    """Before any process is started: an address that is taken must not cost any work."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise cant_answer(host, port, error) from None


def _answer(listening: socket.socket, places: list[Path]) -> None:
    asyncio.run(_answer_for(listening, places))


async def _answer_for(listening: socket.socket, places: list[Path]) -> None:
    async with answering_on(lambda: ask_all(places), listening):
        await asyncio.Event().wait()
