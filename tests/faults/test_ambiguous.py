"""The connection breaks when nobody knows whether the server did it: exactly one effect, no error."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from dibs import Dibs, NewJob, StoreUnavailable
from dibs.engines.mysql import pools as mysql_pools
from dibs.engines.mysql import session as mysql_session
from dibs.engines.postgresql import pools as postgresql_pools
from dibs.engines.postgresql import session as postgresql_session
from dibs.engines.redis import connection as redis_nodes
from dibs.engines.redis import protocol as redis_protocol
from dibs.engines.redis.scripts import lua_script
from dibs.engines.retries import TryAgain
from dibs.operations.questions import QUESTIONS
from tests.support import proxy as proxies
from tests.support.fault_stores import Driven, Place, Places, face_of, together
from tests.support.internals import age, due_ticks, store_of
from tests.support.matrix import MYSQLS
from tests.support.proxy import FaultProxy
from tests.support.servers import MariaDB, PostgreSQL, Redis

ROUNDS = 12
COPY_DONE = b"c\x00\x00\x00\x04"
COMMIT = b"commit\x00"  # with its end: every `begin` says "read committed"
MYSQL_COMMIT = b"\x03commit"
KEEPER = "postgres"  # who comes with a password


class Trouble:
    """An app behind a proxy, in one of its faces, and one armed fault per round."""

    def __init__(self, place: Place, proxy: FaultProxy, moment: str) -> None:
        self.place, self.proxy, self.moment = place, proxy, moment
        self.behind = place.app().sync  # not through the proxy: to look and to help
        self.face: Any = None
        self._fired = 0
        self._look: Callable[[], Any] = lambda: None
        self._seen: list[Any] = []
        self._before: Any = None
        self._looks = False

    @contextlib.contextmanager
    def at(
        self, *patterns: bytes, sees: Callable[[], Any] | None = None, alone: bool = False
    ) -> Iterator[None]:
        """Cut once when the client says one of these; a round that was not cut so fails.

        On MariaDB an answer is several statements, so what counts is the commit, but for a statement that
        is alone.

        `sees` looks at what the call changes, around the proxy, before the call and when dibs learns
        of the cut: after a cut "after" it must have changed already, after one "before" not yet.
        """
        self._look, self._seen, self._looks = sees or (lambda: None), [], sees is not None
        before = self._before = self._look()
        if self.place.kind in MYSQLS and not alone:
            patterns = (MYSQL_COMMIT,)
        for pattern in patterns:
            arm = self.proxy.cut_after if self.moment == "after" else self.proxy.cut_before
            arm(pattern)
        yield
        self.proxy.heal()
        assert self.proxy.fired == self._fired + 1, "the fault was not met"
        self._fired = self.proxy.fired
        if sees is not None:
            assert (self._seen[0] != before) == (self.moment == "after"), "the cut came at another moment"

    def noticed(self) -> None:
        """What the store says once dibs has heard of the cut; a commit may take a moment longer than that."""
        seen = self._look()
        deadline = time.monotonic() + 2
        while self._looks and self.moment == "after" and seen == self._before and time.monotonic() < deadline:
            time.sleep(0.01)
            seen = self._look()
        self._seen.append(seen)

    def wrote(self, text: str, on_sql: bytes = COMMIT) -> bytes:
        """What the client says last: a script is one command, a transaction ends with a word of its own."""
        return on_sql if self.place.kind == "postgresql" else text.encode()

    def stored(self, **filter: Any) -> int:
        return len(self.behind.find(limit=1000, **filter))


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["postgresql", "mariadb", "mysql", "redis"])
def store(request: pytest.FixtureRequest, places: Places) -> tuple[Place, FaultProxy]:
    """A place, and a proxy to its server that still has to be entered."""
    if request.param == "postgresql":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        return places("postgresql"), FaultProxy(postgresql.port)
    if request.param in MYSQLS:
        mariadb: MariaDB = request.getfixturevalue(request.param)
        mariadb.make_user(KEEPER, "s3cret")
        return places(request.param), FaultProxy(mariadb.port)
    server: Redis = request.getfixturevalue("redis_server")
    assert server.say(f"ACL SETUSER {KEEPER} on >s3cret ~* &* +@all") == "+OK\r\n"
    with closing(redis.Redis.from_url(server.url())) as client:
        # Else the first cut meets "I don't know this script".
        for question in QUESTIONS - {"claim_within_limits"}:
            client.script_load(lua_script(question).text)
    return places("redis"), FaultProxy(server.port, ready=b"")


@pytest.fixture(params=["before", "after"])
def trouble(
    request: pytest.FixtureRequest,
    store: tuple[Place, FaultProxy],
    face: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Trouble]:
    monkeypatch.setattr(proxies, "QUIET_SECONDS", 0.005)
    place, proxy = store
    with proxy:
        app = place.app(_through(proxy, place.url))
        trouble = Trouble(place, proxy, request.param)
        for module in (postgresql_pools, postgresql_session, mysql_session, redis_nodes):
            monkeypatch.setattr(module, "TryAgain", _noting(trouble))
        with face_of(app, face) as trouble.face:
            yield trouble
        app.sync.close()


def _noting(trouble: Trouble) -> type[TryAgain]:
    class Noted(TryAgain):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            trouble.noticed()

    return Noted


def _through(proxy: FaultProxy, url: str) -> str:
    scheme, database = url.partition(":")[0], url.rpartition("/")[2]
    return f"{scheme}://{KEEPER}:s3cret@127.0.0.1:{proxy.port}/{database}"


def _said(id: Any) -> tuple[bytes, ...]:
    """An id as either driver may send it."""
    return id.bytes, id.hex.encode(), str(id).encode()


# -- Enqueue ------------------------------------------------------------------------------------


def test_a_job_whose_enqueue_was_cut_is_stored_once_and_new(trouble: Trouble) -> None:
    for number in range(ROUNDS):
        with trouble.at(f"kind-{number}".encode(), sees=trouble.stored, alone=True):
            [job] = trouble.face.enqueue(NewJob(f"kind-{number}"))

        assert (job.is_new, job.state) == (True, "ready")
        assert [found.id for found in trouble.behind.find(kind=f"kind-{number}")] == [job.id]


def test_a_unique_job_whose_enqueue_was_cut_is_stored_once_and_new(trouble: Trouble) -> None:
    for number in range(ROUNDS):
        with trouble.at(trouble.wrote(f"key-{number}"), sees=trouble.stored):
            [job] = trouble.face.enqueue(NewJob("work", unique=f"key-{number}"))

        assert job.is_new
        [again] = trouble.behind.enqueue(NewJob("work", unique=f"key-{number}"))
        assert (again.id, again.is_new) == (job.id, False)
    assert trouble.stored() == ROUNDS


def test_a_taken_unique_key_is_still_told_as_taken_after_a_cut(trouble: Trouble) -> None:
    for number in range(5):
        [holder] = trouble.behind.enqueue(NewJob("work", unique=f"key-{number}"))
        with trouble.at(f"key-{number}".encode()):
            [job] = trouble.face.enqueue(NewJob("work", unique=f"key-{number}"))

        assert (job.id, job.is_new) == (holder.id, False)


def test_a_job_that_was_done_before_its_enqueue_was_retried_stays_done(trouble: Trouble) -> None:
    """The slow way round: the reply is lost, somebody does the job, only then the caller tries again."""
    new = NewJob("work")
    trouble.behind.enqueue(new)
    trouble.behind.claim()[0].succeed()

    with trouble.at(*_said(new.id), alone=True):
        [job] = trouble.face.enqueue(new)

    assert (job.id, job.is_new, job.state) == (new.id, False, "succeeded")
    assert trouble.stored() == 1


def test_a_bulk_load_that_was_cut_is_stored_once_and_all_new(trouble: Trouble) -> None:
    for number in range(ROUNDS):
        said = trouble.wrote(f"bulk-{number}", COPY_DONE)
        with trouble.at(said, sees=lambda: trouble.behind.counts()["ready"], alone=True):
            jobs = trouble.face.enqueue(*(NewJob(f"bulk-{number}") for _ in range(600)))

        assert all(job.is_new for job in jobs)
        assert trouble.stored(kind=f"bulk-{number}") == len({job.id for job in jobs}) == 600


def test_a_mixed_batch_whose_commit_was_cut_is_stored_once_and_all_new(trouble: Trouble) -> None:
    for number in range(ROUNDS):
        batch = [NewJob(f"mixed-{number}"), NewJob(f"mixed-{number}", unique=f"key-{number}")]
        with trouble.at(trouble.wrote(f"mixed-{number}"), sees=trouble.stored):
            jobs = trouble.face.enqueue(*batch)

        assert [(job.id, job.is_new) for job in jobs] == [(new.id, True) for new in batch]
        assert trouble.stored(kind=f"mixed-{number}") == 2


def test_a_tick_whose_commit_was_cut_is_enqueued_once(trouble: Trouble) -> None:
    app = trouble.place._apps[-1]
    app.every("* * * * * *")(app.job(lambda: None, name="work"))
    morning = datetime(2026, 5, 1, 6, tzinfo=UTC)
    _ask(trouble.face, due_ticks(app, morning))

    for number in range(1, ROUNDS + 1):
        tick = round((morning + timedelta(seconds=number)).timestamp()) * 1_000_000
        with trouble.at(trouble.wrote(f'"tick":"{tick}"'), sees=trouble.stored):
            ticked = _ask(trouble.face, due_ticks(app, morning + timedelta(seconds=number)))

        assert ticked.next_ticks == {"work": morning + timedelta(seconds=number + 1)}
        assert trouble.stored() == number


def _ask(face: Any, operation: Any) -> Any:
    """Run an operation that has no public name."""
    store = store_of(face)
    return (
        Driven(store, face._runner).run_async(operation) if isinstance(face, Driven) else store.run(operation)
    )


# -- Settle -------------------------------------------------------------------------------------

SETTLES: dict[str, tuple[Callable[[Any], Any], str, int]] = {
    "succeed": (lambda claim: claim.succeed("well"), "succeeded", 1),
    "fail": (lambda claim: claim.fail("badly"), "scheduled", 1),
    "fail for good": (lambda claim: claim.fail("badly", retry=False), "failed", 1),
    "release": (lambda claim: claim.release(), "ready", 0),
    "snooze": (lambda claim: claim.snooze(60), "scheduled", 0),
    "cancel": (lambda claim: claim.cancel("enough"), "cancelled", 1),
}


@pytest.mark.parametrize("verb", SETTLES)
def test_a_settle_that_was_cut_is_applied_once(trouble: Trouble, verb: str) -> None:
    settle, state, attempts = SETTLES[verb]
    for number in range(ROUNDS if verb in ("succeed", "release") else 3):
        trouble.behind.enqueue(NewJob(f"kind-{number}"))
        [claim] = trouble.face.claim(kinds=[f"kind-{number}"])

        # Settlements travel as text; the look that follows a cut names the job otherwise, and is not cut.
        with trouble.at(str(claim.job.id).encode(), sees=lambda: trouble.behind.counts()["running"]):
            settle(claim)

        job = trouble.behind.get(claim.job.id)
        assert (job.state, job.attempts) == (state, attempts)
        assert len(job.errors) == verb.startswith("fail")


def test_a_success_with_children_whose_commit_was_cut_is_applied_once(trouble: Trouble) -> None:
    for number in range(ROUNDS):
        trouble.behind.enqueue(NewJob(f"parent-{number}"))
        [claim] = trouble.face.claim(kinds=[f"parent-{number}"])

        with trouble.at(trouble.wrote(f"child-{number}"), sees=trouble.stored):
            claim.succeed(then=[NewJob(f"child-{number}"), NewJob(f"child-{number}")])

        children = trouble.behind.find(kind=f"child-{number}")
        parent = trouble.behind.get(claim.job.id)
        assert parent.state == "succeeded"
        assert [(child.state, child.parent_id, child.pipeline_id) for child in children] == [
            ("ready", parent.id, parent.id)
        ] * 2


def test_a_renew_and_a_progress_that_were_cut_are_applied(trouble: Trouble) -> None:
    trouble.behind.enqueue(NewJob("work"))
    [claim] = trouble.face.claim(lease=30)

    with trouble.at(*_said(claim.job.id), sees=lambda: trouble.behind.get(claim.job.id)):
        claim.renew(600)
    with trouble.at(*_said(claim.job.id), sees=lambda: trouble.behind.get(claim.job.id)):
        claim.progress(0.5, "half")

    job = trouble.behind.get(claim.job.id)
    assert (job.progress, job.message, job.lease_until) == (0.5, "half", claim.lease_until)
    assert (job.lease_until - job.claimed_at).total_seconds() > 500


# -- Claim --------------------------------------------------------------------------------------


def test_a_claim_whose_reply_was_cut_gives_another_job_and_loses_none(trouble: Trouble) -> None:
    jobs = trouble.behind.enqueue(*(NewJob("work") for _ in range(2 * ROUNDS)))
    held = []
    for number in range(ROUNDS):
        with trouble.at(f"worker-{number}".encode(), sees=lambda: trouble.behind.counts()["running"]):
            held += trouble.face.claim(worker=f"worker-{number}", lease=60)
    orphans = trouble.behind.counts()["running"] - len(held)
    for claim in held:
        claim.succeed()
    age(trouble.place.app(), 61)
    rest = trouble.behind.claim(limit=2 * ROUNDS)

    assert len({claim.job.id for claim in held}) == ROUNDS
    assert orphans == (ROUNDS if trouble.moment == "after" else 0)
    assert {claim.job.id for claim in held + rest} == {job.id for job in jobs}
    assert len(held + rest) == len(jobs)


def test_a_claim_by_id_whose_reply_was_cut_leaves_the_job_to_its_lease(trouble: Trouble) -> None:
    [job] = trouble.behind.enqueue(NewJob("work"))

    with trouble.at(b"worker-cut", sees=lambda: trouble.behind.get(job.id)):
        claim = trouble.face.claim_job(job.id, worker="worker-cut", lease=60)

    if claim is not None:
        claim.succeed()
        assert trouble.behind.get(job.id).state == "succeeded"
        return
    assert trouble.moment == "after"
    age(trouble.place.app(), 61)
    assert trouble.behind.claim_job(job.id) is not None


# -- Look and act -------------------------------------------------------------------------------


def test_a_cancel_that_was_cut_is_done_and_not_refused(trouble: Trouble) -> None:
    [job] = trouble.behind.enqueue(NewJob("work"))

    with trouble.at(trouble.wrote(str(job.id)), sees=lambda: trouble.behind.get(job.id)):
        cancelled = trouble.face.cancel(job.id, "enough")

    assert (cancelled.state, cancelled.message) == ("cancelled", "enough")


def test_a_retry_that_was_cut_is_done_and_not_refused(trouble: Trouble) -> None:
    [job] = trouble.behind.enqueue(NewJob("work"))
    trouble.behind.cancel(job.id)

    with trouble.at(trouble.wrote(str(job.id)), sees=lambda: trouble.behind.get(job.id)):
        retried = trouble.face.retry(job.id)

    assert retried.state == "ready"
    assert trouble.stored() == 1


def test_a_delete_that_was_cut_says_that_it_deleted(trouble: Trouble) -> None:
    [job] = trouble.behind.enqueue(NewJob("work"))

    with trouble.at(trouble.wrote(str(job.id)), sees=trouble.stored):
        deleted = trouble.face.delete(job.id)

    assert deleted is True
    assert trouble.behind.get(job.id) is None


def test_a_recover_that_was_cut_is_done_and_not_refused(trouble: Trouble) -> None:
    [job] = trouble.behind.enqueue(NewJob("work"))
    trouble.behind.claim(lease=1)
    age(trouble.place.app(), 10)
    stale = trouble.wrote("1234567")  # the look before says the id, too; only the act says how stale

    with trouble.at(stale, sees=lambda: trouble.behind.get(job.id)):
        recovered = trouble.face.recover(job.id, stale_after=1.234567)

    assert (recovered.state, recovered.attempts) == ("ready", 0)


# -- The store goes away ------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_calls_succeed_after_the_server_was_killed_and_came_back(
    engine: str, face: str, request: pytest.FixtureRequest
) -> None:
    server: PostgreSQL | MariaDB = request.getfixturevalue(f"own_{engine}")
    _outlives(server, Place(engine, server.fresh_database()), face)


def test_calls_succeed_after_redis_was_killed_and_came_back(own_redis: Redis, face: str) -> None:
    _outlives(own_redis, Place("redis", own_redis.url()), face)


def _outlives(server: PostgreSQL | MariaDB | Redis, place: Place, face: str) -> None:
    app = place.app()
    app.sync.migrate()
    with contextlib.closing(place), face_of(app, face) as faced:
        _fill_the_pool(app, face, faced)
        [job] = faced.enqueue(NewJob("work"))
        [claim] = faced.claim()

        server.kill()
        server.start()

        claim.succeed("after the restart")
        assert faced.get(job.id).result == "after the restart"
        assert faced.enqueue(NewJob("work"))[0].is_new
        assert len(faced.claim(limit=5)) == 1


def _fill_the_pool(app: Dibs, face: str, faced: Any) -> None:
    """Several idle connections, all of which the restart will break."""
    if face == "sync":
        together(*[app.sync.counts] * 5)
        return

    async def five_at_once() -> None:
        import asyncio

        await asyncio.gather(*(app.counts() for _ in range(5)))

    faced._runner.run(five_at_once())


@pytest.mark.parametrize("trouble", ["after"], indirect=True)
def test_a_store_that_is_gone_for_good_is_reported_clearly_and_soon(trouble: Trouble) -> None:
    trouble.face.counts()
    trouble.proxy.refuse()
    trouble.proxy.cut()
    before = time.monotonic()

    with pytest.raises(StoreUnavailable) as gone:
        trouble.face.enqueue(NewJob("work"))

    assert time.monotonic() - before < 10
    assert "s3cret" not in str(gone.value)
    assert f"127.0.0.1:{trouble.proxy.port}" in str(gone.value)
    trouble.proxy.heal()
    assert trouble.face.enqueue(NewJob("work"))[0].is_new


@pytest.mark.parametrize("face", ["async"], indirect=True)
@pytest.mark.parametrize("trouble", ["after"], indirect=True)
def test_a_server_that_takes_connections_and_never_greets_is_not_waited_for(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgresql_pools, mysql_pools, redis_protocol):
        monkeypatch.setattr(module, "CONNECT_TIMEOUT", 0.2)
    trouble.proxy.blackhole()

    with pytest.raises(StoreUnavailable):
        trouble.face.counts()


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("trouble", ["after"], indirect=True)
def test_a_store_that_swallows_everything_is_reported_in_bounded_time(trouble: Trouble) -> None:
    trouble.face.counts()
    trouble.proxy.blackhole()
    before = time.monotonic()

    with pytest.raises(StoreUnavailable) as gone:
        trouble.face.enqueue(NewJob("work"))

    assert time.monotonic() - before < 90
    assert "s3cret" not in str(gone.value)
