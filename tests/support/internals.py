"""The only way from tests to what an app keeps to itself; a public verb is better wherever there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs.clock import SECOND
from dibs.operations import upkeep


def core_of(app: Any) -> Any:
    """Return what stands behind both faces of an app, or of an outbox."""
    return app._core


def store_of(app: Any) -> Any:
    """Return the store that an app is connected to."""
    return core_of(app).store


def engine_of(app: Any) -> Any:
    """Return what answers the questions of an app."""
    return store_of(app)._engine


def run_script(app: Any, script: Callable[[], Any]) -> Any:
    """Run an operation that has no public name, on the blocking face."""
    return store_of(app).run(lambda _: script())


def age(app: Any, seconds: float) -> None:
    """Let time pass: everything in the store becomes this much older."""
    run_script(app, lambda: upkeep.age(round(seconds * SECOND)))
