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

    # Taken out of the environment: what handlers start must not answer for us.
    if place := os.environ.pop(HEALTH_SOCKET, None):
        Path(place).unlink(missing_ok=True)  # of the process that had this place before
        return answering_on(report, Path(place), _metrics_of(app))
    if port is None:
        return nullcontext()
    return answering(report, host=host, port=port, metrics=_metrics_of(app))


def _metrics_of(app: Dibs) -> MetricsPage:
    from dibs.integrations import prometheus

    counted = prometheus.Metrics(app, prometheus.OwnOutbox(app))
    return MetricsPage(prometheus.CONTENT_TYPE, counted.text)


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
    from dibs.integrations.exposition import CONTENT_TYPE, side_by_side

    async def numbers() -> str:
        return side_by_side(await asyncio.gather(*map(ask_for_metrics, places)))

    async with answering_on(lambda: ask_all(places), listening, MetricsPage(CONTENT_TYPE, numbers)):
        await asyncio.Event().wait()
