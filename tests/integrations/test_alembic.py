"""Alembic brings the tables of dibs up and down, beside a user's own, on every database that has tables."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import produce_migrations
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, create_engine, inspect
from sqlalchemy.ext.asyncio import create_async_engine

import dibs.integrations.alembic
from dibs import BadRequest, Dibs, NewJob
from dibs.engines.sql import blocks, migrations
from dibs.engines.sql.blocks import schema_files, schema_version, statements
from tests.support.guides import write_project
from tests.support.internals import store_of
from tests.support.raw_sql import bare_store, by_hand, sqlalchemy_url

NEWEST = schema_version("postgresql")

ENV = """
from alembic import context
from sqlalchemy import create_engine

import dibs.integrations.alembic

url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(url)
    with engine.connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()
"""

REVISION = """
from alembic import op

revision, down_revision = {name!r}, {before!r}

def upgrade():
    {up}

def downgrade():
    {down}
"""

TWO_STEPS = [
    ("one", "op.dibs_upgrade(to=1)", "op.dibs_downgrade(to=0, since=1)"),
    ("all", f"op.dibs_upgrade(to={NEWEST})", f"op.dibs_downgrade(to=1, since={NEWEST})"),
]


class Project:
    """A user's Alembic folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.printed = io.StringIO()
        self.config = Config(output_buffer=self.printed)
        self.config.set_main_option("script_location", str(folder / "migrations"))
        self.config.set_main_option("sqlalchemy.url", sqlalchemy_url(url).replace("%", "%%"))
        self.versions = folder / "migrations" / "versions"
        self.versions.mkdir(parents=True)
        (folder / "migrations" / "env.py").write_text(ENV)
        self._last: str | None = None

    def revise(self, name: str, up: str, down: str) -> None:
        text = REVISION.format(name=name, before=self._last, up=up, down=down)
        (self.versions / f"{name}.py").write_text(text)
        self._last = name

    def upgrade(self, to: str = "head") -> None:
        command.upgrade(self.config, to)

    def downgrade(self, to: str = "base") -> None:
        command.downgrade(self.config, to)

    def sql(self, direction: str, to: str) -> str:
        """Return what `alembic … --sql` prints."""
        self.printed.seek(self.printed.truncate(0))
        getattr(command, direction)(self.config, to, sql=True)
        return self.printed.getvalue()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return bare_store(request.param, request, tmp_path)


@pytest.fixture
def project(url: str, tmp_path: Path) -> Project:
    project = Project(tmp_path, url)
    for revision in TWO_STEPS:
        project.revise(*revision)
    return project


def _tables(url: str) -> list[str]:
    listed = {
        "s": "select name from sqlite_master where type = 'table'",
        "p": "select tablename from pg_tables where schemaname = 'public'",
        "m": "show tables",
    }[url[0]]
    return sorted(name for (name,) in by_hand(url, listed) if name.startswith("dibs_"))


def test_up_down_and_up_again_is_what_migrate_makes(project: Project, url: str) -> None:
    project.upgrade()
    project.downgrade()
    assert _tables(url) == []

    project.upgrade("one")
    assert by_hand(url, "select max(version) from dibs_schema") == [(1,)]
    project.upgrade()

    app = Dibs(url).sync
    assert (app.schema_version(), app.check_schema(), app.migrate()) == (NEWEST, [], [])
    assert app.enqueue(NewJob("work"))[0].is_new
    app.close()


def test_what_migrate_has_done_is_left_alone(project: Project, url: str) -> None:
    app = Dibs(url).sync
    app.migrate()
    [job] = app.enqueue(NewJob("work"))
    project.upgrade()

    assert app.get(job.id) is not None
    app.close()


def test_two_prefixes_go_their_own_ways(url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, url)
    project.revise("a", "op.dibs_upgrade(prefix='shop')", "op.dibs_downgrade(to=0, prefix='shop')")
    project.revise("b", "op.dibs_upgrade()", "op.dibs_downgrade(to=0)")
    project.upgrade()
    shop = Dibs(url, prefix="shop").sync
    shop.enqueue(NewJob("work"))

    project.downgrade("a")

    assert _tables(url) == []
    assert (shop.check_schema(), shop.counts()["ready"]) == ([], 1)
    shop.close()


def test_offline_it_prints_statements_that_do_the_same(project: Project, url: str) -> None:
    app = Dibs(url).sync

    by_hand(url, *statements(project.sql("upgrade", "head")))
    assert (app.schema_version(), app.check_schema()) == (NEWEST, [])
    app.close()

    by_hand(url, *statements(project.sql("downgrade", "all:base")))
    assert _tables(url) == []


def test_offline_one_begins_where_one_says(url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, url)
    project.revise("later", f"op.dibs_upgrade(since=1, to={NEWEST})", "op.dibs_downgrade(to=1)")

    printed = project.sql("upgrade", "head")

    assert "dibs_jobs_ready" not in printed
    assert f"values ({NEWEST})" in printed


def test_autogenerate_leaves_the_tables_of_dibs_alone(url: str) -> None:
    for prefix in ("dibs", "shop"):
        app = Dibs(url, prefix=prefix).sync
        app.migrate()
        app.close()
    by_hand(url, "create table forgotten (id integer)", "create table order_jobs (id integer)")
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    engine = create_engine(sqlalchemy_url(url))

    with engine.connect() as connection:
        found = produce_migrations(MigrationContext.configure(connection), metadata)
    engine.dispose()

    assert found.upgrade_ops is not None
    names = {(type(op).__name__, op.table_name) for op in found.upgrade_ops.ops}  # type: ignore[attr-defined]
    assert names == {
        *(("CreateTableOp", "orders"), ("DropTableOp", "forgotten"), ("DropTableOp", "order_jobs")),
    }


def test_a_version_that_this_dibs_does_not_know_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    project.revise("far", "op.dibs_upgrade(to=9999)", "op.dibs_downgrade(to=-1)")

    with pytest.raises(BadRequest, match="no schema version 9999"):
        project.upgrade()


# -- With workers beside ------------------------------------------------------------------------

WORKER = """
import asyncio, sys
from dibs import Dibs, Worker

app = Dibs(sys.argv[1], poll=0.5)

@app.job
async def work(number: int) -> int:
    return number

asyncio.run(Worker(app, concurrency=4).run())
"""

NEXT = """
alter table dibs_jobs add column hue integer;
create index dibs_jobs_hue on dibs_jobs (hue);
create table dibs_hues (name varchar(20) not null primary key);
insert into dibs_hues values ('blue');
"""


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> int:
    """Add a schema version that only this process knows."""

    def with_next(dialect: str) -> Iterator[tuple[int, str]]:
        yield from schema_files(dialect)
        yield NEWEST + 1, NEXT

    for module in (blocks, migrations, dibs.integrations.alembic):
        monkeypatch.setattr(module, "schema_files", with_next)
    return NEWEST + 1


@contextmanager
def _worker(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "worker.py").write_text(WORKER)
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, str(folder / "worker.py"), url], stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def test_up_down_and_up_with_a_worker_of_the_previous_schema_beside(
    url: str, tmp_path: Path, next_version: int
) -> None:
    project = Project(tmp_path, url)
    project.revise("now", f"op.dibs_upgrade(to={NEWEST})", "op.dibs_downgrade(to=0)")
    project.revise("next", f"op.dibs_upgrade(to={next_version})", f"op.dibs_downgrade(to={NEWEST})")
    project.upgrade("now")
    app, jobs = Dibs(url).sync, []
    store_of(app)._checked = store_of(app)._migrated = True  # type: ignore[attr-defined]

    with _worker(url, tmp_path) as worker:
        for move in (None, project.upgrade, partial(project.downgrade, "now"), project.upgrade):
            jobs += app.enqueue(*(NewJob("work", {"number": n}) for n in range(50)))
            if move is not None:
                move()
            app.wait(jobs[-1].id, timeout=60)
            assert worker.poll() is None

    assert by_hand(url, "select max(version) from dibs_schema") == [(next_version,)]
    assert by_hand(url, "select name from dibs_hues") == [("blue",)]
    ended = [app.get(job.id) for job in jobs]
    assert [(job.state, job.attempts) for job in ended if job is not None] == [("succeeded", 1)] * 200
    app.close()


# -- Step by step -------------------------------------------------------------------------------


def test_each_version_is_undone_to_what_was_there_before(url: str) -> None:
    engine = create_engine(sqlalchemy_url(url))
    seen = [_described(engine)]
    for version in range(1, NEWEST + 1):
        _operate(engine, "dibs_upgrade", to=version)
        seen.append(_described(engine))

    for version in reversed(range(NEWEST)):
        assert _described(engine) == seen[version + 1]
        _operate(engine, "dibs_downgrade", to=version)

    assert _described(engine) == seen[0] == {}
    engine.dispose()


def _operate(engine: Engine, verb: str, **options: int) -> None:
    with engine.begin() as connection:
        _operate_on(connection, verb, **options)


def _operate_on(connection: Connection, verb: str, **options: int) -> None:
    getattr(Operations(MigrationContext.configure(connection)), verb)(**options)


def _described(engine: Engine) -> dict[str, object]:
    """Return every table with its columns and indexes."""
    inspector = inspect(engine)
    return {
        table: (
            [
                (column["name"], str(column["type"]), column["nullable"])
                for column in inspector.get_columns(table)
            ],
            sorted(str(index["name"]) for index in inspector.get_indexes(table)),
        )
        for table in inspector.get_table_names()
    }


def test_an_index_that_was_made_beforehand_is_found_there(url: str) -> None:
    """Create it as on a large store, while workers run."""
    engine = create_engine(sqlalchemy_url(url))
    _operate(engine, "dibs_upgrade", to=7)
    columns = "(state)" if url.startswith("mysql") else "(state, id) where state <> 'succeeded'"
    by_hand(url, f"create index dibs_finished_state on dibs_finished {columns}")

    _operate(engine, "dibs_upgrade", to=8)
    app = Dibs(url).sync
    app.migrate()

    engine.dispose()
    assert app.check_schema() == []
    app.close()


def test_an_async_engine_does_the_same(url: str) -> None:
    drivers = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy", "sqlite": "sqlite+aiosqlite"}
    scheme, rest = url.split(":", 1)

    async def up_down_and_up() -> None:
        engine = create_async_engine(f"{drivers[scheme]}:{rest}")
        for verb, to in (("dibs_upgrade", NEWEST), ("dibs_downgrade", 1), ("dibs_upgrade", NEWEST)):
            async with engine.begin() as connection:
                await connection.run_sync(_operate_on, verb, to=to)
        await engine.dispose()

    asyncio.run(up_down_and_up())

    app = Dibs(url).sync
    assert (app.schema_version(), app.check_schema()) == (NEWEST, [])
    app.close()


def test_the_guide_does_what_it_says(url: str, tmp_path: Path) -> None:
    names = write_project("alembic.md", tmp_path)
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "migrations"))
    config.set_main_option("sqlalchemy.url", sqlalchemy_url(url))

    command.upgrade(config, "head")
    version = by_hand(url, "select max(version) from dibs_schema")
    command.downgrade(config, "base")

    assert names == ["migrations/env.py", "migrations/versions/0001_jobs.py"]
    assert version == [(NEWEST,)], "the guide leaves its readers with tables that this dibs refuses"
    assert _tables(url) == []
