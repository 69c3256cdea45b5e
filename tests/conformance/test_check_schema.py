"""Check schema: a table, column or index that is missing or wrong is found, on both faces."""

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dibs import SchemaProblem
from tests.support.faces import Face, open_face
from tests.support.matrix import MYSQLS
from tests.support.raw_sql import bare_store, by_hand
from tests.support.servers import find_binary

WITH_TABLES = ["sqlite", "postgresql", "mariadb", "mysql"]

# What a hurried person does to the tables, and the problem that is expected to be found.
BREAKAGES = {
    "index dibs_jobs_ready of dibs_jobs is missing": {
        "sqlite": ["drop index dibs_jobs_ready"],
        "postgresql": ["drop index dibs_jobs_ready"],
        "mariadb": ["drop index dibs_jobs_ready on dibs_jobs"],
    },
    "index dibs_jobs_ready of dibs_jobs is wrong": {
        "sqlite": ["create index dibs_jobs_ready on dibs_jobs (queue, kind, priority, run_at, id)"],
        "postgresql": ["create index dibs_jobs_ready on dibs_jobs (queue, kind, priority desc, run_at, id)"],
        "mariadb": ["create index dibs_jobs_ready on dibs_jobs (queue, state, kind)"],
    },
    "index dibs_finished_state of dibs_finished is missing": {
        "sqlite": ["drop index dibs_finished_state"],
        "postgresql": ["drop index dibs_finished_state"],
        "mariadb": ["drop index dibs_finished_state on dibs_finished"],
    },
    "index dibs_finished_slot_token of dibs_finished is missing": {
        "sqlite": ["drop index dibs_finished_slot_token"],
        "postgresql": ["drop index dibs_finished_slot_token"],
        "mariadb": ["drop index dibs_finished_slot_token on dibs_finished"],
    },
    "index dibs_jobs_unique_key of dibs_jobs is wrong": {
        "sqlite": [
            "drop index dibs_jobs_unique_key",
            "create index dibs_jobs_unique_key on dibs_jobs (unique_key)",
        ],
        "postgresql": [
            "drop index dibs_jobs_unique_key",
            "create index dibs_jobs_unique_key on dibs_jobs (unique_key) where unique_key is not null",
        ],
        "mariadb": [
            "drop index dibs_jobs_unique_key on dibs_jobs",
            "create index dibs_jobs_unique_key on dibs_jobs (unique_key)",
        ],
    },
    "column message of dibs_finished is missing": {
        engine: ["alter table dibs_finished drop column message"] for engine in WITH_TABLES
    },
    "column message of dibs_finished is wrong": {
        "sqlite": ["alter table dibs_finished add column message integer"],
        "postgresql": ["alter table dibs_finished add column message varchar(10)"],
        "mariadb": ["alter table dibs_finished add column message varchar(10)"],
    },
    "table dibs_parents is missing": {engine: ["drop table dibs_parents"] for engine in WITH_TABLES},
}  # fmt: skip
for by_engine in BREAKAGES.values():
    by_engine["mysql"] = by_engine["mariadb"]


def _said(problems: list[SchemaProblem]) -> str:
    return "\n".join(map(str, problems))


def test_a_store_as_dibs_made_it_has_no_problems(app: Face) -> None:
    app.open()

    assert app.check_schema() == []


@pytest.mark.parametrize("engine", WITH_TABLES)
def test_a_store_that_was_dumped_and_restored_has_no_problems(
    engine: str, face: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = bare_store(engine, request, tmp_path)
    with open_face(face, url) as app:
        app.migrate()
    (tmp_path / "restored").mkdir()
    restored = bare_store(engine, request, tmp_path / "restored")

    _dump_and_restore(url, restored)

    with open_face(face, restored) as app:
        assert app.check_schema() == []


def _dump_and_restore(url: str, restored: str) -> None:
    """With the tools of the database, as its manual says."""
    old, new = urlsplit(url), urlsplit(restored)
    if old.scheme == "sqlite":
        with closing(sqlite3.connect(old.path[1:])) as live, closing(sqlite3.connect(new.path[1:])) as copy:
            copy.executescript("\n".join(live.iterdump()))
    elif old.scheme == "postgresql":
        dump = _run([find_binary("pg_dump", "postgresql-client"), url])
        _run([find_binary("psql", "postgresql-client"), "--quiet", "--set=ON_ERROR_STOP=1", restored], dump)
    else:
        to = ["--host", str(old.hostname), "--port", str(old.port), "--user", str(old.username)]
        whole = ["--single-transaction"]  # without it the tool locks the sequence, which Galera refuses
        dump = _run([find_binary("mariadb-dump", "mariadb-client"), *to, *whole, old.path[1:]])
        _run([find_binary("mariadb", "mariadb-client"), *to, new.path[1:]], dump)


def _run(command: list[str], text: str = "") -> str:
    return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("engine", WITH_TABLES)
def test_whatever_is_missing_or_wrong_is_found(
    engine: str, face: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = bare_store(engine, request, tmp_path)
    with open_face(face, url) as app:
        app.migrate()
        for problem, statements in BREAKAGES.items():
            by_hand(url, *statements[engine])

            assert problem in _said(app.check_schema())

        assert "index dibs_jobs_due" not in _said(app.check_schema())
        found = [str(one) for one in app.doctor() if one.level == "problem"]
        assert any("the table dibs_parents is missing" in one for one in found)


@pytest.mark.parametrize("engine", ["postgresql", "mariadb", "mysql"])
def test_a_store_without_tables_is_told_to_migrate(
    engine: str, face: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with open_face(face, bare_store(engine, request, tmp_path)) as app:
        first, *rest = app.check_schema()

        assert (first.what, first.found) == ("version", "0")
        assert "run `dibs migrate`" in str(first)
        assert {problem.what for problem in rest} == {"table"}


@pytest.mark.parametrize("engine", ["postgresql"])
def test_a_user_who_may_not_make_temporary_tables_is_told(
    engine: str, face: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = bare_store(engine, request, tmp_path)
    database = url.rsplit("/", 1)[1]
    with open_face(face, url) as app:
        app.migrate()
    role = f"modest_{face}"
    by_hand(
        url,
        f"create role {role} login",
        f"grant select, insert, update, delete on all tables in schema public to {role}",
        f"revoke temporary on database {database} from public",
    )
    with open_face(face, url.replace("postgres@", f"{role}@")) as app:
        with pytest.raises(Exception, match="permission denied to create temporary tables"):
            app.check_schema()
        [note] = [one for one in app.doctor() if "were not compared" in one.sentence]

        assert (note.level, app.counts()["ready"]) == ("note", 0)


@pytest.mark.parametrize("engine", WITH_TABLES)
def test_what_others_added_and_what_has_another_prefix_is_no_problem(
    engine: str, face: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = bare_store(engine, request, tmp_path)
    with open_face(face, url, prefix="shop") as app:
        app.migrate()
        by_hand(
            url,
            "create index by_worker on shop_jobs (worker)",
            "alter table shop_jobs add column note integer",
        )

        assert app.check_schema() == []

        by_hand(url, f"drop index shop_jobs_due{' on shop_jobs' if engine in MYSQLS else ''}")

        [problem] = app.check_schema()
        assert (problem.what, problem.table, problem.name) == ("index", "shop_jobs", "shop_jobs_due")
