"""Migrate: tables that make themselves, or are made on request; one version, many prefixes."""

import contextlib
import sqlite3
from pathlib import Path
from uuid import UUID

import pytest

from dibs import BadRequest, Dibs, NewJob, SchemaOutdated
from dibs.engines.sql.blocks import schema_files, schema_version
from tests.support.faces import Face, Make, needs, open_face
from tests.support.servers import MariaDB, PostgreSQL


@pytest.fixture
def bare_url(engine: str, url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that no dibs has ever seen."""
    if engine in ("memory", "redis", "redis-cluster"):
        return url
    if engine == "sqlite":
        return f"sqlite:///{tmp_path}/bare.db"
    server: PostgreSQL | MariaDB = request.getfixturevalue(engine)
    return server.fresh_database()


def test_a_bare_store_migrates_itself_or_says_what_to_do(bare_url: str, face: str) -> None:
    with open_face(face, bare_url) as app:
        if app.traits.migrates_itself:
            assert app.enqueue(NewJob("work"))[0].is_new
        else:
            with pytest.raises(SchemaOutdated, match="dibs migrate"):
                app.enqueue(NewJob("work"))
            assert app.schema_version() == 0


def test_every_verb_says_that_the_tables_are_missing(bare_url: str, face: str) -> None:
    with open_face(face, bare_url) as app:
        if app.traits.migrates_itself:
            pytest.skip("this store migrates itself")
        for verb in ("claim", "counts", "sweep", "queues", "open"):
            with pytest.raises(SchemaOutdated, match="no dibs tables"):
                getattr(app, verb)()


def test_migrating_makes_the_tables_once(bare_url: str, face: str) -> None:
    with open_face(face, bare_url) as app:
        first, second = app.migrate(), app.migrate()

        assert second == []
        assert first in ([], list(range(1, app.schema_version() + 1)))
        assert app.schema_version() >= 1
        assert app.enqueue(NewJob("work"))[0].is_new


def test_migrating_with_nothing_to_do_says_nothing(
    bare_url: str, face: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the words of a driver either: asyncmy logs every warning of the server."""
    with open_face(face, bare_url) as app:
        app.migrate()
        caplog.clear()
        capfd.readouterr()

        assert app.migrate() == []

        assert caplog.records == []
        assert capfd.readouterr() == ("", "")


def test_an_app_that_met_a_bare_store_works_once_it_is_migrated(bare_url: str, face: str) -> None:
    with open_face(face, bare_url) as app:
        if not app.traits.migrates_itself:
            with pytest.raises(SchemaOutdated):
                app.counts()

        app.migrate()

        assert sum(app.counts().values()) == 0


def test_those_who_migrate_at_once_do_not_collide(bare_url: str, face: str) -> None:
    with open_face(face, bare_url) as app:
        answers = app.race(4, "migrate")

        assert [answer for answer in answers if isinstance(answer, Exception)] == []
        assert sum(map(len, answers)) in (0, app.schema_version())


def test_the_version_of_a_ready_store_is_known(app: Face) -> None:
    app.open()

    assert app.schema_version() == schema_version("postgresql")
    assert app.migrate() == []


def test_two_prefixes_are_two_stores_in_one_place(bare_url: str, face: str) -> None:
    with open_face(face, bare_url, prefix="one") as one, open_face(face, bare_url, prefix="two") as two:
        one.migrate()
        two.migrate()
        make = Make(one)

        job, claim = make.ready(unique="key"), make.running()
        one.pause("default")
        claim.fail("broken")
        one.sweep()

        assert two.get(job.id) is None
        assert sum(two.counts().values()) == 0
        assert Make(two).ready(unique="key").is_new
        assert len(two.claim()) == 1


@pytest.mark.parametrize("prefix", ["", "1a", "a-b", "a b", 'a"b', "x" * 32, "a;drop", "ä"], ids=repr)
def test_a_prefix_that_can_not_name_tables_is_refused(prefix: str) -> None:
    with pytest.raises(BadRequest, match="prefix"):
        Dibs("memory://", prefix=prefix)


# -- Open and close -----------------------------------------------------------------------------


def test_what_was_stored_is_there_after_closing(app: Face, make: Make, open_app) -> None:
    needs(app, "durable")
    job = make.succeeded(result=[1], tags=["a"], meta={"b": 2})

    app.close()

    assert open_app().get(job.id) == job


def test_a_closed_app_opens_again_at_the_next_call(app: Face, make: Make) -> None:
    job = make.ready()

    app.close()
    app.close()

    assert app.get(job.id).id == job.id


def test_two_apps_on_one_store_share_its_jobs(app: Face, make: Make, open_app) -> None:
    needs(app, "shared")
    other = open_app()
    job = make.ready(unique="key")

    claim = other.claim_job(job.id)
    claim.succeed("by the other")

    assert app.get(job.id).result == "by the other"
    assert Make(other).ready(unique="key").is_new
    assert len(app.claim()) == 1


def test_two_apps_in_memory_share_nothing(face: str) -> None:
    with open_face(face, "memory://") as one, open_face(face, "memory://") as two:
        job = Make(one).ready()

        assert two.get(job.id) is None


def test_both_faces_of_an_app_see_the_same_jobs(app: Face, make: Make) -> None:
    job = make.ready()

    assert app.app.sync.get(job.id).id == job.id
    app.app.sync.close()


@pytest.mark.parametrize("face", ["sync"], indirect=True)
def test_with_opens_and_closes_the_blocking_face(url: str, face: str) -> None:
    with Dibs(url).sync as app:
        assert sum(app.counts().values()) == 0


@pytest.mark.parametrize("face", ["async"], indirect=True)
def test_async_with_opens_and_closes_the_app(url: str, face: str) -> None:
    import asyncio

    async def count() -> int:
        async with Dibs(url) as app:
            return sum((await app.counts()).values())

    assert asyncio.run(count()) == 0


def test_one_app_serves_one_event_loop_after_another(url: str) -> None:
    import asyncio

    app = Dibs(url)

    async def enqueue_and_close() -> int:
        await app.enqueue(NewJob("work"))
        counted = (await app.counts())["ready"]
        await app.close()
        return counted

    assert [asyncio.run(enqueue_and_close()) for _ in range(3)] == [1, 2, 3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what that loop left open
def test_an_app_that_was_used_in_a_loop_that_is_over_can_be_closed_in_another(url: str) -> None:
    import asyncio

    app = Dibs(url)
    asyncio.run(app.counts())

    asyncio.run(app.close())

    assert sum(asyncio.run(app.counts()).values()) == 0
    asyncio.run(app.close())


# -- From an earlier version --------------------------------------------------------------------


@pytest.mark.parametrize("face", ["sync"], indirect=True)
def test_jobs_of_version_3_go_on_after_an_upgrade(tmp_path: Path, face: str) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    waiting, done = NewJob("work"), NewJob("work")
    _make_version_3(tmp_path / "old.db", waiting.id, done.id)

    with open_face(face, url) as app:
        assert app.get(done.id).state == "succeeded"
        app.claim_job(waiting.id).succeed()
        jobs = app.enqueue(NewJob("work", train="t"), NewJob("work", train="t"))

        assert app.schema_version() >= 4
        assert [job.state for job in jobs] == ["ready", "blocked"]


def _make_version_3(file: Path, waiting: UUID, done: UUID) -> None:
    """A store as dibs made it before there were trains and slots."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("create table dibs_schema (version integer not null primary key)")
        for version, text in schema_files("sqlite"):
            if version <= 3:
                connection.executescript(text)
                connection.execute("insert into dibs_schema (version) values (?)", [version])
        common = "insert into {} (id, kind, queue, args, priority, state, max_attempts, run_at, enqueued_at"
        live = f"{common.format('dibs_jobs')}) values (?, 'work', 'default', '{{}}', 0, 'ready', 3, 1, 1)"
        connection.execute(live, [str(waiting)])
        rest = "attempts, on_cancelled, on_failed, progress, errors, tags, meta"
        ended = f"{common.format('dibs_finished')}, {rest}) values (?, 'work', 'default', '{{}}', 0, "
        ended += "'succeeded', 3, 1, 1, 1, 'advance', 'advance', 0, '[]', '[]', '{}')"
        connection.execute(ended, [str(done)])
        connection.commit()
