"""The pytest plugin of dibs: the fixtures `dibs_app`, `dibs_clock` and `dibs_url`.

A module beside the package, because pytest loads it in every run: importing `dibs.anything` would import the
whole of dibs, and double the time that pytest takes to start.
"""

import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dibs import Dibs
    from dibs.testing import VirtualClock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("dibs_app", "where the app under test is, like jobs:app; see the fixture dibs_app")
    parser.addini("dibs_forbid_store", "let no test reach the store that an app names", "bool", False)


def pytest_configure(config: pytest.Config) -> None:
    if config.getini("dibs_forbid_store"):
        from dibs.testing.stores import forbid_stores

        config.add_cleanup(forbid_stores())


@pytest.fixture
def dibs_url() -> str:
    """Return the store for `dibs_app`; define a fixture of this name for another one."""
    return "memory://"


@pytest.fixture
def dibs_app(pytestconfig: pytest.Config, dibs_url: str) -> "Iterator[Dibs]":
    """Yield your app, with its registered jobs, on an empty store for the time of one test."""
    from dibs.testing import fresh_store

    with fresh_store(_load(pytestconfig.getini("dibs_app")), dibs_url) as app:
        yield app


@pytest.fixture
def dibs_clock(dibs_app: "Dibs") -> "VirtualClock":
    """Return a clock for the store of `dibs_app`: `dibs_clock.advance(minutes=10)`."""
    from dibs.testing import virtual_time

    return virtual_time(dibs_app)


def _load(target: str) -> "Dibs":
    from dibs import Dibs

    if not target:
        raise pytest.UsageError("which app? Set dibs_app in pytest's settings, like dibs_app = jobs:app")
    try:
        app: object = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(
            f"dibs_app = {target}: {error}. Write MODULE:APP, like jobs:app, and see that "
            "pytest finds the module (its setting `pythonpath`)"
        ) from None
    if not isinstance(app, Dibs):
        raise pytest.UsageError(f"dibs_app = {target} is a {type(app).__name__}, not a Dibs app")
    return app
