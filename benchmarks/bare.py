"""dibs' own statements on one bare connection, with nothing around them: the most it could reach.

No pool, no retries, no checks, no jobs made of rows. The statements come from the engine, so these are
always the ones that dibs sends today.
"""

import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dibs.jobs.ids import new_id
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.operations.questions import SETTLEMENT_COLUMNS
from dibs.operations.scripts import Rows, Step, run_async

QUEUE, KIND = "bench", "noop"
WISH = {
    "queues": [QUEUE],
    "kinds": [KIND],
    "worker": "bench",
    "lease": 60_000_000,
    "leases": {},
    "job": None,
    "look": True,
}


class Bare:
    """One connection: `query` sends a statement of the engine, `say` one of a transaction."""

    def __init__(
        self,
        engine: Any,
        query: Callable[[Any], Awaitable[Rows]],
        say: Callable[[str], Awaitable[Any]],
        begin: str = "begin",
    ) -> None:
        self._engine, self._query, self._say, self._begin = engine, query, say, begin

    async def ask(self, question: str, **params: Any) -> Rows:
        step = Step(question, params)
        if not self._engine.needs_transaction(step):
            return await run_async(self._engine.answer(step), self._query)
        await self._say(self._begin)
        rows = await run_async(self._engine.answer(step), self._query)
        await self._say("commit")
        return rows

    async def enqueue(self, count: int) -> None:
        await self.ask("enqueue", jobs=[row(n) for n in range(count)], fresh=True)

    async def enqueue_one(self, seconds: float) -> float:
        async def step() -> int:
            await self.enqueue(1)
            return 1

        return await rate(seconds, step)

    async def bulk(self, count: int, chunk: int) -> float:
        gc.collect()
        start = time.perf_counter()
        for _ in range(0, count, chunk):
            await self.enqueue(min(chunk, count))
        return count / (time.perf_counter() - start)

    async def claim_and_succeed(self, batch: int, seconds: float) -> float:
        async def step() -> int:
            claimed = await self.ask("claim", **WISH, limit=batch)
            await self.ask("settle", settlements=succeeded(claimed), children=[])
            return len(claimed)

        return await rate(seconds, step)


def row(n: int) -> tuple[Any, ...]:
    """Return a new job as it goes to the store, made without dibs' checks."""
    values = {
        **dict.fromkeys(NEW_JOB_COLUMNS),
        "id": new_id(),
        "kind": KIND,
        "queue": QUEUE,
        "args": f'{{"n":{n}}}',
        "priority": 0,
        "max_attempts": 3,
        "on_cancelled": "advance",
        "on_failed": "advance",
        "tags": "[]",
        "meta": "{}",
    }
    return tuple(values.values())


def succeeded(claimed: Rows) -> Sequence[tuple[Any, ...]]:
    """Return the settlements of jobs that were claimed."""
    usual = {
        **dict.fromkeys(SETTLEMENT_COLUMNS),
        "state": "succeeded",
        "settled_as": "succeeded",
        "refund": False,
        "errors": "[]",
    }
    return [tuple({**usual, "id": one["id"], "token": one["token"]}.values()) for one in claimed]


async def rate(seconds: float, step: Callable[[], Awaitable[int]]) -> float:
    """Measure jobs per second of a step that returns how many it did, repeated for a while."""
    done, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        did = await step()
        if did == 0:
            raise RuntimeError("the benchmark ran out of jobs")
        done += did
    return done / passed
