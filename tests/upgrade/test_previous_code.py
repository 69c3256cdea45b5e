"""The code from before the newest migration, read from the history of this repository, works beside it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import create_engine

import dibs.integrations.alembic  # noqa: F401 (adds the operations)
from dibs import Dibs
from dibs.engines.sql.blocks import schema_version
from tests.support.raw_sql import bare_store, sqlalchemy_url

ROOT = Path(__file__).parents[2]
NEWEST = schema_version("postgresql")
FOLDERS = {"sqlite": "sqlite", "postgresql": "postgresql", "mariadb": "mysql"}

# Works all the time. For every line that it is sent it enqueues 50 jobs, and says how many succeeded.
WORKER = """
import asyncio, sys
from dibs import Dibs, Worker

app = Dibs(sys.argv[1], poll=0.5)

@app.job
async def work(number: int) -> int:
    return number

async def main():
    async with asyncio.TaskGroup() as both:
        both.create_task(Worker(app, concurrency=4).run())
        while await asyncio.to_thread(sys.stdin.readline):
            jobs = await app.enqueue(*(work.new(n) for n in range(50)))
            ended = [await app.wait(job.id, timeout=100) for job in jobs]
            well = [job.state == "succeeded" and job.result == n for n, job in enumerate(ended)]
            print(sum(well), flush=True)

asyncio.run(main())
"""


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout


def _commit_before(engine: str) -> str:
    """The last one without the newest migration."""
    [file] = (ROOT / "src/dibs/engines" / FOLDERS[engine] / "schema").glob(f"{NEWEST:04}_*.sql")
    added = _git("log", "--follow", "--diff-filter=A", "--format=%H", "--", str(file)).decode().split()
    if not added:  # not committed yet: what is committed is the previous code
        return "HEAD"
    return f"{added[-1]}^"


@contextmanager
def _worker_of(commit: str, url: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "src"))) as archive:
        archive.extractall(folder / "then", filter="data")
    (folder / "worker.py").write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": str(folder / "then" / "src")}
    process = subprocess.Popen(
        [sys.executable, str(folder / "worker.py"), url],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:  # also when it failed, and would not end by itself
            process.kill()


def _do_fifty(worker: subprocess.Popen[str]) -> str:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    return worker.stdout.readline()


def _operate(url: str, verb: str, to: int) -> None:
    engine = create_engine(sqlalchemy_url(url))
    with engine.begin() as connection:
        getattr(Operations(MigrationContext.configure(connection)), verb)(to=to)
    engine.dispose()


@pytest.mark.long
@pytest.mark.parametrize("engine", FOLDERS)
def test_the_previous_code_works_while_its_tables_go_up_down_and_up(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = bare_store(engine, request, tmp_path)
    _operate(url, "dibs_upgrade", NEWEST - 1)

    with _worker_of(_commit_before(engine), url, tmp_path) as worker:
        for verb, to in (("dibs_upgrade", NEWEST), ("dibs_downgrade", NEWEST - 1), ("dibs_upgrade", NEWEST)):
            assert _do_fifty(worker) == "50\n"
            _operate(url, verb, to)
        assert _do_fifty(worker) == "50\n"

    app = Dibs(url).sync
    assert (app.schema_version(), app.check_schema(), app.counts()["succeeded"]) == (NEWEST, [], 200)
    app.close()
