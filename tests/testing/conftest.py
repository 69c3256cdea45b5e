"""The helpers of `dibs.testing` on every store, for async and for sync tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs import Job, testing
from dibs.testing import sync
from tests.support.faces import Face


@pytest.fixture
def run_pending(app: Face) -> Callable[..., list[Job]]:
    """Return `run_pending` of the face under test."""

    def run(**options: Any) -> list[Job]:
        if app.colour == "sync":
            return sync.run_pending(app.app.sync, **options)
        return app.wait_for(testing.run_pending(app.app, **options))  # type: ignore[attr-defined]

    return run


@pytest.fixture
def clock(app: Face) -> testing.VirtualClock:
    return testing.virtual_time(app.app)
