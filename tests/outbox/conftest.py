"""Fixtures of the outbox suites: every database with transactions of the user, on both faces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.support.brokers import NatsTarget, RabbitTarget, RedisTarget, Target
from tests.support.outboxes import Box, open_box
from tests.support.servers import Nats, RabbitMQ

ENGINES = ["sqlite", "postgresql", "mariadb", "mysql"]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def box(url: str, face: str) -> Iterator[Box]:
    """Open an empty outbox, closed when the test is over."""
    with open_box(face, url) as box:
        yield box


@pytest.fixture
def open_outbox(url: str, face: str) -> Iterator[Callable[..., Box]]:
    """Open further outboxes on the same table, with settings of their own."""
    with contextlib.ExitStack() as opened:
        yield lambda **options: opened.enter_context(open_box(face, url, **options))


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """Start one server for all tests of this process: it takes seconds."""
    with RabbitMQ() as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[Nats]:
    with Nats() as server:
        yield server


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Target:
    """Return the broker that the test names."""
    kinds = {"rabbitmq": RabbitTarget, "nats": NatsTarget, "redis": RedisTarget}
    fixture = {"redis": "redis_server"}.get(request.param, request.param)
    target: Target = kinds[request.param](request.getfixturevalue(fixture))
    return target
