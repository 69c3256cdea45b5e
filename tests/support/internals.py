"""The only way from tests to what an app keeps to itself; a public verb is better wherever there is one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from dibs.clock import SECOND
from dibs.operations import upkeep
from dibs.operations.schedules import enqueue_due
from dibs.operations.scripts import Step


def core_of(app: Any) -> Any:
    """Return the state that both faces of an app, or of an outbox, share."""
    return app._core


def held_of(claim: Any) -> Any:
    """Return the state of a claim that its two faces and its worker share."""
    return claim._held


def store_of(app: Any) -> Any:
    """Return the store that an app is connected to."""
    return core_of(app).store


def engine_of(app: Any) -> Any:
    """Return what answers the questions of an app."""
    return store_of(app)._engine


def request_of(app: Any, worker: str, lease: float, **what: Any) -> Any:
    """Return the request that a claim with these arguments sends."""
    return app._request(worker, lease, **what)


def due_ticks(app: Any, now: datetime) -> Callable[[Any], Any]:
    """Return the operation by which a worker enqueues the jobs of ticks that are due at this time."""
    return lambda _: enqueue_due(core_of(app).schedules.definitions, now)


def begin_schedule(name: str, tick: datetime) -> Any:
    """Make a schedule of which the store knows nothing but this last tick."""
    new = {"since": None, "revision": 0, "new_revision": 0, "about": "{}"}
    return (yield Step("set_schedule", {"schedule": name, "tick": tick, **new}))


def run_script(app: Any, script: Callable[[], Any]) -> Any:
    """Run an operation that has no public name, on the blocking face."""
    return store_of(app).run(lambda _: script())


def age(app: Any, seconds: float) -> None:
    """Let time pass: everything in the store becomes this much older."""
    run_script(app, lambda: upkeep.age(round(seconds * SECOND)))
