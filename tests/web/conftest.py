"""One web app for all tests of a process, with an empty store for each: making the routes takes a while."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from dibs import Dibs
from dibs.app import watching
from dibs.engines.memory.engine import MemoryStore
from tests.support.internals import core_of
from tests.support.web_apps import make_web


@pytest.fixture(autouse=True, scope="session")
def quick_to_end() -> Iterator[None]:
    """Wait until the polling thread has ended: it ends with the last watcher."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "LINGER", 0.01)
        yield


@pytest.fixture(scope="session")
def shared() -> tuple[Dibs, FastAPI]:
    app = Dibs("memory://", max_payload=100_000)
    return app, make_web(app)


@pytest.fixture
def app(shared: tuple[Dibs, FastAPI]) -> Iterator[Dibs]:
    app, _ = shared
    core_of(app).use(MemoryStore())
    yield app
    app.sync.close()


@pytest.fixture
def web(shared: tuple[Dibs, FastAPI], app: Dibs) -> FastAPI:
    """Return a client of the routes, on an empty store."""
    return shared[1]
