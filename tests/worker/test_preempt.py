"""A job that pre-empts another, with a worker that runs both: never beside each other."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dibs import Dibs, LeaseLost
from tests.support.workers import finished, state_of, wait_until, working


async def test_a_handler_that_awaits_is_stopped_for_the_job_that_preempts_it(app: Dibs) -> None:
    begun = asyncio.Event()

    @app.job(slot="s", slot_policy="preempt")
    async def report(year: int) -> None:
        if year == 2025:
            begun.set()
            await asyncio.sleep(60)

    async with working(app):
        old = await report.enqueue(2025)
        await begun.wait()
        new = await report.enqueue(2026)

        assert (await finished(app, new)).state == "succeeded"
        stopped = await finished(app, old)
        assert (stopped.state, stopped.message) == ("cancelled", f"pre-empted by {new.id}")


async def test_a_job_that_preempts_a_plain_function_waits_until_it_ends(
    app: Dibs,
) -> None:
    begun, let_go, beside = threading.Event(), threading.Event(), []

    @app.job(slot="s", slot_policy="preempt")
    def report(year: int) -> None:
        if year == 2025:
            begun.set()
            let_go.wait(30)
        else:
            beside.append(not let_go.is_set())

    async with working(app):
        old = await report.enqueue(2025)
        await wait_until(begun.is_set)
        new = await report.enqueue(2026)
        await asyncio.sleep(0.5)
        assert (await state_of(app, old), await state_of(app, new)) == ("running", "blocked")
        let_go.set()

        assert (await finished(app, new)).state == "succeeded"
    assert beside == [False]


async def test_a_job_that_preempts_a_dead_worker_starts_when_its_lease_has_ended(app: Dibs) -> None:
    @app.job(slot="s", slot_policy="preempt")
    async def report(year: int) -> int:
        return year

    old = await report.enqueue(2025)
    corpse = await app.claim_job(old.id, worker="dead", lease=1.5)
    assert corpse is not None
    async with working(app):
        new = await report.enqueue(2026)
        await asyncio.sleep(0.5)
        assert (await state_of(app, old), await state_of(app, new)) == ("running", "blocked")

        done = await finished(app, new)

    stopped = await finished(app, old)
    assert (done.state, done.result, stopped.state) == ("succeeded", 2026, "cancelled")
    assert stopped.message == f"pre-empted by {new.id}"
    assert done.claimed_at is not None
    assert done.claimed_at >= corpse.lease_until
    with pytest.raises(LeaseLost):
        await corpse.succeed()
