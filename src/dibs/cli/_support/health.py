"""`--health-port`: served by the worker itself, or by the supervisor for all of its processes.

Each of several processes serves its health on a socket file that only the supervisor knows. The supervisor
asks all of them, and is healthy when all are. A dead process or a blocked event loop does not respond, so it
can't hide behind the others.
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

from dibs.app.dibs import Dibs
from dibs.outbox import Outbox, Relay
from dibs.worker import Worker
from dibs.worker.health import (
    Health,
    MetricsPage,
    answering,
    answering_on,
    ask_all,
    ask_for_metrics,
    cant_answer,
)

HEALTH_SOCKET = "DIBS_HEALTH_SOCKET"  # from a supervisor to its processes

Answering = AbstractAsyncContextManager[Any]


def health_of_worker(app: Dibs, worker: Worker, host: str, port: int | None) -> Answering:
    async def report() -> Health:
        return worker.health()

    # Taken out of the environment: processes of handlers must not serve it.
    if path := os.environ.pop(HEALTH_SOCKET, None):
        Path(path).unlink(missing_ok=True)  # of the process that was replaced
        return answering_on(report, Path(path), _metrics_of(app))
    if port is None:
        return nullcontext()
    return answering(report, host=host, port=port, metrics=_metrics_of(app))


def _metrics_of(app: Dibs) -> MetricsPage:
    from dibs.integrations import prometheus

    metrics = prometheus.JobMetrics(app, prometheus.AppOutbox(app))
    return MetricsPage(prometheus.CONTENT_TYPE, metrics.text)


def health_of_relay(outbox: Outbox, relay: Relay, host: str, port: int | None) -> Answering:
    from dibs.integrations import prometheus

    async def report() -> Health:
        return Health(reason=relay.trouble, about={"relay": relay.name, **outbox.events.counts})

    if port is None:
        return nullcontext()
    metrics = MetricsPage(prometheus.CONTENT_TYPE, prometheus.RelayMetrics(outbox).text)
    return answering(report, host=host, port=port, metrics=metrics)


@contextmanager
def health_of_processes(processes: int, host: str, port: int | None) -> Iterator[list[Path | None]]:
    """Yield a socket file for each process; while the body runs, a thread serves the health of all."""
    if port is None:
        yield [None] * processes
        return
    with _bound(host, port) as listening, tempfile.TemporaryDirectory(prefix="dibs-") as folder:
        sockets = [Path(folder, str(number)) for number in range(processes)]
        threading.Thread(target=_answer, args=(listening, sockets), name="dibs-health", daemon=True).start()
        yield list(sockets)


def _bound(host: str, port: int) -> socket.socket:
    """Bind the port before any process is started: an address in use must stop nothing midway."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise cant_answer(host, port, error) from None


def _answer(listening: socket.socket, sockets: list[Path]) -> None:
    asyncio.run(_answer_for(listening, sockets))


async def _answer_for(listening: socket.socket, sockets: list[Path]) -> None:
    from dibs.integrations.prometheus import CONTENT_TYPE, merge_processes

    async def text() -> str:
        return merge_processes(await asyncio.gather(*map(ask_for_metrics, sockets)))

    async with answering_on(lambda: ask_all(sockets), listening, MetricsPage(CONTENT_TYPE, text)):
        await asyncio.Event().wait()
