"""The tests that stand for a question on the Redis Cluster do ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dibs.engines.redis.engine import Redis
from dibs.operations.scripts import Step
from tests.support.matrix import CLUSTER, ON_CLUSTER


@pytest.fixture(autouse=True)
def asks_on_the_cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that no longer asks the questions for which it is run on the cluster."""
    wanted = {question for question, test in ON_CLUSTER.items() if test == request.node.originalname}
    if CLUSTER not in request.node.name or not wanted:
        yield
        return
    asked: set[str] = set()
    answer = Redis.answer

    def noted(engine: Redis, step: Step) -> object:
        asked.add(step.question)
        return answer(engine, step)

    monkeypatch.setattr(Redis, "answer", noted)
    yield
    assert wanted <= asked, f"no longer asked here: {wanted - asked}; name another test in ON_CLUSTER"
