"""One row that is locked, one loop that is blocked, one store that is silent: the rest goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import scenes
from rig import Place, age, answers_within, renew, wait_until

from dibs import Dibs, LeaseLost, NewJob
from proxy import FaultProxy
from servers import PostgreSQL

LEASE = 0.5


def test_renewing_ten_jobs_does_not_wait_for_one_that_is_being_completed(locking: Place) -> None:
    app = locking.apps(1)[0]
    scenes.enqueue(app, 10)
    claims = app.sync.claim(limit=10, lease=30)
    tenth = claims[9]
    with locking.connect() as connection:
        with connection.transaction(force_rollback=True):
            tenth.succeed("not yet committed", within=connection)

            [standing] = answers_within(1, lambda: renew(app, claims, 600), then=lambda: None)

            pushed = {id for id, one in standing.items() if one.lease_until > tenth.lease_until}
            assert set(standing) == {claim.job.id for claim in claims}, "a held claim was reported lost"
            assert pushed == {claim.job.id for claim in claims[:9]}
            assert standing[tenth.job.id].lease_until == tenth.lease_until

    again = renew(app, claims, 900)
    assert again[tenth.job.id].lease_until > tenth.lease_until
    tenth.succeed("after the rollback")
    assert app.sync.get(tenth.job.id).result == "after the rollback"


def test_a_completion_that_was_committed_is_no_longer_renewed(locking: Place) -> None:
    app = locking.apps(1)[0]
    scenes.enqueue(app, 2)
    claims = app.sync.claim(limit=2, lease=30)
    with locking.connect() as connection, connection.transaction():
        claims[0].succeed(within=connection)

    standing = renew(app, claims, 600)

    assert set(standing) == {claims[1].job.id}


def test_the_sweep_does_not_wait_for_a_job_that_is_being_completed(locking: Place) -> None:
    app = locking.apps(1)[0]
    scenes.enqueue(app, 10)
    claims = app.sync.claim(limit=10, lease=30)
    age(app, 31)
    with locking.connect() as connection:
        with connection.transaction():
            claims[9].succeed("in time", within=connection)

            [swept] = answers_within(1, app.sync.sweep, then=lambda: None)

    assert (swept.returned, swept.failed) == (9, 0)
    assert app.sync.get(claims[9].job.id).result == "in time"
    assert app.sync.counts()["ready"] == 9


@pytest.mark.parametrize(
    "scene",
    [scenes.a_locked_row_does_not_stall_renewals, scenes.a_locked_row_does_not_stall_the_sweep],
)
def test_one_locked_row_stalls_nobody(locking: Place, scene: scenes.Scene) -> None:
    assert scene(locking) is None


def test_a_kept_claim_whose_row_stays_locked_is_given_up_before_its_lease_ends(locking: Place) -> None:
    app = locking.apps(1)[0]
    scenes.enqueue(app, 1)
    [claim] = app.sync.claim(lease=1)

    with pytest.raises(LeaseLost):
        with claim as job, scenes.locked(locking, job.id):
            wait_until(lambda: claim.lost or _expired(locking, job.id), seconds=5)
            assert not _expired(locking, job.id), "the lease ended, and its holder was not told"


def _expired(place: Place, id: Any) -> bool:
    """Whether the store may take the job back."""
    now = "utc_timestamp(6)" if place.kind == "mariadb" else "clock_timestamp()"
    query = f"select lease_until < {now} from dibs_jobs where id = %s"
    [(expired,)] = place.sql(query, id)
    return bool(expired)


# -- The event loop is blocked ------------------------------------------------------------------


def test_a_body_that_blocks_the_event_loop_for_three_leases_keeps_its_job(shared: Place) -> None:
    app, thief = shared.app(), _Thief(shared.app())
    [job] = app.sync.enqueue(NewJob("work"))

    async def work() -> None:
        async with app:
            [claim] = await app.claim(lease=LEASE)
            async with claim:
                with thief:
                    time.sleep(3 * LEASE)

    asyncio.run(work())

    done = app.sync.get(job.id)
    assert (done.state, done.attempts, done.errors) == ("succeeded", 1, [])
    assert thief.tried >= 3, "nobody tried to take the job meanwhile"
    assert thief.stolen == []


def test_a_handler_that_blocks_the_event_loop_for_three_leases_keeps_its_job(shared: Place) -> None:
    app, thief = shared.app(), _Thief(shared.app())

    @app.job(lease=LEASE)
    async def work() -> str:
        with thief:
            time.sleep(3 * LEASE)
        return "undisturbed"

    async def run() -> Any:
        async with app:
            job = await work.enqueue()
            return await app.run_job(job.id)

    done = asyncio.run(run())

    assert (done.state, done.result, done.attempts) == ("succeeded", "undisturbed", 1)
    assert thief.tried >= 3, "nobody tried to take the job meanwhile"
    assert thief.stolen == []


class _Thief:
    """Claims whatever it can get, from another thread and app, for as long as the block lasts."""

    def __init__(self, app: Dibs) -> None:
        self._app = app
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._steal)
        self.tried = 0
        self.stolen: list[Any] = []

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _steal(self) -> None:
        while not self._over.wait(0.02):
            self.stolen += self._app.sync.claim()
            self.tried += 1


# -- The store is silent ------------------------------------------------------------------------


def test_a_body_is_cancelled_before_its_lease_ends_when_the_store_is_silent(
    postgres: Place, postgresql: PostgreSQL
) -> None:
    [job] = postgres.app().sync.enqueue(NewJob("work"))

    async def work(app: Dibs, proxy: FaultProxy) -> tuple[str, float]:
        [claim] = await app.claim(lease=1.5)
        ended = "in no way"
        try:
            async with claim:
                proxy.blackhole()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    ended = "cancelled"
                    raise
        except LeaseLost:
            left = _seconds_left(postgres, job.id)
        proxy.heal()
        await app.close()
        return ended, left

    with FaultProxy(postgresql.port) as proxy:
        app = postgres.app(postgres.url.replace(f":{postgresql.port}/", f":{proxy.port}/"))
        ended, left = asyncio.run(work(app, proxy))

    assert ended == "cancelled"
    assert left > 0, "the job was given up only after the store might have given it away"
    assert postgres.app().sync.get(job.id).state == "running"


def _seconds_left(place: Place, id: Any) -> float:
    query = "select extract(epoch from lease_until - clock_timestamp()) from dibs_jobs where id = %s"
    [(left,)] = place.sql(query, id)
    return float(left)


def test_a_blocking_body_sees_before_its_lease_ends_that_the_store_is_silent(
    postgres: Place, postgresql: PostgreSQL
) -> None:
    [job] = postgres.app().sync.enqueue(NewJob("work"))
    with FaultProxy(postgresql.port) as proxy:
        app = postgres.app(postgres.url.replace(f":{postgresql.port}/", f":{proxy.port}/"))
        [claim] = app.sync.claim(lease=1.5)

        with pytest.raises(LeaseLost):
            with claim:
                proxy.blackhole()
                wait_until(lambda: claim.lost)
                left = _seconds_left(postgres, job.id)
                claim.check()

        proxy.heal()
        app.sync.close()
    assert left > 0, "the job was given up only after the store might have given it away"
