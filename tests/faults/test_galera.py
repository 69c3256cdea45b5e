"""A store that three nodes of Galera share: any node takes changes, and conflicts show at the commit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dibs import Dibs, NewJob, StoreUnavailable
from dibs.app.claims import SyncClaim
from tests.support.fault_stores import face_of, wait_until
from tests.support.servers import Galera

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def galera() -> Iterator[Galera]:
    with Galera() as cluster:
        yield cluster


@pytest.fixture
def nodes(galera: Galera) -> Iterator[list[Dibs]]:
    """An app on each node."""
    apps = [Dibs(url) for url in galera.fresh_database()]
    apps[0].sync.migrate()
    yield apps
    for app in apps:
        app.sync.close()


def test_jobs_are_claimed_once_through_all_nodes_and_every_claim_is_returned(nodes: list[Dibs]) -> None:
    for _ in range(5):
        jobs = {job.id for job in nodes[0].sync.enqueue(*(NewJob("work") for _ in range(300)))}
        wait_until(lambda: all(app.sync.counts()["ready"] == 300 for app in nodes))

        with ThreadPoolExecutor(6) as pool:
            claimed = [each for part in pool.map(_claim_all, nodes * 2) for each in part]

        assert len(claimed) == 300
        assert {each.job.id for each in claimed} == jobs
        assert len({each.token for each in claimed}) == 300
        for each in claimed:
            each.succeed()


def _claim_all(app: Dibs) -> list[SyncClaim]:
    claimed: list[SyncClaim] = []
    while batch := app.sync.claim(limit=10, lease=600):
        claimed += batch
    return claimed


def test_of_two_claims_on_different_nodes_the_later_has_the_greater_token(nodes: list[Dibs]) -> None:
    [job, _] = nodes[0].sync.enqueue(NewJob("work", train="t"), NewJob("work", train="t"))
    tokens: list[int] = []
    for turn in range(12):
        app = nodes[turn % 3 if turn < 6 else turn * 2 % 3]
        wait_until(lambda app=app: app.sync.get(job.id).state == "ready")  # type: ignore[misc]
        claim = app.sync.claim_job(job.id)
        assert claim is not None
        tokens.append(claim.token)
        claim.release()

    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_node_without_the_others_is_said_to_be_unavailable(face: str) -> None:
    with Galera() as alone:
        app = Dibs(alone.fresh_database()[0])
        app.sync.migrate()
        for node in alone.nodes[1:]:
            node.kill()

        with face_of(app, face) as caller, pytest.raises(StoreUnavailable) as told:
            wait_until(lambda: caller.enqueue(NewJob("work")) and False, seconds=60)
        app.sync.close()

    assert "WSREP has not yet prepared node" in str(told.value)
