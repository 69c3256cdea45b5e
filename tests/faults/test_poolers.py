"""PgBouncer in transaction mode between us and the server: nothing may be left in a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from dibs import BadRequest, Dibs, NewJob
from dibs.engines.postgresql.session import SessionMode
from tests.support.commands import dibs
from tests.support.fault_stores import Place, face_of, wait_until
from tests.support.internals import store_of
from tests.support.servers import PgBouncer, PostgreSQL

# Some leave PgBouncer as it comes, others let it swallow what it does not know.
TOLERANT = {"ignore_startup_parameters": "extra_float_digits,options,jit,default_transaction_isolation"}
TOLERANT["ignore_startup_parameters"] += ",plan_cache_mode"
VARIANTS: dict[str, dict[str, Any]] = {"default": {}, "tolerant": TOLERANT}


@pytest.fixture(scope="session", params=VARIANTS)
def bouncer(request: pytest.FixtureRequest, postgresql: PostgreSQL) -> Iterator[PgBouncer]:
    """So few sessions that everybody is given another one all the time."""
    with PgBouncer(postgresql, default_pool_size=2, **VARIANTS[request.param]) as server:
        yield server


@pytest.fixture
def open_behind(bouncer: PgBouncer, postgres: Place) -> Iterator[Callable[..., Dibs]]:
    """Apps that reach the test's database through the pooler."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Dibs:
            app = Dibs(bouncer.url(_database(postgres)), **settings)
            stack.callback(app.sync.close)
            return app

        yield make


def _database(place: Place) -> str:
    return place.url.rpartition("/")[2]


def _mode(app: Dibs, face: str) -> SessionMode:
    store: Any = store_of(app)
    return (store._sync if face == "sync" else store._async).mode


def _work_off(app: Dibs, jobs: int) -> list[Any]:
    """Claim and finish that many jobs, one by one; their ids."""
    done = []
    while len(done) < jobs and (claims := app.sync.claim(kinds=["work"], limit=3)):
        for claim in claims:
            claim.renew()
            claim.succeed(claim.job.args)
            done.append(claim.job.id)
    return done


async def _work_off_awaited(app: Dibs, jobs: int) -> list[Any]:
    done = []
    while len(done) < jobs and (claims := await app.claim(kinds=["work"], limit=3)):
        for claim in claims:
            await claim.renew()
            await claim.succeed(claim.job.args)
            done.append(claim.job.id)
    return done


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_pooler_is_recognised_at_the_first_connection(open_behind: Callable[..., Dibs], face: str) -> None:
    app = open_behind()

    with face_of(app, face) as verbs:
        [job] = verbs.enqueue(NewJob("work"))
        verbs.claim_job(job.id).succeed("well")

        assert verbs.get(job.id).result == "well"
    assert _mode(app, face) == SessionMode(pooled=True, bare=True)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_server_is_not_taken_for_a_pooler(postgres: Place, face: str) -> None:
    app = postgres.app()

    with face_of(app, face) as verbs:
        verbs.enqueue(NewJob("work"))
        assert verbs.counts()["ready"] == 1

    assert _mode(app, face) == SessionMode(pooled=None, bare=False)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_nothing_is_left_in_a_session(
    open_behind: Callable[..., Dibs], bouncer: PgBouncer, postgres: Place, face: str
) -> None:
    with face_of(open_behind(), face) as verbs:
        for _ in range(5):
            [job] = verbs.enqueue(NewJob("work"))
            verbs.claim_job(job.id).succeed()
        verbs.enqueue(*(NewJob("bulk") for _ in range(600)))

        with psycopg.connect(bouncer.url(_database(postgres)), autocommit=True) as one:
            with psycopg.connect(bouncer.url(_database(postgres)), autocommit=True) as other:
                left = [_left_in_session(session) for session in (one, other)]

    assert left == [(0, "on", "read committed")] * 2


def _left_in_session(session: psycopg.Connection[Any]) -> tuple[Any, ...]:
    session.execute("begin")  # keeps this session from going to the other connection
    row = session.execute(
        "select (select count(*) from pg_prepared_statements), current_setting('jit'),"
        " current_setting('default_transaction_isolation')"
    ).fetchone()
    assert row is not None
    return row


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_a_crowd_behind_a_pooler_gets_every_job_once(
    open_behind: Callable[..., Dibs], postgres: Place, isolation: str
) -> None:
    postgres.sql(f"alter database {_database(postgres)} set default_transaction_isolation = '{isolation}'")
    app = open_behind()
    jobs = app.sync.enqueue(*(NewJob("work", {"number": number}) for number in range(90)))

    with ThreadPoolExecutor(6) as threads:
        done = [id for ids in threads.map(lambda _: _work_off(open_behind(), 90), range(6)) for id in ids]

    assert sorted(done) == sorted(job.id for job in jobs)
    assert app.sync.counts()["succeeded"] == 90


@pytest.mark.parametrize("bouncer", ["tolerant"], indirect=True)
@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_pooler_that_hides_itself_is_known_by_the_statements_it_loses(
    open_behind: Callable[..., Dibs], face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionMode, "learn_from_pid", lambda self, is_own: False)
    apps = [open_behind() for _ in range(4)]
    apps[0].sync.enqueue(*(NewJob("work", {"number": number}) for number in range(200)))

    if face == "sync":
        with ThreadPoolExecutor(4) as threads:
            done = [id for ids in threads.map(lambda app: _work_off(app, 200), apps) for id in ids]
    else:
        done = asyncio.run(_crowd(apps))

    found = apps[0].sync.find(state="succeeded", limit=1000)
    assert sorted(done) == sorted(job.id for job in found)
    assert sorted(job.result["number"] for job in found) == list(range(200))
    assert any(_mode(app, face).pooled for app in apps), "no statement was ever lost"


async def _crowd(apps: list[Dibs]) -> list[Any]:
    try:
        done = await asyncio.gather(*(_work_off_awaited(app, 200) for app in apps))
    finally:
        for app in apps:
            await app.close()
    return [id for ids in done for id in ids]


def test_prepared_statements_have_names_that_nobody_else_gives(
    postgresql: PostgreSQL, postgres: Place
) -> None:
    """Behind a pooler that we don't recognise, a name that two use would run the other one's statement."""
    names: list[str] = []
    for _ in range(2):
        app = Dibs(postgres.url)
        for _ in range(4):
            app.sync.counts()
        names += _prepared(store_of(app)._sync._idle[0])  # type: ignore[attr-defined]
        app.sync.close()
        names += asyncio.run(_prepared_awaited(Dibs(postgres.url)))

    assert len(names) >= 4
    assert len(set(names)) == len(names)
    assert not any(name.startswith("__asyncpg") or name == "_pg3_0" for name in names), names


def _prepared(connection: Any) -> list[str]:
    return [row["name"] for row in connection.execute("select name from pg_prepared_statements")]


async def _prepared_awaited(app: Dibs) -> list[str]:
    await app.counts()
    store: Any = store_of(app)
    rows = await store._async._idle[0].fetch("select name from pg_prepared_statements")
    await app.close()
    return [row["name"] for row in rows]


def test_verify_kills_and_freezes_behind_a_pooler(bouncer: PgBouncer, postgres: Place) -> None:
    url = bouncer.url(_database(postgres))

    done = dibs("verify", url, "--jobs", "150", "--workers", "3", "--kills", "1", "--freezes", "1")

    assert (done.exit_code, done.stderr) == (0, "")
    assert "trains out of order = 0" in done.stdout


@pytest.mark.parametrize("face", ["sync", "async"])
def test_times_are_in_utc_whatever_the_sessions_of_the_pooler_have(
    open_behind: Callable[..., Dibs], postgres: Place, face: str
) -> None:
    postgres.sql(f"alter database {_database(postgres)} set timezone = 'Asia/Kolkata'")

    with face_of(open_behind(), face) as verbs:
        [job] = verbs.enqueue(NewJob("work"))
        claim = verbs.claim_job(job.id)

        assert claim.job.run_at == job.run_at
        assert [at.utcoffset() for at in (job.run_at, claim.job.claimed_at)] == [timedelta(0)] * 2


@pytest.mark.parametrize("pooled", [True, False])
def test_what_the_app_is_told_is_not_looked_for(postgres: Place, pooled: bool) -> None:
    app = postgres.app(pooled=pooled)

    app.sync.enqueue(NewJob("work"))

    assert _mode(app, "sync") == SessionMode(pooled=pooled, bare=pooled)


@pytest.mark.parametrize("bouncer", ["default"], indirect=True)
def test_parameters_that_a_pooler_refuses_are_left_out_also_where_sessions_are_kept(
    open_behind: Callable[..., Dibs],
) -> None:
    app = open_behind(pooled=False)

    app.sync.enqueue(NewJob("work"))

    assert _mode(app, "sync") == SessionMode(pooled=False, bare=True)


def test_a_server_that_became_a_replica_is_left_for_its_successor(postgres: Place) -> None:
    """Old connections then say that nothing can be written; new ones may lead to the new primary."""
    app = postgres.app()
    app.sync.enqueue(NewJob("work"))
    database = _database(postgres)
    [(session,)] = postgres.sql(
        "select pid from pg_stat_activity where datname = %s and application_name = 'dibs'", database
    )
    store_of(app)._sync._idle[0].execute("set default_transaction_read_only = on")  # type: ignore[attr-defined]

    app.sync.enqueue(NewJob("work"))

    assert app.sync.counts()["ready"] == 2
    wait_until(lambda: not postgres.sql("select 1 from pg_stat_activity where pid = %s", session))


def test_a_listen_url_of_another_kind_is_refused_without_telling_its_password() -> None:
    with pytest.raises(BadRequest, match="'redis' URL and the store is PostgreSQL") as refused:
        Dibs("postgresql://localhost/shop", listen_url="redis://:secret@localhost")

    assert "secret" not in str(refused.value)
