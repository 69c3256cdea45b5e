"""Settlements that are put aside: whoever comes while the last one is being settled is asked for, too."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from dibs.jobs.ids import new_id
from dibs.worker.open_transactions import LockedSettlements


def late(train: str) -> tuple[Any, Any]:
    """A job and what is to be settled of it."""
    id = new_id()
    return SimpleNamespace(job=SimpleNamespace(id=id, train=train, slot=None)), SimpleNamespace(id=id)


def test_what_is_put_aside_as_the_last_one_is_settled_is_asked_for_too() -> None:
    first, second = late("north"), late("south")
    sent: list[Any] = []

    async def settle(done: list[Any], _patience: str) -> Collection[Any]:
        if not sent:  # runs after this task has found nothing left, and before anybody hears that it ended
            asyncio.get_running_loop().call_soon(locked.add, [second], [second[1]])
        sent.extend(one for _, one in done)
        return []

    async def until_all_are_sent() -> None:
        locked.add([first], [first[1]])
        async with asyncio.timeout(5):
            while locked or len(sent) < 2:
                await asyncio.sleep(0.01)

    locked = LockedSettlements(settle, lambda _: None)
    asyncio.run(until_all_are_sent())

    assert sent == [first[1], second[1]]
