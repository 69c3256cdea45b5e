"""Async tests, and apps on one empty store that are closed when the test's loop ends."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from tests.support.workers import Apps

TEST_SECONDS = 40


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on a loop of its own, and close its apps before the loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    given = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    asyncio.run(_run(pyfuncitem, given))
    return True


async def _run(item: pytest.Function, given: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(TEST_SECONDS * (5 if item.get_closest_marker("long") else 1)):
            await item.obj(**given)
    finally:
        if (apps := item.funcargs.get("apps")) is not None:
            await apps.close()


@pytest.fixture
def apps(url: str) -> Apps:
    return Apps(url)


@pytest.fixture
def app(apps: Apps) -> Any:
    return apps()
